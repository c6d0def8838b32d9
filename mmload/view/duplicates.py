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
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from mmload.runtime.kernels import inlined, numba_compiled
from mmload.runtime.resources import in_threads

SIDE = 16
"""Lines and columns of a thumbnail."""

CLOSE_BITS = 14
"""Hashes that differ in at most so many of 63 bits may be of one picture; of different ones 31 differ on average."""

SATURATED = 240.0
"""Levels: blocks that are brighter in either thumbnail are not compared, as brightening cuts them off."""

FEWEST, FEWEST_INSIDE = 32, 12
"""Blocks that a correlation needs, and blocks of which all around are compared, too."""

LEAST_COARSE, LEAST_FINE = 0.7, 0.9
"""Thumbnails of one picture are correlated so much at least: their blocks, and what is left of these less those around.

The second tells shirts on the same floor apart, where the first is up to 0.98."""

EQUAL = 0.99
"""A coarse correlation that suffices alone: what is left of a picture out of focus is the noise of its encoding."""

FLAT = 3.0
"""Levels: thumbnails of a smaller standard deviation show nothing to compare."""

_MOST_PAIRS = 2_000_000
_TILE = 2048
_AT_ONCE = 1024  # thumbnails: 1 MiB

_U = np.uintp  # the type of places in compiled loops, which need not handle negative ones

Pixels = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Tile = tuple[int, int, int, int]
"""Rows, from and to, that are compared with later ones, from and to."""


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


def copies(grays: Floats, checksums: npt.NDArray[np.uint32], *, starts: Sequence[int] = (0,)) -> Copies:
    """Finds all pairs of thumbnails that show one picture.

    Args:
        grays: float32 [N, 16, 16], of all rows that are compared.
        checksums: [N], of the rows.
        starts: the first row of each split, ascending from 0.
    """
    first = _first_equal(grays, checksums)
    again = np.flatnonzero(first != np.arange(len(grays)))
    shown = _varied(grays, np.flatnonzero(first == np.arange(len(grays))))
    bounds = np.searchsorted(shown, [*starts, len(grays)]).tolist()
    found, complete = _close(hashes(grays, shown), bounds)
    close = shown[found]
    none = np.empty((0, 2), np.float32)
    coarse, fine = np.concatenate([none, *in_threads(_parts(close), lambda part: correlate(grays, part[1]))]).T
    is_pair = ((coarse >= LEAST_COARSE) & (fine >= LEAST_FINE)) | (coarse >= EQUAL)
    pairs = np.concatenate([close[is_pair], np.stack([first[again], again], 1)])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return Copies(
        pairs=pairs[order],
        correlation=np.concatenate([coarse[is_pair], np.ones(len(again), np.float32)])[order],
        equal=(order >= is_pair.sum()),
        complete=complete,
    )


def hashes(grays: Floats, rows: Numbers) -> Hashes:
    """Computes the perceptual hashes of the thumbnails of some rows, int64 [N]: uint64 [N], 63 bits."""
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
                yield start, min(start + _TILE, end), low, high


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
    out = np.empty((_MOST_PAIRS, 2), np.int64)  # what is not written takes no memory
    count = int(write_close_pairs(codes, *tile, out))
    return out[: min(count, len(out))].copy()


def reduce(images: Pixels) -> tuple[Floats, Floats, Floats]:
    """Reduces images, uint8 [n, C, H, W], to gray.

    Returns:
        float32 [n, 16, 16], the mean grays of blocks, 0 to 255, of which some are the same in images of fewer than 16
        lines or columns; and float32 [n] each, mean and standard deviation of all grays of an image.
    """
    channels = (0, 1, 2) if images.shape[1] >= 3 else (0, 0, 0)
    red, green, blue = (images[:, channel].astype(np.uint16) for channel in channels)
    grays = ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.float32)  # the weights of one gray sum up to 256
    lines = np.stack([grays[:, block].mean(1) for block in _blocks(images.shape[2])], 1)
    blocks = np.stack([lines[:, :, block].mean(2) for block in _blocks(images.shape[3])], 2)
    return blocks, grays.mean((1, 2)), grays.std((1, 2))


def _blocks(side: int) -> list[slice]:
    starts = [block * side // SIDE for block in range(SIDE + 1)]
    return [slice(start, max(stop, start + 1)) for start, stop in pairwise(starts)]


def correlate(grays: Floats, pairs: Numbers) -> Floats:
    """Correlates pairs of thumbnails, int64 [P, 2]: their blocks, and what differs from the mean of 3 x 3 blocks.

    Returns:
        float32 [P, 2], both correlations; 0 of too few blocks that are not saturated.
    """
    one, other = (grays[rows].astype(np.float64) for rows in pairs.T)
    fine_one, fine_other = (image[:, 1:-1, 1:-1] - _around(image).mean((3, 4)) for image in (one, other))
    is_dark = (one < SATURATED) & (other < SATURATED)
    coarse = _correlation(one, other, is_dark, FEWEST)
    is_inside = np.logical_and.reduce(_around(is_dark), axis=(3, 4))
    return np.stack([coarse, _correlation(fine_one, fine_other, is_inside, FEWEST_INSIDE)], 1)


def _around(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the 3 x 3 blocks around each that is not at an edge, [P, 14, 14, 3, 3]."""
    return sliding_window_view(blocks, (3, 3), axis=(1, 2))


def _correlation(one: npt.NDArray[Any], other: npt.NDArray[Any], shown: Flags, fewest: int) -> Floats:
    """Correlates two images where ``shown``, all [P, n, n]; 0 where these are fewer than ``fewest``."""
    count = shown.sum((1, 2), keepdims=True)
    means = (image.sum((1, 2), keepdims=True, where=shown) / np.maximum(count, 1) for image in (one, other))
    x, y = (np.where(shown, image - mean, 0) for image, mean in zip((one, other), means, strict=True))
    scale = np.sqrt(np.square(x).sum((1, 2)) * np.square(y).sum((1, 2)))
    correlation = (x * y).sum((1, 2)) / np.maximum(scale, 1e-3)
    return np.where(count[:, 0, 0] < fewest, 0, correlation).astype(np.float32)


@inlined
def _bits(code: Any) -> Any:
    """Counts the bits by sums of halves (Hacker's Delight, 5-1), which vectorizes on any processor."""
    pairs = code - ((code >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    eights = (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (eights * np.uint64(0x0101010101010101)) >> np.uint64(56)


@numba_compiled("uint64[::1], int64, int64, int64, int64, int64[:, ::1]", returns="int64")
def write_close_pairs(codes: Hashes, start: int, stop: int, low: int, high: int, out: Numbers) -> np.int64:
    """Compares codes from ``start`` to ``stop`` with later ones from ``low`` to ``high``.

    Writes the pairs as far as there is room, and counts all of them.

    It looks for any close pair among 64 codes before it writes one, as pairs are rare.
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
