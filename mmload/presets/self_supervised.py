"""Presets without labels: SimCLR, DINOv2 and MAE."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from mmload.augment import (
    ColorJitter,
    GaussianBlur,
    Normalize,
    RandomApply,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    TwoViews,
    Views,
)
from mmload.augment.arguments import integer, number, numbers, refusal
from mmload.augment.collate import Collate
from mmload.presets.options import Options, expect_normalize, normalize_or, side

_BLUR = (0.1, 2.0)
"""The standard deviations of SimCLR's, BYOL's and DINO's blur."""

_BLURS = "three probabilities: of the first large crop, the second and the small ones"

_MOST_CROPS = 1000
"""Upper bound of the number of small crops that catches typing errors."""


def simclr(
    *, size: int = 224, strength: float = 1.0, normalize: Normalize | None = None, **options: Unpack[Options]
) -> TwoViews:
    """Makes SimCLR's two views: resized crop, flip, strong color jitter, gray, blur.

    Source: ``data_util.py`` of google-research/simclr at commit 244e712 (``preprocess_for_train``,
    ``batch_random_blur``), whose levels stay in [0, 1]: it does not normalize.

    What differs: crops are cut out of the stored squares. The bicubic resize is antialiased (TensorFlow's is not) and
    gives up after 10 attempts, as torchvision's (TensorFlow's after 100). Levels are rounded to 8 bits between steps.
    The blur reflects the image at its edges (there it is black outside).

    Args:
        size: pixels of a side; the blur's kernel is a tenth of it.
        strength: of the color jitter; the paper uses 1.0 for ImageNet and 0.5 for CIFAR-10, the latter without blur.
        normalize: None: as published, none.
        options: for the collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    size = side("size", size, greatest=10_000)
    strength = number("strength", strength, least=0.0, greatest=2.5, expected="a number from 0 to 2.5")
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    steps = [
        RandomResizedCrop(size, scale=(0.08, 1.0), interpolation="bicubic"),
        RandomHorizontalFlip(0.5),
        RandomApply([jitter], p=0.8),
        RandomGrayscale(0.2),
        RandomApply([GaussianBlur(2 * (size // 20) + 1, _BLUR)], p=0.5),
    ]
    return TwoViews(Collate(*steps, *_followed(normalize), **options))


def dinov2(
    *,
    size: int = 224,
    local_size: int = 96,
    local_crops: int = 8,
    blur: tuple[float, float, float] = (1.0, 0.1, 0.5),
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Views:
    """Makes DINOv2's views: two large crops, drawn by different lists, then the small ones.

    Source: ``dinov2/data/augmentations.py`` and ``transforms.py`` of facebookresearch/dinov2 at commit 05c66df, with
    the sizes, scales and number of ``dinov2/configs/ssl_default_config.yaml``.

    What differs: crops are cut out of the stored squares; the bicubic resize and the blur are of uint8 tensors, not of
    Pillow images. ``blur`` is what that code asks for, and DINO, MoCo v3 and BYOL do. It passes the complement to
    torchvision, by mistake (pull request 411 there), so that the released models saw ``blur=(0.0, 0.9, 0.5)``.

    Args:
        size: pixels of a side of the large crops.
        local_size: pixels of a side of the small crops.
        local_crops: how many small crops there are.
        blur: how likely the first large crop, the second and the small ones are blurred.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for each collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    chances = numbers("blur", blur, least=0.0, greatest=1.0, expected=_BLURS)
    if len(chances) != 3:
        raise refusal("blur", blur, _BLURS)
    local_size = side("local_size", local_size)
    local_crops = integer("local_crops", local_crops, least=0, greatest=_MOST_CROPS, expected=f"0 to {_MOST_CROPS}")
    first, second, local = (
        [RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), RandomGrayscale(0.2), _blurred(chance)]
        for chance in chances
    )
    after = _followed(normalize_or(normalize, Normalize.imagenet()))
    return Views(
        Collate(*_bicubic(size, (0.32, 1.0)), *first, *after, **options),
        Collate(*_bicubic(size, (0.32, 1.0)), *second, RandomSolarize(128, 0.2), *after, **options),
        *[Collate(*_bicubic(local_size, (0.05, 0.32)), *local, *after, **options)] * local_crops,
    )


def mae(*, size: int = 224, normalize: Normalize | None = None, **options: Unpack[Options]) -> Collate:
    """Makes the list of MAE's pretraining: a resized crop of a fifth of the image or more, and a flip.

    Source: ``main_pretrain.py`` of facebookresearch/mae at commit 3c8c715.

    What differs: crops are cut out of the stored squares, of uint8 tensors, not of Pillow images.

    Args:
        size: pixels of a side.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: for the collate.
    """
    return Collate(*_bicubic(size, (0.2, 1.0)), normalize_or(normalize, Normalize.imagenet()), **options)


def _bicubic(size: int, scale: tuple[float, float]) -> list[nn.Module]:
    return [RandomResizedCrop(size, scale=scale, interpolation="bicubic"), RandomHorizontalFlip(0.5)]


def _blurred(share: float) -> nn.Module:
    return RandomApply([GaussianBlur(9, _BLUR)], p=share)


def _followed(normalize: Normalize | None) -> list[nn.Module]:
    return [] if normalize is None else [expect_normalize(normalize)]
