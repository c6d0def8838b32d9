"""Runs torchvision's own transforms with mmload's draws, sample by sample and step by step.

Takes the steps of a collate, the samples' seeds and a stored row, and returns torchvision's result for the row with
the same windows, flips and factors. It never calls mmload's own rendering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import Trail, boxes_in, move_fields
from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep
from mmload.augment.step import Draws, Step, following_fields
from mmload.batch import Batch, fields_of
from mmload.interop.torchvision import conversion, equivalent_of, placement
from mmload.render import level_operations as levels
from mmload.render.plan import Mixing, OperationSlot, Plan, Program
from mmload.render.torch_sampling import Window, windows

Items = dict[str, Any]
"""``images``, ``boxes`` and ``masks`` of one sample, as torchvision's tv_tensors."""


@dataclass(frozen=True)
class Allowance:
    """Upper bounds on the difference between mmload's image and the reference.

    Attributes:
        levels: upper bound for any value, in levels of 255.
        scattered: whether a few values may exceed it: a pixel half way between two, or a differing level that is
            amplified by a hue, a threshold or a histogram.
    """

    levels: float = 0.0
    scattered: bool = False


Shape = tuple[int, int, int]
"""(C, H, W) of images."""

Row = tuple[Items, Allowance]
"""A sample, and the allowance for the difference of mmload's image."""

_PLACED = augment.ScaleJitter | augment.RandomShortestSize
_ROUNDED = augment.RandomResizedCrop | augment.Resize | augment.Letterbox | _PLACED
"""Steps whose levels are rounded sums."""

_STILL = augment.Normalize | augment.RandomErasing
"""Steps that leave boxes and masks as they are."""


_MAGNIFIES = frozenset({levels.HUE, levels.SOLARIZE, levels.POSTERIZE, levels.EQUALIZE, levels.AUTOCONTRAST})
_BLENDS = frozenset({levels.BRIGHTNESS, levels.CONTRAST, levels.SATURATION, levels.SHARPNESS})
_NEAREST = frozenset({levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST})
_SUMS = frozenset({levels.BLUR}) | (levels.WARPS - _NEAREST)
"""Operations that add several pixels, in a different order than torchvision."""


class StepDraws(NamedTuple):
    """The draws of a step for a batch: its plan, and the window of each sample.

    Where images vary in size, the plan is that of all steps so far; windows are within what the step before gave.
    """

    plan: Plan
    windows: list[Window]


def followable(collate: Collate, *, alone: bool) -> tuple[list[Step], str]:
    """Returns the steps before the first that cannot be replayed, and that step and why.

    If samples are replayed ``alone``, steps that mix them cannot be.
    """
    steps: list[Step] = []
    for step in collate.steps:
        noise = isinstance(step, augment.RandomErasing) and step.value == "random"
        others = isinstance(step, augment.RandomHSV | augment.Mosaic)  # of which torchvision has none
        if noise or others or not isinstance(step, Step) or (alone and isinstance(step, MixStep)):
            return steps, f"{type(step).__name__}, which torchvision does not do to one sample alone"
        steps.append(step)
    return steps, ""


def _blank(count: int, shape: Shape) -> Plan:
    return Plan.unchanged(count, shape, 255.0)


def drawn(steps: Sequence[Step], stored: Batch, seeds: Tensor, epoch: int, ids: Tensor) -> list[StepDraws]:
    """Returns the draws of each step for a batch; draws that depend on boxes see them as mmload moves them."""
    drawn_by_step: list[StepDraws] = []
    rows = following_fields({name: value for name, value in fields_of(stored).items() if name != "masks"})
    trail: Trail | None = None
    _, channels, height, width = stored.images.shape
    plan = _blank(len(seeds), (channels, height, width))
    for index, step in enumerate(steps):
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


def results(steps: Sequence[Step], draws: Sequence[StepDraws], stored: Batch, dtype: torch.dtype) -> list[Row]:
    """Runs torchvision's transforms on stored rows, by steps of :func:`followable` and their draws of :func:`drawn`.

    Returns:
        For each row ``images`` in that dtype, and ``boxes``, ``masks`` and ``targets`` if the rows have them; and the
        allowance for the difference of mmload's image.
    """
    rows = [(_row(stored, k), Allowance()) for k in range(len(stored.images))]
    to_floats, drawn_steps = conversion(Collate(*steps, dtype=dtype)), list(zip(steps, draws, strict=True))
    rows = _through(drawn_steps[:to_floats], rows)
    if dtype != torch.uint8:
        rows = [
            (items | {"images": F.to_dtype(items["images"], torch.float32, scale=True)}, one) for items, one in rows
        ]
    rows = _through(drawn_steps[to_floats:], rows)
    return [(items | {"images": items["images"].as_subclass(Tensor).to(dtype)}, one) for items, one in rows]


def _through(drawn_steps: Sequence[tuple[Step, StepDraws]], rows: list[Row]) -> list[Row]:
    """Applies steps one after the other to all rows of a batch."""
    for step, draw in drawn_steps:
        if isinstance(step, MixStep) and draw.plan.mixing is not None:
            rows = _mixed(step, rows, draw.plan.mixing)
        else:
            rows = [_after(step, items, allowance, draw, k) for k, (items, allowance) in enumerate(rows)]
    return rows


def _after(step: Step, items: Items, allowance: Allowance, draw: StepDraws, k: int) -> Row:
    """Applies one step that mixes no samples to sample ``k``."""
    pixels = {name: item for name, item in items.items() if name != "targets"}
    program = draw.plan.first_program if draw.plan.first_program.slots else draw.plan.program
    if program.slots:
        pixels, allowance = changed(pixels, program, k, allowance)
        return items | pixels, allowance
    pixels = _transformed(step, pixels, draw.plan, draw.windows[k], k)
    if isinstance(step, _ROUNDED):
        allowance = replace(allowance, levels=allowance.levels + 1)
    return items | pixels, allowance


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


def _transformed(step: Step, items: Items, plan: Plan, window: Window, k: int) -> Items:
    """Applies torchvision's transform of the step to sample ``k``, with mmload's draws."""
    if isinstance(step, augment.AlternatingHorizontalFlip):  # which no transform of torchvision's is
        return {name: F.horizontal_flip(item) if window.flips else item for name, item in items.items()}
    transform = equivalent_of(step)
    params = _params(step, transform, items["images"], items.get("boxes"), plan, window, k)
    if params is None:
        return items
    chosen = {"images": items["images"]} if isinstance(step, _STILL) else items
    made = {name: _applied(transform, name, item, params) for name, item in chosen.items()}
    return items | made


def _applied(transform: Any, name: str, item: Any, params: dict[str, Any]) -> Any:
    """Applies a transform; boxes are padded in its constant mode, the only one that torchvision has for them."""
    if name == "boxes" and getattr(transform, "padding_mode", "constant") != "constant":
        transform = copy(transform)
        transform.padding_mode = "constant"
    return transform.transform(item, params)


def _params(
    step: Step, transform: Any, image: Any, boxes: Any, plan: Plan, window: Window, k: int
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
    if isinstance(step, _PLACED):
        return placement(plan, k)
    if isinstance(step, augment.RandomResizedCrop):
        return {"top": window.top, "left": window.left, "height": window.rows, "width": window.cols}
    if isinstance(step, augment.RandomHorizontalFlip | augment.RandomVerticalFlip) and not window.flips:
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
    box = [0, 0, 0, 0] if mixing.boxes is None else list(map(int, mixing.boxes[k]))
    (items, allowance), (before, of_other) = own, other
    height, width = items["images"].shape[-2:]
    area = (box[2] - box[0]) * (box[3] - box[1])
    if area > 0:
        transform, mixed = v2.CutMix(num_classes=step.num_classes), {"images", "masks"}
    else:
        transform, mixed = v2.MixUp(num_classes=step.num_classes), {"images"} if share != 1 else set()
    params = {"lam": share, "box": box, "lam_adjusted": 1.0 - area / (height * width), "batch_size": 2, "labels": None}
    pairs = {name: torch.stack([items[name].as_subclass(Tensor), before[name].as_subclass(Tensor)]) for name in items}
    made = dict(items)
    for name in mixed & items.keys():
        made[name] = tv_tensors.wrap(transform.transform(pairs[name], params)[0], like=items[name])
    if "targets" in items:
        made["targets"] = transform.transform(pairs["targets"], params | {"labels": pairs["targets"]})[0]
    if mixed:
        scattered = allowance.scattered or of_other.scattered
        allowance = Allowance(max(allowance.levels, of_other.levels), scattered)
    return made, allowance


# The level program of a sample, by torchvision's functionals; flips and warps also move boxes and masks.


def changed(items: Items, program: Program, k: int, allowance: Allowance) -> tuple[Items, Allowance]:
    """Applies the program to sample ``k``; returns its fields and the allowance for its image."""
    original = mixture = items["images"]
    before = allowance
    for code, numbers, slot in zip(program.codes[k].tolist(), program.numbers[k].tolist(), program.slots, strict=True):
        image = items["images"]
        if code in levels.MIXES:
            if code == levels.MIX_BEGIN:
                original, mixture, before = image, _share(numbers[0]) * image, allowance
                continue
            if code == levels.MIX_ADD:
                mixture = mixture + _share(numbers[0]) * image
                items = items | {"images": original}
            else:
                items = items | {"images": tv_tensors.Image(mixture.clamp(0, 255).to(image.dtype))}
                allowance = replace(allowance, levels=max(allowance.levels, before.levels) + 1)
        elif code != levels.NONE:
            allowance = _allowed(allowance, code, numbers, image)
            if code in levels.MOVES:
                items = _moved(items, code, numbers, slot)
            else:
                items = items | {"images": _COLORS[code](image, numbers)}
    return items, allowance


def _share(share: float) -> Tensor:
    return torch.tensor(share, dtype=torch.float32, device="cpu")


def _factor(numbers: list[float]) -> float:
    """Recovers the factor of a blend from float32 roundings of the factor and of 1 minus the factor."""
    factor, rest = (np.float32(number) for number in numbers[:2])
    least = max(_half_way(factor, -np.inf), 1.0 - _half_way(rest, np.inf))
    most = min(_half_way(factor, np.inf), 1.0 - _half_way(rest, -np.inf))
    return 0.5 * (least + most)


def _half_way(value: np.float32, towards: float) -> float:
    """Returns the midpoint between a float32 and its neighbor."""
    return 0.5 * (float(value) + float(np.nextafter(value, np.float32(towards))))


_COLORS: dict[int, Callable[[Any, list[float]], Any]] = {
    levels.BRIGHTNESS: lambda image, numbers: F.adjust_brightness(image, numbers[0]),
    levels.CONTRAST: lambda image, numbers: F.adjust_contrast(image, _factor(numbers)),
    levels.SATURATION: lambda image, numbers: F.adjust_saturation(image, _factor(numbers)),
    levels.HUE: lambda image, numbers: F.adjust_hue(image, numbers[0]),
    levels.GRAY: lambda image, numbers: F.rgb_to_grayscale(image, len(image)) if len(image) == 3 else image,
    levels.INVERT: lambda image, numbers: F.invert(image),
    levels.SOLARIZE: lambda image, numbers: F.solarize(image, numbers[0]),
    levels.POSTERIZE: lambda image, numbers: F.posterize(image, int(numbers[0])),
    levels.AUTOCONTRAST: lambda image, numbers: F.autocontrast(image),
    levels.EQUALIZE: lambda image, numbers: F.equalize(image),
    levels.SHARPNESS: lambda image, numbers: F.adjust_sharpness(image, _factor(numbers)),
    levels.BLUR: lambda image, numbers: F.gaussian_blur(image, [int(one) for one in numbers[:2]], [numbers[2]] * 2),
    levels.PERMUTE: lambda image, numbers: F.permute_channels(image, [int(one) for one in numbers[: len(image)]]),
}


def _moved(items: Items, code: int, numbers: list[float], slot: OperationSlot) -> Items:
    """Applies a flip or a warp to image, boxes and mask."""
    if code in _FLIPS:
        return {name: _FLIPS[code](item) for name, item in items.items()}
    warp, mode = _WARPED[code]
    fill = None if slot.fill is None else list(slot.fill)
    return {
        name: warp(item, numbers, mode, slot.mask_fill if name == "masks" else fill) for name, item in items.items()
    }


def _perspective(item: Any, numbers: list[float], mode: InterpolationMode, fill: Any) -> Any:
    return F.perspective(item, None, None, mode, fill, coefficients=numbers)


def _affine(item: Any, numbers: list[float], mode: InterpolationMode, fill: Any) -> Any:
    """Warps an item by an angle, a translation, a scale and two shears that are equivalent to the matrix.

    The matrix is the inverse of T(translation) R(angle) S(shear) scale, whose determinant is the square of the scale.
    Its first column has the direction of the angle less the shear in y.
    """
    matrix = np.array(numbers[:6], np.float64).reshape(2, 3)
    forward = np.linalg.inv(matrix[:, :2])
    scale = math.sqrt(np.linalg.det(forward))
    (a, b), (c, d) = forward / scale
    turned = math.atan2(c, a)
    shear_y = math.acos(min(1.0, 1.0 / math.hypot(a, c)))
    slant = -math.cos(shear_y) * (b * math.cos(turned) + d * math.sin(turned) + math.sin(shear_y))
    angle, *shear = (math.degrees(value) for value in (turned + shear_y, math.atan(slant), shear_y))
    translate = (-forward @ matrix[:, 2]).tolist()
    return F.affine(item, angle, translate, scale, shear, mode, fill)


_FLIPS = {levels.FLIP_X: F.horizontal_flip, levels.FLIP_Y: F.vertical_flip}
_WARPED = {
    levels.AFFINE_NEAREST: (_affine, InterpolationMode.NEAREST),
    levels.AFFINE_BILINEAR: (_affine, InterpolationMode.BILINEAR),
    levels.PERSPECTIVE_NEAREST: (_perspective, InterpolationMode.NEAREST),
    levels.PERSPECTIVE_BILINEAR: (_perspective, InterpolationMode.BILINEAR),
}


def _allowed(allowance: Allowance, code: int, numbers: list[float], image: Tensor) -> Allowance:
    """Returns the allowance after one operation; an operation that is exact only passes on earlier differences."""
    difference = allowance.levels
    if code in _SUMS:
        return replace(allowance, levels=difference + 1)
    if code in _NEAREST:
        return replace(allowance, scattered=True)
    if not difference:
        return allowance
    if code in _MAGNIFIES:
        return Allowance(_stretched(difference, image) if code == levels.AUTOCONTRAST else difference, True)
    if code in _BLENDS:
        rest = 0.0 if code == levels.BRIGHTNESS else abs(1 - numbers[0])
        return replace(allowance, levels=difference * (abs(numbers[0]) + rest) + 1)
    return replace(allowance, levels=difference + 1) if code == levels.GRAY else allowance


def _stretched(difference: float, image: Tensor) -> float:
    """Returns the difference in levels after each channel's range is stretched to all levels."""
    pixels = image.as_subclass(Tensor).flatten(1).to(torch.float64)
    reach = (pixels.amax(1) - pixels.amin(1)).clamp(min=1).min()
    return float(3 * difference * 255 / reach) + 1
