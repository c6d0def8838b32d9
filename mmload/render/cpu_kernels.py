"""Loops over pixels on a CPU, compiled: crops, which pad, flip, color and erase samples; and samples of all kinds.

They take uint8 images as stored and write pixels into the caller's memory, without the interpreter lock. Subtraction
and multiplication are separate, in float32, as in torch: no fused multiply-add, so the bits do not depend on the
position in a line. Nothing is checked here.

Indices are unsigned in inner loops (``_U``): negative indices count from the end, and code for them keeps a loop from
being vectorized, which takes twice as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mmload.render.holes import LineRange, erase, erased_lines
from mmload.render.kernel_arguments import (
    FLIPPED_X,
    FLIPPED_Y,
    OUTPUTS,
    PADDING_MODES,
    PIXELS,
    PLACE,
    Addresses,
    Bytes,
    Crops,
    Floats,
    Lines,
    Numbers,
    Paint,
    Pixels,
    Places,
    steps_of,
)
from mmload.runtime.intrinsics import LINE, Arena, carve, colored, finish_streams, reshaped, stream
from mmload.runtime.kernels import ARENA, USED, CallC, RecordArray, inlined, numba_compiled

Index = int | np.uintp

CONSTANT, REFLECT, _SYMMETRIC = (PADDING_MODES.index(mode) for mode in ("constant", "reflect", "symmetric"))
"""Indices of :data:`~mmload.render.kernel_arguments.PADDING_MODES`."""

_BAND = 2 * 2**10
"""Bytes of the lines that are streamed at a time: few, so that they leave the cache while others are computed.

Bands of 16 KB fill the write buffers of a core in bursts: loaders made 1.1 times as many crops by them, 1.2 by these.
"""

_FLOATS = _BAND // 4
_U = np.uintp


@inlined
def reflected(position: int, length: int, mode: int) -> int:
    """Returns the position inside of an axis that a position inside or outside shows.

    :func:`~mmload.render.torch_sampling.reflected` computes the same.
    """
    if mode == REFLECT:
        if not -length < position < 2 * length - 1:  # a division takes longer than all the rest
            position = position % max(2 * length - 2, 1)
        position = abs(position)
        return min(position, 2 * length - 2 - position)
    if mode == _SYMMETRIC:
        if not -length <= position < 2 * length:
            position = position % (2 * length)
        position = max(position, -1 - position)
        return min(position, 2 * length - 1 - position)
    return min(max(position, 0), length - 1)


class Span(NamedTuple):
    """Place of a window along an axis of its image.

    Attributes:
        begin: first of its positions that is inside of the image.
        end: one past the last.
        origin: position i shows the image at origin + i, or at origin - i if it is flipped.
        flipped: whether it is flipped.
    """

    begin: int
    end: int
    origin: int
    flipped: bool


@inlined
def span_of(start: int, size: int, length: int, flipped: bool) -> Span:
    """Returns the span of a window of ``size`` from ``start`` on, along an axis of ``length``."""
    before = min(max(-start, 0), size)
    after = size - max(min(length - start, size), before)
    if flipped:
        return Span(after, size - before, start + size - 1, flipped)
    return Span(before, size - after, start, flipped)


@inlined
def find_sources(span: Span, length: int, mode: int, sources: Numbers) -> None:
    """Finds the position in the image of each position of a window, except for those that show a constant.

    Found once per sample: found again for each line and channel, reflected crops took 1.3 times as long, those of CIFAR
    1.7 times. The loop over positions inside tests nothing, so that it is vectorized.
    """
    for i in range(span.begin, span.end):
        sources[_U(i)] = span.origin - i if span.flipped else span.origin + i
    inside = span.end - span.begin
    for m in range(0 if mode == CONSTANT else len(sources) - inside):
        i = m if m < span.begin else m + inside
        position = span.origin - i if span.flipped else span.origin + i
        sources[_U(i)] = reflected(position, length, mode)


@inlined
def lines_at_once(height: int, line_bytes: int) -> int:
    """Returns how many lines are streamed at a time: they end with a cache line, and take a band if possible."""
    aligned = 1
    while aligned * line_bytes % LINE:
        aligned *= 2
    return min(height, aligned * max(1, _BAND // (aligned * line_bytes)))


class _Line(NamedTuple):
    """Line of an image: its image, its row, and the window's columns.

    ``sources`` are the columns that the window shows; they are not set where the image ends in a constant, of which a
    line that is not ``shown`` consists.
    """

    index: Any
    row: Any
    columns: Span
    sources: Numbers
    shown: Any


@inlined
def _color_line(crops: Crops, line: _Line, c: Index, color: tuple[Any, Any, Any], target: Pixels, at: Index) -> None:
    """Colors a line of channel ``c`` into ``target`` from ``at`` on; ``color`` is its shift, scale and constant.

    There is a loop for each direction: only a constant stride is vectorized.
    """
    images, columns, shown = crops.images, line.columns, line.shown
    (less, times, blank), origin, width = color, _U(columns.origin), _U(len(line.sources))
    left, right = (_U(columns.begin), _U(columns.end)) if shown else (width, width)
    if shown and columns.flipped:
        for x in range(left, right):
            target[at + x] = colored(images[line.index, c, line.row, origin - x], less, times, target)
    elif shown:
        for x in range(left, right):
            target[at + x] = colored(images[line.index, c, line.row, origin + x], less, times, target)
    if crops.mode == CONSTANT:
        for x in range(left):
            target[at + x] = blank
        for x in range(right, width):
            target[at + x] = blank
    else:
        for m in range(width - (right - left)):
            beside = m if m < left else m + (right - left)
            level = images[line.index, c, line.row, _U(line.sources[beside])]
            target[at + beside] = colored(level, less, times, target)


@inlined
def _interleave(crops: Crops, line: _Line, out: Bytes) -> None:
    """Copies a line of all channels into w * C levels.

    Bytes are interleaved first and colored afterwards, a whole line at once: writing colored values at a stride of
    three took 1.8 times as long. Three channels have loops of their own, as a constant stride is quick.
    """
    images, columns, channels = crops.images, line.columns, crops.images.shape[1]
    index, row, origin, width = line.index, line.row, _U(columns.origin), _U(len(line.sources))
    left, right = (_U(columns.begin), _U(columns.end)) if line.shown else (width, width)
    if channels == 3 and columns.flipped:
        for x in range(left, right):
            out[_U(3) * x] = images[index, 0, row, origin - x]
            out[_U(3) * x + _U(1)] = images[index, 1, row, origin - x]
            out[_U(3) * x + _U(2)] = images[index, 2, row, origin - x]
    elif channels == 3:
        for x in range(left, right):
            out[_U(3) * x] = images[index, 0, row, origin + x]
            out[_U(3) * x + _U(1)] = images[index, 1, row, origin + x]
            out[_U(3) * x + _U(2)] = images[index, 2, row, origin + x]
    else:
        for c in range(_U(channels)):
            for x in range(left, right):
                value = images[index, c, row, origin - x if columns.flipped else origin + x]
                out[x * _U(channels) + c] = value
    # One loop for both kinds of margins and for blank lines: with loops of their own, LLVM compiles what follows once
    # for each kind and does not vectorize it, which took twice as long.
    for m in range(width - (right - left)):
        beside = m if m < left else m + (right - left)
        for c in range(_U(channels)):
            value = crops.fill[c] if crops.mode == CONSTANT else images[index, c, row, _U(line.sources[beside])]
            out[beside * _U(channels) + c] = value


def crop(crops: Crops, paint: Paint, first: int, samples: Numbers, arena: Arena, out: Pixels) -> None:
    """Crops, pads, flips, colors and erases windows of images into ``out`` [N, P, h, V].

    ``samples`` is the first sample and the one after the last, int64 [2], counted from sample ``first`` of the batch.
    Samples of the batch take the N places in turn.

    Lines are in the innermost loops and are written in the order of the output's memory. ``target`` is flat, and is the
    output itself or the band of lines that is streamed next, already in the dtype of the output.
    """
    images, windows, streamed, holes = crops.images, crops.windows, paint.streamed, paint.holes
    places, planes, height, across = out.shape
    depth = images.shape[1] // planes
    lines = lines_at_once(height, across * out.itemsize) if streamed else height
    flat, band = reshaped(out, out.size), carve(arena, lines * across if streamed else 0, out.dtype)
    target, levels = band if streamed else flat, carve(arena, across, np.uint8)
    # The color map is repeated for every value of a line, so that the last pass is one plain loop.
    less, times = carve(arena, across, np.float32), carve(arena, across, np.float32)
    for i in range(across if depth > 1 else 0):
        less[i], times[i] = paint.shift[i % depth], paint.scale[i % depth]
    row_sources, column_sources = carve(arena, height, np.int64), carve(arena, across // depth, np.int64)
    for k in range(_U(samples[0]), _U(samples[1])):
        place = (_U(first) + k) % _U(places)
        window, index = windows[k], _U(windows[k].index)
        rows = span_of(window.top, height, images.shape[2], window.flips & FLIPPED_Y != 0)
        columns = span_of(window.left, len(column_sources), images.shape[3], window.flips & FLIPPED_X != 0)
        begin_erased, end_erased = erased_lines(holes, k)
        find_sources(rows, images.shape[2], crops.mode, row_sources)
        if crops.mode != CONSTANT:
            find_sources(columns, images.shape[3], crops.mode, column_sources)
        for p in range(_U(planes)):
            color = paint.shift[p], paint.scale[p], colored(crops.fill[p], paint.shift[p], paint.scale[p], target)
            for step in range((height + lines - 1) // lines):
                start, stop = step * lines, min(step * lines + lines, height)
                begun = ((place * _U(planes) + p) * _U(height) + _U(start)) * _U(across)
                into = _U(0) if streamed else begun
                # A loop of lines for each memory format, with the color before it: one loop for both, with the color of
                # a channel in it, took 1.05 times as long, and 1.2 times for images of 32 x 32.
                for y in range(_U(start), _U(stop) if depth == 1 else _U(start)):
                    line = _Line(
                        index,
                        _U(row_sources[y]),
                        columns,
                        column_sources,
                        crops.mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end),
                    )
                    _color_line(crops, line, p, color, target, into + (y - _U(start)) * _U(across))
                for y in range(_U(start), _U(start) if depth == 1 else _U(stop)):
                    line = _Line(
                        index,
                        _U(row_sources[y]),
                        columns,
                        column_sources,
                        crops.mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end),
                    )
                    _interleave(crops, line, levels)
                    at = into + (y - _U(start)) * _U(across)
                    for i in range(_U(across)):
                        target[at + i] = colored(levels[i], less[i], times[i], target)
                if begin_erased < stop and end_erased > start:
                    erase(holes, k, LineRange(p, depth, start, stop, across), target, into, arena)
                if streamed:
                    stream(band, flat, begun, (stop - start) * across)
    if streamed:
        finish_streams()


CROPS = {
    kind: numba_compiled(Crops, Paint, "int64, int64[::1]", ARENA, output)(crop) for kind, output in OUTPUTS.items()
}
"""The crops, by dtype of the output."""


@numba_compiled(Lines, RecordArray(PLACE), "int64, uint8[::1], int64[::1]")
def copy_images(lines: Lines, made: Places, channels: int, levels: Bytes, rows: Numbers) -> None:
    """Copies complete images in one of the layouts to other places, as planes [C, H, W]."""
    for k in range(rows[0], rows[1]):
        place, start, height, width = lines.places[k], made[k].start, made[k].height, made[k].width
        memory = lines.decoded if place.layout == PIXELS else lines.memory
        of_channel, of_line, of_pixel = steps_of(place.layout, height, width, channels)
        for line in range(channels * height):
            source = _U(place.start + line // height * of_channel + line % height * of_line)
            target = _U(start + line * width)
            for x in range(_U(width)):  # LLVM vectorizes it for steps of 1
                levels[target + x] = memory[source + x * _U(of_pixel)]


@numba_compiled("float32[::1], float32, arena")
def fill(out: Floats, value: float, arena: Arena) -> None:
    """Fills ``out``, whose size is a multiple of a cache line, by streams: as fast as memory can be written."""
    band = carve(arena, _FLOATS, np.float32)
    band[:] = value
    for at in range(0, out.size, _FLOATS):
        stream(band, out, _U(at), _U(min(_FLOATS, out.size - at)))
    finish_streams()


_step = CallC("int64(uintp)")

# Samples that arrive, are made of other pixels or change their levels, are rendered by one call: one after the other.
# Calls from Python for each of these steps, four samples at a time, took 50 us per image where levels change and a
# tenth of the time of a batch of resized crops, as the loops evict the interpreter from the caches. The levels of one
# sample stay in the L2 cache. Kernels are called by their addresses, so that none is compiled anew into this loop.


@numba_compiled("uintp[:, ::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1]", ARENA)
def run_steps(
    steps: Addresses,
    of_rows: int,
    count: int,
    ends: Numbers,
    rows: Numbers,
    samples: Numbers,
    failed: Numbers,
    arena: Arena,
) -> None:
    """Runs the steps of each row, and those of the sample that it ends, until a row cannot arrive."""
    begun = arena[USED]
    for row in range(count):
        sample = ends[row] if len(ends) else row
        rows[0], rows[1], samples[0], samples[1] = row, row + 1, sample, sample + 1
        for s in range(len(steps) if sample >= 0 else of_rows):
            arena[USED] = begun
            _step(steps[s, 0], (steps[s, 1],))
            if failed[0] >= 0:
                return
