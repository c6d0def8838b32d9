"""Reduces every row to a thumbnail of 16 x 16 grays and a few sums, in one pass over its pixels.

What a report says of brightness, outliers and duplicates is computed from these: 1 KiB a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmload.inspection.row_kernels import SIDE, reduce
from mmload.runtime.thread_pools import in_threads
from mmload.store.checksum import crc32
from mmload.store.dataset import Split

Grays = npt.NDArray[np.float32]

_PART_BYTES = 4 * 2**20  # of rows that are read at a time


@dataclass(frozen=True, kw_only=True)
class Thumbnails:
    """All rows of a split, small.

    Attributes:
        grays: float32 [N, 16, 16], mean grays of blocks, 0 to 255.
        mean: float64 [N], mean gray of the row.
        std: float64 [N], standard deviation of its grays.
        checksums: uint32 [N], of its pixels and shape: CRC-32.
    """

    grays: Grays
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    checksums: npt.NDArray[np.uint32]


def thumbnails(
    split: Split, *, grays: Grays | None = None, progress: Callable[[int, int], None] | None = None
) -> Thumbnails:
    """The thumbnails of all rows, in their order; reads every image once.

    Args:
        split: with uint8 images.
        grays: float32 [N, 16, 16], where they are written to; None: memory of their own.
        progress: called with (rows done, all rows).
    """
    channels, height, width = split.fields["images"].shape
    rows = len(split)
    grays = np.empty((rows, SIDE, SIDE), np.float32) if grays is None else grays
    sums, checksums = np.zeros((rows, 2), np.int64), np.empty(rows, np.uint32)
    of_shape = crc32(repr((channels, height, width)).encode())
    at_once = max(1, _PART_BYTES // (channels * height * width))

    def reduced(start: int) -> int:
        stop = min(start + at_once, rows)
        images = split.reader.array("images", np.arange(start, stop))
        reduce(images, grays[start:stop], sums[start:stop])
        checksums[start:stop] = [crc32(image, of_shape) for image in images]
        return stop

    for stop in in_threads(range(0, rows, at_once), reduced):
        if progress is not None:
            progress(stop, rows)
    count = height * width
    mean = sums[:, 0] / count
    variance = np.maximum(sums[:, 1] / count - mean**2, 0)
    return Thumbnails(grays=grays, mean=mean, std=np.sqrt(variance), checksums=checksums)
