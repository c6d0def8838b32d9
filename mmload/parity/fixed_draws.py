"""Runs torchvision's own transforms with mmload's draws, sample by sample and step by step.

Takes the steps of a collate, the samples' seeds and a stored row, and returns torchvision's result for the row with
the same windows, flips and factors. It never calls mmload's own rendering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import Trail, boxes_in, followed
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.mix import MixStep
from mmload.augment.step import Step
from mmload.batch import Batch
from mmload.interop.torchvision import conversion, equivalent_of
from mmload.parity.detection_draws import boxes_for
from mmload.parity.draws import Shape
from mmload.parity.level_reference import Allowance, Items, changed
from mmload.parity.mixed_reference import mixed
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows
from mmload.store.whole_rows import MAX_PIXELS

_PLACED = augment.ScaleJitter | augment.RandomShortestSize
_ROUNDED = augment.RandomResizedCrop | augment.Resize | augment.Letterbox | augment.RandomGrayscale | _PLACED
"""Steps whose levels are rounded sums."""


class Drawn(NamedTuple):
    """The draws of a step for a batch.

    Attributes:
        plan: of the step, after that of the steps before it where images have a size each.
        windows: each sample's, within what the step before gave.
        sizes: (height, width) of what the step gives, each sample's.
    """

    plan: Plan
    windows: list[Window]
    sizes: list[tuple[int, int]]


def followable(collate: Collate, shape: Shape, *, alone: bool = False) -> tuple[list[nn.Module], str]:
    """The steps before the first that cannot be replayed for images of ``shape``, and the name of that step and why.

    Args:
        collate: the steps.
        shape: (C, H, W).
        alone: samples are replayed one by one, so none that mixes them is.
    """
    steps: list[nn.Module] = []
    nothing = torch.zeros(1, dtype=torch.int64)
    plan = _blank(1, shape)
    for step in collate.steps:
        noise = isinstance(step, augment.RandomErasing) and step.value is None
        if noise or not isinstance(step, Step) or (alone and isinstance(step, MixStep)):
            return steps, f"{type(step).__name__}, {_ALONE}"
        plan = plan if plan.is_ragged else _blank(1, (shape[0], plan.height, plan.width))
        plan = step.describe(plan, Draws(nothing, 0, epoch=0, ids=nothing, boxes=boxes_for(shape, 1)))
        if _mirrors_twice(plan):
            return steps, f"{type(step).__name__} with padding wider than the image, {_ALONE}"
        steps.append(step)
    return steps, ""


_ALONE = "which torchvision does not do to one sample alone"


def _blank(count: int, shape: Shape) -> Plan:
    return Plan.of(count, shape, 255.0, torch.device("cpu"))


def _mirrors_twice(plan: Plan) -> bool:
    """Whether padding mirrors the image more than once, which torchvision rejects or computes incorrectly."""
    padding = plan.padding
    if padding is None or padding.mode not in ("reflect", "symmetric"):
        return False
    repeated = padding.mode == "symmetric"
    return any(margin >= side + repeated for margin, side in zip(padding.margin, plan.source[1:], strict=True))


def drawn(steps: Sequence[nn.Module], stored: Batch, seeds: Tensor, epoch: int, ids: Tensor) -> list[Drawn]:
    """The draws of each step for a batch of an epoch; those that depend on boxes see them where mmload moves them."""
    drawn_by_step: list[Drawn] = []
    rows: Batch = stored.replace(images=None, masks=None)
    trail: Trail | None = None
    _, channels, height, width = stored.images.shape
    plan = _blank(len(seeds), (channels, height, width))
    for index, step in enumerate(steps):
        if not isinstance(step, Step):
            raise TypeError(f"{type(step).__name__} cannot be replayed in torchvision")
        boxes = None if rows.boxes is None else partial(boxes_in, rows, trail=trail)
        start = plan if plan.is_ragged else _blank(len(seeds), (channels, plan.height, plan.width))
        plan = step.describe(start, Draws(seeds, index, epoch=epoch, ids=ids, boxes=boxes))
        after = windows(plan)
        size = plan.height, plan.width
        sizes = [(one.rows, one.cols) if plan.is_ragged else size for one in after]
        if start.is_ragged:
            after = [_within(old, new) for old, new in zip(windows(start), after, strict=True)]
        drawn_by_step.append(Drawn(plan, after, sizes))
        if not plan.is_ragged:
            rows, trail = followed(rows, plan, trail)
    return drawn_by_step


def _within(old: Window, new: Window) -> Window:
    """A window and flips of a source as they are seen in an older window of it, flipped as that says."""
    top, left = new.top - old.top, new.left - old.left
    top = old.rows - new.rows - top if -2 in old.flips else top
    left = old.cols - new.cols - left if -1 in old.flips else left
    flips = tuple(axis for axis in (-1, -2) if (axis in old.flips) != (axis in new.flips))
    return Window(top, left, new.rows, new.cols, 0, 0, flips)


def beyond_torch(draw: Drawn) -> bool:
    """Whether a step resizes one sample to a size that torch gets wrong, or that takes gigabytes for a part of it.

    mmload computes only what a crop keeps of it. torch returns wrong pixels for a width of 1 (2.11 and 2.15).
    """
    how = draw.plan.resampling
    if how is None or draw.plan.count > 1:
        return False
    placed = how.placement
    rows, cols = (how.height, how.width) if placed is None else (int(placed.rows), int(placed.cols))
    return rows * cols > MAX_PIXELS or cols == 1


def results(
    steps: Sequence[nn.Module], draws: Sequence[Drawn], stored: Batch, dtype: torch.dtype
) -> list[tuple[Items, Allowance]]:
    """Torchvision's results for stored rows.

    Args:
        steps: of a collate, each supported by :func:`followable`.
        draws: the draws of the steps, from :func:`drawn`.
        stored: the stored rows of a batch.
        dtype: the dtype of the collate.

    Returns:
        For each row ``images`` in that dtype, and ``boxes``, ``masks`` and ``targets`` if the rows have them; and the
        allowance for the difference of mmload's image.
    """
    rows = [(_row(stored, k), Allowance()) for k in range(len(stored.images))]
    to_floats = conversion(Collate(*steps, dtype=dtype))
    for index, (step, draw) in enumerate(zip(steps, draws, strict=True)):
        if index == to_floats and dtype != torch.uint8:
            rows = [(_as_floats(items), allowance) for items, allowance in rows]
        if isinstance(step, MixStep) and draw.plan.mixing is not None:
            rows = mixed(step, rows, draw.plan.mixing)
        else:
            rows = [_after(step, items, allowance, draw, k) for k, (items, allowance) in enumerate(rows)]
    if to_floats == len(steps) and dtype != torch.uint8:
        rows = [(_as_floats(items), allowance) for items, allowance in rows]
    return [(items | {"images": items["images"].as_subclass(Tensor).to(dtype)}, one) for items, one in rows]


def _as_floats(items: Items) -> Items:
    return items | {"images": F.to_dtype(items["images"], torch.float32, scale=True)}


def _after(step: nn.Module, items: Items, allowance: Allowance, draw: Drawn, k: int) -> tuple[Items, Allowance]:
    """Sample ``k`` after one step that mixes no samples."""
    targets = {name: items[name] for name in items if name == "targets"}
    pixels = {name: item for name, item in items.items() if name != "targets"}
    if draw.plan.program is not None:
        pixels, allowance = changed(pixels, draw.plan.program, k, allowance)
        return pixels | targets, allowance
    pixels = _transformed(step, pixels, draw.plan, draw.windows[k], k)
    if isinstance(
        step, augment.RandomResizedCrop | augment.Resize | augment.Letterbox | augment.RandomGrayscale | _PLACED
    ):
        allowance = replace(allowance, levels=allowance.levels + 1)
    return pixels | targets, allowance


def _row(stored: Batch, k: int) -> Items:
    """Row ``k`` in the format of torchvision."""
    row: Items = {"images": tv_tensors.Image(stored.images[k])}
    size = (int(stored.images.shape[-2]), int(stored.images.shape[-1]))
    if stored.boxes is not None and stored.counts is not None:
        real = stored.boxes[k, : int(stored.counts[k])]
        row["boxes"] = tv_tensors.BoundingBoxes(real, format="XYXY", canvas_size=size)
    if stored.masks is not None:
        row["masks"] = tv_tensors.Mask(stored.masks[k])
    if stored.targets is not None:
        row["targets"] = stored.targets[k]
    return row


def _transformed(step: nn.Module, items: Items, plan: Plan, window: Window, k: int) -> Items:
    """Apply torchvision's transform of the step to sample ``k``, with mmload's draws."""
    if isinstance(step, augment.AlternatingHorizontalFlip):  # which no transform of torchvision's is
        return {name: F.horizontal_flip(item) if window.flips else item for name, item in items.items()}
    transform = equivalent_of(step)
    if isinstance(step, augment.Normalize):
        return items | {"images": transform.transform(items["images"], {})}
    if isinstance(step, augment.RandomErasing):
        return items | {"images": _erased(items["images"], plan, k)}
    params = _geometry(step, transform, items["images"], items.get("boxes"), plan, window, k)
    if params is None:
        return items
    chosen = items if not isinstance(step, augment.RandomGrayscale) else {"images": items["images"]}
    return items | {name: transform.transform(item, params) for name, item in chosen.items()}


def _geometry(
    step: nn.Module, transform: Any, image: Any, boxes: Any, plan: Plan, window: Window, k: int
) -> dict[str, Any] | None:
    """Torchvision's parameters for a step that moves pixels or converts to gray; None if the step has no effect."""
    rows, cols = image.shape[-2:]
    if isinstance(step, augment.RandomZoomOut):
        left, top = -window.left, -window.top
        return {"padding": [left, top, window.cols - cols - left, window.rows - rows - top]}
    if isinstance(step, augment.RandomIoUCrop):
        return None if (window.rows, window.cols) == (rows, cols) else _crop_around(boxes, window)
    if isinstance(step, augment.RandomCrop):
        params: dict[str, Any] = transform.make_params([image])
        left, top, _, _ = params["padding"]
        return params | {"top": window.top + top, "left": window.left + left, "needs_crop": True}
    placed = None if plan.resampling is None else plan.resampling.placement
    if placed is not None and isinstance(step, _PLACED):
        size = int(placed.rows[k]), int(placed.cols[k])
        canvas = transform.canvas(*image.shape[-2:])
        return {"canvas": canvas, "size": size, "top": -int(placed.top[k]), "left": -int(placed.left[k])}
    if isinstance(step, augment.RandomResizedCrop):
        return {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    if isinstance(step, augment.RandomHorizontalFlip | augment.RandomVerticalFlip) and not window.flips:
        return None
    if isinstance(step, augment.RandomGrayscale) and (plan.gray is None or not plan.gray[k]):
        return None
    drawn_params: dict[str, Any] = transform.make_params([image])
    return drawn_params


def _crop_around(boxes: Any, window: Window) -> dict[str, Any]:
    """The parameters of torchvision's RandomIoUCrop: the window, and which boxes have their center in it."""
    corners = boxes.as_subclass(Tensor)
    x, y = 0.5 * (corners[:, 0] + corners[:, 2]), 0.5 * (corners[:, 1] + corners[:, 3])
    across = (x > window.left) & (x < window.left + window.cols)
    inside = across & (y > window.top) & (y < window.top + window.rows)
    size = {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    return size | {"is_within_crop_area": inside}


def _erased(image: Any, plan: Plan, k: int) -> Any:
    (hole,) = plan.holes
    height, width = int(hole.height[k]), int(hole.width[k])
    if not height or hole.value is None:
        return image
    value = torch.tensor(hole.value, dtype=image.dtype)[:, None, None]
    return F.erase(image, int(hole.top[k]), int(hole.left[k]), height, width, value)
