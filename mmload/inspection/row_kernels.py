"""The compiled loops of a report: reduce rows to thumbnails, compare their hashes. Nothing is checked here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import inlined, numba_compiled

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


@numba_compiled("void(uint8[:, :, ::1], int64[:, ::1])")
def count_values(masks: Pixels, counts: Numbers) -> None:
    """Adds how often each of 256 values is in each mask: 1 ns a pixel, where numpy takes 8."""
    rows, height, width = masks.shape
    for k in range(_U(rows)):
        for y in range(_U(height)):
            for x in range(_U(width)):
                counts[k, _U(masks[k, y, x])] += np.int64(1)


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
    """Correlations of pairs of thumbnails: of the blocks, and of what differs from the mean of 3 x 3 blocks."""
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


@numba_compiled("int64(uint64[::1], int64, int64, int64, int64, int64[:, ::1])")
def compare(codes: Hashes, start: int, stop: int, low: int, high: int, out: Numbers) -> np.int64:
    """Compares codes from ``start`` to ``stop`` with later ones from ``low`` to ``high``.

    Writes the pairs as far as there is room, and counts all of them.

    Bits are counted by sums of halves (Hacker's Delight, 5-1), which vectorizes on any processor. Whether any of 64
    comparisons is close is decided first: pairs are rare.
    """
    found = np.int64(0)
    ones, twos, fours = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
    total, shift = np.uint64(0x0101010101010101), np.uint64(56)
    limit = np.uint64(CLOSE_BITS)
    for i in range(start, stop):
        code = codes[_U(i)]
        for begin in range(max(i + 1, low), high, 64):
            end = min(begin + 64, high)
            close = np.int64(0)
            for j in range(_U(begin), _U(end)):
                bits = codes[j] ^ code
                bits = bits - ((bits >> np.uint64(1)) & ones)
                bits = (bits & twos) + ((bits >> np.uint64(2)) & twos)
                bits = (bits + (bits >> np.uint64(4))) & fours
                close += np.int64(((bits * total) >> shift) <= limit)
            if close == 0:
                continue
            for j in range(_U(begin), _U(end)):
                bits = codes[j] ^ code
                bits = bits - ((bits >> np.uint64(1)) & ones)
                bits = (bits & twos) + ((bits >> np.uint64(2)) & twos)
                bits = (bits + (bits >> np.uint64(4))) & fours
                if ((bits * total) >> shift) <= limit:
                    if found < len(out):
                        out[_U(found), 0], out[_U(found), 1] = np.int64(i), np.int64(j)
                    found += np.int64(1)
    return found
