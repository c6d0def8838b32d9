"""Sharpness and blur of one plane of levels, compiled: what looks at the pixels around each pixel."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import called, fma, inlined

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_U = np.uintp
_F = np.float32
_HALF, _NOTHING, _ONE, _WHITE = _F(0.5), _F(0), _F(1), _F(255)

_REACH = 4.5
"""Standard deviations after which a blur ends: beyond lies 7e-6 of its weight, a five hundredth of a level."""


@called
def sharpen(plane: Bytes, rest: np.float32) -> None:
    """Blends [H, W] with a share ``rest`` of its 3 x 3 mean, whose center counts five times; pixels at the edge stay.

    The mean is a whole sum over 13, so it is never half way between two levels, and rounds in whole numbers:
    (sum + 6) * 5042 / 2^16 is (sum + 6) / 13 rounded down for all sums that there are.
    """
    height, width = plane.shape
    if height <= 2 or width <= 2:
        return
    above, here = plane[0].copy(), np.empty(width, np.uint8)
    for y in range(_U(1), _U(height - 1)):
        below = y + _U(1)
        for x in range(_U(width)):
            here[x] = plane[y, x]
        for x in range(_U(1), _U(width - 1)):
            left, right = x - _U(1), x + _U(1)
            total = np.uint32(above[left]) + np.uint32(above[x]) + np.uint32(above[right])
            total += np.uint32(here[left]) + np.uint32(5) * np.uint32(here[x]) + np.uint32(here[right])
            total += np.uint32(plane[below, left]) + np.uint32(plane[below, x]) + np.uint32(plane[below, right])
            mean = _F(np.int32(((total + np.uint32(6)) * np.uint32(5042)) >> np.uint32(16)))
            value = fma(mean - _F(here[x]), rest, _F(here[x]))
            plane[y, x] = np.uint8(np.int32(min(max(value, _NOTHING), _WHITE)))
        above, here = here, above


@called
def _weights(size: int, sigma: float) -> Floats:
    """The middle weight of a Gaussian of ``size`` taps and those to one side of it, as far as they count."""
    reach = min(size // 2, int(math.ceil(_REACH * sigma)))
    weights, total = np.empty(reach + 1, np.float32), 0.0
    for j in range(-reach, reach + 1):
        total += math.exp(-0.5 * (j / sigma) ** 2)
    for j in range(reach + 1):
        weights[j] = math.exp(-0.5 * (j / sigma) ** 2) / total
    return weights


@inlined
def _reflected(position: int, length: int) -> int:
    position = abs(position)
    return min(position, 2 * length - 2 - position)


@called
def _across(plane: Bytes, weights: Floats, work: Floats) -> None:
    """Blurs each line into ``work``, two pairs of taps at a time, as each time a sum is loaded and stored."""
    height, width = plane.shape
    reach = len(weights) - 1
    line = np.empty(width + 2 * reach, np.float32)
    for y in range(_U(height)):
        for x in range(_U(width)):
            line[x + _U(reach)] = _F(plane[y, x])
        for j in range(1, reach + 1):
            line[reach - j] = line[reach + j]
            line[reach + width - 1 + j] = line[reach + width - 1 - j]
        weight = weights[0]
        for x in range(_U(width)):
            work[y, x] = line[x + _U(reach)] * weight
        for j in range(1, reach, 2):
            near, far = weights[j], weights[j + 1]
            a, b, c, d = _U(reach - j), _U(reach + j), _U(reach - j - 1), _U(reach + j + 1)
            for x in range(_U(width)):
                work[y, x] += near * (line[x + a] + line[x + b]) + far * (line[x + c] + line[x + d])
        if reach % 2:
            near, a, b = weights[reach], _U(0), _U(2 * reach)
            for x in range(_U(width)):
                work[y, x] += near * (line[x + a] + line[x + b])


@called
def _over(work: Floats, weights: Floats, plane: Bytes) -> None:
    """Blurs the columns of ``work`` into levels, rounded to the nearest."""
    height, width = plane.shape
    reach = len(weights) - 1
    total = np.empty(width, np.float32)
    for y in range(height):
        here, weight = _U(y), weights[0]
        for x in range(_U(width)):
            total[x] = fma(work[here, x], weight, _HALF)
        for j in range(1, reach, 2):
            near, far = weights[j], weights[j + 1]
            a, b = _U(_reflected(y - j, height)), _U(_reflected(y + j, height))
            c, d = _U(_reflected(y - j - 1, height)), _U(_reflected(y + j + 1, height))
            for x in range(_U(width)):
                total[x] += near * (work[a, x] + work[b, x]) + far * (work[c, x] + work[d, x])
        if reach % 2:
            near, a, b = weights[reach], _U(_reflected(y - reach, height)), _U(_reflected(y + reach, height))
            for x in range(_U(width)):
                total[x] += near * (work[a, x] + work[b, x])
        for x in range(_U(width)):
            plane[here, x] = np.uint8(np.int32(min(total[x], _WHITE)))


@called
def blur(plane: Bytes, wide: int, high: int, sigma: float, work: Floats) -> None:
    """A Gaussian blur of [H, W], mirrored at the edges, one axis after the other; within a level of torchvision's.

    Args:
        plane: uint8 [H, W], larger than half of the kernel.
        wide: taps across, odd.
        high: taps from top to bottom, odd.
        sigma: the standard deviation in pixels.
        work: float32 [H, W].
    """
    _across(plane, _weights(wide, sigma), work)
    _over(work, _weights(high, sigma), plane)
