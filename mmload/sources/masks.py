"""Reads masks of classes: a picture whose pixels are the numbers of classes, in a file of its own for each image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.records import VOID
from mmload.sources.annotation_values import naming
from mmload.sources.decode import LOSSY, RefusedImage, read_with_pillow
from mmload.sources.files import SampleFiles

if TYPE_CHECKING:
    from torch import Tensor

_CODE = np.array([65536, 256, 1])  # red, green, blue as one number


def read_mask(files: SampleFiles, name: str) -> Tensor:
    """Reads a class mask as uint8 [H, W]: the indices of a palette, gray levels, or the numbers of VOC's colors.

    Raises:
        SampleError: if the file cannot be read.
        ValueError: if it is broken, or of another kind.
    """
    import torch

    data = files.read(name)
    with naming(f"its mask {name} cannot be read: "):
        return torch.from_numpy(read_with_pillow(data, class_numbers))


def read_mask_of(files: SampleFiles, name: str, size: tuple[int, int], classes: int, advice: str) -> Tensor:
    """Reads the mask of an image of (height, width) ``size``, whose values are those of so many classes, or void.

    Raises:
        SampleError: if the file cannot be read.
        ValueError: if it is wrong; ``advice`` says what to do if it is a value.
    """
    mask = read_mask(files, name)
    if mask.shape != size:
        raise ValueError(f"its mask is {mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}")
    if len(odd := mask[(mask >= classes) & (mask != VOID)]):
        raise ValueError(
            f"its mask has the value {int(odd[0])}; classes are 0 to {classes - 1}, and 255 is void; {advice}"
        )
    return mask


def class_numbers(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Returns the class of each pixel, uint8 [H, W].

    Raises:
        ValueError: if the pixels do not say it.
    """
    if image.format in LOSSY:
        raise RefusedImage(f"it is a {image.format}, which does not keep class numbers")
    pixels, mode = np.array(image), image.mode
    if mode in ("LA", "RGBA"):
        if (pixels[..., -1] != 255).any():
            raise RefusedImage("it has transparent pixels, of which the class is unclear")
        pixels, mode = pixels[..., :-1], mode[:-1]
    if mode == "RGB":
        codes = pixels.astype(np.int64) @ _CODE
        colors = voc_colors().astype(np.int64) @ _CODE
        order = np.argsort(colors)
        place = order[np.searchsorted(colors, codes, sorter=order).clip(max=len(colors) - 1)]
        unknown = pixels[colors[place] != codes]
        if len(unknown):
            raise RefusedImage(
                f"its color {tuple(unknown[0].tolist())} is none of VOC's colors of classes; colors of one's own, as "
                "CVAT's labelmap.txt has them, are not read: write class numbers"
            )
        return np.asarray(place, np.uint8)
    if mode not in ("P", "L", "1"):
        raise RefusedImage(f"it is of mode {mode}; use palette, 8-bit gray, or VOC's colors")
    return np.ascontiguousarray(pixels.reshape(pixels.shape[:2]), np.uint8)


def voc_colors() -> npt.NDArray[np.uint8]:
    """Returns the color of each class, uint8 [256, 3], as VOC's devkit makes them: bits of the number, by threes."""
    numbers = np.arange(256)[:, None, None]
    places = np.arange(8)
    bits = (numbers >> (3 * places + np.arange(3)[:, None])) & 1
    return np.asarray((bits << (7 - places)).sum(2), np.uint8)
