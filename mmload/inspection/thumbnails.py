"""Reduces every row to a thumbnail of 16 x 16 grays and a few sums, in one pass over its pixels.

What a report says of brightness, outliers and duplicates is computed from these: 300 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmload.inspection.row_kernels import SIDE, reduce
from mmload.store.dataset import Split

_PART_BYTES = 32 * 2**20  # of rows that are read at a time


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
        images = split.reader.array("images", np.arange(start, stop))
        reduce(images, grays[start:stop], sums[start:stop])
        if progress is not None:
            progress(stop, rows)
    count = height * width
    mean = sums[:, 0] / count
    variance = np.maximum(sums[:, 1] / count - mean**2, 0)
    return Thumbnails(grays=grays, mean=mean, std=np.sqrt(variance))
