"""Finds rows that show the same picture: equal ones, and near copies (resized, encoded again, brighter or darker).

Equal rows have equal checksums. Of these the first is compared with all other rows by a perceptual hash of 63 bits:
which of the lowest frequencies of its thumbnail are above their median (pHash, Zauner 2010). Close ones are copies if
their thumbnails, and the details of these, are nearly the same up to brightness and contrast. Rows of nearly one color
have no hash.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.runtime.declarations import inlined
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.resources import in_threads

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
        complete: whether these are all; False if there were more pairs than can be listed, as of thousands of frames of
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
) -> Copies:
    """Finds all pairs of thumbnails that show one picture.

    Args:
        grays: float32 [N, 16, 16], of all rows that are compared.
        checksums: [N], of the rows; None: rows are compared by their thumbnails alone.
        starts: the first row of each split, ascending from 0.
    """
    first = np.arange(len(grays)) if checksums is None else _first_equal(grays, checksums)
    again = np.flatnonzero(first != np.arange(len(grays)))
    shown = _varied(grays, np.flatnonzero(first == np.arange(len(grays))))
    bounds = np.searchsorted(shown, [*starts, len(grays)]).tolist()
    found, complete = _close(hashes(grays, shown), bounds)
    close = shown[found]
    coarse, fine = np.empty(len(close), np.float32), np.empty(len(close), np.float32)
    for _ in in_threads(_parts(close), lambda part: correlate(grays, part[1], coarse[part[0]], fine[part[0]])):
        pass
    is_pair = ((coarse >= LEAST_COARSE) & (fine >= LEAST_FINE)) | (coarse >= EQUAL)
    pairs = np.concatenate([close[is_pair], np.stack([first[again], again], 1)])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return Copies(
        pairs=pairs[order],
        correlation=np.concatenate([coarse[is_pair], np.ones(len(again), np.float32)])[order],
        equal=(order >= is_pair.sum()),
        complete=complete,
    )


def hashes(grays: Floats, rows: Numbers | None = None) -> Hashes:
    """Computes the perceptual hash of each thumbnail, or of those of some rows: uint64 [N], 63 bits."""
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
    """Returns the first row of the group that each row is in, int64 [rows]; pairs join their rows to one group."""
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
    """Yields a few rows after the other, and where they are."""
    for start in range(0, len(rows), _AT_ONCE):
        place = slice(start, start + _AT_ONCE)
        yield place, rows[place]


def _first_equal(grays: Floats, checksums: npt.NDArray[Any]) -> Numbers:
    """Returns the first row that equals each, int64 [N]; itself if no other does."""
    _, index, inverse = np.unique(checksums, return_index=True, return_inverse=True)
    first: Numbers = index[inverse].astype(np.int64)
    for _, rows in _parts(np.flatnonzero(first != np.arange(len(first)))):
        same = (grays[rows] == grays[first[rows]]).all((1, 2))
        first[rows] = np.where(same, first[rows], rows)  # two pictures may have one checksum
    return first


def _varied(grays: Floats, rows: Numbers) -> Numbers:
    """Returns the rows among these whose thumbnails show something."""
    varied = np.zeros(len(rows), bool)
    for place, some in _parts(rows):
        varied[place] = grays[some].reshape(len(some), -1).std(1) >= FLAT
    return rows[varied]


def _tiles(bounds: Sequence[int]) -> Iterator[Tile]:
    """Yields all comparisons of rows with later ones, across splits first: they matter most if not all are listed."""
    splits = list(zip(bounds[:-1], bounds[1:], strict=True))
    for across in (True, False):
        for begin, end in splits:
            low, high = (end, bounds[-1]) if across else (begin, end)
            for start in range(begin, end if low < high else begin, _TILE):
                yield Tile(start, min(start + _TILE, end), low, high)


def _close(codes: Hashes, bounds: Sequence[int]) -> tuple[Numbers, bool]:
    """Finds pairs of hashes that differ in few bits, and returns whether these are all."""
    found: list[Numbers] = []
    room = _MOST_PAIRS
    for pairs in in_threads(_tiles(bounds), lambda tile: _pairs_of_tile(codes, tile)):
        found.append(pairs[:room])
        room -= len(found[-1])
        if room <= 0:
            break
    return np.concatenate([np.empty((0, 2), np.int64), *found]), room > 0


def _pairs_of_tile(codes: Hashes, tile: Tile) -> Numbers:
    """Finds the pairs of a tile."""
    room = 65536
    while True:
        out = np.empty((room, 2), np.int64)
        count = int(compare(codes, *tile, out))
        if count <= room or room > _MOST_PAIRS:
            return out[: min(count, room)].copy()
        room = min(count, _MOST_PAIRS + 1)


SIDE = 16
"""Lines and columns of a thumbnail."""

CLOSE_BITS = 14
"""Hashes that differ in at most so many of 63 bits may be of one picture; of different ones 31 differ on average."""

SATURATED = 240.0
"""Levels: blocks that are brighter in either thumbnail are not compared, as brightening cuts them off."""

FEWEST, FEWEST_INSIDE = 32, 12
"""Blocks that a correlation needs, and blocks of which all around are compared, too."""

_U = np.uintp

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


@numba_compiled("void(uint8[:, :, :, ::1], float32[:, :, ::1], int64[:, ::1])")
def reduce(images: Pixels, grays: Floats, sums: Numbers) -> None:
    """Reduces images to grays, by sums of whole lines first, so that the loop over columns vectorizes: 4 GB/s."""
    count, channels, height, width = images.shape
    second, third = (_U(1), _U(2)) if channels >= 3 else (_U(0), _U(0))  # weights of one gray sum up to 256
    line, square = np.empty(width, np.uint32), np.empty(width, np.uint32)
    for k in range(_U(count)):
        total, squares = np.int64(0), np.int64(0)
        for i in range(SIDE):
            top, bottom = i * height // SIDE, max((i + 1) * height // SIDE, i * height // SIDE + 1)
            for x in range(_U(width)):
                line[x] = np.uint32(0)
                square[x] = np.uint32(0)
            for y in range(_U(top), _U(bottom)):
                for x in range(_U(width)):
                    red, green = np.uint32(images[k, 0, y, x]), np.uint32(images[k, second, y, x])
                    blue = np.uint32(images[k, third, y, x])
                    gray = (np.uint32(77) * red + np.uint32(150) * green + np.uint32(29) * blue) >> np.uint32(8)
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


@inlined
def _add(sums: Any, x: float, y: float) -> None:
    sums[0] += 1
    sums[1] += x
    sums[2] += y
    sums[3] += x * x
    sums[4] += x * y
    sums[5] += y * y


@inlined
def _correlation(sums: Any, fewest: int) -> np.float32:
    count, x, y, xx, xy, yy = sums
    if count < fewest:
        return np.float32(0)
    scale = (xx - x * x / count) * (yy - y * y / count)
    return np.float32((xy - x * y / count) / math.sqrt(max(scale, 1e-6)))


@numba_compiled("void(float32[:, :, ::1], int64[:, ::1], float32[::1], float32[::1])")
def correlate(grays: Floats, pairs: Numbers, coarse: Floats, fine: Floats) -> None:
    """Correlates pairs of thumbnails: their blocks, and what differs from the mean of 3 x 3 blocks."""
    for k in range(_U(len(pairs))):
        one, other = grays[_U(pairs[k, 0])], grays[_U(pairs[k, 1])]
        sums = np.zeros((2, 6))
        for i in range(_U(SIDE)):
            for j in range(_U(SIDE)):
                x, y = np.float64(one[i, j]), np.float64(other[i, j])
                if x < SATURATED and y < SATURATED:
                    _add(sums[0], x, y)
        for i in range(1, SIDE - 1):
            for j in range(1, SIDE - 1):
                x, y = 9 * np.float64(one[_U(i), _U(j)]), 9 * np.float64(other[_U(i), _U(j)])
                bright = False
                for u in range(_U(i - 1), _U(i + 2)):
                    for v in range(_U(j - 1), _U(j + 2)):
                        x -= np.float64(one[u, v])
                        y -= np.float64(other[u, v])
                        bright |= one[u, v] >= SATURATED or other[u, v] >= SATURATED
                if not bright:
                    _add(sums[1], x, y)
        coarse[k], fine[k] = _correlation(sums[0], FEWEST), _correlation(sums[1], FEWEST_INSIDE)


@inlined
def _bits(code: Any) -> Any:
    """Counts the bits by sums of halves (Hacker's Delight, 5-1), which vectorizes on any processor."""
    pairs = code - ((code >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    eights = (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (eights * np.uint64(0x0101010101010101)) >> np.uint64(56)


@numba_compiled("int64(uint64[::1], int64, int64, int64, int64, int64[:, ::1])")
def compare(codes: Hashes, start: int, stop: int, low: int, high: int, out: Numbers) -> np.int64:
    """Compares codes from ``start`` to ``stop`` with later ones from ``low`` to ``high``.

    Writes the pairs as far as there is room, and counts all of them.

    Whether any of 64 comparisons is close is decided first: pairs are rare.
    """
    found = np.int64(0)
    limit = np.uint64(CLOSE_BITS)
    for i in range(start, stop):
        code = codes[_U(i)]
        for begin in range(max(i + 1, low), high, 64):
            end = min(begin + 64, high)
            close = np.int64(0)
            for j in range(_U(begin), _U(end)):
                close += np.int64(_bits(codes[j] ^ code) <= limit)
            if close == 0:
                continue
            for j in range(_U(begin), _U(end)):
                if _bits(codes[j] ^ code) <= limit:
                    if found < len(out):
                        out[_U(found), 0], out[_U(found), 1] = np.int64(i), np.int64(j)
                    found += np.int64(1)
    return found
