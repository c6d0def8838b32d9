"""Finds rows that show the same picture: equal ones, and near copies (resized, encoded again, brighter or darker).

Each row has a perceptual hash of 63 bits: which of the lowest frequencies of its thumbnail are above their median
(pHash, Zauner 2010). Every pair of hashes is compared; close ones are copies if their thumbnails, and the details of
these, are nearly the same up to brightness and contrast. Rows of nearly one color have no hash.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mmload.inspection.row_kernels import SIDE, Floats, Hashes, Numbers, compare, correlate
from mmload.runtime.thread_pools import available_cores

LEAST_COARSE, LEAST_FINE = 0.7, 0.9
"""Thumbnails of one picture are correlated so much at least: their blocks, and what is left of these less those around.

The second tells shirts on the same floor apart, where the first is up to 0.98. docs/inspection.md has the numbers."""

EQUAL = 0.99
"""A coarse correlation that suffices alone: what is left of a picture out of focus is the noise of its encoding."""

FLAT = 3.0
"""Levels: thumbnails of a smaller standard deviation show nothing to compare."""

_MOST_PAIRS = 2_000_000
_TILE = 2048


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Pairs of rows that show one picture.

    Attributes:
        pairs: int64 [P, 2], the smaller index first, in ascending order.
        correlation: float32 [P], of their thumbnails; 1 for equal ones.
        complete: whether these are all; False if there were more pairs than can be told, as of thousands of equal rows.
    """

    pairs: Numbers
    correlation: Floats
    complete: bool


def copies(grays: Floats, *, progress: Callable[[int, int], None] | None = None) -> Copies:
    """All pairs of thumbnails that show one picture.

    Args:
        grays: float32 [N, 16, 16], of all rows that are compared.
        progress: called with (comparisons done, all of them).
    """
    varied = np.flatnonzero(grays.reshape(-1, SIDE * SIDE).std(1) >= FLAT)
    shown = grays[varied]
    found, complete = _close(hashes(shown), progress)
    coarse, fine = np.empty(len(found), np.float32), np.empty(len(found), np.float32)
    correlate(shown, found, coarse, fine)
    kept = ((coarse >= LEAST_COARSE) & (fine >= LEAST_FINE)) | (coarse >= EQUAL)
    pairs = varied[found[kept]]
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return Copies(pairs=pairs[order], correlation=coarse[kept][order], complete=complete)


def hashes(grays: Floats) -> Hashes:
    """The perceptual hash of each thumbnail: uint64 [N], 63 bits."""
    angles = math.pi * (2 * np.arange(SIDE) + 1) / (2 * SIDE)
    cosines = np.cos(np.arange(8)[:, None] * angles).astype(np.float32)
    bits = np.zeros(len(grays), np.uint64)
    for start in range(0, len(grays), 65536):
        low = (cosines @ grays[start : start + 65536] @ cosines.T).reshape(-1, 64)[:, 1:]
        above = low > np.median(low, axis=1, keepdims=True)
        bits[start : start + 65536] = (above.astype(np.uint64) << np.arange(63, dtype=np.uint64)).sum(
            1, dtype=np.uint64
        )
    return bits


def groups(pairs: Numbers) -> list[list[int]]:
    """Rows that are connected by pairs: lists in ascending order, by their first row."""
    parent: dict[int, int] = {}

    def root(row: int) -> int:
        while parent.setdefault(row, row) != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for first, second in pairs.tolist():
        parent[max(root(first), root(second))] = min(root(first), root(second))
    members: dict[int, list[int]] = {}
    for row in sorted(parent):
        members.setdefault(root(row), []).append(row)
    return [members[key] for key in sorted(members)]


def _close(codes: Hashes, progress: Callable[[int, int], None] | None) -> tuple[Numbers, bool]:
    """All pairs of hashes that differ in few bits, and whether they are all."""
    tiles = range(0, len(codes), _TILE)
    found: list[Numbers] = []
    room, done, total = _MOST_PAIRS, 0, len(codes) * (len(codes) - 1) // 2
    with ThreadPoolExecutor(available_cores()) as pool:
        for start, pairs in zip(tiles, pool.map(lambda start: _pairs_of_tile(codes, start), tiles), strict=True):
            found.append(pairs[:room])
            room -= len(found[-1])
            rows = min(_TILE, len(codes) - start)
            done += rows * (len(codes) - start - rows) + rows * (rows - 1) // 2
            if progress is not None:
                progress(done, total)
    complete = room > 0
    return np.concatenate([np.empty((0, 2), np.int64), *found]), complete


def _pairs_of_tile(codes: Hashes, start: int) -> Numbers:
    """The pairs of a tile of rows with themselves and all after them."""
    room = 65536
    while True:
        out = np.empty((room, 2), np.int64)
        count = int(compare(codes, start, min(start + _TILE, len(codes)), out))
        if count <= room or room > _MOST_PAIRS:
            return out[: min(count, room)].copy()
        room = min(count, _MOST_PAIRS + 1)
