"""Affine and perspective warps of one image, compiled, with the coordinates of torchvision's grids in float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import called, divides, fma, inlined, kept_apart

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Fill = npt.NDArray[np.int64]
"""Levels [C] outside of the image; -1: 0, and blended as torchvision does without a fill."""

_U = np.uintp
_F = np.float32
_NOTHING, _HALF, _ONE = _F(0), _F(0.5), _F(1)
_EMPTY = np.uint32(0)


@divides
def _coordinates(numbers: Floats, is_perspective: bool, y: int, height: int, width: int, u: Floats, v: Floats) -> None:
    """Where in the image each pixel of a line comes from: columns into ``u``, lines into ``v``.

    In the order of torchvision's: the matrix is divided by half of the size, a grid from -1 to 1 made of it, and that
    scaled back by ``grid_sample``.
    """
    wide, high = _F(width), _F(height)
    half_wide, half_high = _F(0.5 * width), _F(0.5 * height)
    a, b, c = numbers[0] / half_wide, numbers[1] / half_wide, numbers[2] / half_wide
    d, e, f = numbers[3] / half_high, numbers[4] / half_high, numbers[5] / half_high
    if is_perspective:
        down = _F(y) + _HALF
        for x in range(_U(width)):
            along = _F(np.int32(x)) + _HALF
            below = fma(down, numbers[7], along * numbers[6]) + _ONE
            u[x] = ((fma(down, b, along * a) + c) / below - _ONE + _ONE) * wide
            v[x] = ((fma(down, e, along * d) + f) / below - _ONE + _ONE) * high
    else:
        down = _F(y) + _F((1.0 - height) * 0.5)
        first = _F((1.0 - width) * 0.5)
        for x in range(_U(width)):
            along = _F(np.int32(x)) + first
            u[x] = (fma(down, b, along * a) + c + _ONE) * wide
            v[x] = (fma(down, e, along * d) + f + _ONE) * high
    for x in range(_U(width)):
        u[x], v[x] = (u[x] - _ONE) * _HALF, (v[x] - _ONE) * _HALF


@called
def _pack(image: Bytes, first: int, packed: Words) -> None:
    """Up to four channels from ``first`` on as the bytes of one word a pixel, in a frame of one pixel of zeros.

    A warp then reads a word and not three or four bytes a pixel, by gathers, and checks no bounds.
    """
    channels, height, width = image.shape
    pitch = _U(width + 2)
    for x in range(pitch):
        packed[x], packed[_U(height + 1) * pitch + x] = _EMPTY, _EMPTY
    for y in range(_U(height)):
        line = (y + _U(1)) * pitch
        packed[line], packed[line + pitch - _U(1)] = _EMPTY, _EMPTY
        for x in range(_U(width)):
            packed[line + _U(1) + x] = np.uint32(image[first, y, x])
        for c in range(_U(first + 1), _U(min(first + 4, channels))):
            shift = np.uint32(8 * (c - first))
            for x in range(_U(width)):
                packed[line + _U(1) + x] |= np.uint32(image[c, y, x]) << shift


@inlined
def _byte(word: np.uint32, shift: np.uint32) -> np.float32:
    return _F(np.int32((word >> shift) & np.uint32(255)))


@divides
def warp_nearest(image: Bytes, numbers: Floats, is_perspective: bool, fill: Fill, packed: Words) -> None:
    """The nearest pixel of an image [C, H, W] for each of its own places, or the fill; ``packed``: (H + 2) (W + 2)."""
    kept_apart()
    channels, height, width = image.shape
    u, v = np.empty(width, np.float32), np.empty(width, np.float32)
    offsets, words = np.empty(width, np.int32), np.empty(width, np.uint32)
    pitch, wide, high = np.int32(width + 2), _F(width), _F(height)
    for first in range(0, channels, 4):
        _pack(image, first, packed)
        for y in range(height):
            _coordinates(numbers, is_perspective, y, height, width, u, v)
            for x in range(_U(width)):
                column, row = np.rint(u[x]), np.rint(v[x])
                inside = (column >= _NOTHING) & (column < wide) & (row >= _NOTHING) & (row < high)
                offset = (np.int32(row) + np.int32(1)) * pitch + np.int32(column) + np.int32(1)
                offsets[x] = offset if inside else np.int32(0)
            for x in range(_U(width)):
                words[x] = packed[_U(offsets[x])]
            for c in range(first, min(first + 4, channels)):
                shift, blank = np.uint32(8 * (c - first)), np.uint32(max(fill[c], 0))
                for x in range(_U(width)):
                    level = (words[x] >> shift) & np.uint32(255)
                    image[c, _U(y), x] = np.uint8(level if offsets[x] != np.int32(0) else blank)


@divides
def warp_bilinear(image: Bytes, numbers: Floats, is_perspective: bool, fill: Fill, packed: Words) -> None:
    """The four nearest pixels of an image [C, H, W] for each of its own places, weighted and rounded.

    Pixels outside are 0. With a fill the sum is blended with it once more by the share that lies inside, as torchvision
    does: its edges are a little darker than a mean of image and fill. ``packed``: (H + 2) (W + 2) words.
    """
    kept_apart()
    channels, height, width = image.shape
    u, v = np.empty(width, np.float32), np.empty(width, np.float32)
    offsets, shares = np.empty(width, np.int32), np.empty(width, np.float32)
    corners = np.empty((4, width), np.uint32)
    pitch, wide, high = np.int32(width + 2), _F(width), _F(height)
    for first in range(0, channels, 4):
        _pack(image, first, packed)
        for y in range(height):
            _coordinates(numbers, is_perspective, y, height, width, u, v)
            for x in range(_U(width)):
                near = (u[x] > -_ONE) & (u[x] < wide) & (v[x] > -_ONE) & (v[x] < high)  # no number is neither
                across, over = (u[x] if near else -_ONE), (v[x] if near else -_ONE)
                column, row = np.floor(across), np.floor(over)
                offsets[x] = (np.int32(row) + np.int32(1)) * pitch + np.int32(column) + np.int32(1)
                right, low = across - column, over - row
                left, top = _ONE - right, _ONE - low
                u[x], v[x] = right, low
                sides = (left if column >= _NOTHING else _NOTHING) + (right if column < wide - _ONE else _NOTHING)
                ends = (top if row >= _NOTHING else _NOTHING) + (low if row < high - _ONE else _NOTHING)
                shares[x] = sides * ends
            for x in range(_U(width)):
                offset = _U(offsets[x])
                corners[0, x], corners[1, x] = packed[offset], packed[offset + _U(1)]
                corners[2, x], corners[3, x] = packed[offset + _U(pitch)], packed[offset + _U(pitch) + _U(1)]
            for c in range(first, min(first + 4, channels)):
                shift, blank, blended = np.uint32(8 * (c - first)), _F(max(fill[c], 0)), fill[c] >= 0
                for x in range(_U(width)):
                    right, low = u[x], v[x]
                    upper = _byte(corners[0, x], shift) * (_ONE - right) + _byte(corners[1, x], shift) * right
                    lower = _byte(corners[2, x], shift) * (_ONE - right) + _byte(corners[3, x], shift) * right
                    value = upper * (_ONE - low) + lower * low
                    value = (value - blank) * shares[x] + blank if blended else value
                    image[c, _U(y), x] = np.uint8(np.int32(np.rint(value)))
