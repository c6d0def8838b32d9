"""Loops that mix samples on a CPU, compiled: a sample with the one before it, while both are in cache.

Levels (uint8, after geometry and operations on them) are cached from sample to sample, as lines of one channel each, or
of interleaved channels where the output is channels_last. They are colored, erased, blended and pasted in float32, each
operation rounded, as by torch's operations on the whole batch: no fused multiply-add. Only results are rounded to half
precision. Nothing is checked here: :mod:`mmload.render.cpu_ordered` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mmload.render.cpu_kernels import CONSTANT, Index, Span, find_sources, interleave, span_of
from mmload.render.holes import LineRange, erase
from mmload.render.kernel_arguments import (
    FLIPPED_X,
    FLIPPED_Y,
    Bytes,
    Crops,
    Floats,
    Holes,
    Mixtures,
    Numbers,
    Paint,
    Pixels,
    mix_signature,
    outputs,
)
from mmload.runtime.arena import Arena, carve
from mmload.runtime.declarations import called
from mmload.runtime.intrinsics import finish_streams, reshaped, rounded, stream
from mmload.runtime.numba_compile import numba_compiled

SLOTS = 3
"""Number of cached samples: the first, which is mixed with the last, and two that take turns."""

_CUT = 8
"""Bands that are cut out of an image before they are mixed: 1 took 1.17 times as long, a whole sample 1.03 times."""

_U = np.uintp


@called
def _slot_of(sample: int) -> int:
    """Returns the slot where a sample's levels are cached."""
    return 1 + (sample & 1) if sample else 0


class _Axes(NamedTuple):
    """Place of a window in its image, and the position in the image of each of its rows and columns."""

    rows: Span
    row_sources: Numbers
    columns: Span
    column_sources: Numbers


@called
def _cut(crops: Crops, index: Index, axes: _Axes, lines: LineRange, levels: Bytes, base: Index) -> None:
    """Copies lines of a sample's window into the cached levels, whose first line is at ``base``.

    There is a loop for each direction of one channel: only a constant stride is vectorized.
    """
    images, fill, mode = crops.images, crops.fill, crops.mode
    rows, columns, column_sources = axes.rows, axes.columns, axes.column_sources
    plane, depth = lines.plane, lines.depth
    width = _U(len(column_sources))
    origin = _U(columns.origin)
    for y in range(_U(lines.begin), _U(lines.end)):
        at = base + y * width * depth
        row = _U(axes.row_sources[y])
        shown = mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end)
        begin, end = (_U(columns.begin), _U(columns.end)) if shown else (width, width)
        if depth == _U(1) and columns.flipped:
            for x in range(begin, end):
                levels[at + x] = images[index, plane, row, origin - x]
        elif depth == _U(1):
            for x in range(begin, end):
                levels[at + x] = images[index, plane, row, origin + x]
        elif shown:
            interleave(images, index, row, columns, levels, at)
        for m in range(width - (end - begin)):
            x = m if m < begin else m + (end - begin)  # type: ignore[assignment]  # a literal is an index, too
            for c in range(depth):
                value = fill[plane + c] if mode == CONSTANT else images[index, plane + c, row, _U(column_sources[x])]
                levels[at + x * depth + c] = value


class _Colors(NamedTuple):
    """Color map of the values of some lines: float32 [P, l * V] each, and the lines' first channel or 0."""

    shift: Floats
    scale: Floats
    plane: Any


@called
def _color(colors: _Colors, levels: Bytes, begin: Index, count: Index, target: Pixels, at: Index) -> None:
    """Colors values of one sample."""
    shift, scale, plane = colors.shift, colors.scale, colors.plane
    for i in range(_U(count)):
        target[at + i] = rounded((np.float32(levels[begin + i]) - shift[plane, i]) * scale[plane, i], target)


@called
def _blend(
    colors: _Colors,
    levels: Bytes,
    begins: tuple[Any, Any],
    count: Index,
    share: float,
    target: Pixels,
    at: Index,
) -> None:
    """Colors values of two samples, which begin at two places of the levels, and blends them."""
    shift, scale, plane = colors.shift, colors.scale, colors.plane
    own, other = begins
    rest = np.float32(1) - share
    for i in range(_U(count)):
        value = (np.float32(levels[own + i]) - shift[plane, i]) * scale[plane, i]
        partner = (np.float32(levels[other + i]) - shift[plane, i]) * scale[plane, i]
        target[at + i] = rounded(value * share + partner * rest, target)


@called
def _is_erased(holes: Holes, sample: int, begin: int, end: int) -> bool:
    """Returns whether a hole of a sample crosses these lines."""
    for n in range(holes.sides.shape[1]):
        hole = holes.sides[sample, n]
        if hole.height and hole.top < end and hole.top + hole.height > begin:
            return True
    return False


@numba_compiled(*map(mix_signature, outputs(4)))
def mix(crops: Crops, paint: Paint, mixtures: Mixtures, arena: Arena, out: Pixels) -> None:
    """Crops, pads, flips, colors and erases windows of images, and mixes each with the one of the sample before.

    The batch's first sample is only cached, and mixed in a call of its own after the last. ``out`` is [b, P, h, V], its
    lines are those of C channels with w values each, or lines of w * C interleaved values. A call renders b of the B
    samples; holes and mixtures are those of all.
    """
    count, planes, height, across = out.shape
    depth = crops.images.shape[1] // planes
    lines, streamed = paint.shift.shape[1] // across, paint.streamed
    flat, band = reshaped(out, out.size), carve(arena, lines * across if streamed else 0, out.dtype)
    has_holes = paint.holes.sides.shape[1] > 0
    size = lines * across if has_holes else 0
    own_lines, other_lines = carve(arena, size, np.float32), carve(arena, size, np.float32)
    row_sources, column_sources = carve(arena, height, np.int64), carve(arena, across // depth, np.int64)
    target, holes = band if streamed else flat, paint.holes
    images, windows, levels, mode = crops.images, crops.windows, mixtures.levels, crops.mode
    shift, scale, boxes = paint.shift, paint.scale, mixtures.boxes
    slot = _U(planes * height * across)
    for k in range(count):
        sample = mixtures.first + k
        before = (sample if sample else len(mixtures.shares)) - 1
        own, other = _U(_slot_of(sample)) * slot, _U(_slot_of(before)) * slot
        window = windows[k]
        rows = span_of(window.top, height, images.shape[2], window.flips & FLIPPED_Y != 0)
        columns = span_of(window.left, across // depth, images.shape[3], window.flips & FLIPPED_X != 0)
        find_sources(rows, images.shape[2], mode, row_sources)
        find_sources(columns, images.shape[3], mode, column_sources)
        axes = _Axes(rows, row_sources, columns, column_sources)
        share = mixtures.shares[sample]
        left, right = boxes[sample, 0] * depth, boxes[sample, 2] * depth
        top, bottom = boxes[sample, 1], boxes[sample, 3]
        for p in range(_U(planes)):
            plane, colors = p * _U(height * across), _Colors(shift, scale, p)
            for step in range((height + lines - 1) // lines):
                start = step * lines
                if not mixtures.last and start % (_CUT * lines) == 0:
                    cut = LineRange(p, _U(depth), start, min(start + _CUT * lines, height), across)
                    _cut(crops, _U(window.index), axes, cut, levels, own + plane)
                if not mixtures.last and sample == 0:
                    continue
                stop = min(start + lines, height)
                values = _U((stop - start) * across)
                skipped = plane + _U(start * across)
                begun = _U(k) * slot + skipped
                at = _U(0) if streamed else begun
                pasted = range(max(start, top), min(stop, bottom) if right > left else 0)
                if has_holes and (_is_erased(holes, sample, start, stop) or _is_erased(holes, before, start, stop)):
                    erased = LineRange(p, depth, start, stop, across)
                    _color(colors, levels, own + skipped, values, own_lines, _U(0))
                    _color(colors, levels, other + skipped, values, other_lines, _U(0))
                    erase(holes, sample, erased, own_lines, 0, arena)
                    erase(holes, before, erased, other_lines, 0, arena)
                    rest = np.float32(1) - share
                    for i in range(values):
                        blended = own_lines[i] * share + other_lines[i] * rest
                        target[at + i] = rounded(own_lines[i] if share == np.float32(1) else blended, target)
                    for y in pasted:
                        for i in range(_U((y - start) * across + left), _U((y - start) * across + right)):
                            target[at + i] = rounded(other_lines[i], target)
                else:
                    if share == np.float32(1):
                        _color(colors, levels, own + skipped, values, target, at)
                    else:
                        _blend(colors, levels, (own + skipped, other + skipped), values, share, target, at)
                    for y in pasted:
                        into = _U((y - start) * across + left)
                        _color(colors, levels, other + skipped + into, _U(right - left), target, at + into)
                if streamed:
                    stream(band, flat, begun, values)
    if streamed:
        finish_streams()
