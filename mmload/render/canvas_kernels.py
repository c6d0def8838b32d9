"""Canvases composed of tiles, compiled: each tile is a part of an image, seen through an affine or perspective map.

An output pixel belongs to a tile if its center, mapped into the tile's image, lies within the tile's limits; of several
such tiles the last one is on top. Its value is the mean of the four pixels around that place, weighted by their
distance and rounded to the nearest level; beyond the image's edge its last pixels are repeated. Places are float32,
weights have 14 bits between lines and 15 between columns, sums 7 bits behind the point: 0.02 of a level or less from
the exact mean. Nothing is checked here; :mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmload.render.arrival import is_there
from mmload.render.kernel_arguments import LINES, NEAR, PAINT, PIXELS, PLANES, Bytes, ImageLines, Places, Records, Words
from mmload.render.straight_tiles import (
    HIGH,
    WIDE,
    between,
    clip_columns,
    mean_of,
    paint_straight,
    rectangle_of,
    weight_of,
)
from mmload.runtime.arena import USED, Arena, carve
from mmload.runtime.declarations import called, inlined
from mmload.runtime.intrinsics import never_inline, pair, reshaped
from mmload.runtime.numba_compile import numba_compiled

_U = np.uintp
_F = np.float32
_W = np.uint32
_NOTHING, _HALF = _F(0), _F(0.5)
_BYTE = _W(255)


@called
def _pack(
    memory: Bytes, base: int, steps: tuple[int, int, int], part: tuple[int, int, int, int], channels: int, out: Words
) -> None:
    """Packs up to four channels of a part of an image (top, left, rows, columns) into one word per pixel.

    A line and a column are added, so that four neighbors of every pixel can be read; those have no weight.

    Args:
        memory: uint8 [n].
        base: byte of the image's first pixel.
        steps: bytes from channel to channel, line to line, and pixel to pixel.
        part: the part.
        channels: number of channels.
        out: uint32 [(rows + 1) * (columns + 1)].
    """
    beside, below, after = steps
    top, left, rows, columns = part
    pitch = _U(columns + 1)
    for y in range(_U(rows)):
        line, place = y * pitch, _U(base + left * after) + (y + _U(top)) * _U(below)
        second, third = place + _U(beside), place + _U(2 * beside)
        if channels == 3 and after == 1:
            for x in range(_U(columns)):
                word = _W(memory[place + x]) | _W(_W(memory[second + x]) << _W(8))
                out[line + x] = _W(word | _W(_W(memory[third + x]) << _W(16)))
        elif channels == 3 and after == 3 and beside == 1:
            for x in range(_U(columns)):
                at = place + _U(3) * x
                word = _W(memory[at]) | _W(_W(memory[at + _U(1)]) << _W(8))
                out[line + x] = _W(word | _W(_W(memory[at + _U(2)]) << _W(16)))
        else:
            for x in range(_U(columns)):
                word = _W(0)
                for c in range(_U(channels)):
                    level = _W(memory[place + c * _U(beside) + x * _U(after)])
                    word = _W(word | _W(level << _W(_U(8) * c)))
                out[line + x] = word
        out[line + _U(columns)] = _W(0)
    for x in range(pitch):
        out[_U(rows) * pitch + x] = _W(0)


@inlined
def _second(word: np.uint32) -> np.uint32:
    return _W(_W(word >> _W(8)) & _BYTE)


@inlined
def _third(word: np.uint32) -> np.uint32:
    return _W(word >> _W(16))  # of three


@inlined
def _level(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32, right: np.int32, low: np.int32) -> np.uint8:
    """Returns the weighted mean of four levels, rounded."""
    one, other = between(np.int32(a), np.int32(c), low), between(np.int32(b), np.int32(d), low)
    return mean_of(one, other, right)


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
    pitch, most_right, most_low = np.int32(columns + 1), _F(columns - 1), _F(rows - 1)
    size = 1.0 / shrink
    is_perspective = tile.g != 0 or tile.h != 0
    for y in range(height):
        down = y + 0.5
        across, over, depth = tile.b * down + tile.c, tile.e * down + tile.f, tile.h * down + tile.i
        first, stop = 0, width
        first, stop = clip_columns(first, stop, tile.a - tile.u0 * tile.g, across - tile.u0 * depth)
        first, stop = clip_columns(first, stop, tile.u1 * tile.g - tile.a, tile.u1 * depth - across)
        first, stop = clip_columns(first, stop, tile.d - tile.v0 * tile.g, over - tile.v0 * depth)
        first, stop = clip_columns(first, stop, tile.v1 * tile.g - tile.d, tile.v1 * depth - over)
        first, stop = clip_columns(first, stop, tile.g, depth - NEAR)
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
            offsets[x] = np.int32(row) * pitch + np.int32(column)
            rights[x], lows[x] = weight_of(column_ - column, WIDE), weight_of(row_ - row, HIGH)
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
            first, stop, begin, end = rectangle_of(tiles[k], width, height)
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


@numba_compiled(PAINT)
def paint(
    lines: ImageLines, first: int, tiles: Records, ground: Bytes, out: Bytes, share: np.float32, arena: Arena
) -> None:
    """Paints the tiles of a sample, in order, until one cannot arrive, and blends two layers.

    Args:
        lines: the images of all tiles. All lines that a tile needs are there when its image has arrived.
        first: number of the first tile among the images.
        tiles: :data:`~mmload.render.kernel_arguments.TILE` [T].
        ground: uint8 [C], the canvas beside the tiles.
        out: uint8 [L, C, H, W], a canvas for each layer, C at most 4. A tile that begins a layer clears what
            straight tiles do not cover.
        share: share of the first layer in the sum that takes its place; NaN: it stays as it is.
        arena: working memory.
    """
    channels, begun = out.shape[1], arena[USED]
    places = lines.places[first : first + len(tiles)]
    for k in range(len(tiles)):
        arena[USED] = begun
        if not is_there(lines, first + k, arena):
            return
        tile, place = tiles[k], places[k]
        canvas = out[tile.layer]
        if tile.begins:
            _clear(tiles[k:], places[k:], ground, canvas, arena)
        shrink = int(place.shrink)
        high, wide = (place.height + shrink - 1) // shrink, (place.width + shrink - 1) // shrink
        top, left, rows, columns = _part_of(tile, place)
        if rows <= 0 or columns <= 0:
            continue
        if place.layout == PLANES:
            beside, below, after = high * wide, wide, 1
        elif place.layout == LINES:
            beside, below, after = wide, channels * wide, 1
        else:
            beside, below, after = 1, channels * wide, channels
        pixels = lines.decoded if place.layout == PIXELS else lines.memory
        steps, part = (beside, below, after), (top - place.first, left, rows, columns)
        shown = top, left, rows, columns
        if _is_straight(tile):
            base = place.start + part[0] * below + left * after
            paint_straight(pixels, base, steps, tile, shrink, shown, canvas, arena)
        else:
            packed = carve(arena, (rows + 1) * (columns + 1), np.uint32)
            _pack(pixels, place.start, steps, part, channels, packed)
            _paint_tile(packed, tile, shrink, shown, canvas, arena)
    if not np.isnan(share):
        _blend(out, share)
