"""Windows of images in another size, compiled: inside of their images or beyond, each placed on a canvas.

The load side's part of :mod:`mmload.render.antialiased_resize`, whose bits it has. Nothing is checked here.
"""

from __future__ import annotations

import numpy as np

from mmload.render.antialiased_resize import Bytes, Numbers, Taps, resample, taps
from mmload.render.kernel_signatures import RESIZE
from mmload.render.padded_positions import CONSTANT, reflected
from mmload.runtime.numba_compile import called, numba_compiled

_U = np.uintp

_COARSE = 22
"""Bits of weights that are too small for their sum to be one after they are rounded: of windows of thousands of lines
for each of the output."""


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


@called
def _fill(out: Bytes, values: Bytes, begin: int, end: int, left: int, right: int) -> None:
    """A rectangle of [C, h, w] in one color."""
    for c in range(_U(len(out))):
        for y in range(_U(begin), _U(end)):
            for x in range(_U(left), _U(right)):
                out[c, y, x] = values[c]


@called
def _around(plane: Bytes, top: int, left: int, blank: int, mode: int, out: Bytes) -> None:
    """The lines from ``top`` and columns from ``left`` on, in the image or beyond."""
    height, width = plane.shape
    rows, columns = out.shape
    begin = min(max(-left, 0), columns)
    end = max(min(width - left, columns), begin)
    for i in range(_U(rows)):
        y = top + int(i)
        if mode == CONSTANT and not 0 <= y < height:
            for j in range(_U(columns)):
                out[i, j] = blank
            continue
        line = _U(reflected(y, height, mode))
        for j in range(_U(begin), _U(end)):
            out[i, j] = plane[line, _U(left) + j]
        for m in range(columns - (end - begin)):
            j = m if m < begin else m + (end - begin)
            out[i, _U(j)] = blank if mode == CONSTANT else plane[line, _U(reflected(left + j, width, mode))]


@numba_compiled(RESIZE)
def resize(
    images: Bytes,
    indices: Numbers,
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
    canvas only what lies on it.

    Args:
        images: uint8 [N, C, H, W].
        indices: int64 [B], which of the images each sample is.
        windows: int64 [B, 4], top, left, rows and columns, in or outside of the image.
        placements: int64 [B, 4], to how many rows and columns each is resized, and the line and column of the output
            where that begins; may be negative.
        fill: uint8 [C], the constant outside of the image.
        mode: what lies there, a place in :data:`~mmload.render.plan.PADDING_MODES`.
        ground: uint8 [C], the output beside the resized window.
        reach: one of :data:`~mmload.render.antialiased_resize.REACHES`.
        out: uint8 [B, C, h, w].
    """
    count, channels, height, width = out.shape
    high, wide = images.shape[2:]
    for k in range(_U(count)):
        index, canvas = _U(indices[k]), out[k]
        top, left = windows[k, 0], windows[k, 1]
        rows, columns, down, right = placements[k, 0], placements[k, 1], placements[k, 2], placements[k, 3]
        over, aside = taps(windows[k, 2], rows, reach), taps(windows[k, 3], columns, reach)
        begin, end = max(-down, 0), min(rows, height - down)
        before, after = max(-right, 0), min(columns, width - right)
        if begin >= end or before >= after:
            _fill(canvas, ground, 0, height, 0, width)
            continue
        if end - begin < height or after - before < width:
            _fill(canvas, ground, 0, height, 0, width)
        shown = (end - begin) * (after - before)
        if mode == CONSTANT:
            lines, across = _seen(over, begin, end, top, high), _seen(aside, before, after, left, wide)
            if (lines[1] - lines[0]) * (across[1] - across[0]) < shown:
                _fill(canvas, fill, down + begin, down + end, right + before, right + after)
            begin, end, before, after = lines[0], lines[1], across[0], across[1]
        if begin >= end or before >= after:
            continue
        first, beside = over[0][begin], aside[0][before]
        used = over[0][end - 1] + over[1][end - 1] - first
        spread = aside[0][after - 1] + aside[1][after - 1] - beside
        inside = top + first >= 0 and top + first + used <= high and left + beside >= 0
        inside = inside and left + beside + spread <= wide
        near = np.empty((0, 0) if inside else (used, spread), np.uint8)
        for c in range(_U(channels)):
            place = down + begin, right + before
            size = begin, before, end - begin, after - before
            one = canvas[c : c + _U(1)]
            if inside:
                resample(images[index, c], top, left, over, aside, *size, one, *place)
            else:
                _around(images[index, c], top + first, left + beside, fill[c], mode, near)
                resample(near, -first, -beside, over, aside, *size, one, *place)
