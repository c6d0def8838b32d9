"""torch's antialiased resize of uint8 images, compiled: any part of the result, without the interpreter lock.

The load side resizes windows of images, inside of their images or beyond, each placed on a canvas; a build resizes an
image and keeps a window of the result. The bits are those of ``torch.nn.functional.interpolate(antialias=True)``,
bilinear or bicubic: rows first, then columns, each with integer weights and rounded and clamped to levels. Nothing is
checked here; :mod:`mmload.render.kernel_arguments` describes the arguments.

Both passes are sums of neighboring lines, a kind of loop that vectorizes well. For that a band of lines is transposed
before its rows are resized, and back afterwards; transposing three interleaved channels also de-interleaves them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.cpu_kernels import CONSTANT, reflected
from mmload.render.kernel_arguments import (
    BYTES,
    OUTPUTS,
    PIXELS,
    PLACE,
    PLANES,
    RESIZED,
    Bytes,
    Lines,
    Numbers,
    Resizes,
    steps_of,
)
from mmload.runtime.intrinsics import TRANSPOSED_COLUMNS, TRANSPOSED_ROWS, Arena, carve, reshaped, transpose
from mmload.runtime.kernels import ARENA, USED, called, fused, inlined, numba_compiled

Sums = npt.NDArray[np.int32]


class Taps(NamedTuple):
    """Weights of the input lines of each output line of an axis.

    Attributes:
        firsts: int64 [n], first input line of each output line.
        counts: int64 [n], number of its input lines.
        weights: int32 [n, >= counts].
        bits: bits of a weight that is one.
    """

    firsts: Numbers
    counts: Numbers
    weights: Sums
    bits: int


REACHES = {"bilinear": 1, "bicubic": 2}
"""Distance in lines from its center at which a weight ends where an image grows; kernels know interpolations by it."""

SHRINKS = (2, 4)
"""Numbers of times by which a decoded image may be smaller; by 8, pixels differ by more than 2 levels on average."""

_U = np.uintp
_BAND = 64
"""Lines that are resized at a time: those of a photograph stay in the cache, and a transposed line fills 64 bytes."""
_MANY = 9
"""Number of lines that is too large for a sum of floats."""


@inlined
def _weight(x: float, reach: int) -> float:
    """Returns the weight of an input line ``x`` lines away: a triangle of reach 1, or Keys' cubic (a = -0.5) of 2."""
    x = abs(x)
    if reach == 1:
        return max(1.0 - x, 0.0)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2.0 else 0.0


@called
def taps(start: int, length: int, wanted: int, reach: int, shrink: int, begin: int, end: int, arena: Arena) -> Taps:
    """Returns the weights of an axis, as ``_compute_index_ranges_int16_weights`` in ATen's UpSampleKernel.cpp does.

    The axis may be a window of one that was made ``shrink`` times shorter: ``start`` and ``length`` of the window are
    in lines of the original axis, input lines are counted from the beginning of the shorter one; those that the window
    does not touch weigh nothing. All output lines decide on the bits of the weights.

    Args:
        start: first line.
        length: number of lines.
        wanted: their number after the resize.
        reach: one of :data:`REACHES`.
        shrink: number of times.
        begin: first output line whose weights are returned.
        end: one past the last.
        arena: memory for them.
    """
    first_line, least, after = start / shrink, start // shrink, (start + length + shrink - 1) // shrink
    scale = length / (wanted * shrink)
    support, inverse = reach * max(scale, 1.0), 1.0 / scale if scale >= 1.0 else 1.0
    size = int(math.ceil(support)) * 2 + 3
    returned = end - begin
    shares = carve(arena, (returned + 1, size), np.float64)  # the last for those that are not returned
    shares[:] = 0.0
    firsts, counts = carve(arena, returned + 1, np.int64), carve(arena, returned + 1, np.int64)
    most = 0.0
    for line in range(wanted):
        i = line - begin if begin <= line < end else returned
        center = first_line + scale * (line + 0.5)
        first = max(int(center - support + 0.5), least)
        count = min(max(min(int(center + support + 0.5), after) - first, 0), size - 2)
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
    weights = carve(arena, (returned, size), np.int32)
    for i in range(returned):
        for j in range(size):
            share = shares[i, j] * (1 << bits)
            weights[i, j] = int(share - 0.5) if share < 0 else int(share + 0.5)
    return Taps(firsts, counts, weights, bits)


class _Lines(NamedTuple):
    """Input lines of a pass: line k is line ``start`` + k ``step`` of ``source``."""

    source: Bytes
    start: int
    step: int


@inlined
def _level(value: np.float32) -> np.uint8:
    """Rounds a value down and clamps it, by way of int32, which vectorizes."""
    return np.uint8(min(max(np.int32(value), np.int32(0)), np.int32(255)))


@inlined
def _later(weights: Sums, k: np.uintp, j: int) -> np.float32:
    """Returns weight ``j`` of an output line, or 0 if it is among the first four."""
    return np.float32(weights[k, j] if j >= 4 else 0)


@fused
def _blend(lines: _Lines, taps: Taps, at: int, wide: int, sums: Sums, out: Bytes, into: int) -> None:
    """Computes output lines from ``at`` on into ``out`` [n, >= into + wide]: sums, rounded and clamped to levels.

    With weights of 15 bits sums are exact in float32: absolute weights add up to 1.3 or less, so that all sums stay
    below 2^24 in units of a weight. So they do where four lines or fewer have no negative weight: one of them is a
    quarter at least, so that weights have 16 bits at most. Five to eight lines are the first four and the last four, of
    which those that are among the first weigh 0. Longer sums use integers, and so do two or three cubic lines, at the
    borders of an image; others of two or three need no clamp.
    """
    source, firsts, counts, weights, bits = lines.source, taps.firsts, taps.counts, taps.weights, taps.bits
    shift = np.int32(bits)  # of 32 bits, as the sums
    half, unit = np.float32(0.5), np.float32(1) / np.float32(1 << bits)
    after, into = _U(lines.step), _U(into)  # type: ignore[assignment]  # an index
    for i in range(_U(len(out))):
        k = _U(at) + i
        first, count = _U(lines.start + lines.step * firsts[k]), counts[k]
        second, third, fourth = first + after, first + _U(2) * after, first + _U(3) * after
        a, b = np.float32(weights[k, 0]) * unit, np.float32(weights[k, 1]) * unit
        c, d = np.float32(weights[k, 2]) * unit, np.float32(weights[k, 3]) * unit
        plain = count <= 4 and min(min(a, b), min(c, d)) >= 0
        few = count if plain or (bits <= 15 and count >= 4) else _MANY
        if few == 1:
            for x in range(_U(wide)):
                out[i, into + x] = source[first, x]
        elif few == 2:
            for x in range(_U(wide)):
                out[i, into + x] = np.uint8(half + a * np.float32(source[first, x]) + b * np.float32(source[second, x]))
        elif few == 3:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[second, x])
                out[i, into + x] = np.uint8(value + c * np.float32(source[third, x]))
        elif few == 4:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[second, x])
                value += c * np.float32(source[third, x])
                out[i, into + x] = _level(value + d * np.float32(source[fourth, x]))
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
                out[i, into + x] = _level(value + h * np.float32(source[later + _U(3) * after, x]))
        else:
            for x in range(_U(wide)):
                sums[x] = 1 << (bits - 1)
            for j in range(_U(count)):
                weight = weights[k, j]
                for x in range(_U(wide)):
                    sums[x] += weight * np.int32(source[first + j * after, x])
            for x in range(_U(wide)):
                out[i, into + x] = np.uint8(min(max(sums[x] >> shift, 0), 255))


@called
def _transpose(source: Bytes, out: Bytes) -> None:
    """Transposes bytes [32 a, 16 b] into [16 b, 32 a]."""
    (high, wide), given, made = source.shape, reshaped(source, source.size), reshaped(out, out.size)
    for y in range(_U(0), _U(high), _U(TRANSPOSED_ROWS)):
        for x in range(_U(0), _U(wide), _U(TRANSPOSED_COLUMNS)):
            transpose(given, y * _U(wide) + x, _U(wide), made, x * _U(high) + y, _U(high))


@inlined
def _padded(length: int, block: int) -> int:
    """Returns a length rounded up to a multiple of a block."""
    return (length + block - 1) // block * block


@called
def resample(
    lines: Bytes,
    corner: tuple[int, int],
    over: Taps,
    aside: Taps,
    part: tuple[int, int, int, int],
    out: Bytes,
    place: tuple[int, int],
    arena: Arena,
) -> None:
    """Resizes a part of an image.

    Args:
        lines: uint8 [.., .. x C], where the image is, its channels interleaved.
        corner: line, and byte of the line, where the image begins; negative where the lines begin with later ones.
        over: weights of the image's height, or of a part of it.
        aside: weights of the image's width, or of a part of it.
        part: first line among those of ``over``, first column among those of ``aside``, height and width of the part.
        out: uint8 [C, h, w].
        place: line and column of ``out`` where the part goes.
        arena: working memory.
    """
    begun = arena[USED]
    row, column = corner
    top, left, height, width = part
    down, right = place
    channels = len(out)
    first, before = over.firsts[top], aside.firsts[left] * channels
    rows = over.firsts[top + height - 1] + over.counts[top + height - 1] - first
    used = (aside.firsts[left + width - 1] + aside.counts[left + width - 1]) * channels - before
    band = carve(arena, (_BAND, _padded(used, TRANSPOSED_COLUMNS)), np.uint8)
    columns = carve(arena, (band.shape[1], _BAND), np.uint8)
    narrow = carve(arena, (_padded(width, TRANSPOSED_ROWS), _BAND), np.uint8)
    resized = carve(arena, (channels, _padded(rows, _BAND), len(narrow)), np.uint8)
    sums = carve(arena, max(_BAND, width), np.int32)
    for start in range(0, rows, _BAND):
        y, x = _U(row + first + start), _U(column + before)
        for i in range(_U(min(_BAND, rows - start))):
            for j in range(_U(used)):
                band[i, j] = lines[y + i, x + j]
        _transpose(band, columns)
        for c in range(channels):
            _blend(_Lines(columns, c - before, channels), aside, left, _BAND, sums, narrow[:width], 0)
            _transpose(narrow, resized[c, start : start + _BAND])
    for c in range(channels):
        _blend(_Lines(resized[c], -first, 1), over, top, width, sums, out[c, down : down + height], right)
    arena[USED] = begun


_COARSE = 22
"""Bits of weights that are too small for their rounded sum to be one: windows with thousands of lines per output line
have them."""


@inlined
def shrunk(length: int, shrink: int) -> int:
    """Returns a side of an image that is ``shrink`` times smaller."""
    return (length + shrink - 1) // shrink


@called
def _touching(weights: Taps, begin: int, end: int, start: int, length: int) -> tuple[int, int]:
    """Narrows output lines to those of which a weighted line is in the image: others show the fill.

    Their sums would give the fill, as weights add up to one but for roundings that are less than half a level.
    """
    if weights.bits >= _COARSE:
        return begin, end
    while begin < end and start + weights.firsts[begin] + weights.counts[begin] <= 0:
        begin += 1
    while begin < end and start + weights.firsts[end - 1] >= length:
        end -= 1
    return begin, end


@called
def _fill(out: Bytes, values: Bytes, begin: int, end: int, left: int, right: int) -> None:
    """Fills a rectangle of [C, h, w] with one color."""
    for c in range(_U(len(out))):
        for y in range(_U(begin), _U(end)):
            for x in range(_U(left), _U(right)):
                out[c, y, x] = values[c]


@called
def _around(
    lines: Bytes,
    start: tuple[int, int],
    step: int,
    sides: tuple[int, int],
    corner: tuple[int, int],
    blank: int,
    mode: int,
    out: Bytes,
    to: tuple[int, int, int, int],
) -> None:
    """Copies lines and columns of a channel from ``corner`` on, in an image of ``sides`` or beyond.

    The channel's pixels are every ``step``-th byte of ``lines`` from the line and byte ``start`` on; ``to`` is the
    rectangle of ``out`` [h, w] that they go to: top, left, height and width.
    """
    row, column = start
    height, width = sides
    top, left = corner
    down, right, rows, columns = to
    begin = min(max(-left, 0), columns)
    end = max(min(width - left, columns), begin)
    for i in range(rows):
        y, target = top + i, _U(down + i)
        if mode == CONSTANT and not 0 <= y < height:
            for j in range(_U(columns)):
                out[target, _U(right) + j] = blank
            continue
        line = _U(row + reflected(y, height, mode))
        for j in range(_U(begin), _U(end)):
            out[target, _U(right) + j] = lines[line, _U(column) + _U(step) * (_U(left) + j)]
        for m in range(columns - (end - begin)):
            j = m if m < begin else m + (end - begin)
            beside = blank if mode == CONSTANT else lines[line, _U(column + step * reflected(left + j, width, mode))]
            out[target, _U(right + j)] = beside


@numba_compiled(Lines, Resizes, "int64[::1]", ARENA, OUTPUTS[BYTES])
def resize(images: Lines, resizes: Resizes, image: Numbers, arena: Arena, out: Bytes) -> None:
    """Resizes the window of image ``image[0]`` to a canvas, ``out`` uint8 [1, C, h, w].

    Of a window that is mostly beyond its image only what shows the image is computed, of one that is larger than the
    canvas only what lies on it. A window that keeps its size is copied.
    """
    fill, mode, ground, reach, k = resizes.fill, resizes.mode, resizes.ground, resizes.reach, image[0]
    canvas, place, window = out[0], images.places[k], resizes.windows[k]
    channels, height, width = canvas.shape
    layout, shrink, row = place.layout, place.shrink, -place.first
    high, wide = shrunk(place.height, shrink), shrunk(place.width, shrink)
    size = place.count * channels * wide
    beside, pitch, step = steps_of(layout, place.count, wide, channels)
    memory = images.decoded if layout == PIXELS else images.memory
    lines = reshaped(memory[place.start : place.start + size], (size // max(pitch, 1), pitch))
    # Line 0 of channel c is this many lines and bytes after that of channel 0: every step-th byte of it.
    apart, beside = beside // max(pitch, 1), beside % max(pitch, 1)
    top, left = window.top, window.left
    rows, columns, down, right = window.high, window.wide, window.down, window.right
    begin, end = max(-down, 0), min(rows, height - down)
    before, after = max(-right, 0), min(columns, width - right)
    if end - begin < height or after - before < width:
        _fill(canvas, ground, 0, height, 0, width)
    if begin >= end or before >= after:
        return
    if window.rows == rows and window.columns == columns:
        to = down + begin, right + before, end - begin, after - before
        for c in range(channels):
            start = row + c * apart, c * beside
            _around(lines, start, step, (high, wide), (top + begin, left + before), fill[c], mode, canvas[c], to)
        return
    # Input lines of a smaller image are counted from its beginning, as the window may begin between two; else from the
    # window's, which gives torch's bits.
    first_row, first_column = (top, left) if shrink > 1 else (0, 0)
    over = taps(first_row, window.rows, rows, reach, shrink, begin, end, arena)
    aside = taps(first_column, window.columns, columns, reach, shrink, before, after, arena)
    top, left = top - first_row, left - first_column
    shown = (end - begin) * (after - before)
    down, right = down + begin, right + before
    begin, end, before, after = 0, end - begin, 0, after - before  # among the weights from here on
    if mode == CONSTANT:
        (y0, y1), (x0, x1) = _touching(over, begin, end, top, high), _touching(aside, before, after, left, wide)
        if (y1 - y0) * (x1 - x0) < shown:
            _fill(canvas, fill, down, down + end, right, right + after)
        begin, end, before, after = y0, y1, x0, x1
    if begin >= end or before >= after:
        return
    first, farthest = over.firsts[begin], aside.firsts[before]
    used = over.firsts[end - 1] + over.counts[end - 1] - first
    spread = aside.firsts[after - 1] + aside.counts[after - 1] - farthest
    is_inside = top + first >= 0 and top + first + used <= high and left + farthest >= 0
    is_inside = is_inside and left + farthest + spread <= wide
    part, goal = (begin, before, end - begin, after - before), (down + begin, right + before)
    if is_inside and step > 1:
        resample(lines, (row + top, left * step), over, aside, part, canvas, goal, arena)
        return
    near = carve(arena, (0, 0) if is_inside else (used, spread), np.uint8)
    for c in range(channels):
        one, start = canvas[_U(c) : _U(c + 1)], (row + c * apart, c * beside)
        if is_inside:
            resample(lines, (start[0] + top, start[1] + left), over, aside, part, one, goal, arena)
        else:
            corner, whole = (top + first, left + farthest), (0, 0, used, spread)
            _around(lines, start, step, (high, wide), corner, fill[c], mode, near, whole)
            resample(near, (-first, -farthest), over, aside, part, one, goal, arena)


def resize_part(image: Bytes, size: tuple[int, int], part: tuple[int, int, int, int], reach: int, out: Bytes) -> None:
    """Resizes an image and keeps a window of the result.

    Args:
        image: uint8 [C, H, W], its channels interleaved or not.
        size: height and width of the whole image after the resize.
        part: the window of it: top, left, height and width.
        reach: one of :data:`REACHES`.
        out: uint8 [C, h, w].
    """
    channels, height, width = image.shape
    pixels = image.transpose(1, 2, 0)
    layout = PIXELS if pixels.flags.c_contiguous else PLANES
    memory = (pixels if layout == PIXELS else np.ascontiguousarray(image)).reshape(-1)
    black = np.zeros(channels, np.uint8)
    place = np.array([(0, 0, height, height, width, layout, 1)], PLACE)
    window = np.array([(0, 0, height, width, *size, -part[0], -part[1])], RESIZED)
    resize(Lines(memory, place, memory), Resizes(window, black, 0, black, reach), np.zeros(2, np.int64), out[None])
