"""Resize of windows of images, compiled: inside of their images or beyond, each placed on a canvas.

The bits are those of :mod:`mmload.render.antialiased_resize`. Nothing is checked here;
:mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

import numpy as np

from mmload.render.antialiased_resize import Taps, resample, taps
from mmload.render.cpu_kernels import CONSTANT, reflected
from mmload.render.kernel_arguments import PIXELS, PLACE, PLANES, RESIZE, RESIZED, Bytes, ImageLines, Resizes, steps_of
from mmload.runtime.declarations import called, inlined
from mmload.runtime.intrinsics import Arena, carve, reshaped
from mmload.runtime.numba_compile import numba_compiled

_U = np.uintp

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
    rectangle of ``out`` [h, w] that they go to: top, left, height and width. Only a constant stride is vectorized.
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
        if step == 1:
            for j in range(_U(begin), _U(end)):
                out[target, _U(right) + j] = lines[line, _U(column + left) + j]
        elif step == 3:
            for j in range(_U(begin), _U(end)):
                out[target, _U(right) + j] = lines[line, _U(column) + _U(3) * (_U(left) + j)]
        else:
            for j in range(_U(begin), _U(end)):
                out[target, _U(right) + j] = lines[line, _U(column) + _U(step) * (_U(left) + j)]
        for m in range(columns - (end - begin)):
            j = m if m < begin else m + (end - begin)
            beside = blank if mode == CONSTANT else lines[line, _U(column + step * reflected(left + j, width, mode))]
            out[target, _U(right + j)] = beside


@numba_compiled(RESIZE)
def resize(images: ImageLines, k: int, resizes: Resizes, out: Bytes, arena: Arena) -> None:
    """Resizes the window of image ``k`` to a canvas, ``out`` uint8 [1, C, h, w].

    Of a window that is mostly beyond its image only what shows the image is computed, of one that is larger than the
    canvas only what lies on it. A window that keeps its size is copied.
    """
    fill, mode, ground, reach = resizes.fill, resizes.mode, resizes.ground, resizes.reach
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
        reach: one of :data:`~mmload.render.antialiased_resize.REACHES`.
        out: uint8 [C, h, w].
    """
    channels, height, width = image.shape
    pixels = image.transpose(1, 2, 0)
    layout = PIXELS if pixels.flags.c_contiguous else PLANES
    memory, black = (
        (pixels if layout == PIXELS else np.ascontiguousarray(image)).reshape(-1),
        np.zeros(channels, np.uint8),
    )
    place = np.array([(0, 0, height, height, width, layout, 1)], PLACE)
    window = np.array([(0, 0, height, width, *size, -part[0], -part[1])], RESIZED)
    resize(ImageLines(memory, place, memory), 0, Resizes(window, black, 0, black, reach), out[None])
