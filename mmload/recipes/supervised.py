"""Training recipes with labels: torchvision's reference, ResNet strikes back and DeiT III."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from mmload.augment import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    TrivialAugmentWide,
)
from mmload.augment.collate import Collate
from mmload.recipes.options import Options, normalize_or


def torchvision_reference(
    *, num_classes: int, size: int = 176, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Collate:
    """Torchvision's reference for its second ResNet-50 weights: TrivialAugmentWide, erasing, MixUp or CutMix.

    Source: ``references/classification/presets.py`` of pytorch/vision at commit 080836e and ``train.py`` at 017e9b9,
    with the arguments of the ResNet-50 command in torchvision's blog on its training recipe: ``--train-crop-size 176
    --auto-augment ta_wide --random-erase 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0``.

    What differs: crops are cut out of the stored squares, of uint8 tensors, not of Pillow images. A batch is mixed by
    MixUp or by CutMix, as there, but each sample has its own lambda. The repeated augmentation (``--ra-sampler
    --ra-reps 4``) is an order of rows and not in here: give the Loader such a ``sampler``.

    Args:
        num_classes: the dataset's.
        size: pixels of a side.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for the collate.
    """
    return Collate(
        RandomResizedCrop(size),
        RandomHorizontalFlip(0.5),
        TrivialAugmentWide(interpolation="bilinear"),
        normalize_or(normalize, Normalize.imagenet()),
        RandomErasing(0.1),
        _mix(0.2, 1.0, num_classes),
        **options,
    )


def rsb_a2(
    *, num_classes: int, size: int = 224, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Collate:
    """ResNet strikes back, procedure A2: bicubic resized crop, RandAugment, MixUp or CutMix.

    Source: table 2 of Wightman, Touvron and Jegou 2021 (``rand-m7-mstd0.5-inc1``, MixUp 0.1, CutMix 1.0, repeated
    augmentation), carried out by ``timm/data/transforms_factory.py`` of huggingface/pytorch-image-models at commit
    0893f5d and ``timm/data/auto_augment.py`` at 066e490; ``configs/resnet/resnet50_8xb256-rsb-a2_in1k.py`` of
    open-mmlab/mmpretrain has the same settings.

    What differs: crops are cut out of the stored squares, of uint8 tensors, not of Pillow images. The two operations
    are torchvision's, each made with probability 0.5 as by timm, at bin 21 of 31, which is timm's 7 of 10: the same
    angles, shears, factors and solarize threshold (76.5; timm's 77), and shifts of 0.317 of a side (0.315). timm's list
    has Invert and SolarizeAdd and no Identity, its magnitudes have a standard deviation of 0.5, its posterize keeps 2
    bits (5 here), and its warps are bicubic. A sample's partner is the one before it (timm's is at its place counted
    from the end), and each has its own lambda (there one a batch); which of the two mixes a batch is drawn once, as
    there. Repeated augmentation (3) is an order of rows and not in here. The loss is binary cross-entropy; commands of
    A2 add ``--bce-target-thresh 0.2``: ``(batch.targets > 0.2).float()``.

    Args:
        num_classes: the dataset's.
        size: pixels of a side.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for the collate.
    """
    normalize = normalize_or(normalize, Normalize.imagenet())
    fill = tuple(float(round(255 * value)) for value in normalize.mean.tolist())
    augment = RandAugment(num_ops=1, magnitude=21, num_magnitude_bins=31, interpolation="bilinear", fill=fill)
    return Collate(
        RandomResizedCrop(size, interpolation="bicubic"),
        RandomHorizontalFlip(0.5),
        RandomApply([augment], p=0.5),
        RandomApply([augment], p=0.5),
        normalize,
        _mix(0.1, 1.0, num_classes),
        **options,
    )


def deit3(
    *, num_classes: int, size: int = 224, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Collate:
    """DeiT III with 3-Augment: gray, solarize or blur, then a color jitter, and MixUp or CutMix.

    Source: ``augment.py`` of facebookresearch/deit at commit 4da6691 (``new_data_aug_generator``, without ``--src``),
    with ``--color-jitter 0.3 --mixup .8 --cutmix 1.0`` of ``README_revenge.md`` at 4bd679b.

    What differs: crops are cut out of the stored squares, of uint8 tensors, not of Pillow images. Pillow's blur is
    three box filters; here it is a Gaussian of 13 taps, which cover three of the largest standard deviation. Each
    sample has its own lambda; which of the two mixes a batch is drawn once, as there. Repeated augmentation (3) is an
    order of rows and not in here.

    Args:
        num_classes: the dataset's.
        size: pixels of a side; the larger models train at 192 and 160 first.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for the collate.
    """
    one_of_three = [RandomGrayscale(1.0), RandomSolarize(128, 1.0), GaussianBlur(13, (0.1, 2.0))]
    return Collate(
        RandomResizedCrop(size, scale=(0.08, 1.0), interpolation="bicubic"),
        RandomHorizontalFlip(0.5),
        RandomChoice(one_of_three),
        ColorJitter(0.3, 0.3, 0.3),
        normalize_or(normalize, Normalize.imagenet()),
        _mix(0.8, 1.0, num_classes),
        **options,
    )


def _mix(mixup: float, cutmix: float, classes: int) -> nn.Module:
    """One of the two for each batch, equally likely."""
    return RandomChoice(
        [MixUp(alpha=mixup, num_classes=classes), CutMix(alpha=cutmix, num_classes=classes)], per="batch"
    )
