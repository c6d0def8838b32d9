"""Resizes windows: one image at a time on a CPU, a whole batch of windows of different sizes on a device.

Results keep the images' dtype. A single image has the values of torchvision's antialiased resize; a batch is within one
level of them. Colors are not changed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmload.render.plan import Padding, Plan, Resampling
from mmload.render.torch_sampling import Window, cut


def resized(image: Tensor, window: Window, how: Resampling, padding: Padding | None) -> Tensor:
    """The window of any image [C, H, W] resized: [C, height, width] in its dtype."""
    pixels = cut(image, window, padding)
    smooth, whole = how.mode in ("bilinear", "bicubic"), pixels.dtype == torch.uint8
    # torch 2.15 fails at one uint8 pixel of three channels, antialiased or not.
    lone = how.height == how.width == 1 and (not how.antialias or len(pixels) == 3)
    native = not smooth or ((image.device.type == "cpu" and not lone) if whole else pixels.itemsize >= 4)
    wanted = pixels if native else pixels.float()
    if (
        how.width == 1 and how.antialias and wanted.is_floating_point()
    ):  # torch 2.15 gives all lines of a column of floats the same value
        column = wanted.transpose(1, 2).clone(memory_format=torch.contiguous_format)[None]
        full = F.interpolate(column, size=(1, how.height), mode=how.mode, antialias=True)[0].transpose(1, 2)
    else:
        full = F.interpolate(wanted[None], size=(how.height, how.width), mode=how.mode, antialias=how.antialias)[0]
    if native:
        return full
    return (full.clamp_(0, 255).round_() if whole else full).to(pixels.dtype)


def resized_batch(images: Tensor, plan: Plan, how: Resampling) -> Tensor:
    """Every window of a batch resized bilinearly by two matrix products: [B, C, h, w] in the images' dtype.

    Window sizes differ from sample to sample, so each has its own two matrices of weights; on a GPU the zeros in them
    cost less than a loop over the samples. Flips are in the matrices.
    """
    _, height, width = plan.source
    over = _weights(plan.top, plan.rows, how.top, plan.flip_y, (how.height, plan.height, height), how, plan)
    across = _weights(plan.left, plan.cols, how.left, plan.flip_x, (how.width, plan.width, width), how, plan)
    lines = torch.matmul(images.float(), across.transpose(1, 2)[:, None])
    if images.dtype != torch.uint8:
        return torch.matmul(over[:, None], lines).to(images.dtype)
    return torch.matmul(over[:, None], lines).round_().clamp_(0, 255).to(torch.uint8)


def _weights(
    start: Tensor | None,
    size: Tensor | int,
    part: Tensor | None,
    flip: Tensor | None,
    lengths: tuple[int, int, int],
    how: Resampling,
    plan: Plan,
) -> Tensor:
    """Bilinear weights along one axis: float32 [B, output, source].

    Args:
        start: int64 [B], where the window starts in the source; None: 0.
        size: its length.
        part: int64 [B], where the kept part starts in the resized window; None: 0.
        flip: bool [B], whether the output is mirrored.
        lengths: of the resized window, the output and the source.
        how: whether it is antialiased.
        plan: how many samples there are, and where.
    """
    resized, output, source = lengths
    size = plan.of_batch(size)[:, None, None]
    place = torch.arange(output, device=plan.device).expand(plan.count, -1)
    if flip is not None:
        place = torch.where(flip[:, None], output - 1 - place, place)
    if part is not None:
        place = place + part[:, None]
    step = size.to(torch.float32) / resized
    reach = step.clamp(min=1.0) if how.antialias else torch.ones_like(step)
    center = (place[:, :, None] + 0.5) * step
    offset = torch.arange(source, device=plan.device)[None, None, :]
    offset = offset - (0 if start is None else start[:, None, None])
    weight = (1.0 - ((offset + 0.5 - center) / reach).abs()).clamp(min=0.0)
    weight = weight * ((offset >= 0) & (offset < size))
    return weight / weight.sum(2, keepdim=True)
