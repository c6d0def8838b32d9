"""Presets: the published lists of random steps, each as one call that makes the collate of a Loader.

Each function names its source, to the file and commit, and everything that differs. A recipe
(:class:`~mmload.builder.recipe.BuildRecipe`) is something else: it describes how a dataset is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import nn

from mmload.augment import (
    AlternatingHorizontalFlip,
    BoxRule,
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    ProgressiveSize,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    Resize,
    TrivialAugmentWide,
    Views,
)
from mmload.augment.arguments import LONGEST_SIDE, integer, number, numbers
from mmload.augment.collate import Collate
from mmload.errors import shown
from mmload.lazy import importer

if not TYPE_CHECKING:  # else every wrong name would have a type
    __getattr__ = importer(__name__)

__all__ = [
    "airbench",
    "deit3",
    "dinov2",
    "evaluation",
    "ffcv_rn50",
    "mae",
    "rsb_a2",
    "simclr",
    "torchvision_reference",
]


class Options(TypedDict, total=False):
    """Arguments that a preset hands to each :class:`~mmload.augment.collate.Collate` that it makes."""

    device: torch.device | str | None
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule | None


def _side(name: str, pixels: object, *, least: int = 1, greatest: int = LONGEST_SIDE) -> int:
    """Returns the pixels of a side, checked.

    Raises:
        ValueError: if it is no integer from ``least`` to ``greatest``.
    """
    return integer(name, pixels, least=least, greatest=greatest)


def _normalize(requested: Normalize | None, published: Normalize | None) -> list[Normalize]:
    """Returns the requested step, or else the published one, as a list; an empty list if there is neither."""
    if not isinstance(requested, Normalize | None):
        raise TypeError(f"normalize is {shown(requested)}, expected a Normalize of mmload.augment or None")
    chosen = published if requested is None else requested
    return [] if chosen is None else [chosen]


def torchvision_reference(
    *, num_classes: int, size: int = 176, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Collate:
    """Makes torchvision's reference for its second ResNet-50 weights: TrivialAugmentWide, erasing, MixUp or CutMix.

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
        options: options of the collate.
    """
    return Collate(
        RandomResizedCrop(size),
        RandomHorizontalFlip(0.5),
        TrivialAugmentWide(interpolation="bilinear"),
        *_normalize(normalize, Normalize.imagenet()),
        RandomErasing(0.1),
        _mix(0.2, 1.0, num_classes),
        **options,
    )


def rsb_a2(
    *, num_classes: int, size: int = 224, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Collate:
    """Makes the list of ResNet strikes back, procedure A2: bicubic resized crop, RandAugment, MixUp or CutMix.

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
        options: options of the collate.
    """
    (normalize,) = _normalize(normalize, Normalize.imagenet())
    fill = tuple(float(round(255 * value)) for value in normalize.mean)
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
    """Makes the list of DeiT III with 3-Augment: gray, solarize or blur, then a color jitter, and MixUp or CutMix.

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
        options: options of the collate.
    """
    one_of_three = [RandomGrayscale(1.0), RandomSolarize(128, 1.0), GaussianBlur(13, (0.1, 2.0))]
    return Collate(
        RandomResizedCrop(size, scale=(0.08, 1.0), interpolation="bicubic"),
        RandomHorizontalFlip(0.5),
        RandomChoice(one_of_three),
        ColorJitter(0.3, 0.3, 0.3),
        *_normalize(normalize, Normalize.imagenet()),
        _mix(0.8, 1.0, num_classes),
        **options,
    )


def _mix(mixup: float, cutmix: float, classes: int) -> nn.Module:
    """Returns a step that mixes each batch by one of the two, equally likely."""
    return RandomChoice(
        [MixUp(alpha=mixup, num_classes=classes), CutMix(alpha=cutmix, num_classes=classes)], per="batch"
    )


def evaluation(
    *,
    size: int = 224,
    resize: int | None = 256,
    interpolation: str = "bilinear",
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """Makes a resize of the stored images, their middle, and Normalize: what accuracies are published for.

    =============  ======  ======  =============
    models         resize    size  interpolation
    =============  ======  ======  =============
    torchvision       232     224       bilinear
    RSB A2            235     224        bicubic
    MAE               256     224        bicubic
    DeiT III          224     224        bicubic
    FFCV rn50         292     256       bilinear
    =============  ======  ======  =============

    RSB's crop ratio is 0.95; MAE's resize is in its ``util/datasets.py`` (``build_transform``) at commit be47fef;
    DeiT III's crop ratio is 1.0 by the commands of facebookresearch/deit's ``README_revenge.md`` at 012a100 (DeiT's
    own is 0.875: 256).

    These resize the shorter side of the photograph. A stored square that was made by such a resize is resized a second
    time here; give ``resize=None`` for images that were stored at that size already: only their middle is taken.

    Args:
        size: pixels of a side of the middle that is taken.
        resize: pixels of the shorter side before that; None: as stored.
        interpolation: "bilinear" or "bicubic", antialiased.
        normalize: None: ImageNet's mean and standard deviation.
        options: options of the collate.
    """
    first = [] if resize is None else [Resize(_side("resize", resize), interpolation)]
    return Collate(*first, CenterCrop(size), *_normalize(normalize, Normalize.imagenet()), **options)


def ffcv_rn50(
    *,
    size: Any = ProgressiveSize(160, 192, start_epoch=65, end_epoch=76),  # noqa: B008  # it is frozen
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """Makes the list of FFCV's ResNet-50 of 88 epochs: a resized crop whose size rises from 160 to 192, and a flip.

    Source: ``train_imagenet.py`` of libffcv/ffcv-imagenet at commit 606c584 (``create_train_loader``,
    ``get_resolution``), with the resolutions of ``rn50_configs/rn50_88_epochs.yaml``.

    What differs: crops are cut out of the stored squares (FFCV stores photographs whose sides are at most 500 pixels).
    The resize is antialiased bilinear (FFCV's is by area). Batches are float32 unless ``dtype`` says float16, as there.

    Args:
        size: pixels of a side, or a callable that takes the epoch's number.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: options of the collate.
    """
    return Collate(
        RandomResizedCrop(size), RandomHorizontalFlip(0.5), *_normalize(normalize, Normalize.imagenet()), **options
    )


def airbench(
    *,
    size: int = 32,
    translate: int = 2,
    cutout: int = 0,
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """Makes cifar10-airbench's lists for CIFAR-10: a crop of the reflected image, an alternating flip, perhaps cutout.

    Source: ``airbench/utils.py`` of KellerJordan/cifar10-airbench at commit 1156c94 (``CifarLoader``), with the
    settings of ``airbench/lib_airbench94.py``; those of ``lib_airbench96.py`` are ``translate=4, cutout=12``.

    What differs: a hash of the row's id says which rows are mirrored first, not a draw. Batches are float32 unless
    ``dtype`` says float16, and contiguous unless ``memory_format`` says channels_last, as there.

    Args:
        size: pixels of a side.
        translate: greatest translation, in pixels.
        cutout: side of the square that is overwritten by 0, the mean; 0: none.
        normalize: None: CIFAR-10's mean and standard deviation, as published.
        options: options of the collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    size, translate = _side("size", size), _side("translate", translate, least=0)
    cutout = _side("cutout", cutout, least=0, greatest=size)
    share = cutout**2 / size**2
    square = [RandomErasing(1.0, scale=(share, share), ratio=(1.0, 1.0), value=0.0)] if cutout else []
    crop = RandomCrop(size, padding=translate, padding_mode="reflect")
    return Collate(crop, AlternatingHorizontalFlip(), *_normalize(normalize, Normalize.cifar10()), *square, **options)


_BLUR = (0.1, 2.0)
"""The standard deviations of SimCLR's, BYOL's and DINO's blur."""

_BLURS = "three probabilities: of the first large crop, the second and the small ones"

_MOST_CROPS = 1000
"""Upper bound of the number of small crops that catches typing errors."""


def simclr(
    *, size: int = 224, strength: float = 1.0, normalize: Normalize | None = None, **options: Unpack[Options]
) -> Views:
    """Makes SimCLR's two views: resized crop, flip, strong color jitter, gray, blur.

    Source: ``data_util.py`` of google-research/simclr at commit 244e712 (``preprocess_for_train``,
    ``batch_random_blur``), whose levels stay in [0, 1]: it does not normalize.

    What differs: crops are cut out of the stored squares. The bicubic resize is antialiased (TensorFlow's is not) and
    gives up after 10 attempts, as torchvision's (TensorFlow's after 100). Levels are rounded to 8 bits between steps.
    The blur reflects the image at its edges (there it is black outside).

    Args:
        size: pixels of a side; the blur's kernel is a tenth of it.
        strength: strength of the color jitter; the paper uses 1.0 for ImageNet, and 0.5 without blur for CIFAR-10.
        normalize: None: as published, none.
        options: options of the collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    size = _side("size", size, greatest=10_000)
    strength = number("strength", strength, least=0.0, greatest=2.5)
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    steps = [
        RandomResizedCrop(size, scale=(0.08, 1.0), interpolation="bicubic"),
        RandomHorizontalFlip(0.5),
        RandomApply([jitter], p=0.8),
        RandomGrayscale(0.2),
        RandomApply([GaussianBlur(2 * (size // 20) + 1, _BLUR)], p=0.5),
    ]
    return Views(*[Collate(*steps, *_normalize(normalize, None), **options)] * 2)


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
        local_crops: number of small crops.
        blur: probabilities that the first large crop, the second and the small ones are blurred.
        normalize: None: ImageNet's mean and standard deviation, as published.
        options: options of each collate.

    Raises:
        ValueError: if an argument is out of range.
    """
    chances = numbers("blur", blur, least=0.0, greatest=1.0, count=3, expected=_BLURS)
    local_size = _side("local_size", local_size)
    local_crops = integer("local_crops", local_crops, least=0, greatest=_MOST_CROPS)
    first, second, local = (
        [RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), RandomGrayscale(0.2), _blurred(chance)]
        for chance in chances
    )
    after = _normalize(normalize, Normalize.imagenet())
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
        options: options of the collate.
    """
    return Collate(*_bicubic(size, (0.2, 1.0)), *_normalize(normalize, Normalize.imagenet()), **options)


def _bicubic(size: int, scale: tuple[float, float]) -> list[nn.Module]:
    return [RandomResizedCrop(size, scale=scale, interpolation="bicubic"), RandomHorizontalFlip(0.5)]


def _blurred(share: float) -> nn.Module:
    return RandomApply([GaussianBlur(9, _BLUR)], p=share)
