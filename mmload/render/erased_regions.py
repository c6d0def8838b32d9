"""Overwrites a plan's holes in rendered images in place, one row at a time or a batch at once, with the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from mmload.render.device_constants import constant
from mmload.render.plan import Hole
from mmload.runtime.hashing import INCREMENT, mixed, unit

Corner = tuple[int, int, int, int]
"""One hole in integers: top, left, height, width."""


def corners_of(hole: Hole) -> list[Corner]:
    """Every sample's hole in Python numbers."""
    sides = (hole.top, hole.left, hole.height, hole.width)
    return list(zip(*(side.tolist() for side in sides), strict=True))


def punch_row(k: int, hole: Hole, corner: Corner, image: Tensor) -> None:
    """Overwrites sample ``k``'s hole in its image [C, H, W]."""
    top, left, height, width = corner
    if not height or not width:
        return
    inside = image[:, top : top + height, left : left + width]
    if hole.value is not None:
        inside.copy_(_values(hole.value, image))
    elif hole.noise is not None:
        numbers = torch.arange(inside.numel(), device=image.device).view(inside.shape)
        inside.copy_(noise_at(hole.noise[k], numbers))


def punch_batch(hole: Hole, images: Tensor) -> None:
    """Overwrites every sample's hole in a batch [B, C, H, W]."""
    _, channels, rows, cols = images.shape
    y = torch.arange(rows, device=images.device).view(1, 1, -1, 1) - _of_batch(hole.top)
    x = torch.arange(cols, device=images.device).view(1, 1, 1, -1) - _of_batch(hole.left)
    height, width = _of_batch(hole.height), _of_batch(hole.width)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if hole.value is not None:
        images.copy_(torch.where(inside, _values(hole.value, images), images))
    elif hole.noise is not None:
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        numbers = (channel * height + y) * width + x
        noise = noise_at(_of_batch(hole.noise), numbers).to(images.dtype)
        images.copy_(torch.where(inside, noise, images))


def noise_at(key: Tensor, numbers: Tensor) -> Tensor:
    """Standard normal noise (Box and Muller) for the pixels ``numbers`` of a hole: float32, keyed by the hole."""
    even, odd = (unit(mixed(key + (2 * numbers + one) * INCREMENT)) for one in (1, 2))
    return ((-2.0 * torch.log1p(-even)).sqrt() * (2.0 * torch.pi * odd).cos()).to(torch.float32)


def _values(value: tuple[float, ...], images: Tensor) -> Tensor:
    return constant(value, images.dtype, images.device).view(-1, 1, 1)


def _of_batch(one: Tensor) -> Tensor:
    return one.view(-1, 1, 1, 1)
