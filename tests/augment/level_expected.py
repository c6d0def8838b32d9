"""Steps that change levels, and a batch for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmload import augment
from mmload.augment import sample_seeds
from mmload.batch import Batch


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
