"""Finds rows that show the same picture: equal ones, and near copies (resized, encoded again, brighter or darker).

Equal rows have equal checksums. Of these the first is compared with all other rows by a perceptual hash of 63 bits:
which of the lowest frequencies of its thumbnail are above their median (pHash, Zauner 2010). Close ones are copies if
their thumbnails, and the details of these, are nearly the same up to brightness and contrast. Rows of nearly one color
have no hash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.inspection.row_kernels import SIDE, Floats, Hashes, Numbers, compare, correlate
from mmload.runtime.thread_pools import in_threads

LEAST_COARSE, LEAST_FINE = 0.7, 0.9
"""Thumbnails of one picture are correlated so much at least: their blocks, and what is left of these less those around.

The second tells shirts on the same floor apart, where the first is up to 0.98. docs/inspection.md has the numbers."""

EQUAL = 0.99
"""A coarse correlation that suffices alone: what is left of a picture out of focus is the noise of its encoding."""

FLAT = 3.0
"""Levels: thumbnails of a smaller standard deviation show nothing to compare."""

_MOST_PAIRS = 2_000_000
_TILE = 2048
_AT_ONCE = 8192  # thumbnails: 8 MiB

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Pairs of rows that show one picture. Of equal rows, only the first is in other pairs than these.

    Attributes:
        pairs: int64 [P, 2], the smaller index first, in ascending order.
        correlation: float32 [P], of their thumbnails; 1 for equal ones.
        equal: bool [P], whether the rows are equal.
        complete: whether these are all; False if there were more pairs than can be told, as of thousands of frames of
            one film. Pairs across splits are sought first.
    """

    pairs: Numbers
    correlation: Floats
    equal: Flags
    complete: bool


class Tile(NamedTuple):
    """Rows ``start`` to ``stop`` are compared with later ones from ``low`` to ``high``."""

    start: int
    stop: int
    low: int
    high: int


def copies(
    grays: Floats,
    checksums: npt.NDArray[np.uint32] | None = None,
    *,
    starts: Sequence[int] = (0,),
    progress: Callable[[int, int], None] | None = None,
) -> Copies:
    """All pairs of thumbnails that show one picture.

    Args:
        grays: float32 [N, 16, 16], of all rows that are compared.
        checksums: [N], of the rows; None: rows are compared by their thumbnails alone.
        starts: the first row of each split, ascending from 0.
        progress: called with (comparisons done, all of them).
    """
    first = np.arange(len(grays)) if checksums is None else _first_equal(grays, checksums)
    again = np.flatnonzero(first != np.arange(len(grays)))
    shown = _varied(grays, np.flatnonzero(first == np.arange(len(grays))))
    bounds = np.searchsorted(shown, [*starts, len(grays)]).tolist()
    found, complete = _close(hashes(grays, shown), bounds, progress)
    close = shown[found]
    coarse, fine = np.empty(len(close), np.float32), np.empty(len(close), np.float32)
    for _ in in_threads(_parts(close), lambda part: correlate(grays, part[1], coarse[part[0]], fine[part[0]])):
        pass
    kept = ((coarse >= LEAST_COARSE) & (fine >= LEAST_FINE)) | (coarse >= EQUAL)
    pairs = np.concatenate([close[kept], np.stack([first[again], again], 1)])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return Copies(
        pairs=pairs[order],
        correlation=np.concatenate([coarse[kept], np.ones(len(again), np.float32)])[order],
        equal=(order >= kept.sum()),
        complete=complete,
    )


def hashes(grays: Floats, rows: Numbers | None = None) -> Hashes:
    """The perceptual hash of each thumbnail, or of those of some rows: uint64 [N], 63 bits."""
    rows = np.arange(len(grays)) if rows is None else rows
    angles = math.pi * (2 * np.arange(SIDE) + 1) / (2 * SIDE)
    cosines = np.cos(np.arange(8)[:, None] * angles).astype(np.float32)
    bits = np.zeros(len(rows), np.uint64)
    for place, some in _parts(rows):
        low = (cosines @ grays[some] @ cosines.T).reshape(-1, 64)[:, 1:]
        above = low > np.median(low, axis=1, keepdims=True)
        bits[place] = (above.astype(np.uint64) << np.arange(63, dtype=np.uint64)).sum(1, dtype=np.uint64)
    return bits


def groups(pairs: Numbers, rows: int) -> Numbers:
    """The first row of the group that each row is in, int64 [rows]; pairs join their rows to one group."""
    first = np.arange(rows)
    while True:
        roots = first[pairs]
        lower = roots.min(1)
        if (roots == lower[:, None]).all():
            return first
        np.minimum.at(first, roots[:, 0], lower)
        np.minimum.at(first, roots[:, 1], lower)
        while (first[first] != first).any():
            first = first[first]


def _parts(rows: Numbers) -> Iterator[tuple[slice, Numbers]]:
    """A few rows after the other, and where they are."""
    for start in range(0, len(rows), _AT_ONCE):
        place = slice(start, start + _AT_ONCE)
        yield place, rows[place]


def _first_equal(grays: Floats, checksums: npt.NDArray[Any]) -> Numbers:
    """The first row that equals each, int64 [N]; itself if no other does."""
    _, index, inverse = np.unique(checksums, return_index=True, return_inverse=True)
    first: Numbers = index[inverse].astype(np.int64)
    for _, rows in _parts(np.flatnonzero(first != np.arange(len(first)))):
        same = (grays[rows] == grays[first[rows]]).all((1, 2))
        first[rows] = np.where(same, first[rows], rows)  # two pictures may have one checksum
    return first


def _varied(grays: Floats, rows: Numbers) -> Numbers:
    """Those of some rows that show something."""
    varied = np.zeros(len(rows), bool)
    for place, some in _parts(rows):
        varied[place] = grays[some].reshape(len(some), -1).std(1) >= FLAT
    return rows[varied]


def _tiles(bounds: Sequence[int]) -> Iterator[Tile]:
    """All comparisons of rows with later ones: those across splits first, as they matter most if not all are told."""
    splits = list(zip(bounds[:-1], bounds[1:], strict=True))
    for across in (True, False):
        for begin, end in splits:
            low, high = (end, bounds[-1]) if across else (begin, end)
            for start in range(begin, end if low < high else begin, _TILE):
                yield Tile(start, min(start + _TILE, end), low, high)


def _close(codes: Hashes, bounds: Sequence[int], progress: Callable[[int, int], None] | None) -> tuple[Numbers, bool]:
    """All pairs of hashes that differ in few bits, and whether they are all."""
    found: list[Numbers] = []
    room, done, total = _MOST_PAIRS, 0, sum(map(_comparisons, _tiles(bounds)))
    for tile, pairs in in_threads(_tiles(bounds), lambda tile: (tile, _pairs_of_tile(codes, tile))):
        found.append(pairs[:room])
        room -= len(found[-1])
        done += _comparisons(tile)
        if progress is not None:
            progress(done, total)
        if room <= 0:
            break
    return np.concatenate([np.empty((0, 2), np.int64), *found]), room > 0


def _comparisons(tile: Tile) -> int:
    rows, later = tile.stop - tile.start, tile.high - max(tile.low, tile.stop)
    return rows * later + (rows * (rows - 1) // 2 if tile.low < tile.stop else 0)


def _pairs_of_tile(codes: Hashes, tile: Tile) -> Numbers:
    """The pairs of a tile."""
    room = 65536
    while True:
        out = np.empty((room, 2), np.int64)
        count = int(compare(codes, *tile, out))
        if count <= room or room > _MOST_PAIRS:
            return out[: min(count, room)].copy()
        room = min(count, _MOST_PAIRS + 1)
