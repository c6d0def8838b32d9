"""Applies one sample's row of a :class:`~mmload.render.level_program.Program` with torchvision's functionals.

Flips and warps also transform boxes and masks. It never calls mmload's own rendering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload.render import level_program as levels
from mmload.render.level_program import OperationSlot, Program

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


def changed(items: Items, program: Program, k: int, allowance: Allowance) -> tuple[Items, Allowance]:
    """Applies the program to sample ``k``; returns its fields and the allowance for its image."""
    original: Tensor | None = None
    mixture: Tensor | None = None
    before = allowance
    for code, numbers, slot in zip(program.codes[k].tolist(), program.numbers[k].tolist(), program.slots, strict=True):
        image = items["images"]
        if code in levels.MIXES:
            if code == levels.MIX_BEGIN:
                original, mixture, before = image, _share(numbers[0]) * image, allowance
                continue
            if original is None or mixture is None:
                raise ValueError("a mixture is added to or ended before it has begun")
            if code == levels.MIX_ADD:
                mixture = mixture + _share(numbers[0]) * image
                items = items | {"images": original}
            else:
                items = items | {"images": tv_tensors.Image(mixture.clamp(0, 255).to(image.dtype))}
                allowance = replace(allowance, levels=max(allowance.levels, before.levels) + 1)
        elif code != levels.NONE:
            allowance = _allowed(allowance, code, numbers, image)
            items = _moved(items, code, numbers, slot) if code in levels.MOVES else _colored(items, code, numbers)
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


def _colored(items: Items, code: int, numbers: list[float]) -> Items:
    return items | {"images": _COLORS[code](items["images"], numbers)}


def _moved(items: Items, code: int, numbers: list[float], slot: OperationSlot) -> Items:
    """Applies a flip or a warp to image, boxes and mask."""
    if code not in levels.WARPS:
        flip = F.horizontal_flip if code == levels.FLIP_X else F.vertical_flip
        return {name: flip(item) for name, item in items.items()}
    warp = _affine if code in _AFFINE else _perspective
    mode = InterpolationMode.NEAREST if code in _NEAREST else InterpolationMode.BILINEAR
    fill = None if slot.fill is None else slot.fill[0] if len(slot.fill) == 1 else list(slot.fill)
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


_MAGNIFIES = frozenset({levels.HUE, levels.SOLARIZE, levels.POSTERIZE, levels.EQUALIZE, levels.AUTOCONTRAST})
_BLENDS = frozenset({levels.BRIGHTNESS, levels.CONTRAST, levels.SATURATION, levels.SHARPNESS})
_AFFINE = frozenset({levels.AFFINE_NEAREST, levels.AFFINE_BILINEAR})
_NEAREST = frozenset({levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST})
_ROUNDED = frozenset({levels.BLUR}) | (levels.WARPS - _NEAREST)
"""Operations that add several pixels, in a different order than torchvision."""


def _allowed(allowance: Allowance, code: int, numbers: list[float], image: Tensor) -> Allowance:
    """Returns the allowance after one operation; an operation that is exact only passes on earlier differences."""
    difference = allowance.levels
    if code in _ROUNDED:
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
