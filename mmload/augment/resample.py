"""Resizes windows: one image at a time on a CPU, a whole batch of windows of different sizes on a device.

Comes in: pixels cut from an image, or a batch and its plan. Goes out: resized pixels in the same dtype, the numbers of
torchvision's antialiased resize (the batch: within one level of them). Knows nothing of colours.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmload.augment.plan import Plan, Resampling
from mmload.augment.sampling import Window
from mmload.augment.scratch import scratch_array

PACKED_FACTORS = (1, 1 << 8, 1 << 16)
"""What each channel is multiplied by in a packed pixel."""

_BYTES = torch.tensor([255 * factor for factor in PACKED_FACTORS], dtype=torch.int32).view(3, 1, 1)


def resized(pixels: Tensor, window: Window, how: Resampling, part: tuple[int, int]) -> Tensor:
    """One image [C, rows, cols] resized, and of that the part (height, width) that the window keeps."""
    smooth = how.mode in ("bilinear", "bicubic")
    native = pixels.device.type == "cpu" or not smooth or pixels.dtype != torch.uint8
    wanted = pixels if native else pixels.float()
    full = F.interpolate(wanted[None], size=(how.height, how.width), mode=how.mode, antialias=how.antialias)[0]
    if not native:
        full = full.clamp_(0, 255).round_().to(torch.uint8)
    return kept(full, window, part)


def kept(full: Tensor, window: Window, part: tuple[int, int]) -> Tensor:
    """The part [..., h, w] of a resized image that the window keeps."""
    if full.shape[-2:] == part:
        return full
    top, left = window.part_top, window.part_left
    return full[..., top : top + part[0], left : left + part[1]]


def resized_packed(pixels: Tensor, how: Resampling) -> Tensor:
    """A uint8 image [3, rows, cols] resized with its three channels as the bytes of one integer: int32 [h, w].

    torch's uint8 resize works on interleaved pixels: given planes it interleaves them and takes them apart again byte
    by byte, which costs as much as the resize. Packing by integer arithmetic, which is vectorised, gives the same
    numbers in 0.86 of the time (crop of random size to 224, one thread).
    """
    _, rows, cols = pixels.shape
    planes = scratch_array("planes", pixels.shape, torch.int32)
    torch.from_numpy(planes).copy_(pixels)
    packed, second, third = map(torch.from_numpy, planes)
    packed.add_(second, alpha=1 << 8).add_(third, alpha=1 << 16)
    # A batch stride that no contiguous batch of one would have: torch takes the memory for interleaved only so.
    strides = (4 * rows * cols, 1, 4 * cols, 4)
    interleaved = torch.from_numpy(np.ndarray((1, 4, rows, cols), np.uint8, planes, strides=strides))
    full = F.interpolate(interleaved, size=(how.height, how.width), mode=how.mode, antialias=how.antialias)
    return torch.from_numpy(full.numpy().transpose(0, 2, 3, 1).view(np.int32)[0, :, :, 0])


def unpacked(packed: Tensor, out: Tensor) -> Tensor:
    """The bytes of int32 [h, w] as three planes of ``out``, float32 [3, h, w], each still times 1, 256 or 65536.

    The integers are converted where they stand: that keeps 600 KB less in cache, a sixth of a resized crop's time.
    """
    return out.copy_(torch.bitwise_and(packed, _BYTES, out=torch.from_numpy(out.numpy().view(np.int32))))


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
    centre = (place[:, :, None] + 0.5) * step
    offset = torch.arange(source, device=plan.device)[None, None, :]
    offset = offset - (0 if start is None else start[:, None, None])
    weight = (1.0 - ((offset + 0.5 - centre) / reach).abs()).clamp(min=0.0)
    weight = weight * ((offset >= 0) & (offset < size))
    return weight / weight.sum(2, keepdim=True)
