"""Resizes windows: one image at a time on a CPU, a whole batch of windows of different sizes on a device.

Comes in: an image and its window, or a batch and its plan. Goes out: resized pixels in the same dtype, the numbers of
torchvision's antialiased resize (the batch: within one level of them). Knows nothing of colours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmload.augment.plan import Padding, Plan, Resampling
from mmload.augment.sampling import Window, cut


def resized(image: Tensor, window: Window, how: Resampling, padding: Padding | None) -> Tensor:
    """The window of any image [C, H, W] resized: [C, height, width] in its dtype."""
    pixels = cut(image, window, padding)
    native = image.device.type == "cpu" or how.mode not in ("bilinear", "bicubic") or pixels.dtype != torch.uint8
    wanted = pixels if native else pixels.float()
    full = F.interpolate(wanted[None], size=(how.height, how.width), mode=how.mode, antialias=how.antialias)[0]
    return full if native else full.clamp_(0, 255).round_().to(torch.uint8)


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
