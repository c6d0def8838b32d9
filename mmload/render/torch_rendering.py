"""Renders a batch by torch's operations: floats, resizes on a device, all that no compiled kernel renders.

Values are subtracted and multiplied in float32, separately, as in the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmload.render import torch_levels
from mmload.render.holes import punch_batch
from mmload.render.level_program import Program
from mmload.render.plan import Plan
from mmload.render.plan_parts import Mixing, Resampling
from mmload.render.torch_resample import Placed, on_canvas_of, placements, resized_batch
from mmload.render.torch_sampling import Window, picked, windows


def render_by_torch(plan: Plan, shift: Tensor | None, scale: Tensor | None, images: Tensor, out: Tensor) -> None:
    """Renders images [B, C, H, W] of any dtype and device.

    Args:
        plan: describes what happens to each sample.
        shift: float32 [C, 1, 1], of the color map; None: 0.
        scale: float32 [C, 1, 1]; None: 1.
        images: the samples.
        out: [B, C, h, w].
    """
    finish_by_torch(plan, plan.complete_program(), shift, scale, moved_by_torch(plan, images), out)


def finish_by_torch(
    plan: Plan, program: Program | None, shift: Tensor | None, scale: Tensor | None, moved: Tensor, out: Tensor
) -> None:
    """Changes the levels of images [B, C, h, w] that geometry has moved, colors them, and ends the plan."""
    if program is not None:
        moved = torch_levels.run_program(program, moved, plan.peak)
    work = work_for(plan, out, moved.dtype)
    _color(moved, shift, scale, work)
    end_by_torch(plan, work, out)


def work_for(plan: Plan, out: Tensor, source: torch.dtype) -> Tensor:
    """Returns the memory of colored values before they are mixed: the output, or float32 for a blend, as in kernels."""
    if plan.blends and out.dtype != torch.float32 and source != torch.float64:
        return torch.empty_like(out, dtype=torch.float32)
    return out


def end_by_torch(plan: Plan, work: Tensor, out: Tensor) -> None:
    """Punches holes into colored values [B, C, h, w] and mixes them into ``out``, which may be the same tensor."""
    for hole in plan.holes:
        punch_batch(hole, work)
    if plan.mixing is not None:
        out.copy_(mixed_batch(plan.mixing, work))


def moved_by_torch(plan: Plan, images: Tensor | Sequence[Tensor]) -> Tensor:
    """Crops, resizes and flips images: [B, C, h, w] in their dtype and on their device.

    Args:
        plan: on the CPU if the images are variable-size, whatever their device: its values are read.
        images: [B, C, H, W]; or uint8 [C, h, w] each, one at least.
    """
    resampling = plan.resampling
    if isinstance(images, Tensor):
        if resampling is None:
            return picked(images, plan)
        if plan.device.type != "cpu":
            return resized_batch(images, plan, resampling)
        if not len(images):
            return images.new_empty(plan.shape)
    if resampling is None:
        raise ValueError("variable-size images are not resized")
    samples = zip(images, windows(plan), placements(plan), strict=True)
    return torch.stack([_moved_one(plan, resampling, *sample) for sample in samples])


def _moved_one(plan: Plan, resampling: Resampling, image: Tensor, window: Window, placed: Placed | None) -> Tensor:
    """Crops, resizes and flips one image."""
    full = on_canvas_of(image, window, resampling, plan.padding, placed)
    top, left = window.part_top, window.part_left
    part = full[:, top : top + plan.height, left : left + plan.width]
    return part.flip(window.flips) if window.flips else part


def _color(pixels: Tensor, shift: Tensor | None, scale: Tensor | None, out: Tensor) -> None:
    """Colors and converts [B, C, h, w] into ``out``."""
    if scale is None:
        out.copy_(pixels)
        return
    work = out if out.dtype == torch.float32 else torch.empty_like(pixels, dtype=torch.float32)
    work.copy_(pixels)
    if shift is not None:
        work.sub_(shift)
    work.mul_(scale)
    if work is not out:
        out.copy_(work)


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
