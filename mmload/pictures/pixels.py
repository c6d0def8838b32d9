"""Makes a picture of one image, whatever its channels, dtype and range."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

_SQUARE = 8
_LIGHT, _DARK = 255, 204
"""Of the checkerboard behind transparent pixels: its squares' side in pixels, and their two grays."""


def picture(image: Pixels) -> Image.Image:
    """An image as a color picture.

    Args:
        image: uint8 [C, H, W]. One channel is gray, two are gray and alpha, three are RGB, four are RGB and alpha; of
            more, the first three are taken for RGB. Transparent pixels show a checkerboard.
    """
    channels = len(image)
    gray = channels <= 2
    rgb = np.repeat(image[:1], 3, axis=0) if gray else image[:3]
    if channels in (2, 4):
        _, height, width = image.shape
        rows, columns = np.arange(height)[:, None] // _SQUARE, np.arange(width) // _SQUARE
        board = np.where((rows + columns) % 2 == 0, _LIGHT, _DARK)
        alpha = image[-1].astype(np.float32) / 255
        rgb = np.round(rgb * alpha + board * (1 - alpha)).astype(np.uint8)
    return Image.merge("RGB", [Image.fromarray(np.ascontiguousarray(levels)) for levels in rgb])


def levels(images: npt.NDArray[np.generic], mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> Pixels:
    """Images as uint8 levels.

    Args:
        images: [B, C, H, W]; uint8 stay, floats are x * std + mean, from 0 (black) to 1 (white).
        mean: per channel, as ``Normalize`` had it; empty: images are not normalized.
        std: the same.

    Raises:
        ValueError: if floats leave [0, 1] by more than a level, as normalized images do if mean and std are not given.
    """
    if images.dtype == np.uint8:
        return images.astype(np.uint8, copy=False)
    floats = images.astype(np.float32)
    if mean and std:
        shape = (1, -1, 1, 1)
        floats = floats * np.array(std, np.float32).reshape(shape) + np.array(mean, np.float32).reshape(shape)
    elif floats.size and not (floats.min() >= -_LEVEL and floats.max() <= 1 + _LEVEL):
        raise ValueError(
            f"images are from {floats.min():.3g} to {floats.max():.3g}, which looks normalized: give the mean and std "
            "of Normalize, to undo it"
        )
    return np.round(floats.clip(0, 1) * 255).astype(np.uint8)


_LEVEL = 1 / 255


def fitted(image: Image.Image, side: int) -> tuple[Image.Image, float]:
    """A picture as large as fits into a square of ``side`` pixels, and the factor.

    Small pictures grow by whole factors, so that each pixel is seen; large ones shrink.
    """
    factor = side / max(image.size)
    if factor >= 1:
        factor = float(int(factor))
        return image.resize((image.width * int(factor), image.height * int(factor)), Image.Resampling.NEAREST), factor
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.HAMMING), factor
