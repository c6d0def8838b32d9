"""torch's antialiased resize of uint8 images, compiled: any part of the result, without the interpreter lock.

The load side resizes windows of images, a build resizes an image and keeps a window. The bits are those of
``torch.nn.functional.interpolate(antialias=True)``, bilinear or bicubic: rows first, then columns, each with integer
weights and rounded and clamped to levels. Nothing is checked here.

Both passes are sums of neighboring lines, a kind of loop that vectorizes well. For that a band of lines is transposed
before its rows are resized, and back after; transposing three interleaved channels also de-interleaves them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import called, fused, inlined, numba_compiled, variant

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Sums = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
Taps = tuple[Numbers, Numbers, Sums, int]
"""For each output line its first input line, how many there are and their weights; and the bits of a weight of one."""

REACHES = {"bilinear": 1, "bicubic": 2}
"""How many lines away from its center a weight ends, where an image grows: an interpolation in the kernels."""

_PART = "void(uint8[:, :, :, ::1], int64, int64, int64, int64, int64, uint8[:, :, :, ::1])"

_U = np.uintp
_BAND = 64
"""Lines at a time: of a photograph they stay in the cache, and each transposed line fills 64 bytes."""
_MANY = 9
"""More lines than are summed in floats."""
_BYTES, _PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00000000FFFFFFFF)
_8, _16, _32 = np.uint64(8), np.uint64(16), np.uint64(32)


@inlined
def _weight(x: float, reach: int) -> float:
    """Of an input line ``x`` lines away: a triangle of reach 1, or the cubic of reach 2 (Keys, a = -0.5)."""
    x = abs(x)
    if reach == 1:
        return max(1.0 - x, 0.0)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2.0 else 0.0


@called
def _taps(length: int, wanted: int, reach: int) -> Taps:
    """The weights of an axis, as ``_compute_index_ranges_int16_weights`` in ATen's UpSampleKernel.cpp has them."""
    scale = length / wanted
    support, inverse = reach * max(scale, 1.0), 1.0 / scale if scale >= 1.0 else 1.0
    size = int(math.ceil(support)) * 2 + 3
    shares = np.zeros((wanted, size))
    firsts, counts = np.empty(wanted, np.int64), np.empty(wanted, np.int64)
    most = 0.0
    for i in range(wanted):
        center = scale * (i + 0.5)
        first = max(int(center - support + 0.5), 0)
        count = min(max(min(int(center + support + 0.5), length) - first, 0), size - 2)
        total = 0.0
        for j in range(count):
            shares[i, j] = _weight((j + first - center + 0.5) * inverse, reach)
            total += shares[i, j]
        for j in range(count):
            shares[i, j] /= total
            most = max(most, shares[i, j])
        firsts[i], counts[i] = first, count
    bits = 0
    while bits < 22 and int(0.5 + most * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    weights = np.empty((wanted, size), np.int32)
    for i in range(wanted):
        for j in range(size):
            share = shares[i, j] * (1 << bits)
            weights[i, j] = int(share - 0.5) if share < 0 else int(share + 0.5)
    return firsts, counts, weights, bits


@inlined
def _level(value: np.float32) -> np.uint8:
    """A value rounded down and clamped; by way of int32, which vectorizes."""
    return np.uint8(min(max(np.int32(value), np.int32(0)), np.int32(255)))


@inlined
def _later(weights: Sums, k: np.uintp, j: int) -> np.float32:
    """Weight ``j`` of an output line, or 0 if it is among the first four."""
    return np.float32(weights[k, j] if j >= 4 else 0)


@fused
def _blend(source: Bytes, start: int, step: int, taps: Taps, at: int, wide: int, sums: Sums, out: Bytes) -> None:
    """Output lines from ``at`` on, into ``out`` [n, >= wide]: weighted sums of lines, rounded and clamped to levels.

    Input line k is line ``start`` + k ``step`` of ``source``. With weights of 15 bits sums are exact in float32:
    absolute weights add up to 1.3 or less, so that all sums stay below 2^24 in units of a weight. So they do where four
    lines or fewer have no negative weight: one of them is a quarter at least, so that weights have 16 bits at most.
    Five to eight lines are the first four and the last four, of which those that are among the first weigh 0. Longer
    sums use integers, and so do two or three cubic lines, at the borders of an image; others of two or three need no
    clamp.
    """
    firsts, counts, weights, bits = taps
    half, unit = np.float32(0.5), np.float32(1) / np.float32(1 << bits)
    after = _U(step)
    for i in range(_U(len(out))):
        k = _U(at) + i
        first, count = _U(start + step * firsts[k]), counts[k]
        second, third, fourth = first + after, first + _U(2) * after, first + _U(3) * after
        a, b = np.float32(weights[k, 0]) * unit, np.float32(weights[k, 1]) * unit
        c, d = np.float32(weights[k, 2]) * unit, np.float32(weights[k, 3]) * unit
        plain = count <= 4 and min(min(a, b), min(c, d)) >= 0
        few = count if plain or (bits <= 15 and count >= 4) else _MANY
        if few == 1:
            for x in range(_U(wide)):
                out[i, x] = source[first, x]
        elif few == 2:
            for x in range(_U(wide)):
                out[i, x] = np.uint8(half + a * np.float32(source[first, x]) + b * np.float32(source[second, x]))
        elif few == 3:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[second, x])
                out[i, x] = np.uint8(value + c * np.float32(source[third, x]))
        elif few == 4:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[second, x])
                value += c * np.float32(source[third, x])
                out[i, x] = _level(value + d * np.float32(source[fourth, x]))
        elif few <= 8:
            later = first + _U(count - 4) * after
            e = _later(weights, k, count - 4) * unit
            f, g = _later(weights, k, count - 3) * unit, _later(weights, k, count - 2) * unit
            h = _later(weights, k, count - 1) * unit
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[second, x])
                value += c * np.float32(source[third, x]) + d * np.float32(source[fourth, x])
                value += e * np.float32(source[later, x]) + f * np.float32(source[later + after, x])
                value += g * np.float32(source[later + _U(2) * after, x])
                out[i, x] = _level(value + h * np.float32(source[later + _U(3) * after, x]))
        else:
            for x in range(_U(wide)):
                sums[x] = 1 << (bits - 1)
            for j in range(_U(count)):
                weight = weights[k, j]
                for x in range(_U(wide)):
                    sums[x] += weight * np.int32(source[first + j * after, x])
            for x in range(_U(wide)):
                out[i, x] = np.uint8(min(max(sums[x] >> bits, 0), 255))


@inlined
def _swap(a: np.uint64, b: np.uint64, bits: np.uint64, mask: np.uint64) -> tuple[np.uint64, np.uint64]:
    change = ((a >> bits) ^ b) & mask
    return a ^ (change << bits), b ^ change


@called
def _transpose(source: Words, out: Words) -> None:
    """Bytes [8 a, 8 b] as [8 b, 8 a], both given as words of eight: [8 a, b] and [8 b, a].

    Eight words at a time change bytes, then pairs, then fours of them, as in Hacker's Delight, 7-3. Each has a name of
    its own, so that several eights go through one instruction; in an array of eight they took half as long again.
    """
    for w in range(_U(source.shape[1])):
        for v in range(_U(out.shape[1])):
            y, x = _U(8) * v, _U(8) * w
            a, b, c, d = source[y, w], source[y + _U(1), w], source[y + _U(2), w], source[y + _U(3), w]
            e, f, g, h = source[y + _U(4), w], source[y + _U(5), w], source[y + _U(6), w], source[y + _U(7), w]
            a, b = _swap(a, b, _8, _BYTES)
            c, d = _swap(c, d, _8, _BYTES)
            e, f = _swap(e, f, _8, _BYTES)
            g, h = _swap(g, h, _8, _BYTES)
            a, c = _swap(a, c, _16, _PAIRS)
            b, d = _swap(b, d, _16, _PAIRS)
            e, g = _swap(e, g, _16, _PAIRS)
            f, h = _swap(f, h, _16, _PAIRS)
            a, e = _swap(a, e, _32, _FOURS)
            b, f = _swap(b, f, _32, _FOURS)
            c, g = _swap(c, g, _32, _FOURS)
            d, h = _swap(d, h, _32, _FOURS)
            out[x, v], out[x + _U(1), v], out[x + _U(2), v], out[x + _U(3), v] = a, b, c, d
            out[x + _U(4), v], out[x + _U(5), v], out[x + _U(6), v], out[x + _U(7), v] = e, f, g, h


@called
def _resample(lines: Bytes, row: int, column: int, over: Taps, aside: Taps, top: int, left: int, out: Bytes) -> None:
    """A part of an image in another size.

    Args:
        lines: uint8 [.., .. x C], where the image is, its channels interleaved.
        row: line at which it begins.
        column: byte of the line at which it begins.
        over: the weights of its height.
        aside: the weights of its width.
        top: first line of the part, in the new size.
        left: first column of the part, in the new size.
        out: uint8 [C, h, w], the part.
    """
    channels, height, width = out.shape
    first, before = over[0][top], aside[0][left] * channels
    rows = over[0][top + height - 1] + over[1][top + height - 1] - first
    used = (aside[0][left + width - 1] + aside[1][left + width - 1]) * channels - before
    words, across = (used + 7) // 8, (width + 7) // 8
    band = np.empty((_BAND, words), np.uint64)
    transposed = np.empty((8 * words, _BAND // 8), np.uint64)
    narrow = np.empty((8 * across, _BAND // 8), np.uint64)
    whole = np.empty((channels, (rows + _BAND - 1) // _BAND * _BAND, across), np.uint64)
    sums = np.empty(max(_BAND, width), np.int32)
    given, columns = band.view(np.uint8), transposed.view(np.uint8)
    thin, resized = narrow.view(np.uint8), whole.view(np.uint8)
    for start in range(0, rows, _BAND):
        y, x = _U(row + first + start), _U(column + before)
        for i in range(_U(min(_BAND, rows - start))):
            for j in range(_U(used)):
                given[i, j] = lines[y + i, x + j]
        _transpose(band, transposed)
        for c in range(channels):
            _blend(columns, c - before, channels, aside, left, _BAND, sums, thin[:width])
            _transpose(narrow, whole[c, start : start + _BAND])
    for c in range(channels):
        _blend(resized[c], -first, 1, over, top, width, sums, out[c])


@numba_compiled("void(uint8[:, :, :, ::1], int64[::1], int64[:, ::1], int64, uint8[:, :, :, ::1])")
def resize(images: Bytes, indices: Numbers, windows: Numbers, reach: int, out: Bytes) -> None:
    """Windows of images in another size.

    Args:
        images: uint8 [N, C, H, W].
        indices: int64 [B], which of the images each sample is.
        windows: int64 [4, B], tops, lefts, rows and columns, inside of the images.
        reach: one of :data:`REACHES`.
        out: uint8 [B, C, h, w].
    """
    count, channels, height, width = out.shape
    for k in range(_U(count)):
        top, left, rows, columns = windows[0, k], windows[1, k], windows[2, k], windows[3, k]
        over, aside = _taps(rows, height, reach), _taps(columns, width, reach)
        for c in range(_U(channels)):
            _resample(images[_U(indices[k]), c], top, left, over, aside, 0, 0, out[k, c : c + _U(1)])


def _resize_part(planes: Bytes, high: int, wide: int, top: int, left: int, reach: int, out: Bytes) -> None:
    count, height, width, channels = planes.shape
    over, aside = _taps(height, high, reach), _taps(width, wide, reach)
    for p in range(_U(count)):
        lines = planes[p].reshape(height, width * channels)
        _resample(lines, 0, 0, over, aside, top, left, out[p])


def resize_part(planes: Bytes, high: int, wide: int, top: int, left: int, reach: int, out: Bytes) -> None:
    """A window of one image in another size; compiled by the first call, as only builds need it.

    Args:
        planes: uint8 [P, H, W, K]: P planes of K interleaved channels each.
        high: height of the whole image resized.
        wide: its width.
        top: where in it the window begins.
        left: where in it the window begins.
        reach: one of :data:`REACHES`.
        out: uint8 [P, K, h, w].
    """
    variant(_resize_part, _PART)(planes, high, wide, top, left, reach, out)
