"""What the published models are evaluated with: a resize and a center crop."""

from __future__ import annotations

from typing import Unpack

from mmload.augment import CenterCrop, Normalize, Resize
from mmload.augment.collate import Collate
from mmload.recipes.options import Options, normalize_or, side


def evaluation(
    *,
    size: int = 224,
    resize: int | None = 256,
    interpolation: str = "bilinear",
    normalize: Normalize | None = None,
    **options: Unpack[Options],
) -> Collate:
    """A resize of the stored images, their middle, and Normalize: the images that accuracies are published for.

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
        options: for the collate.
    """
    first = [] if resize is None else [Resize(side("resize", resize), interpolation)]
    return Collate(*first, CenterCrop(size), normalize_or(normalize, Normalize.imagenet()), **options)
