"""Encodes images and masks as PNGs, which keep every pixel."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.pictures.annotations import VOID, color_of
from mmload.pictures.png import png

_LEVEL = 1  # of masks: a quarter of level 6's time

CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's mode of an image with so many channels."""


def png_of(image: npt.NDArray[Any]) -> bytes:
    """The PNG of an image, uint8 [C, H, W] with 1 to 4 channels: gray, gray and alpha, RGB, RGB and alpha."""
    return png(image.transpose(1, 2, 0))


def png_of_mask(mask: npt.NDArray[Any]) -> bytes:
    """The PNG of a mask, uint8 [H, W]: a palette image whose indices are the classes."""
    image = Image.fromarray(np.ascontiguousarray(mask)).convert("L")
    image.putpalette(_PALETTE)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()


_COLORS = [(0, 0, 0), *(color_of(index) for index in range(1, VOID)), (255, 255, 255)]
_PALETTE = [level for color in _COLORS for level in color]
"""The background black, void white, each class in the color that contact sheets give it."""
