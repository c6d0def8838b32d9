"""Lists of steps that docs/benchmarks measures and that no published recipe is: ``--recipe bench_lists:jitter``."""

from __future__ import annotations

from mmload.augment import ColorJitter, Normalize, RandAugment, RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate


def jitter(size: int = 224) -> Collate:
    """Resized crop, flip, ColorJitter(0.4, 0.4, 0.4) and Normalize: torchvision's examples with a color jitter."""
    crop, flip = RandomResizedCrop(size), RandomHorizontalFlip()
    return Collate(crop, flip, ColorJitter(0.4, 0.4, 0.4), Normalize.imagenet())


def rand_augment(size: int = 224) -> Collate:
    """Resized crop, flip, RandAugment with torchvision's defaults, and Normalize."""
    return Collate(RandomResizedCrop(size), RandomHorizontalFlip(), RandAugment(), Normalize.imagenet())
