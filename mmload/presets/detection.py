"""Presets of detectors: lists of random steps that move boxes, too, for datasets with boxes.

Boxes are in pixels of the output, xyxy, and labels count from 0; ``returns="torchvision"`` gives what torchvision's
detection models take. None of the lists normalizes: these models do so themselves, or take values from 0 to 1.
"""

from __future__ import annotations

from typing import Unpack

from mmload.augment import (
    BoxRule,
    CopyPaste,
    Mosaic,
    RandomHorizontalFlip,
    RandomHSV,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomZoomOut,
    Resize,
    ScaleJitter,
)
from mmload.augment.arguments import integer
from mmload.augment.collate import Collate
from mmload.presets import Options

__all__ = ["faster_rcnn", "lsj", "rt_detr", "ssd", "ssdlite", "yolo"]

_MEAN = (123, 117, 104)
"""Fill of torchvision's recipes: ImageNet's mean color."""

_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def yolo(
    *,
    size: int = 640,
    scale: float = 0.5,
    mixup: float = 0.0,
    epochs: int | None = None,
    close_mosaic: int | None = None,
    **options: Unpack[Options],
) -> Collate:
    """Makes YOLO's list, as YOLOv5 to YOLOv8 train: a mosaic of four, scale and translation, HSV, a flip.

    Source: the table of augmentation settings in Ultralytics' documentation (docs.ultralytics.com/usage/cfg), with its
    defaults: ``mosaic=1.0 translate=0.1 scale=0.5 hsv_h=0.015 hsv_s=0.7 hsv_v=0.4 fliplr=0.5 close_mosaic=10``, and
    boxes dropped of which a tenth or less shows, a side is at most 2 pixels, or one side is 100 times the other. The
    larger models of YOLOv5 have ``scale=0.9, mixup=0.1``.

    What differs: images go through one warp, not a resize and a warp, and pixel centers are at halves. What
    ``albumentations`` adds there if it is installed (blur, gray, CLAHE at 0.01 each) and copy-paste are left out.

    Args:
        size: pixels of a side.
        scale: the scale is drawn from 1 - ``scale`` to 1 + ``scale``.
        mixup: probability that a sample is blended with another one.
        epochs: number of epochs of the training; None: mosaics do not stop.
        close_mosaic: number of epochs at the end without mosaics; None: 10, if ``epochs`` is given.
        options: options of the collate; ``box_rule`` is the one above unless given.

    Raises:
        ValueError: if an argument is out of range, or ``close_mosaic`` is given without ``epochs``.
    """
    stop, closed = None, 10 if close_mosaic is None else integer("close_mosaic", close_mosaic, least=0)
    if epochs is not None:
        stop = max(integer("epochs", epochs, least=1) - closed, 0)
    elif close_mosaic is not None:
        raise ValueError(f"close_mosaic is {closed}, but epochs is None; give epochs, from whose end it counts")
    options.setdefault("box_rule", BoxRule(min_size=2, min_visible=0.1, max_aspect=100))
    return Collate(
        Mosaic(size, scale=scale, mixup=mixup, stop_epoch=stop),
        RandomHSV(0.015, 0.7, 0.4),
        RandomHorizontalFlip(0.5),
        **options,
    )


def rt_detr(*, size: int = 640, **options: Unpack[Options]) -> Collate:
    """Makes RT-DETR's list: colors, a larger canvas, a crop by overlap with boxes, a flip, and a resize to a square.

    Source: ``rtdetr_pytorch/configs/rtdetr/include/dataloader.yml`` of lyuwenyu/RT-DETR at commit 533bb46.

    What differs: its crop comes with probability 0.8; here that is part of the overlaps to choose from, so that where
    no window fits the choice between crop and none is drawn again, too. Its batches of several sizes (480 to 800) are
    not in here.

    Args:
        size: pixels of a side.
        options: options of the collate.
    """
    overlaps = (*_OVERLAPS * 4, *(1.0,) * 11)  # 0.8 * 1/7 = 4/35 for each overlap; the rest leaves the image as it is
    return Collate(
        RandomPhotometricDistort(),
        RandomZoomOut(0),
        RandomIoUCrop(sampler_options=overlaps),
        RandomHorizontalFlip(0.5),
        Resize((size, size)),
        **options,
    )


def ssd(*, size: int = 300, **options: Unpack[Options]) -> Collate:
    """Makes torchvision's list for SSD: colors, a larger canvas, a crop by overlap with boxes, a flip.

    Source: ``references/detection/presets.py`` of pytorch/vision at commit 01fdb48, and the resize that the model does.

    Args:
        size: pixels of a side.
        options: options of the collate.
    """
    return Collate(
        RandomPhotometricDistort(),
        RandomZoomOut(_MEAN),
        RandomIoUCrop(),
        RandomHorizontalFlip(0.5),
        Resize((size, size)),
        **options,
    )


def ssdlite(*, size: int = 320, **options: Unpack[Options]) -> Collate:
    """Makes torchvision's list for SSDlite: a crop by overlap with boxes, a flip.

    Source: as :func:`ssd`.

    Args:
        size: pixels of a side.
        options: options of the collate.
    """
    return Collate(RandomIoUCrop(), RandomHorizontalFlip(0.5), Resize((size, size)), **options)


def faster_rcnn(*, sizes: int | tuple[int, ...] = 800, max_size: int = 1333, **options: Unpack[Options]) -> Collate:
    """Makes torchvision's list for Faster R-CNN, RetinaNet and FCOS: a flip, and the resize that the model does.

    Source: ``references/detection/presets.py`` of pytorch/vision at commit 01fdb48 (``hflip``); ``multiscale`` there is
    ``sizes=(480, 512, ..., 800)``. Give the model the same sizes (``min_size``, ``max_size``), so that it resizes
    nothing again: ``returns="torchvision"`` gives each image without its canvas.

    Args:
        sizes: pixels of the shorter side: one number, or several to choose from.
        max_size: the longer side is not made longer than this.
        options: options of the collate.
    """
    return Collate(RandomHorizontalFlip(0.5), RandomShortestSize(sizes, max_size), **options)


def lsj(
    *,
    size: int = 1024,
    scale_range: tuple[float, float] = (0.1, 2.0),
    copy_paste: float = 0.0,
    **options: Unpack[Options],
) -> Collate:
    """Makes large scale jitter as torchvision does: a resize by 0.1 to 2, a crop of a fixed size or padding, a flip.

    Source: Ghiasi et al. 2021 ("Simple copy-paste"), and ``lsj`` of torchvision's ``references/detection/presets.py``,
    whose ``--use-copypaste`` is ``copy_paste=1``.

    Args:
        size: pixels of a side of the canvas.
        scale_range: least and greatest factor.
        copy_paste: probability that objects of another image, made in the same way, are pasted; above 0 for datasets
            with masks of instances.
        options: options of the collate.
    """
    paste = [CopyPaste(copy_paste)] if copy_paste else []
    return Collate(ScaleJitter((size, size), scale_range, fill=_MEAN), RandomHorizontalFlip(0.5), *paste, **options)
