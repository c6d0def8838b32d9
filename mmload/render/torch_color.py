"""Brightness, contrast, saturation and hue of a batch, one factor per sample, with torchvision's numbers.

The functions take float32 images [B, 1 or 3, H, W] and factors [B], and return new float32 images. Values run from 0 to
``white``: 255 for images that were uint8, whose results are rounded down to levels as torchvision's are; else 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmload.render.device_constants import constant
from mmload.render.plan import LUMA_WEIGHTS

_RED, _GREEN, _BLUE = LUMA_WEIGHTS
_SECTORS = (0, 3, 1, 2, 0, 1, 1, 0, 3, 1, 2, 0, 3, 1, 0, 0, 1, 2)
"""Which of value, least, falling and rising each of red, green, blue is, per sixth of the color circle."""


def brightness(images: Tensor, factor: Tensor, white: float) -> Tensor:
    """Values times the factor."""
    return _levels((images * _per_sample(factor)).clamp_(0, white), white)


def contrast(images: Tensor, factor: Tensor, rest: Tensor, white: float) -> Tensor:
    """Blended with the mean luma; the sum is in float64, so that it does not depend on its order."""
    luma = luma_of(images, white)
    mean = luma.to(torch.float64).mean(dim=(1, 2, 3), keepdim=True).to(torch.float32)
    return _blended(images, mean, factor, rest, white)


def saturation(images: Tensor, factor: Tensor, rest: Tensor, white: float) -> Tensor:
    """Blended with each pixel's luma; one channel is returned unchanged."""
    return images if images.shape[1] == 1 else _blended(images, luma_of(images, white), factor, rest, white)


def hue(images: Tensor, shift: Tensor, white: float) -> Tensor:
    """Hue rotated by a share of the color circle, through HSV; one channel is returned unchanged."""
    if images.shape[1] == 1 or not images.numel():
        return images
    scaled = images if white == 1 else images * (1.0 / white)
    angle, strength, value = _to_hsv(scaled)
    rotated = _to_rgb((angle + _per_sample(shift)[:, 0]).remainder_(1.0), strength, value)
    return rotated if white == 1 else (rotated * (white + 1 - 1e-3)).floor_()


def luma_of(images: Tensor, white: float) -> Tensor:
    """The luma [B, 1, H, W], in whole levels for uint8; one channel is its own luma."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    luma = red.mul(_RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE).unsqueeze(1)
    return luma if white == 1 else luma.floor_()


def _blended(images: Tensor, other: Tensor, factor: Tensor, rest: Tensor, white: float) -> Tensor:
    """Images * factor + other * rest.

    torchvision's second product and sum are one fused operation with one rounding. A factor per sample has no such
    operation; float64 holds the product exactly, so rounding its sum gives the same bits. One bit matters: values are
    cut to whole levels, and hue magnifies a level.
    """
    first = (images * _per_sample(factor)).to(torch.float64)
    total = first.add_(other.to(torch.float64) * _per_sample(rest.to(torch.float64)))
    return _levels(total.to(torch.float32).clamp_(0, white), white)


def _levels(values: Tensor, white: float) -> Tensor:
    return values if white == 1 else values.floor_()


def _per_sample(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value [B, H, W] in [0, 1] of images in [0, 1]; the usual hexagon formula."""
    red, green, _ = images.unbind(1)
    least, value = torch.aminmax(images, dim=1)
    reach = value - least
    flat = reach == 0
    strength = reach / torch.where(flat, 1.0, value)
    below = (value.unsqueeze(1) - images) / torch.where(flat, 1.0, reach).unsqueeze(1)
    from_red, from_green, from_blue = below.unbind(1)
    angle = torch.where(
        value == red,
        from_blue - from_green,
        torch.where(value == green, from_red + 2.0 - from_blue, from_green + 4.0 - from_red),
    )
    return angle.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0), strength, value


def _to_rgb(angle: Tensor, strength: Tensor, value: Tensor) -> Tensor:
    """The way back: images [B, 3, H, W]."""
    sixths = angle * 6
    sector = sixths.floor()
    part = strength * (sixths - sector)
    pale = 1.0 - strength
    least = (pale * value).clamp_(0.0, 1.0)
    falling = ((1.0 - part) * value).clamp_(0.0, 1.0)
    rising = ((part + pale) * value).clamp_(0.0, 1.0)
    levels = torch.stack((value, least, falling, rising), dim=1)
    table = constant(_SECTORS, torch.int64, angle.device).view(6, 3).t()
    chosen = table[:, sector.to(torch.int64).remainder_(6)].transpose(0, 1)
    return levels.gather(1, chosen)
