"""The compiled loops of a report: reduce rows to thumbnails, compare their hashes. Nothing is checked here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import numba_compiled

SIDE = 16
"""Lines and columns of a thumbnail."""

CLOSE_BITS = 14
"""Hashes that differ in at most so many of 63 bits may be of one picture; of different ones 31 differ on average."""

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


@numba_compiled("int64(uint64[::1], int64, int64, int64[:, ::1])")
def compare(codes: Hashes, start: int, stop: int, out: Numbers) -> np.int64:
    """Writes the pairs as far as there is room, and counts all of them.

    Bits are counted by sums of halves (Hacker's Delight, 5-1), which vectorizes on any processor. Whether any of 64
    comparisons is close is decided first: pairs are rare.
    """
    found = np.int64(0)
    ones, twos, fours = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
    total, shift = np.uint64(0x0101010101010101), np.uint64(56)
    limit = np.uint64(CLOSE_BITS)
    for i in range(start, stop):
        code = codes[_U(i)]
        for begin in range(i + 1, len(codes), 64):
            end = min(begin + 64, len(codes))
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
