"""Reduces every row to a thumbnail of 16 x 16 grays and a few sums, in one pass over its pixels.

What a report says of brightness, outliers and duplicates is computed from these: 300 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mmload.runtime.numba_compile import numba_compiled
from mmload.store.dataset import Split

SIDE = 16
"""Lines and columns of a thumbnail."""

_PART_BYTES = 32 * 2**20  # of rows that are read at a time
_U = np.uintp

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Thumbnails:
    """All rows of a split, small.

    Attributes:
        grays: float32 [N, 16, 16], mean grays of blocks, 0 to 255.
        mean: float64 [N], mean gray of the row.
        std: float64 [N], standard deviation of its grays.
    """

    grays: npt.NDArray[np.float32]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]


def thumbnails(split: Split, *, progress: Callable[[int, int], None] | None = None) -> Thumbnails:
    """The thumbnails of all rows, in their order; reads every image once.

    Args:
        split: with uint8 images.
        progress: called with (rows done, all rows).
    """
    channels, height, width = split.fields["images"].shape
    rows = len(split)
    grays, sums = np.zeros((rows, SIDE, SIDE), np.float32), np.zeros((rows, 2), np.int64)
    at_once = max(1, _PART_BYTES // (channels * height * width))
    for start in range(0, rows, at_once):
        stop = min(start + at_once, rows)
        images = split.reader.gather("images", torch.arange(start, stop)).numpy()
        _reduce(images, grays[start:stop], sums[start:stop])
        if progress is not None:
            progress(stop, rows)
    count = height * width
    mean = sums[:, 0] / count
    variance = np.maximum(sums[:, 1] / count - mean**2, 0)
    return Thumbnails(grays=grays, mean=mean, std=np.sqrt(variance))


@numba_compiled("void(uint8[:, :, :, ::1], float32[:, :, ::1], int64[:, ::1])")
def _reduce(images: Pixels, grays: npt.NDArray[np.float32], sums: Numbers) -> None:
    """Grays are sums of whole lines first, so that the loop over columns vectorizes: 4 GB of pixels a second."""
    count, channels, height, width = images.shape
    line, square = np.empty(width, np.uint32), np.empty(width, np.uint32)
    for k in range(_U(count)):
        total, squares = np.int64(0), np.int64(0)
        for i in range(SIDE):
            top, bottom = i * height // SIDE, max((i + 1) * height // SIDE, i * height // SIDE + 1)
            for x in range(_U(width)):
                line[x] = np.uint32(0)
                square[x] = np.uint32(0)
            for y in range(_U(top), _U(bottom)):
                if channels >= 3:
                    for x in range(_U(width)):
                        red, green = np.uint32(images[k, 0, y, x]), np.uint32(images[k, 1, y, x])
                        gray = (
                            np.uint32(77) * red + np.uint32(150) * green + np.uint32(29) * np.uint32(images[k, 2, y, x])
                        ) >> np.uint32(8)
                        line[x] += gray
                        square[x] += gray * gray
                else:
                    for x in range(_U(width)):
                        gray = np.uint32(images[k, 0, y, x])
                        line[x] += gray
                        square[x] += gray * gray
            for j in range(SIDE):
                left, right = j * width // SIDE, max((j + 1) * width // SIDE, j * width // SIDE + 1)
                block = np.int64(0)
                for x in range(left, right):
                    block += np.int64(line[_U(x)])
                grays[k, i, j] = np.float32(block) / np.float32((bottom - top) * (right - left))
            if (i + 1) * height // SIDE > top:  # of fewer than 16 lines some are shown twice
                for x in range(_U(width)):
                    total += np.int64(line[x])
                    squares += np.int64(square[x])
        sums[k, 0], sums[k, 1] = total, squares
