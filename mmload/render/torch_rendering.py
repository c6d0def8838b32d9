"""Renders a batch by torch's operations: floats, resizes on a device, all that no compiled kernel renders.

Values are subtracted and multiplied in float32, separately, as in the kernels. Windows are resized in their own dtype,
before they are colored: one image at a time on a CPU, with the values of torchvision's resize; a whole batch of windows
of different sizes on a device, within one level of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmload.render import torch_levels
from mmload.render.holes import normals
from mmload.render.plan import Hole, Mixing, Padding, Plan, Resampling
from mmload.render.torch_sampling import (
    Axis,
    Window,
    axes_of,
    cut,
    fill_values,
    on_canvas,
    per_sample,
    picked,
    positions,
    windows,
)
from mmload.runtime.host_memory import constant


def resized(image: Tensor, window: Window, size: tuple[int, int], resampling: Resampling, padding: Padding) -> Tensor:
    """Resizes the window of any image [C, H, W] to (height, width): [C, height, width] in its dtype."""
    pixels = cut(image, window, padding)
    if pixels.shape[::2] == (2, 1):  # torch 2.15 takes lines of two channels and one column for channels last
        pixels = pixels.contiguous()
    smooth, is_uint8 = resampling.mode in ("bilinear", "bicubic"), pixels.dtype == torch.uint8
    # torch 2.15 fails at one uint8 pixel of three channels, antialiased or not.
    lone = size == (1, 1) and (not resampling.antialias or len(pixels) == 3)
    native = not smooth or ((image.device.type == "cpu" and not lone) if is_uint8 else pixels.itemsize >= 4)
    wanted = pixels if native else pixels.float()
    # torch 2.15 gives all lines of a column of floats the same value.
    if size[1] == 1 and resampling.antialias and wanted.is_floating_point():
        column = wanted.transpose(1, 2).clone(memory_format=torch.contiguous_format)[None]
        full = F.interpolate(column, size=(1, size[0]), mode=resampling.mode, antialias=True)[0].transpose(1, 2)
    else:
        full = F.interpolate(wanted[None], size=size, mode=resampling.mode, antialias=resampling.antialias)[0]
    if native:
        return full
    return (full.clamp_(0, 255).round_() if is_uint8 else full).to(pixels.dtype)


def placed_window(image: Tensor, window: Window, plan: Plan, resampling: Resampling) -> Tensor:
    """Resizes the window of any image [C, H, W] to its place on the output: [C, h, w] in its dtype, not yet flipped."""
    placed = window.placed
    full = resized(image, window, (placed.rows, placed.cols), resampling, plan.padding)
    if placed == (plan.height, plan.width, 0, 0):
        return full
    canvas = _canvas_fill(resampling, image).expand(len(image), plan.height, plan.width).clone()
    over, across = placed.visible(plan.height, plan.width)
    inner = full[:, over.start - placed.top :, across.start - placed.left :]
    canvas[:, over, across] = inner[:, : over.stop - over.start, : across.stop - across.start]
    return canvas


def _canvas_fill(resampling: Resampling, images: Tensor) -> Tensor:
    return constant(resampling.fill, images.dtype, images.device).view(-1, 1, 1)


def resized_batch(images: Tensor, plan: Plan, resampling: Resampling) -> Tensor:
    """Resizes every window of a batch: [B, C, h, w] in the images' dtype.

    The nearest pixels are picked. All else is two matrix products: window sizes differ from sample to sample, so each
    has its own two matrices of weights; on a GPU the zeros in them cost less than a loop over the samples, which would
    have to wait for their windows. Flips are in the matrices.
    """
    if resampling.mode.startswith("nearest"):
        exact = replace(resampling, exact_masks=resampling.mode == "nearest-exact")
        full = picked(images, replace(plan, resampling=exact))
    else:
        full = _weighted(images, plan, resampling)
    if isinstance(resampling.rows, int):
        return full
    return torch.where(on_canvas(plan, resampling)[:, None], full, _canvas_fill(resampling, full))


def _weighted(images: Tensor, plan: Plan, resampling: Resampling) -> Tensor:
    """Resizes a batch by weighted sums of neighboring pixels, along the rows first.

    Levels are resized as on a CPU: by weights of 15 bits, whose sums are exact, and rounded and clamped to levels after
    the rows, too. A bicubic that is not clamped there would be several levels off.
    """
    floats, levels = images.float(), images.dtype == torch.uint8
    over, across = (_weights(axis, resampling, plan, images.device) for axis in axes_of(plan))
    if levels:
        over, across = _of_15_bits(over), _of_15_bits(across)
    ground = fill_values(plan.padding, floats) if any(plan.padding.margin) else None
    made = torch.matmul(_from_ground(floats, ground), across.transpose(1, 2)[:, None])
    if levels:
        made = _from_ground(_to_levels(made if ground is None else made.add_(ground)), ground)
    made = torch.matmul(over[:, None], made)
    made = made if ground is None else made.add_(ground)
    return (_to_levels(made) if levels else made).to(images.dtype)


def _from_ground(values: Tensor, ground: Tensor | None) -> Tensor:
    """Subtracts the fill, so that it is 0 outside of the image."""
    return values if ground is None else values - ground


def _to_levels(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)


def _of_15_bits(weight: Tensor) -> Tensor:
    """Rounds weights [B, output, source] to multiples of 2^-n, with the largest n that 15 bits allow, as in ATen."""
    unit = torch.exp2(1.0 - (32767.5 / weight.amax((1, 2), keepdim=True)).log2().ceil())
    return (weight / unit).round_() * unit


def _weights(axis: Axis, resampling: Resampling, plan: Plan, device: torch.device) -> Tensor:
    """Returns the weights of source pixels along one axis of a resize: float32 [B, output, source]."""
    start, size, resized = (
        per_sample(side, plan.count, device)[:, None, None] for side in (axis.start, axis.size, axis.resized)
    )
    place, margin = positions(plan, axis, device), axis.margin
    step = size.to(torch.float32) / resized
    center = (place[:, :, None] + 0.5) * step - 0.5
    offset = torch.arange(-margin, axis.source + margin, device=device)[None, None, :] - start
    if resampling.mode == "bicubic" and not resampling.antialias:
        weight = _repeating(center, offset, size - 1)
    else:
        reach = step.clamp(min=1.0) if resampling.antialias else torch.ones_like(step)
        weight = _TRIANGLE_OR_CUBIC[resampling.mode](((offset - center) / reach).abs())
        weight = weight * ((offset >= 0) & (offset < size))
        weight = weight / weight.sum(2, keepdim=True).clamp(min=1e-6)  # beside a placed window all are 0
    return weight[:, :, margin : margin + axis.source]


def _repeating(center: Tensor, offset: Tensor, last: Tensor) -> Tensor:
    """Returns cubic weights of the four pixels around each center; the window's edges stand for those outside."""
    first = center.floor()
    weight = torch.zeros((), dtype=torch.float32, device=center.device)
    for number in range(-1, 3):
        tap = torch.minimum((first + number).clamp(min=0), last)
        weight = weight + (offset == tap) * _cubic((center - first - number).abs(), -0.75)
    return weight


def _triangle(distance: Tensor) -> Tensor:
    return (1.0 - distance).clamp(min=0.0)


def _cubic(distance: Tensor, a: float = -0.5) -> Tensor:
    """Returns Keys' cubic; torch's ``a`` is -0.5 with antialiasing, -0.75 without."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return torch.where(distance < 1.0, near, torch.where(distance < 2.0, far, 0.0))


_TRIANGLE_OR_CUBIC = {"bilinear": _triangle, "bicubic": _cubic}


def finish_by_torch(plan: Plan, colors: tuple[Tensor, Tensor] | None, moved: Tensor, out: Tensor) -> None:
    """Changes the levels of images [B, C, h, w] that geometry has moved, colors them, and ends the plan.

    Colors are shift and scale of the color map, float32 [C] each; None: values stay.
    """
    if plan.program.slots:
        moved = torch_levels.run_program(plan.program, moved, plan.peak)
    # The memory of colored values before they are mixed: the output, or float32 for a blend, as in kernels.
    narrow = out.dtype != torch.float32 and moved.dtype != torch.float64
    work = torch.empty_like(out, dtype=torch.float32) if plan.blends and narrow else out
    _color(moved, colors, work)
    for hole in plan.holes:
        _punch(hole, work)
    if plan.mixing is not None:
        out.copy_(mixed_batch(plan.mixing, work))


def resized_one_by_one(plan: Plan, resampling: Resampling, images: Tensor) -> Tensor:
    """Crops, resizes and flips images [B, C, H, W] by a plan in host memory, as torchvision does: in their dtype."""
    if not len(images):
        return images.new_empty(plan.shape)
    samples = zip(images, windows(plan), strict=True)
    return torch.stack([placed_window(*sample, plan, resampling).flip(sample[1].flips) for sample in samples])


def _color(pixels: Tensor, colors: tuple[Tensor, Tensor] | None, out: Tensor) -> None:
    """Colors and converts [B, C, h, w] into ``out``."""
    if colors is None:
        out.copy_(pixels)
        return
    shift, scale = (each.view(-1, 1, 1) for each in colors)
    work = out if out.dtype == torch.float32 else torch.empty_like(pixels, dtype=torch.float32)
    work.copy_(pixels).sub_(shift).mul_(scale)
    out.copy_(work)  # of itself, torch copies nothing


def _punch(hole: Hole, images: Tensor) -> None:
    """Overwrites every sample's hole in a batch [B, C, H, W], by torch's operations."""
    _, channels, rows, cols = images.shape
    top, left, height, width = (side.view(-1, 1, 1, 1) for side in (hole.top, hole.left, hole.height, hole.width))
    y = torch.arange(rows, device=images.device).view(1, 1, -1, 1) - top
    x = torch.arange(cols, device=images.device).view(1, 1, 1, -1) - left
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if hole.value is not None:
        values = constant(hole.value, torch.float32, images.device).view(-1, 1, 1)
    else:
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        half, second = (width + 1) // 2, x >= (width + 1) // 2
        words = (channel * height + y) * half + torch.where(second, x - half, x)
        values = normals(hole.noise.view(-1, 1, 1, 1), words, second)
    images.copy_(torch.where(inside, values.to(images.dtype), images))


def mixed_batch(mixing: Mixing, images: Tensor) -> Tensor:
    """Blends each of the images [B, C, h, w] with the one before it, or pastes a rectangle of that, on any device.

    Floats of a lower precision than float32 become float32 where they are blended.
    """
    others = images.roll(1, 0)
    if mixing.share is not None:
        own = mixing.share.view(-1, 1, 1, 1)
        images = images * own + others * (1 - own)
        others = others.to(images.dtype)
    if mixing.boxes is not None:
        images = torch.where(pasted_pixels(mixing.boxes, images.shape[2], images.shape[3])[:, None], others, images)
    return images


def pasted_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """Returns which pixels of each sample lie in its box, bool [B, h, w]; boxes: int64 [B, 4], x1 y1 x2 y2."""
    x1, y1, x2, y2 = boxes[:, :, None, None].unbind(1)
    y = torch.arange(height, device=boxes.device)[:, None]
    x = torch.arange(width, device=boxes.device)
    return (y >= y1) & (y < y2) & (x >= x1) & (x < x2)


_ALIGNED = 16


Uploaded = tuple[Any, list[Tensor]]
"""Description with tensors of a device in place of NumPy's arrays, and the tensors."""


def upload(value: Any, device: torch.device) -> Uploaded:
    """Copies a description to ``device``: arrays become tensors, which are parts of one memory.

    One copy fills it, through page-locked memory that torch keeps for that: it is queued on the caller's stream, and
    nobody waits for it. Arrays of records, which only kernels read, stay as they are.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    _replaced(value, arrays.append)
    starts = np.cumsum([0] + [-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays]).tolist()
    packed = torch.empty(starts[-1], dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for array, start in zip(arrays, starts, strict=False):
        memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved = packed.to(device, non_blocking=True)
    tensors = [
        moved[start : start + array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
    following = iter(tensors)
    return _replaced(value, lambda array: next(following)), tensors


def _replaced(value: Any, with_array: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    """Returns a copy of dataclasses and tuples with something in place of each array, called in order."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.names else with_array(value)
    if isinstance(value, tuple):
        parts = [_replaced(one, with_array) for one in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        found = {one.name: _replaced(getattr(value, one.name), with_array) for one in fields(value)}
        return replace(value, **found)
    return value
