"""Mixes the samples of a rendered batch by torch's operations, on any device, without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor

from mmload.render.plan import Mixing


def mixed_batch(mixing: Mixing, images: Tensor) -> Tensor:
    """Images [B, C, h, w], each blended with the one before it, or with a rectangle of that pasted in.

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
    """Which pixels of each sample lie in its box, bool [B, h, w]; boxes: int64 [B, 4], x1 y1 x2 y2."""
    x1, y1, x2, y2 = boxes[:, :, None, None].unbind(1)
    y = torch.arange(height, device=boxes.device)[:, None]
    x = torch.arange(width, device=boxes.device)
    return (y >= y1) & (y < y2) & (x >= x1) & (x < x2)
