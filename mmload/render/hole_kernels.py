"""The loop that overwrites holes on a CPU, for the kernels that color lines: while these lines are in cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.runtime.half_precision import rounded
from mmload.runtime.normal_noise import normal_line
from mmload.runtime.numba_compile import called, inlined

SIDES = 5
"""Numbers of a hole: top, left, height, width, and the key of its noise."""

_U = np.uintp


class Lines(NamedTuple):
    """Lines from ``begin`` to ``end``, of which the last is not one."""

    begin: int
    end: int


@inlined
def erased_lines(holes: npt.NDArray[np.int64], sample: int) -> Lines:
    """The lines among which all of a sample's holes lie; none where it has none."""
    begin, end = 1 << 62, 0
    for n in range(holes.shape[1]):
        top, height = holes[sample, n, 0], holes[sample, n, 2]
        if height > 0:
            begin, end = min(begin, top), max(end, top + height)
    return Lines(begin, end)


@called
def erase(
    holes: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    sample: int,
    plane: Any,
    depth: int,
    begin: int,
    end: int,
    across: int,
    noise: npt.NDArray[np.float32],
    target: npt.NDArray[Any],
    at: Any,
) -> None:
    """Overwrites a sample's holes in its lines from ``begin`` to ``end``.

    A line of noise takes the words after those of the hole's lines above it, and of the channels before.

    Args:
        holes: int64 [b, n, :data:`SIDES`].
        values: float32 [n, C]; NaN: noise.
        sample: which of the b.
        plane: the first channel of the lines.
        depth: how many channels are interleaved in a line.
        begin: the first line.
        end: one past the last.
        across: values of a line.
        noise: float32, as many as a line has pixels, and one more.
        target: flat; float32, uint8 or the bits of half precision.
        at: where line ``begin`` is in it.
    """
    plane, at = _U(plane), np.int64(at)  # uint64 and int64 together make floats
    for n in range(holes.shape[1]):
        top, left, height = holes[sample, n, 0], holes[sample, n, 1], holes[sample, n, 2]
        width, key = _U(holes[sample, n, 3]), np.uint64(holes[sample, n, 4])
        half, same = (width + _U(1)) // _U(2), True  # NaN is not the same as itself
        for c in range(_U(depth)):
            same = same and values[n, plane + c] == values[n, plane]
        for y in range(max(top, begin), min(top + height, end)):
            line = _U(at + (y - begin) * across + left * depth)
            if same:
                value = rounded(values[n, plane], target)
                for i in range(width * _U(depth)):
                    target[line + i] = value
                continue
            for c in range(_U(depth)):
                if np.isnan(values[n, plane + c]):
                    words = ((plane + c) * _U(height) + _U(y - top)) * half
                    normal_line(key, np.uint64(words), half, noise)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = rounded(noise[x], target)
                else:
                    value = rounded(values[n, plane + c], target)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = value
