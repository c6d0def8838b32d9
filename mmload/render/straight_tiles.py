"""Tiles that are neither turned nor sheared, painted line by line, and the weights that all tiles have.

Two lines of the image make one, in which columns have neighbors: each step is a vector at once. Nothing is checked
here; :mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.kernel_arguments import Bytes, Numbers
from mmload.runtime.arena import Arena, carve
from mmload.runtime.declarations import called, inlined
from mmload.runtime.intrinsics import (
    LINE,
    MEAN_BITS,
    MEAN_HALF,
    NEAR_WORDS,
    NEIGHBORS,
    blend_neighbors,
    never_inline,
    picks_any_pair,
    prefetch,
    reshaped,
)

Columns = npt.NDArray[np.int32]
Shorts = npt.NDArray[np.int16]
Picks = npt.NDArray[np.uint16]

WIDE, HIGH = np.float32(1 << 15), np.float32(1 << 14)
"""Weights of two neighboring columns, and of two lines, together."""

_U = np.uintp
_F = np.float32
_NOTHING, _HALF = _F(0), _F(0.5)
_SEVEN, _FOURTEEN, _FIFTEEN = np.int32(7), np.int32(14), np.int32(15)
_WHOLE = np.int32(1 << 15)
_ROUND, _BITS = np.int32(MEAN_HALF), np.int32(MEAN_BITS)
_AHEAD = 2
"""Lines of an image that are asked for before they are needed: their channels are too short for the processor to guess.

Images come from memory, not from caches, and took 1.1 times as long.
"""


@inlined
def clip_columns(first: int, stop: int, slope: float, start: float) -> tuple[int, int]:
    """Narrows columns to those where ``slope * (column + 0.5) + start`` is not negative."""
    if slope > 0:
        first = max(first, int(math.ceil(min(max(-start / slope - 0.5, -1.0), stop + 1.0))))
    elif slope < 0:
        stop = min(stop, int(math.floor(min(max(-start / slope - 0.5, -1.0), stop + 1.0))) + 1)
    elif start < 0:
        stop = first
    return first, stop


@inlined
def rectangle_of(tile: Any, width: int, height: int) -> tuple[int, int, int, int]:
    """Returns the first column that a straight tile covers and the one after the last, and the same of lines."""
    first, stop = clip_columns(0, width, tile.a, tile.c - tile.u0)
    first, stop = clip_columns(first, stop, -tile.a, tile.u1 - tile.c)
    begin, end = clip_columns(0, height, tile.e, tile.f - tile.v0)
    begin, end = clip_columns(begin, end, -tile.e, tile.v1 - tile.f)
    return first, stop, begin, end


@inlined
def weight_of(share: np.float32, whole: np.float32) -> np.int32:
    """Returns the weight of a second neighbor, of ``whole`` for both."""
    return np.int32(share * whole + _HALF)


@inlined
def between(first: np.int32, second: np.int32, low: np.int32) -> np.int32:
    """Returns the weighted mean of two levels in units of 1/128, rounded down."""
    return np.int32(np.int32(np.int32(first << _FOURTEEN) + np.int32(np.int32(second - first) * low)) >> _SEVEN)


@inlined
def mean_of(first: np.int32, second: np.int32, right: np.int32) -> np.uint8:
    """Returns the weighted mean of two numbers of 1/128 of a level, rounded to the nearest level."""
    total = np.int32(np.int32(first << _FIFTEEN) + np.int32(np.int32(second - first) * right))
    return np.uint8(np.int32(np.int32(total + _ROUND) >> _BITS))


@called
def _blend_lines(memory: Bytes, starts: tuple[int, int], low: np.int16, count: int, out: Shorts, at: int) -> None:
    """Computes the weighted means of two lines that begin at ``starts``, as :func:`between` does.

    The upper half of a product of 16 bits is one instruction. From the middle on the weight is counted from the other
    line, and is negative: 2^2 times as much has 16 bits.
    """
    first, second, sink = _U(starts[0]), _U(starts[1]), _U(at)
    is_far, weight = low >= np.int16(1 << 13), np.int32(np.int16(low << 2))
    for x in range(_U(count)):
        upper, lower = np.int16(memory[first + x] << 7), np.int16(memory[second + x] << 7)
        part = np.int16(np.int32(np.int32(np.int16(lower - upper)) * weight) >> 16)
        out[sink + x] = np.int16((lower if is_far else upper) + part)


class _Columns(NamedTuple):
    """Neighbors and weights of the columns of a straight tile, a multiple of ``NEIGHBORS`` of them.

    Attributes:
        offsets: int32 [n], the left neighbor of each.
        bases: int64 [n / NEIGHBORS], the least of each block.
        picks: uint16 [2 n], both neighbors of each column, counted from the block's base.
        weights: int16 [2 n], both negative weights, as :func:`weight_of` counts them.
        near: more than any pick; above ``NEAR_WORDS`` where ``blend_neighbors`` cannot do it.
    """

    offsets: Columns
    bases: Numbers
    picks: Picks
    weights: Shorts
    near: int


@called
def _columns(step: np.float32, start: np.float32, count: int, most: np.float32, stride: int, arena: Arena) -> _Columns:
    """Returns the neighbors of columns ``step`` apart from ``start`` on, which are from 0 to ``most``.

    Picks count numbers of a line that has ``stride`` of them for each column.
    """
    blocks = (count + NEIGHBORS - 1) // NEIGHBORS
    size = blocks * NEIGHBORS
    offsets, bases = carve(arena, size, np.int32), carve(arena, blocks, np.int64)
    picks, weights = carve(arena, 2 * size, np.uint16), carve(arena, 2 * size, np.int16)
    for x in range(_U(size)):
        place = min(max(step * _F(min(np.int32(x), np.int32(count - 1))) + start, _NOTHING), most)
        offsets[x] = np.int32(np.floor(place))
        right = weight_of(place - np.floor(place), WIDE)
        weights[_U(2) * x], weights[_U(2) * x + _U(1)] = np.int16(right - _WHOLE), np.int16(-right)
    near = 0
    for k in range(blocks):
        begin, end = offsets[k * NEIGHBORS], offsets[k * NEIGHBORS + NEIGHBORS - 1]
        bases[k] = min(begin, end) * stride
        near = max(near, (abs(end - begin) + 1) * stride + 1)
    for x in range(_U(size)):
        pick = offsets[x] * stride - bases[x // _U(NEIGHBORS)]
        picks[_U(2) * x], picks[_U(2) * x + _U(1)] = np.uint16(pick), np.uint16(pick + stride)
    return _Columns(offsets, bases, picks, weights, near)


@called
def paint_straight(
    memory: Bytes,
    base: int,
    steps: tuple[int, int, int],
    tile: Any,
    shrink: int,
    part: tuple[int, int, int, int],
    out: Bytes,
    arena: Arena,
) -> None:
    """Paints a tile that is neither turned nor sheared, with the bits of :mod:`mmload.render.canvas_kernels`.

    Two lines of the image make one in which columns have neighbors, each a vector at once: 0.2 of the time.

    Args:
        memory: uint8 [n], where the image is.
        base: byte of the first pixel of the part of the image.
        steps: bytes from channel to channel, line to line, and pixel to pixel.
        tile: the tile.
        shrink: number of times by which the image is smaller.
        part: top, left, rows and columns of the part of the image.
        out: uint8 [C, H, W].
        arena: working memory.
    """
    never_inline()
    channels, height, width = out.shape
    beside, below, after = steps
    top, left, rows, columns = part
    scale = 1.0 / shrink
    first, stop, begin, end = rectangle_of(tile, width, height)
    count = stop - first
    if count <= 0:
        return
    start = _F((tile.a * (first + 0.5) + tile.c) * scale - 0.5 - left)
    step, most = _F(tile.a * scale), _F(columns - 1)
    across = _columns(step, start, count, most, after, arena)
    # Of channels that alternate, neighbors are picked among all; if they are too far apart, or the processor picks only
    # what is side by side, channels are divided first.
    divided = after > 1 and (across.near > NEAR_WORDS or not picks_any_pair())
    if divided:
        across = _columns(step, start, count, most, 1, arena)
    offsets, bases, picks, weights = across.offsets, across.bases, across.picks, across.weights
    pitch = columns + NEAR_WORDS if divided or after == 1 else 1
    lines = carve(arena, channels * (columns + NEAR_WORDS), np.int16)
    lines[:] = 0
    mixed = carve(arena, channels * columns, np.int16) if divided else lines
    parts, length = (channels, columns) if after == 1 else (1, channels * columns)
    canvas, rest = reshaped(out, out.size), carve(arena, channels * NEIGHBORS, np.uint8)
    are_near = across.near <= NEAR_WORDS
    whole = count // NEIGHBORS if are_near else 0
    asked = 0  # lines that were asked for, or are behind
    for y in range(begin, end):
        place = min(max(_F((tile.e * (y + 0.5) + tile.f) * scale - 0.5 - top), _NOTHING), _F(rows - 1))
        row, low = int(np.floor(place)), np.int16(weight_of(place - np.floor(place), HIGH))
        upper, lower = base + row * below, base + min(row + 1, rows - 1) * below
        for line in range(max(asked, row + 2), min(row + 2 + _AHEAD, rows)):
            for c in range(parts):
                for x in range(0, length, LINE):
                    prefetch(memory, _U(base + line * below + c * beside + x))
            asked = line + 1
        for c in range(parts):
            starts = upper + c * beside, lower + c * beside
            _blend_lines(memory, starts, low, length, mixed, c * pitch)
        for c in range(_U(channels if divided else 0)):
            for x in range(_U(columns)):
                lines[c * _U(pitch) + x] = mixed[_U(channels) * x + c]
        at, size = _U(y * width + first), _U(height * width)
        for k in range(_U(whole)):
            block = k * _U(NEIGHBORS)
            blend_neighbors(lines, (bases[k], pitch), picks, weights, block, canvas, (at + block, size), channels)
        done = _U(whole * NEIGHBORS)
        if are_near and done < _U(count):
            blend_neighbors(lines, (bases[whole], pitch), picks, weights, done, rest, (0, NEIGHBORS), channels)
            for c in range(_U(channels)):
                for x in range(_U(count) - done):
                    canvas[c * size + at + done + x] = rest[c * _U(NEIGHBORS) + x]
        elif done < _U(count):
            for c in range(_U(channels)):
                for x in range(_U(count)):
                    one, right = c * _U(pitch) + _U(offsets[x]), -np.int32(weights[_U(2) * x + _U(1)])
                    canvas[c * size + at + x] = mean_of(np.int32(lines[one]), np.int32(lines[one + _U(1)]), right)
