"""Compiled loops that copy an image into its row and compute exact sums of its channels.

They take uint8 images and return rows and integer sums. Integer sums do not depend on the order of addition, so the
statistics of a dataset do not depend on threads or shards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.runtime.declarations import inlined
from mmload.runtime.intrinsics import reshaped
from mmload.runtime.numba_compile import numba_compiled

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_BLOCK = 65_536
"""Pixels per block: 65,536 x 255^2 < 2^32, so 32-bit integers suffice, of which a SIMD instruction handles the most."""


def channel_sums(images: Tensor) -> Tensor:
    """Returns each channel's sum and sum of squares.

    Args:
        images: uint8 [N, C, H, W], contiguous.

    Returns:
        int64 [2, C].
    """
    sums = no_sums(images.shape[1])
    _add_rows(images.flatten(2).numpy(), sums)
    return torch.from_numpy(sums)


def no_sums(channels: int) -> Numbers:
    """Returns the initial sums for :func:`copy_and_sum`: int64 [2, C] of zeros."""
    return np.zeros((2, channels), np.int64)


@inlined
def _add(pixels: Pixels, sums: Numbers, channel: int) -> None:
    """17 us for a row of 3 x 256 x 256 in cache; torch in float32, whose sums of 256 squares are exact, took 75."""
    for start in range(0, len(pixels), _BLOCK):
        total = np.uint32(0)
        square = np.uint32(0)
        for pixel in pixels[start : start + _BLOCK]:  # indexing takes 5 times as long
            value = np.uint32(pixel)
            total += value
            square += value * value
        sums[0, channel] += total
        sums[1, channel] += square


@numba_compiled("void(uint8[:, :, ::1], int64[:, ::1])")
def _add_rows(images: Pixels, sums: Numbers) -> None:
    for row in range(images.shape[0]):
        for channel in range(images.shape[1]):
            _add(images[row, channel], sums, channel)


@inlined
def _copy(image: Pixels, row: Pixels) -> None:
    if image.ctypes.data != row.ctypes.data:
        for y in range(row.shape[1]):
            for channel in range(row.shape[0]):
                for x in range(row.shape[2]):
                    row[channel, y, x] = image[channel, y, x]


@numba_compiled("void(uint8[:, :, :], uint8[:, :, ::1], int64[:, ::1])")
def copy_and_sum(image: Pixels, row: Pixels, sums: Numbers) -> None:
    """Copies an image into its row, unless it is there already, and adds it to its channels' sums while it is in cache.

    For 3 x 256 x 256 of interleaved memory 62 us; ``copy_`` took 68, and the sums in a second pass 75 to 110.

    Args:
        image: uint8 [C, H, W] with any strides.
        row: uint8 [C, H, W], contiguous.
        sums: int64 [2, C].
    """
    _copy(image, row)
    for channel in range(row.shape[0]):
        _add(reshaped(row[channel], row.shape[1] * row.shape[2]), sums, channel)


@numba_compiled("void(uint8[:, :, :], uint8[:, :, ::1], int64[:, ::1], int64, int64, int64, int64)")
def copy_and_sum_part(image: Pixels, row: Pixels, sums: Numbers, top: int, left: int, height: int, width: int) -> None:
    """Copies an image into its row, and adds the pixels inside a window to the sums: the rest is a border."""
    _copy(image, row)
    for channel in range(row.shape[0]):
        for y in range(top, top + height):
            _add(row[channel, y, left : left + width], sums, channel)


@numba_compiled("void(uint8[:, :, :], uint8[:, :, ::1], int64[:, ::1], int64, int64, int64, int64)")
def copy_lines_and_sum(
    image: Pixels, lines: Pixels, sums: Numbers, top: int, left: int, height: int, width: int
) -> None:
    """Copies an image into lines, uint8 [H, C, W], and adds the pixels inside a window to the sums."""
    for y in range(lines.shape[0]):
        for channel in range(lines.shape[1]):
            for x in range(lines.shape[2]):
                lines[y, channel, x] = image[channel, y, x]
            if top <= y < top + height:
                _add(lines[y, channel, left : left + width], sums, channel)
