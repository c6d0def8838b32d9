"""Affine and perspective warps and flips of one image, compiled.

Warps have the coordinates of torchvision's grids in float32. Nothing is checked here.
"""

from __future__ import annotations

import numpy as np

from mmload.render.kernel_arguments import FLIPPED_X, FLIPPED_Y, Bytes, Floats, Numbers, Words
from mmload.runtime.intrinsics import Arena, array_at, carve, fma, never_inline, pair, reshaped
from mmload.runtime.kernels import called, inlined

_U = np.uintp
_F = np.float32
_NOTHING, _HALF, _ONE = _F(0), _F(0.5), _F(1)
_W = np.uint32
_EMPTY, _BYTE = _W(0), _W(255)

# Words are converted after each operation and shifted by constants: numba makes them 64 bits wide, and where LLVM does
# not find out that 32 are enough a warp takes half as long again.

_WHOLE = 1024
"""Pixels of a side up to which a move by whole pixels is a copy: a grid in float32 is exact to 1.3e-4 of a pixel."""


@inlined
def _sum(along: np.float32, a: np.float32, down: np.float32, b: np.float32, is_fused: bool) -> np.float32:
    """Returns ``along * a + down * b``, the last product and sum as one operation where torch's kernels fuse them."""
    first = along * a
    return fma(down, b, first) if is_fused else first + down * b


@called
def _coordinates(
    numbers: Floats, is_perspective: bool, is_fused: bool, y: int, height: int, width: int, u: Floats, v: Floats
) -> None:
    """Computes the position in the image of each pixel of a line: columns into ``u``, lines into ``v``.

    The order is torchvision's: the matrix is divided by half of the size, a grid from -1 to 1 is made of it, and that
    is scaled back by ``grid_sample``.
    """
    wide, high = _F(width), _F(height)
    half_wide, half_high = _F(0.5 * width), _F(0.5 * height)
    a, b, c = numbers[0] / half_wide, numbers[1] / half_wide, numbers[2] / half_wide
    d, e, f = numbers[3] / half_high, numbers[4] / half_high, numbers[5] / half_high
    if is_perspective:
        down = _F(y) + _HALF
        for x in range(_U(width)):
            along = _F(np.int32(x)) + _HALF
            below = _sum(along, numbers[6], down, numbers[7], is_fused) + _ONE
            u[x] = ((_sum(along, a, down, b, is_fused) + c) / below - _ONE + _ONE) * wide
            v[x] = ((_sum(along, d, down, e, is_fused) + f) / below - _ONE + _ONE) * high
    else:
        down = _F(y) + _F((1.0 - height) * 0.5)
        first = _F((1.0 - width) * 0.5)
        for x in range(_U(width)):
            along = _F(np.int32(x)) + first
            u[x] = (_sum(along, a, down, b, is_fused) + c + _ONE) * wide
            v[x] = (_sum(along, d, down, e, is_fused) + f + _ONE) * high
    for x in range(_U(width)):
        u[x], v[x] = (u[x] - _ONE) * _HALF, (v[x] - _ONE) * _HALF


@called
def pack_words(
    memory: Bytes, base: int, steps: tuple[int, int, int], part: tuple[int, int, int, int], channels: int, out: Words
) -> None:
    """Packs up to four channels of a part of an image into one word per pixel, in a frame of one pixel of zeros.

    A warp then reads one word per pixel and not three or four bytes, by gathers, and checks no bounds.

    Args:
        memory: uint8 [n].
        base: byte of the image's first pixel.
        steps: bytes from channel to channel, line to line, and pixel to pixel.
        part: the part: top, left, rows, columns.
        channels: number of channels.
        out: uint32 [(rows + 2) * (columns + 2)].
    """
    beside, below, after = steps
    top, left, rows, columns = part
    pitch = _U(columns + 2)
    for x in range(pitch):
        out[x], out[_U(rows + 1) * pitch + x] = _EMPTY, _EMPTY
    for y in range(_U(rows)):
        line, place = (y + _U(1)) * pitch + _U(1), _U(base + left * after) + (y + _U(top)) * _U(below)
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
                word = _EMPTY
                for c in range(_U(channels)):
                    level = _W(memory[place + c * _U(beside) + x * _U(after)])
                    word = _W(word | _W(level << _W(_U(8) * c)))
                out[line + x] = word
        out[line - _U(1)], out[line + _U(columns)] = _EMPTY, _EMPTY


@called
def _pack(image: Bytes, first: int, packed: Words) -> None:
    """Packs up to four channels from ``first`` on of an image [C, H, W]."""
    channels, height, width = image.shape
    size, pixels = height * width, reshaped(image, image.size)
    pack_words(pixels, first * size, (size, width, 1), (0, 0, height, width), min(channels - first, 4), packed)


@called
def _is_move(numbers: Floats, height: int, width: int) -> bool:
    """Returns whether an affine warp moves an image by whole pixels, or not at all."""
    straight = (numbers[0] == 1) & (numbers[1] == 0) & (numbers[3] == 0) & (numbers[4] == 1)
    whole = (np.rint(numbers[2]) == numbers[2]) & (np.rint(numbers[5]) == numbers[5])
    near = (abs(numbers[2]) <= _WHOLE) & (abs(numbers[5]) <= _WHOLE)
    return bool(straight & whole & near & (max(height, width) <= _WHOLE))


@called
def _move(image: Bytes, across: int, down: int, fill: Numbers, arena: Arena) -> None:
    """Replaces each pixel of an image by the one ``across`` columns and ``down`` lines on, or by the fill.

    Both warps give the same for such moves, in ten times the time: three in five of AugMix's warps are moves, and two
    in five of RandAugment's.
    """
    if across == 0 and down == 0:
        return
    channels, height, width = image.shape
    begin, end = min(max(-across, 0), width), max(min(width - across, width), 0)
    line = carve(arena, width, np.uint8)
    for c in range(_U(channels)):
        blank = np.uint8(max(fill[c], 0))
        for i in range(height):
            y = i if down >= 0 else height - 1 - i  # no line is written before it was read
            shown = 0 <= y + down < height and begin < end
            left, right = (_U(begin), _U(end)) if shown else (_U(width), _U(width))
            if shown:
                for x in range(_U(width)):
                    line[x] = image[c, _U(y + down), x]
            for x in range(left):
                image[c, _U(y), x] = blank
            for x in range(left, right):
                image[c, _U(y), x] = line[x + _U(across)]
            for x in range(right, _U(width)):
                image[c, _U(y), x] = blank


@called
def warp_nearest(
    image: Bytes, numbers: Floats, is_perspective: bool, is_fused: bool, fill: Numbers, arena: Arena
) -> None:
    """Warps an image [C, H, W] in place to the nearest pixels.

    Args:
        image: uint8 [C, H, W].
        numbers: float32 [8], as :mod:`mmload.render.level_operations` has them.
        is_perspective: whether the warp is perspective; else it is affine.
        is_fused: whether coordinates are those of torch's kernels for images; else of its operations, as of masks.
        fill: levels [C] outside of the image; -1: 0.
        arena: working memory.
    """
    never_inline()
    channels, height, width = image.shape
    if not is_perspective and _is_move(numbers, height, width):
        _move(image, int(numbers[2]), int(numbers[5]), fill, arena)
        return
    packed = carve(arena, (height + 2) * (width + 2), np.uint32)
    u, v = carve(arena, width, np.float32), carve(arena, width, np.float32)
    offsets, words = carve(arena, width, np.int32), carve(arena, width, np.uint32)
    levels = array_at(words.ctypes.data, 4 * width, np.uint8)
    pitch, wide, high = np.int32(width + 2), _F(width), _F(height)
    for first in range(0, channels, 4):
        _pack(image, first, packed)
        for c in range(first, min(first + 4, channels)):  # the frame's corner is what lies outside
            packed[0] |= _W(_W(max(fill[c], 0)) << (_W(8 * (c - first)) & _W(31)))
        for y in range(height):
            _coordinates(numbers, is_perspective, is_fused, y, height, width, u, v)
            for x in range(_U(width)):
                column, row = np.rint(u[x]), np.rint(v[x])
                inside = (column >= _NOTHING) & (column < wide) & (row >= _NOTHING) & (row < high)
                offset = (np.int32(row) + np.int32(1)) * pitch + np.int32(column) + np.int32(1)
                offsets[x] = offset if inside else np.int32(0)
            for x in range(_U(width)):
                words[x] = packed[_U(offsets[x])]
            for c in range(first, min(first + 4, channels)):
                for x in range(_U(width)):
                    image[c, _U(y), x] = levels[_U(4) * x + _U(c - first)]


@inlined
def byte_level(word: np.uint32) -> np.float32:
    """Returns the lowest byte of a word."""
    return _F(np.int32(word & _BYTE))


@inlined
def _mean(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32, right: np.float32, low: np.float32) -> np.float32:
    """Returns the weighted mean of the lowest bytes of four words."""
    upper = byte_level(a) * (_ONE - right) + byte_level(b) * right
    lower = byte_level(c) * (_ONE - right) + byte_level(d) * right
    return upper * (_ONE - low) + lower * low


@inlined
def _rounded(value: np.float32) -> np.uint8:
    """Rounds a mean of levels; the clamp changes nothing, but packs 32 bits to 8 by fewer instructions."""
    return np.uint8(min(max(np.int32(np.rint(value)), np.int32(0)), np.int32(255)))


@inlined
def _blended(value: np.float32, blank: np.float32, share: np.float32, is_filled: bool) -> np.uint8:
    return _rounded((value - blank) * share + blank if is_filled else value)


@called
def _find_shares(u: Floats, v: Floats, wide: np.float32, high: np.float32, shares: Floats) -> None:
    """Computes the share of each pixel's weights that lies inside of the image."""
    for x in range(_U(u.size)):
        near = (u[x] > -_ONE) & (u[x] < wide) & (v[x] > -_ONE) & (v[x] < high)
        across, over = (u[x] if near else -_ONE), (v[x] if near else -_ONE)
        column, row = np.floor(across), np.floor(over)
        right, low = across - column, over - row
        sides = (_ONE - right if column >= _NOTHING else _NOTHING) + (right if column < wide - _ONE else _NOTHING)
        ends = (_ONE - low if row >= _NOTHING else _NOTHING) + (low if row < high - _ONE else _NOTHING)
        shares[x] = sides * ends


@called
def warp_bilinear(image: Bytes, numbers: Floats, is_perspective: bool, fill: Numbers, arena: Arena) -> None:
    """Warps an image in place to weighted means of the four nearest pixels, rounded; arguments as `warp_nearest`.

    Pixels outside are 0. With a fill the sum is blended with it once more by the share that lies inside, as torchvision
    does: its edges are a little darker than a mean of image and fill.
    """
    never_inline()
    channels, height, width = image.shape
    if not is_perspective and _is_move(numbers, height, width):
        _move(image, int(numbers[2]), int(numbers[5]), fill, arena)
        return
    packed = carve(arena, (height + 2) * (width + 2), np.uint32)
    u, v = carve(arena, width, np.float32), carve(arena, width, np.float32)
    offsets, shares = carve(arena, width, np.int32), carve(arena, width, np.float32)
    pairs, corners = carve(arena, (2, width), np.uint64), carve(arena, (4, width), np.uint32)
    pitch, wide, high = np.int32(width + 2), _F(width), _F(height)
    is_filled = fill[0] >= 0  # all channels have a fill, or none
    for first in range(0, channels, 4):
        _pack(image, first, packed)
        for line in range(height):
            y = _U(line)
            _coordinates(numbers, is_perspective, True, line, height, width, u, v)
            if is_filled:
                _find_shares(u, v, wide, high, shares)
            for x in range(_U(width)):
                near = (u[x] > -_ONE) & (u[x] < wide) & (v[x] > -_ONE) & (v[x] < high)  # no number is neither
                across, over = (u[x] if near else -_ONE), (v[x] if near else -_ONE)
                column, row = np.floor(across), np.floor(over)
                offsets[x] = (np.int32(row) + np.int32(1)) * pitch + np.int32(column) + np.int32(1)
                u[x], v[x] = across - column, over - row
            # Two loads a pixel, not four, in a loop by themselves, as no load of single words is vectorized.
            for x in range(_U(width)):
                offset = _U(offsets[x])
                pairs[0, x], pairs[1, x] = pair(packed, offset), pair(packed, offset + _U(pitch))
            for x in range(_U(width)):
                corners[0, x], corners[1, x] = _W(pairs[0, x]), _W(pairs[0, x] >> np.uint64(32))
                corners[2, x], corners[3, x] = _W(pairs[1, x]), _W(pairs[1, x] >> np.uint64(32))
            for channel in range(first, min(first + 4, channels)):
                blank = _F(fill[channel])
                for x in range(_U(width)):
                    a, b, c, d = corners[0, x], corners[1, x], corners[2, x], corners[3, x]
                    image[_U(channel), y, x] = _blended(_mean(a, b, c, d, u[x], v[x]), blank, shares[x], is_filled)
                    corners[0, x], corners[1, x] = _W(a >> _W(8)), _W(b >> _W(8))
                    corners[2, x], corners[3, x] = _W(c >> _W(8)), _W(d >> _W(8))


@called
def flip(image: Bytes, flips: int, arena: Arena) -> None:
    """Flips an image as the bits ``FLIPPED_X`` and ``FLIPPED_Y`` say.

    That is by way of a copy: a loop that swaps pixels is not vectorized.
    """
    channels, height, width = image.shape
    copy, last, lowest = carve(arena, image.shape, np.uint8), _U(width - 1), _U(height - 1)
    source, pixels = reshaped(image, image.size), reshaped(copy, copy.size)
    for i in range(_U(image.size)):
        pixels[i] = source[i]
    for c in range(_U(channels)):
        for y in range(_U(height)):
            line = lowest - y if flips & FLIPPED_Y else y
            if flips & FLIPPED_X:
                for x in range(_U(width)):
                    image[c, y, x] = copy[c, line, last - x]
            else:
                for x in range(_U(width)):
                    image[c, y, x] = copy[c, line, x]
