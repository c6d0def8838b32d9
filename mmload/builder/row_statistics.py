"""Compiled loops that copy an image into its row and compute exact sums of its channels.

They take uint8 images and return rows and integer sums. Integer sums do not depend on the order of addition, so the
statistics of a dataset do not depend on threads or shards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.runtime.declarations import inlined
from mmload.runtime.numba_compile import numba_compiled

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_BLOCK = 65_536
"""Pixels per block: 65,536 x 255^2 < 2^32, so 32-bit integers suffice, of which a SIMD instruction handles the most."""


def no_sums(channels: int) -> Numbers:
    """Returns the initial sums for :func:`copy_and_sum`: int64 [2, C] of zeros."""
    return np.zeros((2, channels), np.int64)


@inlined
def _add(pixels: Pixels, sums: Numbers, channel: int) -> None:
    """Adds pixels of a channel; torch in float32, whose sums of 256 squares are exact, takes 4 times as long."""
    for start in range(0, len(pixels), _BLOCK):
        total = np.uint32(0)
        square = np.uint32(0)
        for pixel in pixels[start : start + _BLOCK]:  # indexing takes 5 times as long
            value = np.uint32(pixel)
            total += value
            square += value * value
        sums[0, channel] += total
        sums[1, channel] += square


@numba_compiled("void(uint8[:, :, :], uint8[:, :, ::1], int64[:, ::1], boolean, int64, int64, int64, int64)")
def copy_and_sum(
    image: Pixels, row: Pixels, sums: Numbers, by_lines: bool, top: int, left: int, height: int, width: int
) -> None:
    """Copies an image into its row, and adds the pixels inside a window to its channels' sums: the rest is a border.

    Each line is added while it is in cache. Lines of all channels follow each other in the outer loop, as channels are
    interleaved in the memory of most images.

    Args:
        image: uint8 [C, H, W] with any strides.
        row: uint8 [C, H, W], or [H, C, W], contiguous; if it is the image itself, nothing is copied.
        sums: int64 [2, C].
        by_lines: whether the row is [H, C, W].
        top: first line of the window.
        left: its first column.
        height: its lines.
        width: its columns.
    """
    is_there = image.ctypes.data == row.ctypes.data
    for y in range(image.shape[1]):
        for channel in range(image.shape[0]):
            line = row[y, channel] if by_lines else row[channel, y]
            if not is_there:
                for x in range(len(line)):
                    line[x] = image[channel, y, x]
            if top <= y < top + height:
                _add(line[left : left + width], sums, channel)
