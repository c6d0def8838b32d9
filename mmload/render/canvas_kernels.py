"""Canvases composed of tiles, compiled: each tile is a part of an image, seen through an affine or perspective map.

An output pixel belongs to a tile if its center, mapped into the tile's image, lies within the tile's limits; of several
such tiles the last one is on top. Its value is the mean of the four pixels around that place, weighted by their
distance and rounded to the nearest level; beyond the image's edge its last pixels are repeated. Places are float32,
weights have 14 bits between lines and 15 between columns, sums 7 bits behind the point: 0.02 of a level or less from
the exact mean. Tiles that are neither turned nor sheared are painted by vectors, with the same bits in 0.2 of the time:
two lines of the image make one in which columns have neighbors. Nothing is checked here;
:mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.kernel_arguments import (
    NEAR,
    PIXELS,
    Bytes,
    Composed,
    Lines,
    Numbers,
    Places,
    Records,
    Words,
    steps_of,
)
from mmload.render.warp_kernels import pack_words
from mmload.runtime.intrinsics import (
    LINE,
    MEAN_BITS,
    MEAN_HALF,
    NEAR_WORDS,
    NEIGHBORS,
    Arena,
    blend_neighbors,
    carve,
    never_inline,
    pair,
    picks_any_pair,
    prefetch,
    reshaped,
)
from mmload.runtime.kernels import ARENA, USED, called, inlined, numba_compiled

Columns = npt.NDArray[np.int32]
Shorts = npt.NDArray[np.int16]
Picks = npt.NDArray[np.uint16]

_WIDE, _HIGH = np.float32(1 << 15), np.float32(1 << 14)
"""Weights of two neighboring columns, and of two lines, together."""

_U = np.uintp
_F = np.float32
_W = np.uint32
_NOTHING, _HALF = _F(0), _F(0.5)
_BYTE = _W(255)
_SEVEN, _FOURTEEN, _FIFTEEN = np.int32(7), np.int32(14), np.int32(15)
_WHOLE = np.int32(1 << 15)
_ROUND, _BITS = np.int32(MEAN_HALF), np.int32(MEAN_BITS)
_AHEAD = 2
"""Lines of an image that are asked for before they are needed: their channels are too short for the processor to guess.

Images come from memory, not from caches, and took 1.1 times as long.
"""


@inlined
def _clip_columns(first: int, stop: int, slope: float, start: float) -> tuple[int, int]:
    """Narrows columns to those where ``slope * (column + 0.5) + start`` is not negative."""
    if slope > 0:
        first = max(first, int(math.ceil(min(max(-start / slope - 0.5, -1.0), stop + 1.0))))
    elif slope < 0:
        stop = min(stop, int(math.floor(min(max(-start / slope - 0.5, -1.0), stop + 1.0))) + 1)
    elif start < 0:
        stop = first
    return first, stop


@inlined
def _rectangle_of(tile: Any, width: int, height: int) -> tuple[int, int, int, int]:
    """Returns the first column that a straight tile covers and the one after the last, and the same of lines."""
    first, stop = _clip_columns(0, width, tile.a, tile.c - tile.u0)
    first, stop = _clip_columns(first, stop, -tile.a, tile.u1 - tile.c)
    begin, end = _clip_columns(0, height, tile.e, tile.f - tile.v0)
    begin, end = _clip_columns(begin, end, -tile.e, tile.v1 - tile.f)
    return first, stop, begin, end


@inlined
def _weight_of(share: np.float32, whole: np.float32) -> np.int32:
    """Returns the weight of a second neighbor, of ``whole`` for both."""
    return np.int32(share * whole + _HALF)


@inlined
def _between(first: np.int32, second: np.int32, low: np.int32) -> np.int32:
    """Returns the weighted mean of two levels in units of 1/128, rounded down."""
    return np.int32(np.int32(np.int32(first << _FOURTEEN) + np.int32(np.int32(second - first) * low)) >> _SEVEN)


@inlined
def _mean_of(first: np.int32, second: np.int32, right: np.int32) -> np.uint8:
    """Returns the weighted mean of two numbers of 1/128 of a level, rounded to the nearest level."""
    total = np.int32(np.int32(first << _FIFTEEN) + np.int32(np.int32(second - first) * right))
    return np.uint8(np.int32(np.int32(total + _ROUND) >> _BITS))


@called
def _blend_lines(memory: Bytes, starts: tuple[int, int], low: np.int16, count: int, out: Shorts, at: int) -> None:
    """Computes the weighted means of two lines that begin at ``starts``, as :func:`_between` does.

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
        weights: int16 [2 n], both negative weights, as :func:`_weight_of` counts them.
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
        right = _weight_of(place - np.floor(place), _WIDE)
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
def _paint_straight(
    memory: Bytes,
    base: int,
    steps: tuple[int, int, int],
    tile: Any,
    shrink: int,
    part: tuple[int, int, int, int],
    out: Bytes,
    arena: Arena,
) -> None:
    """Paints a tile that is neither turned nor sheared, with the bits of :func:`_paint_tile`.

    Loops without vectors of 16 bits (``_blend_lines``, ``blend_neighbors``) took 3 to 5 times as long.

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
    first, stop, begin, end = _rectangle_of(tile, width, height)
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
        row, low = int(np.floor(place)), np.int16(_weight_of(place - np.floor(place), _HIGH))
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
                    canvas[c * size + at + x] = _mean_of(np.int32(lines[one]), np.int32(lines[one + _U(1)]), right)


@inlined
def _second(word: np.uint32) -> np.uint32:
    return _W(_W(word >> _W(8)) & _BYTE)


@inlined
def _third(word: np.uint32) -> np.uint32:
    return _W(word >> _W(16))  # of three


@inlined
def _level(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32, right: np.int32, low: np.int32) -> np.uint8:
    """Returns the weighted mean of four levels, rounded."""
    one, other = _between(np.int32(a), np.int32(c), low), _between(np.int32(b), np.int32(d), low)
    return _mean_of(one, other, right)


@called
def _paint_tile(
    packed: Words, tile: Any, shrink: int, part: tuple[int, int, int, int], out: Bytes, arena: Arena
) -> None:
    """Paints a tile of a packed part of an image that is ``shrink`` times smaller on a canvas [C, H, W]."""
    never_inline()
    channels, height, width = out.shape
    top, left, rows, columns = part
    u, v, offsets = carve(arena, width, np.float32), carve(arena, width, np.float32), carve(arena, width, np.int32)
    rights, lows = carve(arena, width, np.int32), carve(arena, width, np.int32)
    pairs, corners = carve(arena, (2, width), np.uint64), carve(arena, (4, width), np.uint32)
    pitch, most_right, most_low = np.int32(columns + 2), _F(columns - 1), _F(rows - 1)
    size = 1.0 / shrink
    is_perspective = tile.g != 0 or tile.h != 0
    for y in range(height):
        down = y + 0.5
        across, over, depth = tile.b * down + tile.c, tile.e * down + tile.f, tile.h * down + tile.i
        first, stop = 0, width
        first, stop = _clip_columns(first, stop, tile.a - tile.u0 * tile.g, across - tile.u0 * depth)
        first, stop = _clip_columns(first, stop, tile.u1 * tile.g - tile.a, tile.u1 * depth - across)
        first, stop = _clip_columns(first, stop, tile.d - tile.v0 * tile.g, over - tile.v0 * depth)
        first, stop = _clip_columns(first, stop, tile.v1 * tile.g - tile.d, tile.v1 * depth - over)
        first, stop = _clip_columns(first, stop, tile.g, depth - NEAR)
        if first >= stop:
            continue
        count = stop - first
        if is_perspective:
            for x in range(_U(count)):
                place = np.float64(x) + (first + 0.5)
                below = 1.0 / (tile.g * place + depth)
                u[x] = _F((tile.a * place + across) * below * size - (0.5 + left))
                v[x] = _F((tile.d * place + over) * below * size - (0.5 + top))
        else:
            right, low = _F(tile.a * size), _F(tile.d * size)
            begin = _F((tile.a * (first + 0.5) + across) * size - 0.5 - left)
            start = _F((tile.d * (first + 0.5) + over) * size - 0.5 - top)
            for x in range(_U(count)):
                step = _F(np.int32(x))
                u[x], v[x] = right * step + begin, low * step + start
        for x in range(_U(count)):
            column_, row_ = min(max(u[x], _NOTHING), most_right), min(max(v[x], _NOTHING), most_low)
            column, row = np.floor(column_), np.floor(row_)
            offsets[x] = (np.int32(row) + np.int32(1)) * pitch + np.int32(column) + np.int32(1)
            rights[x], lows[x] = _weight_of(column_ - column, _WIDE), _weight_of(row_ - row, _HIGH)
        for x in range(_U(count)):  # two loads per pixel, in a loop by themselves: see warp_bilinear
            offset = _U(offsets[x])
            pairs[0, x], pairs[1, x] = pair(packed, offset), pair(packed, offset + _U(pitch))
        for x in range(_U(count)):
            corners[0, x], corners[1, x] = _W(pairs[0, x]), _W(pairs[0, x] >> np.uint64(32))
            corners[2, x], corners[3, x] = _W(pairs[1, x]), _W(pairs[1, x] >> np.uint64(32))
        line, begins = _U(y), _U(first)
        if channels == 3:  # at once: 0.6 of the time
            for x in range(_U(count)):
                a, b, c, d = corners[0, x], corners[1, x], corners[2, x], corners[3, x]
                right, low = rights[x], lows[x]
                out[0, line, begins + x] = _level(
                    _W(a & _BYTE), _W(b & _BYTE), _W(c & _BYTE), _W(d & _BYTE), right, low
                )
                out[2, line, begins + x] = _level(_third(a), _third(b), _third(c), _third(d), right, low)
                out[1, line, begins + x] = _level(_second(a), _second(b), _second(c), _second(d), right, low)
            continue
        for channel in range(_U(channels)):
            shift = _W(_U(8) * channel) & _W(31)
            for x in range(_U(count)):
                a, b = _W(corners[0, x] >> shift) & _BYTE, _W(corners[1, x] >> shift) & _BYTE
                c, d = _W(corners[2, x] >> shift) & _BYTE, _W(corners[3, x] >> shift) & _BYTE
                out[channel, line, begins + x] = _level(a, b, c, d, rights[x], lows[x])


@inlined
def _is_straight(tile: Any) -> bool:
    """Returns whether a tile is neither turned nor sheared."""
    return bool(tile.b == 0 and tile.d == 0 and tile.g == 0 and tile.h == 0 and tile.i == 1)


@inlined
def _part_of(tile: Any, place: Any) -> tuple[int, int, int, int]:
    """Returns the part of an image, perhaps a smaller one, that a tile shows: top, left, rows and columns."""
    shrink = int(place.shrink)
    top, left = max(tile.top // shrink, place.first), tile.left // shrink
    bottom = min((tile.bottom + shrink - 1) // shrink, place.first + place.count)
    right = min((tile.right + shrink - 1) // shrink, (place.width + shrink - 1) // shrink)
    return top, left, bottom - top, right - left


@called
def _clear(tiles: Records, places: Places, ground: Bytes, canvas: Bytes, arena: Arena) -> None:
    """Clears what no straight tile of the first one's layer will cover.

    To clear all of the canvas took a seventh of the time of painting.
    """
    never_inline()
    channels, height, width = canvas.shape
    rectangles, count = carve(arena, (len(tiles), 4), np.int64), 0
    for k in range(len(tiles)):
        if k > 0 and tiles[k].begins:
            break
        _, _, rows, columns = _part_of(tiles[k], places[k])
        if _is_straight(tiles[k]) and rows > 0 and columns > 0:
            first, stop, begin, end = _rectangle_of(tiles[k], width, height)
            if first < stop:
                rectangles[count, 0], rectangles[count, 1] = first, stop
                rectangles[count, 2], rectangles[count, 3] = begin, end
                count += 1
    for y in range(height):
        x = 0
        while x < width:
            behind, before = x, width  # the end of a tile that covers x, and the begin of the next one
            for k in range(count):
                if rectangles[k, 2] <= y < rectangles[k, 3] and rectangles[k, 1] > x:
                    if rectangles[k, 0] <= x:
                        behind = max(behind, rectangles[k, 1])
                    else:
                        before = min(before, rectangles[k, 0])
            if behind == x:
                for c in range(_U(channels)):
                    for i in range(_U(x), _U(before)):
                        canvas[c, _U(y), i] = ground[c]
                behind = before
            x = behind


@called
def _blend(layers: Bytes, share: np.float32) -> None:
    """Replaces the first of two layers, uint8 [2, C, H, W], by share * first + (1 - share) * second, rounded."""
    first, second = reshaped(layers[0], layers[0].size), reshaped(layers[1], layers[1].size)
    rest = _F(1) - share
    for i in range(_U(first.size)):
        first[i] = np.uint8(np.int32(np.rint(_F(first[i]) * share + _F(second[i]) * rest)))


@numba_compiled(Lines, Composed, "int64[::1]", ARENA)
def paint(lines: Lines, composed: Composed, rows: Numbers, arena: Arena) -> None:
    """Paints tiles, in order, and blends two layers after the last one of a sample.

    Args:
        lines: the images of all tiles. All lines that a tile needs are there.
        composed: the tiles. One that begins a layer clears what straight tiles do not cover; C is at most 4.
        rows: the first tile and the one after the last, int64 [2].
        arena: working memory.
    """
    tiles, places, out, begun = composed.tiles, lines.places, composed.canvases, arena[USED]
    channels = out.shape[1]
    for k in range(rows[0], rows[1]):
        arena[USED] = begun
        tile, place = tiles[k], places[k]
        canvas = out[tile.layer]
        if tile.begins:
            _clear(tiles[k:], places[k:], composed.ground, canvas, arena)
        shrink = int(place.shrink)
        wide = (place.width + shrink - 1) // shrink
        shown = _part_of(tile, place)
        top, left, height, width = shown
        if height > 0 and width > 0:
            pixels = lines.decoded if place.layout == PIXELS else lines.memory
            beside, below, after = steps_of(place.layout, place.count, wide, channels)
            steps, down = (beside, below, after), top - place.first
            if _is_straight(tile):
                base = place.start + down * below + left * after
                _paint_straight(pixels, base, steps, tile, shrink, shown, canvas, arena)
            else:
                packed = carve(arena, (height + 2) * (width + 2), np.uint32)
                pack_words(pixels, place.start, steps, (down, left, height, width), channels, packed)
                _paint_tile(packed, tile, shrink, shown, canvas, arena)
        if not np.isnan(composed.shares[k]):
            _blend(out, composed.shares[k])
