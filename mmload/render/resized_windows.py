"""Resize of windows of images, compiled: inside of their images or beyond, each placed on a canvas.

The bits are those of :mod:`mmload.render.antialiased_resize`. Nothing is checked here;
:mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

import numpy as np

from mmload.render.antialiased_resize import Taps, resample, taps, window_taps
from mmload.render.cpu_kernels import CONSTANT, reflected
from mmload.render.kernel_arguments import LINES, PIXELS, PLANES, RESIZE, Bytes, Resizes
from mmload.runtime.arena import USED, Arena, carve
from mmload.runtime.declarations import called, inlined
from mmload.runtime.intrinsics import reshaped
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


@inlined
def _inside(begin: int, end: int, start: int, length: int) -> tuple[int, int]:
    """Narrows positions of a window from ``start`` on to those that are in an image of this length."""
    first = min(max(begin, -start), end)
    return first, max(min(end, length - start), first)


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
) -> None:
    """Copies lines and columns of a channel from ``corner`` on, in an image of ``sides`` or beyond.

    The channel's pixels are every ``step``-th byte of ``lines`` from the line and byte ``start`` on.
    """
    row, column = start
    height, width = sides
    top, left = corner
    rows, columns = out.shape
    begin = min(max(-left, 0), columns)
    end = max(min(width - left, columns), begin)
    for i in range(_U(rows)):
        y = top + int(i)
        if mode == CONSTANT and not 0 <= y < height:
            for j in range(_U(columns)):
                out[i, j] = blank
            continue
        line = _U(row + reflected(y, height, mode))
        if step == 1:
            for j in range(_U(begin), _U(end)):
                out[i, j] = lines[line, _U(column + left) + j]
        else:
            for j in range(_U(begin), _U(end)):
                out[i, j] = lines[line, _U(column) + _U(step) * (_U(left) + j)]
        for m in range(columns - (end - begin)):
            j = m if m < begin else m + (end - begin)
            out[i, _U(j)] = (
                blank if mode == CONSTANT else lines[line, _U(column + step * reflected(left + j, width, mode))]
            )


@called
def _copy(lines: Bytes, start: tuple[int, int], step: int, out: Bytes, c: int, to: tuple[int, int, int, int]) -> None:
    """Copies pixels of a channel to the rectangle ``to`` (top, left, bottom, right) of ``out`` [C, h, w]."""
    row, column = start
    top, left, bottom, right = to
    for y in range(_U(bottom - top)):
        if step == 1:
            for x in range(_U(right - left)):
                out[_U(c), _U(top) + y, _U(left) + x] = lines[_U(row) + y, _U(column) + x]
        else:
            for x in range(_U(right - left)):
                out[_U(c), _U(top) + y, _U(left) + x] = lines[_U(row) + y, _U(column) + _U(step) * x]


@called
def _copy_colors(lines: Bytes, start: tuple[int, int], out: Bytes, to: tuple[int, int, int, int]) -> None:
    """Copies three interleaved channels at once as :func:`_copy` does, by a loop that is vectorized."""
    row, column = start
    top, left, bottom, right = to
    for y in range(_U(bottom - top)):
        line, target = _U(row) + y, _U(top) + y
        for x in range(_U(right - left)):
            out[0, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x]
            out[1, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x + _U(1)]
            out[2, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x + _U(2)]


@numba_compiled(RESIZE)
def resize(resizes: Resizes, out: Bytes, arena: Arena) -> None:
    """Resizes windows of images to a canvas each, ``out`` uint8 [B, C, h, w].

    Of a window that is mostly beyond its image only what shows the image is computed, of one that is larger than the
    canvas only what lies on it. A window that keeps its size is copied.
    """
    fill, mode, ground, reach = resizes.fill, resizes.mode, resizes.ground, resizes.reach
    count, channels, height, width = out.shape
    begun = arena[USED]
    for k in range(_U(count)):
        arena[USED] = begun
        canvas, place, window = out[k], resizes.places[k], resizes.windows[k]
        layout, shrink, row = place.layout, place.shrink, -place.first
        high, wide = shrunk(place.height, shrink), shrunk(place.width, shrink)
        size = place.count * channels * wide
        pitch = wide if layout == PLANES else channels * wide
        memory = resizes.decoded if layout == PIXELS else resizes.memory
        lines = reshaped(memory[place.start : place.start + size], (size // max(pitch, 1), pitch))
        # Line 0 of channel c is line row + c * apart: every step-th byte of it from byte c * beside on.
        apart, beside, step = place.count, 0, 1
        if layout != PLANES:
            apart, beside, step = (0, wide, 1) if layout == LINES else (0, 1, channels)
        top, left = window.top, window.left
        rows, columns, down, right = window.high, window.wide, window.down, window.right
        begin, end = max(-down, 0), min(rows, height - down)
        before, after = max(-right, 0), min(columns, width - right)
        if begin >= end or before >= after:
            _fill(canvas, ground, 0, height, 0, width)
            continue
        if end - begin < height or after - before < width:
            _fill(canvas, ground, 0, height, 0, width)
        shown = (end - begin) * (after - before)
        if window.rows == rows and window.columns == columns:
            (y0, y1), (x0, x1) = _inside(begin, end, top, high), _inside(before, after, left, wide)
            is_whole = (y1 - y0) * (x1 - x0) == shown
            if is_whole or mode == CONSTANT:
                if not is_whole:
                    _fill(canvas, fill, down + begin, down + end, right + before, right + after)
                target = down + y0, right + x0, down + y1, right + x1
                if step == 3:
                    _copy_colors(lines, (row + top + y0, step * (left + x0)), canvas, target)
                    continue
                for c in range(channels):
                    start = row + c * apart + top + y0, c * beside + step * (left + x0)
                    _copy(lines, start, step, canvas, c, target)
                continue
        if shrink > 1:
            over = window_taps(top, window.rows, rows, reach, shrink, begin, end, arena)
            aside = window_taps(left, window.columns, columns, reach, shrink, before, after, arena)
            top = left = 0
        else:
            over = taps(window.rows, rows, reach, begin, end, arena)
            aside = taps(window.columns, columns, reach, before, after, arena)
        down, right = down + begin, right + before
        begin, end, before, after = 0, end - begin, 0, after - before  # among the weights from here on
        if mode == CONSTANT:
            (y0, y1), (x0, x1) = _touching(over, begin, end, top, high), _touching(aside, before, after, left, wide)
            if (y1 - y0) * (x1 - x0) < shown:
                _fill(canvas, fill, down + begin, down + end, right + before, right + after)
            begin, end, before, after = y0, y1, x0, x1
        if begin >= end or before >= after:
            continue
        first, farthest = over.firsts[begin], aside.firsts[before]
        used = over.firsts[end - 1] + over.counts[end - 1] - first
        spread = aside.firsts[after - 1] + aside.counts[after - 1] - farthest
        is_inside = top + first >= 0 and top + first + used <= high and left + farthest >= 0
        is_inside = is_inside and left + farthest + spread <= wide
        part, goal = (begin, before, end - begin, after - before), (down + begin, right + before)
        if is_inside and step > 1:
            resample(lines, (row + top, left * step), over, aside, part, canvas, goal, arena)
            continue
        near = carve(arena, (0, 0) if is_inside else (used, spread), np.uint8)
        for c in range(channels):
            one, start = canvas[_U(c) : _U(c + 1)], (row + c * apart, c * beside)
            if is_inside:
                resample(lines, (start[0] + top, start[1] + left), over, aside, part, one, goal, arena)
            else:
                _around(lines, start, step, (high, wide), (top + first, left + farthest), fill[c], mode, near)
                resample(near, (-first, -farthest), over, aside, part, one, goal, arena)
