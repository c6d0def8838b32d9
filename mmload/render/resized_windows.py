"""Windows of images in another size, compiled: inside of their images or beyond, each placed on a canvas.

The load side's part of :mod:`mmload.render.antialiased_resize`, whose bits it has. Nothing is checked here.
"""

from __future__ import annotations

import numpy as np

from mmload.render.antialiased_resize import Bytes, Numbers, Taps, resample, taps, window_taps
from mmload.render.image_lines import COUNT, FIRST, HEIGHT, LAYOUT, LINES, PLANES, SHRINK, START, WIDTH
from mmload.render.kernel_signatures import RESIZE
from mmload.render.padded_positions import CONSTANT, reflected
from mmload.runtime.numba_compile import called, inlined, numba_compiled

_U = np.uintp

_COARSE = 22
"""Bits of weights that are too small for their sum to be one after they are rounded: of windows of thousands of lines
for each of the output."""


@inlined
def shrunk(length: int, shrink: int) -> int:
    """An image's side in an image that is so many times smaller."""
    return (length + shrink - 1) // shrink


@called
def _seen(weighted: Taps, begin: int, end: int, start: int, length: int) -> tuple[int, int]:
    """The output lines among ``begin`` to ``end`` of which a weighted line is in the image: others show the fill.

    That is what their sums give, as weights add up to one but for roundings that are less than half a level.
    """
    firsts, counts, _, bits = weighted
    if bits >= _COARSE:
        return begin, end
    while begin < end and start + firsts[begin] + counts[begin] <= 0:
        begin += 1
    while begin < end and start + firsts[end - 1] >= length:
        end -= 1
    return begin, end


@inlined
def _kept(begin: int, end: int, start: int, length: int) -> tuple[int, int]:
    """The places among ``begin`` to ``end`` of a window from ``start`` on that are in an image of this length."""
    first = min(max(begin, -start), end)
    return first, max(min(end, length - start), first)


@called
def _fill(out: Bytes, values: Bytes, begin: int, end: int, left: int, right: int) -> None:
    """A rectangle of [C, h, w] in one color."""
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
    """The lines and columns of a channel from ``corner`` on, in an image of ``sides`` or beyond.

    Its pixels are every ``step``-th byte of ``lines`` from the line and byte ``start`` on.
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
    """Pixels of a channel as they are, to the top, left, bottom and right of ``to`` in ``out`` [C, h, w]."""
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
    """:func:`_copy` of three interleaved channels at once, by a loop that is vectorized."""
    row, column = start
    top, left, bottom, right = to
    for y in range(_U(bottom - top)):
        line, target = _U(row) + y, _U(top) + y
        for x in range(_U(right - left)):
            out[0, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x]
            out[1, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x + _U(1)]
            out[2, target, _U(left) + x] = lines[line, _U(column) + _U(3) * x + _U(2)]


@numba_compiled(RESIZE)
def resize(
    memory: Bytes,
    places: Numbers,
    windows: Numbers,
    placements: Numbers,
    fill: Bytes,
    mode: int,
    ground: Bytes,
    reach: int,
    out: Bytes,
) -> None:
    """Windows of images in another size.

    Of a window that is mostly beyond its image only what shows the image is computed, of one that is larger than the
    canvas only what lies on it. A window that keeps its size is copied.

    Args:
        memory: uint8 [n], where the images are.
        places: int64 [B, 7], what is where: see :class:`~mmload.render.image_lines.ImageLines`. All lines that the
            window needs are there. Of a smaller image the window is inside, and shrinks as much at least.
        windows: int64 [B, 4], top, left, rows and columns, in or outside of the image.
        placements: int64 [B, 4], to how many rows and columns each is resized, and the line and column of the output
            where that begins; may be negative.
        fill: uint8 [C], the constant outside of the image.
        mode: what lies there, a place in :data:`~mmload.render.framing.PADDING_MODES`.
        ground: uint8 [C], the output beside the resized window.
        reach: one of :data:`~mmload.render.antialiased_resize.REACHES`.
        out: uint8 [B, C, h, w].
    """
    count, channels, height, width = out.shape
    for k in range(_U(count)):
        canvas, layout, held = out[k], places[k, LAYOUT], places[k, COUNT]
        shrink, row = places[k, SHRINK], -places[k, FIRST]
        high, wide = shrunk(places[k, HEIGHT], shrink), shrunk(places[k, WIDTH], shrink)
        size = held * channels * wide
        pitch = wide if layout == PLANES else channels * wide
        lines = memory[places[k, START] : places[k, START] + size].reshape(size // max(pitch, 1), pitch)
        # Of channel c line 0 of the image is line row + c * apart, of which every step-th byte from c * aside is its.
        apart, beside, step = held, 0, 1
        if layout != PLANES:
            apart, beside, step = (0, wide, 1) if layout == LINES else (0, 1, channels)
        top, left = windows[k, 0], windows[k, 1]
        rows, columns, down, right = placements[k, 0], placements[k, 1], placements[k, 2], placements[k, 3]
        begin, end = max(-down, 0), min(rows, height - down)
        before, after = max(-right, 0), min(columns, width - right)
        if begin >= end or before >= after:
            _fill(canvas, ground, 0, height, 0, width)
            continue
        if end - begin < height or after - before < width:
            _fill(canvas, ground, 0, height, 0, width)
        shown = (end - begin) * (after - before)
        if windows[k, 2] == rows and windows[k, 3] == columns:
            kept = _kept(begin, end, top, high), _kept(before, after, left, wide)
            whole = (kept[0][1] - kept[0][0]) * (kept[1][1] - kept[1][0]) == shown
            if whole or mode == CONSTANT:
                if not whole:
                    _fill(canvas, fill, down + begin, down + end, right + before, right + after)
                here = down + kept[0][0], right + kept[1][0], down + kept[0][1], right + kept[1][1]
                if step == 3:
                    _copy_colors(lines, (row + top + kept[0][0], step * (left + kept[1][0])), canvas, here)
                    continue
                for c in range(channels):
                    start = row + c * apart + top + kept[0][0], c * beside + step * (left + kept[1][0])
                    _copy(lines, start, step, canvas, c, here)
                continue
        if shrink > 1:
            over = window_taps(top, windows[k, 2], rows, reach, shrink, begin, end)
            aside = window_taps(left, windows[k, 3], columns, reach, shrink, before, after)
            top = left = 0
        else:
            over = taps(windows[k, 2], rows, reach, begin, end)
            aside = taps(windows[k, 3], columns, reach, before, after)
        down, right = down + begin, right + before
        begin, end, before, after = 0, end - begin, 0, after - before  # among the weights from here on
        if mode == CONSTANT:
            down_to, across = _seen(over, begin, end, top, high), _seen(aside, before, after, left, wide)
            if (down_to[1] - down_to[0]) * (across[1] - across[0]) < shown:
                _fill(canvas, fill, down + begin, down + end, right + before, right + after)
            begin, end, before, after = down_to[0], down_to[1], across[0], across[1]
        if begin >= end or before >= after:
            continue
        first, farthest = over[0][begin], aside[0][before]
        used = over[0][end - 1] + over[1][end - 1] - first
        spread = aside[0][after - 1] + aside[1][after - 1] - farthest
        is_inside = top + first >= 0 and top + first + used <= high and left + farthest >= 0
        is_inside = is_inside and left + farthest + spread <= wide
        part, place = (begin, before, end - begin, after - before), (down + begin, right + before)
        if is_inside and step > 1:
            resample(lines, row + top, left * step, over, aside, *part, canvas, *place)
            continue
        near = np.empty((0, 0) if is_inside else (used, spread), np.uint8)
        for c in range(channels):
            one, start = canvas[_U(c) : _U(c + 1)], (row + c * apart, c * beside)
            if is_inside:
                resample(lines, start[0] + top, start[1] + left, over, aside, *part, one, *place)
            else:
                _around(lines, start, step, (high, wide), (top + first, left + farthest), fill[c], mode, near)
                resample(near, -first, -farthest, over, aside, *part, one, *place)
