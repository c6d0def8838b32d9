"""What lists of operations on levels make of an image, by torchvision's functionals, one operation at a time."""

from __future__ import annotations

from typing import Any

import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor, nn
from torchvision.transforms.v2.functional import _geometry as geometry

from mmload import augment
from mmload.augment import sample_seeds
from mmload.batch import Batch
from mmload.render import level_program as levels
from mmload.render.level_program import Program, Slot

NEAREST = (levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST)


def exact_steps() -> list[nn.Module]:
    """Steps whose uint8 pixels are torchvision's to the bit."""
    return [
        augment.RandomInvert(),
        augment.RandomSolarize(0.6),
        augment.RandomPosterize(3),
        augment.RandomEqualize(),
        augment.RandomAutocontrast(),
        augment.RandomAdjustSharpness(2.3),
        augment.ColorJitter(0.8, 0.8, 0.8, 0.4),
        augment.RandomApply([augment.RandomInvert(), augment.ColorJitter(0.3)], 0.6),
        augment.RandomChoice([augment.RandomEqualize(1.0), augment.RandomHorizontalFlip(0.5)], [2, 1]),
        augment.RandomOrder([augment.RandomPosterize(2), augment.RandomVerticalFlip(), augment.RandomGrayscale(0.5)]),
    ]


def inexact_steps() -> list[nn.Module]:
    """Steps that blur, warp or mix, and one whose programs round their factors, so that the bits are not to be had."""
    return [
        augment.RandomPhotometricDistort(),
        augment.GaussianBlur((5, 3)),
        augment.RandomRotation(40, "bilinear", fill=1),
        augment.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), (5, 9, -3, 4)),
        augment.RandomPerspective(0.6, 0.7),
        augment.RandAugment(),
        augment.TrivialAugmentWide(),
        augment.AutoAugment("svhn"),
        augment.AugMix(),
        augment.RandomOrder([augment.GaussianBlur(3), augment.RandomRotation(30), augment.RandomInvert()]),
    ]


def level_steps() -> list[nn.Module]:
    """One of every step that changes levels."""
    return exact_steps() + inexact_steps()


def batch_of(count: int, channels: int = 3, height: int = 29, width: int = 37, **fields: Tensor) -> Batch:
    """Smooth images with some noise, uint8."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand((count, channels, 5, 6), generator=generator) * 230
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.rand((count, channels, height, width), generator=generator) * 25
    return Batch(
        images=(smooth + noise).to(torch.uint8),
        seeds=sample_seeds(5, 0, torch.arange(count)),
        batch_size=[count],
        **fields,
    )


def by_torchvision(program: Program, k: int, image: Tensor) -> Tensor:
    """Sample ``k``: its image [C, H, W] after its operations."""
    kept = mixture = image
    for place, slot in enumerate(program.slots):
        code = int(program.codes[k, place])
        numbers = program.numbers[k, place].tolist()
        if code == levels.MIX_BEGIN:
            kept, mixture = image, numbers[0] * image
        elif code == levels.MIX_ADD:
            mixture, image = mixture + numbers[0] * image, kept
        elif code == levels.MIX_END:
            image = mixture.to(image.dtype)
        elif code != levels.NONE:
            assert code in slot.operations
            image = _changed(code, numbers, slot, image)
    return image


def _changed(code: int, numbers: list[float], slot: Slot, image: Tensor) -> Tensor:
    colors = len(image) == 3
    if code == levels.GRAY:
        return tv.rgb_to_grayscale(image, 3) if colors else image
    if code == levels.PERMUTE:
        return image[[int(one) for one in numbers[:3]]]
    if code == levels.BLUR:
        return tv.gaussian_blur(image, [int(numbers[0]), int(numbers[1])], [numbers[2]] * 2)
    if code == levels.POSTERIZE:
        return tv.posterize(image, int(numbers[0]))
    if code in levels.WARPS:
        return _warped(code, numbers, slot, image)
    plain: dict[int, Any] = {
        levels.INVERT: tv.invert,
        levels.AUTOCONTRAST: tv.autocontrast,
        levels.EQUALIZE: tv.equalize,
        levels.FLIP_X: tv.horizontal_flip,
        levels.FLIP_Y: tv.vertical_flip,
    }
    if code in plain:
        return plain[code](image)
    by_factor: dict[int, Any] = {
        levels.BRIGHTNESS: tv.adjust_brightness,
        levels.CONTRAST: tv.adjust_contrast,
        levels.SATURATION: tv.adjust_saturation,
        levels.HUE: tv.adjust_hue,
        levels.SHARPNESS: tv.adjust_sharpness,
        levels.SOLARIZE: tv.solarize,
    }
    blends = code in (levels.CONTRAST, levels.SATURATION, levels.SHARPNESS)
    more_exact = blends and abs(numbers[1]) < abs(numbers[0])  # of the factor and 1 less it, both rounded
    return by_factor[code](image, 1 - numbers[1] if more_exact else numbers[0])


def _warped(code: int, numbers: list[float], slot: Slot, image: Tensor) -> Tensor:
    """By torchvision's grids, of the program's matrix."""
    height, width = image.shape[1:]
    if code in (levels.AFFINE_NEAREST, levels.AFFINE_BILINEAR):
        grid = geometry._affine_grid(torch.tensor([numbers[:6]]).view(1, 2, 3), w=width, h=height, ow=width, oh=height)
    else:
        grid = geometry._perspective_grid(numbers, ow=width, oh=height, dtype=torch.float32, device=image.device)
    mode = "nearest" if code in NEAREST else "bilinear"
    fill = None if slot.fill is None else list(slot.fill)
    return geometry._apply_grid_transform(image.unsqueeze(0), grid, mode, fill)[0]
