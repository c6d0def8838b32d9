"""Training recipes that reach a given accuracy in little time: FFCV's ResNet-50 and cifar10-airbench."""

from __future__ import annotations

from typing import Any, Unpack

from mmload.augment import (
    AlternatingHorizontalFlip,
    Normalize,
    ProgressiveSize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from mmload.augment.collate import Collate
from mmload.recipes.options import Options, normalize_or, side


def ffcv_rn50(
    *,
    size: Any = ProgressiveSize(160, 192, start_epoch=65, end_epoch=76),  # noqa: B008  # it is frozen
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """FFCV's ResNet-50 of 88 epochs: a resized crop whose size rises from 160 to 192, and a flip.

    Source: ``train_imagenet.py`` of libffcv/ffcv-imagenet at commit 606c584 (``create_train_loader``,
    ``get_resolution``), with the resolutions of ``rn50_configs/rn50_88_epochs.yaml``.

    What differs: crops are cut out of the stored squares (FFCV stores photographs whose sides are at most 500 pixels).
    The resize is antialiased bilinear (FFCV's is by area). Batches are float32 unless ``dtype`` says float16, as there.

    Args:
        size: pixels of a side, or a callable that takes the epoch's number.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for the collate.
    """
    return Collate(
        RandomResizedCrop(size), RandomHorizontalFlip(0.5), normalize_or(normalize, Normalize.imagenet()), **options
    )


def airbench(
    *,
    size: int = 32,
    translate: int = 2,
    cutout: int = 0,
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """cifar10-airbench's lists for CIFAR-10: a crop of the reflected image, an alternating flip, perhaps cutout.

    Source: ``airbench/utils.py`` of KellerJordan/cifar10-airbench at commit 1156c94 (``CifarLoader``), with the
    settings of ``airbench/lib_airbench94.py``; those of ``lib_airbench96.py`` are ``translate=4, cutout=12``.

    What differs: a hash of the row's id says which rows are mirrored first, not a draw. Batches are float32 unless
    ``dtype`` says float16, and contiguous unless ``memory_format`` says channels_last, as there.

    Args:
        size: pixels of a side.
        translate: how far the image is moved at most, in pixels.
        cutout: side of the square that is overwritten by 0, the mean; 0: none.
        normalize: None: CIFAR-10's mean and standard deviation, as published.
        options: for the collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    size, translate = side("size", size), side("translate", translate, least=0)
    cutout = side("cutout", cutout, least=0, greatest=size)
    share = cutout**2 / size**2
    square = [RandomErasing(1.0, scale=(share, share), ratio=(1.0, 1.0), value=0.0)] if cutout else []
    crop = RandomCrop(size, padding=translate, padding_mode="reflect")
    return Collate(crop, AlternatingHorizontalFlip(), normalize_or(normalize, Normalize.cifar10()), *square, **options)
