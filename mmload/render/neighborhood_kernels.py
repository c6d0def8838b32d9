"""Sharpness and blur of one plane of levels, compiled: operations that read the pixels around each pixel."""

from __future__ import annotations

import math

import numpy as np

from mmload.render.cpu_kernels import REFLECT, reflected
from mmload.render.kernel_arguments import Bytes, Floats, Numbers
from mmload.runtime.intrinsics import Arena, carve, fma, never_inline
from mmload.runtime.kernels import called, inlined

_U = np.uintp
_F = np.float32
_HALF, _WHITE = _F(0.5), _F(255)

REACH = 4.5
"""Standard deviations after which a blur ends: 7e-6 of its weight lies beyond, a five hundredth of a level."""


@inlined
def clamped_level(value: np.float32) -> np.uint8:
    """Returns the level that torchvision makes of a value: clamped and rounded down.

    It is clamped from below as an int32: packing 32 bits to 8 does that by itself on x86 with AVX2, where a loop took a
    third longer that clamped floats. It is clamped from above as a float, which an int32 need not hold.
    """
    return np.uint8(min(max(np.int32(min(value, _WHITE)), np.int32(0)), np.int32(255)))


@called
def sharpen(plane: Bytes, rest: np.float32, arena: Arena) -> None:
    """Blends [H, W] with a share ``rest`` of its 3 x 3 mean, whose center counts five times; pixels at the edge stay.

    The mean is a whole sum over 13, so it is never half way between two levels, and rounds in whole numbers:
    (sum + 6) * 5042 / 2^16 is (sum + 6) / 13 rounded down for all sums that there are.
    """
    height, width = plane.shape
    if height <= 2 or width <= 2:
        return
    above, here = carve(arena, width, np.uint8), carve(arena, width, np.uint8)
    sums, means = carve(arena, width, np.uint16), carve(arena, width, np.uint8)
    for x in range(_U(width)):
        above[x] = plane[0, x]
    for y in range(_U(1), _U(height - 1)):
        below = y + _U(1)
        for x in range(_U(width)):
            here[x] = plane[y, x]
        # Whole numbers of 16 bits in loops of their own: a loop for all took three times as long, as numba makes sums
        # of any integers 64 bits wide, and LLVM floats 32.
        for x in range(_U(width)):
            sums[x] = np.uint16(above[x]) + np.uint16(here[x]) + np.uint16(plane[below, x])
        for x in range(_U(1), _U(width - 1)):
            across = np.uint16(sums[x - _U(1)] + sums[x] + sums[x + _U(1)])
            total = np.uint16(across + np.uint16(4) * np.uint16(here[x]) + np.uint16(6))
            means[x] = np.uint8((np.uint32(total) * np.uint32(5042)) >> np.uint32(16))
        for x in range(_U(1), _U(width - 1)):
            value = fma(_F(means[x]) - _F(here[x]), rest, _F(here[x]))
            plane[y, x] = clamped_level(value)
        above, here = here, above


@called
def _reach(size: int, sigma: float) -> int:
    """Returns how many weights to one side of a Gaussian of ``size`` taps count."""
    return min(size // 2, int(math.ceil(REACH * sigma)))


@called
def _find_weights(sigma: float, weights: Floats) -> None:
    """Writes the middle weight of a Gaussian, and those to one side of it."""
    reach, total = len(weights) - 1, 0.0
    for j in range(-reach, reach + 1):
        total += math.exp(-0.5 * (j / sigma) ** 2)
    for j in range(reach + 1):
        weights[j] = math.exp(-0.5 * (j / sigma) ** 2) / total


# Each time a sum is loaded and stored it takes four pairs of taps: two at a time took 1.4 times as long. These are
# separate functions, as LLVM does not vectorize all of these loops inside of those over lines and taps.


@called
def _add_four(
    total: Floats, line: Floats, left: np.uintp, right: np.uintp, a: float, b: float, c: float, d: float
) -> None:
    """Adds four pairs of neighbors along a line: the inner ones are ``left`` + 3 and ``right`` places on."""
    for x in range(_U(total.size)):
        value = fma(line[x + left + _U(3)] + line[x + right], a, total[x])
        value = fma(line[x + left + _U(2)] + line[x + right + _U(1)], b, value)
        value = fma(line[x + left + _U(1)] + line[x + right + _U(2)], c, value)
        total[x] = fma(line[x + left] + line[x + right + _U(3)], d, value)


@called
def _add_one(total: Floats, line: Floats, left: np.uintp, right: np.uintp, weight: float) -> None:
    """Adds a pair of neighbors along a line."""
    for x in range(_U(total.size)):
        total[x] = fma(line[x + left] + line[x + right], weight, total[x])


@called
def _across(plane: Bytes, weights: Floats, work: Floats, arena: Arena) -> None:
    """Blurs each line into ``work``."""
    height, width = plane.shape
    reach = len(weights) - 1
    line, total = carve(arena, width + 2 * reach, np.float32), carve(arena, width, np.float32)
    for y in range(_U(height)):
        for x in range(_U(width)):
            line[x + _U(reach)] = _F(plane[y, x])
        for j in range(1, reach + 1):
            line[reach - j] = line[reach + j]
            line[reach + width - 1 + j] = line[reach + width - 1 - j]
        for x in range(_U(width)):
            total[x] = line[x + _U(reach)] * weights[0]
        for j in range(1, reach - 2, 4):
            left, right = _U(reach - j - 3), _U(reach + j)
            _add_four(total, line, left, right, weights[j], weights[j + 1], weights[j + 2], weights[j + 3])
        for j in range(reach - reach % 4 + 1, reach + 1):
            _add_one(total, line, _U(reach - j), _U(reach + j), weights[j])
        for x in range(_U(width)):
            work[y, x] = total[x]


@called
def _add_four_lines(total: Floats, work: Floats, lines: Numbers, weights: Floats, j: int) -> None:
    """Adds four pairs of lines: those ``j`` lines away and the three after."""
    a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
    above, over, upper, top = _U(lines[0, j]), _U(lines[0, j + 1]), _U(lines[0, j + 2]), _U(lines[0, j + 3])
    below, under, lower, end = _U(lines[1, j]), _U(lines[1, j + 1]), _U(lines[1, j + 2]), _U(lines[1, j + 3])
    for x in range(_U(total.size)):
        value = fma(work[above, x] + work[below, x], a, total[x])
        value = fma(work[over, x] + work[under, x], b, value)
        value = fma(work[upper, x] + work[lower, x], c, value)
        total[x] = fma(work[top, x] + work[end, x], d, value)


@called
def _over(work: Floats, weights: Floats, plane: Bytes, arena: Arena) -> None:
    """Blurs the columns of ``work`` into levels, rounded to the nearest."""
    height, width = plane.shape
    reach = len(weights) - 1
    total, lines = carve(arena, width, np.float32), carve(arena, (2, reach + 1), np.int64)
    for y in range(height):
        for j in range(1, reach + 1):
            lines[0, j], lines[1, j] = reflected(y - j, height, REFLECT), reflected(y + j, height, REFLECT)
        for x in range(_U(width)):
            total[x] = fma(work[_U(y), x], weights[0], _HALF)
        for j in range(1, reach - 2, 4):
            _add_four_lines(total, work, lines, weights, j)
        for j in range(reach - reach % 4 + 1, reach + 1):
            above, below, weight = _U(lines[0, j]), _U(lines[1, j]), weights[j]
            for x in range(_U(width)):
                total[x] = fma(work[above, x] + work[below, x], weight, total[x])
        for x in range(_U(width)):
            plane[_U(y), x] = clamped_level(total[x])


@called
def blur(plane: Bytes, wide: int, high: int, sigma: float, arena: Arena) -> None:
    """Blurs [H, W] by a Gaussian, mirrored at the edges, one axis after the other; within a level of torchvision's.

    Args:
        plane: uint8 [H, W], larger than half of the kernel.
        wide: taps across, odd.
        high: taps from top to bottom, odd.
        sigma: standard deviation in pixels.
        arena: working memory.
    """
    never_inline()
    work = carve(arena, plane.shape, np.float32)
    across = carve(arena, _reach(wide, sigma) + 1, np.float32)
    over = carve(arena, _reach(high, sigma) + 1, np.float32)
    _find_weights(sigma, across)
    _find_weights(sigma, over)
    _across(plane, across, work, arena)
    _over(work, over, plane, arena)
