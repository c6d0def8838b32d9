"""Reduces every row to a thumbnail of 16 x 16 grays and a few sums, in one pass over its pixels.

What a report says of brightness, outliers and duplicates is computed from these: 1 KiB a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmload.inspection.row_kernels import SIDE, reduce
from mmload.runtime.thread_pools import in_threads
from mmload.store.checksum import crc32
from mmload.store.dataset import Split

Grays = npt.NDArray[np.float32]

_PART_BYTES = 4 * 2**20  # of rows that are read at a time
_OWN_AT_ONCE = 16  # rows of their own sizes, one after the other


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
    spec, rows = split.fields["images"], len(split)
    grays = np.empty((rows, SIDE, SIDE), np.float32) if grays is None else grays
    sums, checksums, counts = np.zeros((rows, 2), np.int64), np.empty(rows, np.uint32), np.ones(rows, np.int64)
    at_once = _OWN_AT_ONCE if spec.own_sizes else max(1, _PART_BYTES // spec.row_bytes)

    def reduced(start: int) -> int:
        stop = min(start + at_once, rows)
        for first, images in _images(split, start, stop):
            part = slice(first, first + len(images))
            reduce(images, grays[part], sums[part])
            of_shape = crc32(repr(images.shape[1:]).encode())
            checksums[part] = [crc32(image, of_shape) for image in images]
            counts[part] = images.shape[2] * images.shape[3]
        return stop

    for stop in in_threads(range(0, rows, at_once), reduced):
        if progress is not None:
            progress(stop, rows)
    mean = sums[:, 0] / counts
    variance = np.maximum(sums[:, 1] / counts - mean**2, 0)
    return Thumbnails(grays=grays, mean=mean, std=np.sqrt(variance), checksums=checksums)


def _images(split: Split, start: int, stop: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Rows as contiguous images [n, C, H, W] of one size, and the number of the first."""
    if split.fields["images"].own_sizes:
        reader = split.reader.sized("images")
        for row in range(start, stop):
            yield row, np.ascontiguousarray(reader.pixels(row))[None]
    else:
        yield start, split.reader.array("images", np.arange(start, stop))
