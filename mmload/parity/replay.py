"""Runs torchvision's own transforms with mmload's draws, sample by sample and step by step.

Takes the steps of a collate, the samples' seeds and a stored row, and returns torchvision's result for the row with
the same windows, flips and factors. It never calls mmload's own rendering.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import Trail, boxes_in, following_fields, move_fields
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.mix import MixStep
from mmload.augment.step import Step
from mmload.batch import Batch, fields_of
from mmload.interop.torchvision import conversion, equivalent_of
from mmload.parity.program_replay import Allowance, Items, changed
from mmload.render.plan import Mixing, Plan
from mmload.render.torch_sampling import Window, windows

Shape = tuple[int, int, int]
"""(C, H, W) of images."""

Row = tuple[Items, Allowance]
"""A sample, and the allowance for the difference of mmload's image."""

_PLACED = augment.ScaleJitter | augment.RandomShortestSize
_ROUNDED = augment.RandomResizedCrop | augment.Resize | augment.Letterbox | augment.RandomGrayscale | _PLACED
"""Steps whose levels are rounded sums."""

_STILL = augment.Normalize | augment.RandomErasing | augment.RandomGrayscale
"""Steps that leave boxes and masks as they are."""


class StepDraws(NamedTuple):
    """The draws of a step for a batch: its plan, and the window of each sample.

    Where images vary in size, the plan is that of all steps so far; windows are within what the step before gave.
    """

    plan: Plan
    windows: list[Window]


def followable(collate: Collate, *, alone: bool) -> tuple[list[nn.Module], str]:
    """Returns the steps before the first that cannot be replayed, and that step and why.

    If samples are replayed ``alone``, steps that mix them cannot be.
    """
    steps: list[nn.Module] = []
    for step in collate.steps:
        noise = isinstance(step, augment.RandomErasing) and step.value is None
        others = isinstance(step, augment.RandomHSV | augment.Mosaic)  # of which torchvision has none
        if noise or others or not isinstance(step, Step) or (alone and isinstance(step, MixStep)):
            return steps, f"{type(step).__name__}, which torchvision does not do to one sample alone"
        steps.append(step)
    return steps, ""


def _blank(count: int, shape: Shape) -> Plan:
    return Plan.unchanged(count, shape, 255.0)


def drawn(steps: Sequence[nn.Module], stored: Batch, seeds: Tensor, epoch: int, ids: Tensor) -> list[StepDraws]:
    """Returns the draws of each step for a batch; draws that depend on boxes see them as mmload moves them."""
    drawn_by_step: list[StepDraws] = []
    rows = following_fields({name: value for name, value in fields_of(stored).items() if name != "masks"})
    trail: Trail | None = None
    _, channels, height, width = stored.images.shape
    plan = _blank(len(seeds), (channels, height, width))
    for index, step in enumerate(steps):
        if not isinstance(step, Step):
            raise TypeError(f"{type(step).__name__} cannot be replayed in torchvision")
        boxes = partial(boxes_in, rows, trail=trail) if "boxes" in rows else None
        start = plan if plan.is_variable_size else _blank(len(seeds), (channels, plan.height, plan.width))
        plan = step.describe(start, Draws(seeds.numpy(), index, epoch=epoch, ids=ids.numpy(), boxes=boxes))
        after = windows(plan)
        if start.is_variable_size:
            after = [_within(old, new) for old, new in zip(windows(start), after, strict=True)]
        drawn_by_step.append(StepDraws(plan, after))
        if not plan.is_variable_size:
            rows, trail = move_fields(rows, plan, trail)
    return drawn_by_step


def _within(old: Window, new: Window) -> Window:
    """Converts a window and flips of a source to those within an older window of it, flipped as that says."""
    top, left = new.top - old.top, new.left - old.left
    top = old.rows - new.rows - top if -2 in old.flips else top
    left = old.cols - new.cols - left if -1 in old.flips else left
    flips = tuple(axis for axis in (-1, -2) if (axis in old.flips) != (axis in new.flips))
    return Window(top, left, new.rows, new.cols, flips)


def results(steps: Sequence[nn.Module], draws: Sequence[StepDraws], stored: Batch, dtype: torch.dtype) -> list[Row]:
    """Runs torchvision's transforms on stored rows, by steps of :func:`followable` and their draws of :func:`drawn`.

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
            rows = _mixed(step, rows, draw.plan.mixing)
        else:
            rows = [_after(step, items, allowance, draw, k) for k, (items, allowance) in enumerate(rows)]
    if to_floats == len(steps) and dtype != torch.uint8:
        rows = [(_as_floats(items), allowance) for items, allowance in rows]
    return [(items | {"images": items["images"].as_subclass(Tensor).to(dtype)}, one) for items, one in rows]


def _as_floats(items: Items) -> Items:
    return items | {"images": F.to_dtype(items["images"], torch.float32, scale=True)}


def _after(step: nn.Module, items: Items, allowance: Allowance, draw: StepDraws, k: int) -> Row:
    """Applies one step that mixes no samples to sample ``k``."""
    targets = {name: items[name] for name in items if name == "targets"}
    pixels = {name: item for name, item in items.items() if name != "targets"}
    if draw.plan.program is not None:
        pixels, allowance = changed(pixels, draw.plan.program, k, allowance)
        return pixels | targets, allowance
    pixels = _transformed(step, pixels, draw.plan, draw.windows[k], k)
    if isinstance(step, _ROUNDED):
        allowance = replace(allowance, levels=allowance.levels + 1)
    return pixels | targets, allowance


def _row(stored: Batch, k: int) -> Items:
    """Returns row ``k`` in the format of torchvision."""
    row: Items = {"images": tv_tensors.Image(stored.images[k], device="cpu")}
    size = (int(stored.images.shape[-2]), int(stored.images.shape[-1]))
    if stored.boxes is not None and stored.counts is not None:
        real = stored.boxes[k, : int(stored.counts[k])]
        row["boxes"] = tv_tensors.BoundingBoxes(real, format="XYXY", canvas_size=size, device="cpu")
    if stored.masks is not None:
        row["masks"] = tv_tensors.Mask(stored.masks[k], device="cpu")
    if stored.targets is not None:
        row["targets"] = stored.targets[k]
    return row


def _transformed(step: nn.Module, items: Items, plan: Plan, window: Window, k: int) -> Items:
    """Applies torchvision's transform of the step to sample ``k``, with mmload's draws."""
    if isinstance(step, augment.AlternatingHorizontalFlip):  # which no transform of torchvision's is
        return {name: F.horizontal_flip(item) if window.flips else item for name, item in items.items()}
    transform = equivalent_of(step)
    params = _params(step, transform, items["images"], items.get("boxes"), plan, window, k)
    if params is None:
        return items
    chosen = {"images": items["images"]} if isinstance(step, _STILL) else items
    made = {name: _applied(transform, name, item, params) for name, item in chosen.items()}
    if isinstance(step, augment.CenterCrop) and "boxes" in made:
        # torchvision's own moves the boxes of an image that it pads by up to a pixel too far.
        top, left = (_centered(*each) for each in zip(items["images"].shape[-2:], step.size, strict=True))
        made["boxes"] = F.crop(items["boxes"], top, left, *step.size)
    return items | made


def _centered(length: int, size: int) -> int:
    """Returns where a crop of the center begins; below 0 if it is larger."""
    return round((length - size) / 2) if length >= size else -((size - length) // 2)


def _applied(transform: Any, name: str, item: Any, params: dict[str, Any]) -> Any:
    """Applies a transform; boxes are padded in its constant mode, the only one that torchvision has for them."""
    if name == "boxes" and getattr(transform, "padding_mode", "constant") != "constant":
        transform = copy(transform)
        transform.padding_mode = "constant"
    return transform.transform(item, params)


def _params(
    step: nn.Module, transform: Any, image: Any, boxes: Any, plan: Plan, window: Window, k: int
) -> dict[str, Any] | None:
    """Returns torchvision's parameters for what mmload drew; None if the step has no effect."""
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
    placed = plan.resampling
    if placed is not None and isinstance(step, _PLACED):
        size = int(placed.rows[k]), int(placed.cols[k])
        canvas = transform.canvas if isinstance(transform.canvas, tuple) else transform.canvas(*image.shape[-2:])
        return {"canvas": canvas, "size": size, "top": -int(placed.top[k]), "left": -int(placed.left[k])}
    if isinstance(step, augment.RandomResizedCrop):
        return {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    if isinstance(step, augment.RandomHorizontalFlip | augment.RandomVerticalFlip) and not window.flips:
        return None
    if isinstance(step, augment.RandomGrayscale) and (plan.gray is None or not plan.gray[k]):
        return None
    if isinstance(step, augment.RandomErasing):
        (hole,) = plan.holes
        value = torch.tensor(hole.value, dtype=image.dtype, device="cpu").view(-1, 1, 1)
        corner = {"i": hole.top, "j": hole.left, "h": hole.height, "w": hole.width}
        return {name: int(side[k]) for name, side in corner.items()} | {"v": value} if hole.height[k] else None
    drawn_params: dict[str, Any] = transform.make_params([image])
    return drawn_params


def _crop_around(boxes: Any, window: Window) -> dict[str, Any]:
    """Returns the parameters of torchvision's RandomIoUCrop: the window, and which boxes have their center in it."""
    corners = boxes.as_subclass(Tensor)
    x, y = 0.5 * (corners[:, 0] + corners[:, 2]), 0.5 * (corners[:, 1] + corners[:, 3])
    across = (x > window.left) & (x < window.left + window.cols)
    inside = across & (y > window.top) & (y < window.top + window.rows)
    size = {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    return size | {"is_within_crop_area": inside}


def _mixed(step: MixStep, rows: Sequence[Row], mixing: Mixing) -> list[Row]:
    """Mixes each row of a batch with the one before it, with the shares and rectangles that mmload drew.

    torchvision draws once for a batch. Each sample is mixed as in a batch of two, itself and the one before it, so that
    the draws of every sample are replayed, whether there is one per sample or one per batch.
    """
    return [_pair(step, row, rows[k - 1], mixing, k) for k, row in enumerate(rows)]


def _pair(step: MixStep, own: Row, other: Row, mixing: Mixing, k: int) -> Row:
    """Mixes row ``k`` with the one before it."""
    share = 1.0 if mixing.share is None else float(mixing.share[k])
    box = [0, 0, 0, 0] if mixing.boxes is None else [int(side) for side in mixing.boxes[k]]
    items, (before, of_other) = own[0], other
    height, width = items["images"].shape[-2:]
    area = (box[2] - box[0]) * (box[3] - box[1])
    pastes = area > 0
    transform = v2.CutMix(num_classes=step.num_classes) if pastes else v2.MixUp(num_classes=step.num_classes)
    params = {"lam": share, "box": box, "lam_adjusted": 1.0 - area / (height * width), "batch_size": 2, "labels": None}
    made: Items = {}
    for name, item in items.items():
        changes = name == "images" or (name == "masks" and pastes)
        pair = torch.stack([item.as_subclass(Tensor), before[name].as_subclass(Tensor)])
        if name == "targets":
            made[name] = transform.transform(pair, params | {"labels": pair})[0]
        elif changes and (pastes or share != 1):
            made[name] = tv_tensors.wrap(transform.transform(pair, params)[0], like=item)
        else:
            made[name] = item
    allowance = own[1]
    if pastes or share != 1:
        scattered = allowance.scattered or of_other.scattered
        allowance = Allowance(max(allowance.levels, of_other.levels), scattered)
    return made, allowance
