"""Runs torchvision's own transforms with mmload's draws, sample by sample and step by step.

Takes the steps of a collate, the samples' seeds and a stored row, and returns torchvision's result for the row with
the same windows, flips and factors. It never calls mmload's own rendering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.mix import MixStep
from mmload.augment.step import Step
from mmload.batch import Batch
from mmload.interop.torchvision import conversion, equivalent_of
from mmload.parity.draws import Shape
from mmload.parity.level_reference import Allowance, Items, changed
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows

_PLACED = augment.ScaleJitter | augment.RandomShortestSize

Drawn = tuple[Plan, list[Window]]
"""The draws of a step for a batch: its plan, and each sample's window."""


def followable(collate: Collate, shape: Shape) -> tuple[list[nn.Module], str]:
    """The steps before the first that cannot be replayed for images of ``shape``, and the name of that step and why."""
    steps: list[nn.Module] = []
    for step in collate.steps:
        if isinstance(step, augment.RandomZoomOut | augment.RandomIoUCrop):
            return steps, f"{type(step).__name__}, whose images of a size each are not replayed"
        noise = isinstance(step, augment.RandomErasing) and step.value is None
        if noise or not isinstance(step, Step) or isinstance(step, MixStep):
            return steps, f"{type(step).__name__}, {_ALONE}"
        nothing = torch.zeros(1, dtype=torch.int64)
        draws = Draws(nothing, 0, epoch=0, ids=nothing)
        plan = step.describe(Plan.of(1, shape, 255.0, torch.device("cpu")), draws)
        if _mirrors_twice(plan):
            return steps, f"{type(step).__name__} with padding wider than the image, {_ALONE}"
        shape = shape[0], plan.height, plan.width
        steps.append(step)
    return steps, ""


_ALONE = "which torchvision does not do to one sample alone"


def _mirrors_twice(plan: Plan) -> bool:
    """Whether padding mirrors the image more than once, which torchvision rejects or computes incorrectly."""
    padding = plan.padding
    if padding is None or padding.mode not in ("reflect", "symmetric"):
        return False
    repeated = padding.mode == "symmetric"
    return any(margin >= side + repeated for margin, side in zip(padding.margin, plan.source[1:], strict=True))


def drawn(steps: Sequence[nn.Module], shape: Shape, seeds: Tensor, epoch: int, ids: Tensor) -> list[Drawn]:
    """The draws of each step for a batch of an epoch."""
    drawn_by_step: list[Drawn] = []
    for index, step in enumerate(steps):
        draws = Draws(seeds, index, epoch=epoch, ids=ids)
        if not isinstance(step, Step):
            raise TypeError(f"{type(step).__name__} cannot be replayed in torchvision")
        plan = step.describe(Plan.of(len(seeds), shape, 255.0, torch.device("cpu")), draws)
        shape = shape[0], plan.height, plan.width
        drawn_by_step.append((plan, windows(plan)))
    return drawn_by_step


def result(
    steps: Sequence[nn.Module], draws: Sequence[Drawn], stored: Batch, k: int, dtype: torch.dtype
) -> tuple[Items, Allowance]:
    """Torchvision's result for a stored row.

    Args:
        steps: of a collate, each supported by :func:`followable`.
        draws: the draws of the steps, from :func:`drawn`.
        stored: the stored rows.
        k: the index of the row in the batch.
        dtype: the dtype of the collate.

    Returns:
        ``images`` in that dtype, and ``boxes`` and ``masks`` if the row has them; and the allowance for the
        difference of mmload's image.
    """
    row, allowance = _row(stored, k), Allowance()
    to_floats = conversion(Collate(*steps, dtype=dtype))
    for index, (step, draw) in enumerate(zip(steps, draws, strict=True)):
        if index == to_floats and dtype != torch.uint8:
            row["images"] = F.to_dtype(row["images"], torch.float32, scale=True)
        plan, sample_windows = draw
        if plan.program is not None:
            row, allowance = changed(row, plan.program, k, allowance)
            continue
        row = _transformed(step, row, plan, sample_windows[k], k)
        if isinstance(step, augment.RandomResizedCrop | augment.Resize | augment.RandomGrayscale | _PLACED):
            allowance = replace(allowance, levels=allowance.levels + 1)
    if to_floats == len(steps) and dtype != torch.uint8:
        row["images"] = F.to_dtype(row["images"], torch.float32, scale=True)
    return row | {"images": row["images"].as_subclass(Tensor).to(dtype)}, allowance


def _row(stored: Batch, k: int) -> Items:
    """Row ``k`` in the format of torchvision."""
    row: Items = {"images": tv_tensors.Image(stored.images[k])}
    size = (int(stored.images.shape[-2]), int(stored.images.shape[-1]))
    if stored.boxes is not None and stored.counts is not None:
        real = stored.boxes[k, : int(stored.counts[k])]
        row["boxes"] = tv_tensors.BoundingBoxes(real, format="XYXY", canvas_size=size)
    if stored.masks is not None:
        row["masks"] = tv_tensors.Mask(stored.masks[k])
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
    params = _geometry(step, transform, items["images"], plan, window, k)
    if params is None:
        return items
    chosen = items if not isinstance(step, augment.RandomGrayscale) else {"images": items["images"]}
    return items | {name: transform.transform(item, params) for name, item in chosen.items()}


def _geometry(step: nn.Module, transform: Any, image: Any, plan: Plan, window: Window, k: int) -> dict[str, Any] | None:
    """Torchvision's parameters for a step that moves pixels or converts to gray; None if the step has no effect."""
    if isinstance(step, augment.RandomCrop):
        params: dict[str, Any] = transform.make_params([image])
        left, top, _, _ = params["padding"]
        return params | {"top": window.top + top, "left": window.left + left, "needs_crop": True}
    placed = None if plan.resampling is None else plan.resampling.placement
    if placed is not None:
        size = int(placed.rows[k]), int(placed.cols[k])
        canvas = transform.canvas(*image.shape[-2:])
        return {"canvas": canvas, "size": size, "top": -int(placed.top[k]), "left": -int(placed.left[k])}
    if isinstance(step, augment.RandomResizedCrop):
        return {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    for kind, drawn in (
        (augment.RandomHorizontalFlip, plan.flip_x),
        (augment.RandomVerticalFlip, plan.flip_y),
        (augment.RandomGrayscale, plan.gray),
    ):
        if isinstance(step, kind) and (drawn is None or not drawn[k]):
            return None
    drawn_params: dict[str, Any] = transform.make_params([image])
    return drawn_params


def _erased(image: Any, plan: Plan, k: int) -> Any:
    (hole,) = plan.holes
    height, width = int(hole.height[k]), int(hole.width[k])
    if not height or hole.value is None:
        return image
    value = torch.tensor(hole.value, dtype=image.dtype)[:, None, None]
    return F.erase(image, int(hole.top[k]), int(hole.left[k]), height, width, value)
