"""OpenCV's change of hue, saturation and value by three tables, in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def to_hsv(image: Array) -> tuple[Array, Array, Array]:
    """``cv2.cvtColor(image, cv2.COLOR_RGB2HSV)`` of uint8 [3, ...]: hue from 0 to 179, saturation and value."""
    red, green, blue = image.astype(np.int64)
    value = image.max(0).astype(np.int64)
    reach = value - image.min(0)
    per_value = np.rint(np.divide(255 << 12, np.arange(256), where=np.arange(256) > 0, out=np.zeros(256))).astype(int)
    per_reach = np.rint(np.divide(180 << 12, 6.0 * np.arange(256), where=np.arange(256) > 0, out=np.zeros(256))).astype(
        int
    )
    saturation = (reach * per_value[value] + 2048) >> 12
    sector = np.where(
        value == red, green - blue, np.where(value == green, blue - red + 2 * reach, red - green + 4 * reach)
    )
    hue = (sector * per_reach[reach] + 2048) >> 12
    return np.where(hue < 0, hue + 180, hue), saturation, value


def to_rgb(hue: Array, saturation: Array, value: Array) -> Array:
    """``cv2.cvtColor(..., cv2.COLOR_HSV2RGB)``: uint8 [3, ...]."""
    one = np.float32
    sixths = hue.astype(one) * one(6 / 180)
    number = np.floor(sixths).astype(int)
    part = sixths - number.astype(one)
    v, s = value.astype(one) * one(1 / 255), saturation.astype(one) * one(1 / 255)
    levels = np.stack([v, v * (1 - s), v * (1 - s * part), v * (1 - s * (1 - part))])
    order = np.array([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])[number % 6]
    channels = [np.take_along_axis(levels, order[None, ..., c], 0)[0] for c in range(3)]
    return np.floor(np.stack(channels) * one(255)).astype(np.uint8)


def changed(image: Array, turn: int, stronger: float, brighter: float) -> Array:
    """An image [3, H, W] after three tables."""
    hue, saturation, value = to_hsv(image)
    tables = [
        np.minimum(np.arange(256, dtype=np.float32) * np.float32(factor), 255).astype(np.uint8)
        for factor in (stronger, brighter)
    ]
    return to_rgb((hue + turn) % 180, tables[0][saturation], tables[1][value])
