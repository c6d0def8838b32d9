"""The loops over pixels on a CPU, compiled: one call renders samples without the interpreter lock.

They take uint8 images as stored and a plan's numbers as numpy arrays, and write pixels into the caller's memory.
Subtraction and multiplication are separate, in float32, as in torch: no fused multiply-add, so the bits do not depend
on the position in a line. Nothing is checked here: :mod:`mmload.render.rendering` does.

Indices are unsigned in inner loops (``_U``): negative indices count from the end, and code for them keeps a loop from
being vectorized, which takes twice as long. Index elements, do not slice: numba counts references to slices atomically,
30 ns a line, which took four times as long for lines of 32 pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.hole_kernels import erase, erased_lines
from mmload.render.kernel_signatures import CROP, FLOATS
from mmload.render.padded_positions import CONSTANT, reflected
from mmload.runtime.half_precision import rounded
from mmload.runtime.numba_compile import LINE, all_streamed, borrowed, inlined, numba_compiled, stream, variant

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Index = int | np.uintp

FLIPPED_X, FLIPPED_Y = 1, 2
"""The bits of a sample's flips: left to right, upside down."""

IN_PLACE, INSIDE, ANYWHERE = range(3)
"""Where levels are: in the images, to be changed there; or in windows of them, which lie inside, or anywhere."""

_BAND = 2 * 2**10
"""Bytes of the lines that are streamed at a time: few, so that they leave the cache while others are computed.

Bands of 16 KB fill the write buffers of a core in bursts: loaders made 1.1 times as many crops by them, 1.2 by these.
"""

_U = np.uintp


class _Span(NamedTuple):
    """How a window lies along an axis of its image.

    Attributes:
        begin: the first of its positions that is inside of the image.
        end: one past the last.
        origin: position i shows the image at origin + i, or at origin - i where it is flipped.
        flipped: whether it is.
    """

    begin: int
    end: int
    origin: int
    flipped: bool


@inlined
def _span(start: int, size: int, length: int, flipped: bool) -> _Span:
    """The span of a window of ``size`` from ``start`` on, along an axis of ``length``."""
    before = min(max(-start, 0), size)
    after = size - max(min(length - start, size), before)
    if flipped:
        return _Span(after, size - before, start + size - 1, flipped)
    return _Span(before, size - after, start, flipped)


@inlined
def _find_sources(span: _Span, length: int, mode: int, sources: Numbers) -> None:
    """Where in the image each position of a window comes from, but for those that show a constant.

    Found once a sample: found again for each line and channel, reflected crops took 1.3 times as long, those of CIFAR
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
def _copy_inside(
    images: Bytes,
    index: Index,
    c: Index,
    row: Index,
    columns: _Span,
    less: float,
    times: float,
    target: Pixels,
    at: Index,
) -> None:
    """A line's columns inside of the image, colored, into ``target`` from ``at`` on.

    A loop for each direction: only a constant stride is vectorized.
    """
    origin = _U(columns.origin)
    if columns.flipped:
        for x in range(_U(columns.begin), _U(columns.end)):
            target[at + x] = rounded((np.float32(images[index, c, row, origin - x]) - less) * times, target)
    else:
        for x in range(_U(columns.begin), _U(columns.end)):
            target[at + x] = rounded((np.float32(images[index, c, row, origin + x]) - less) * times, target)


@inlined
def _lines_at_once(height: int, line_bytes: int) -> int:
    """How many lines are streamed at a time: they end with a cache line, and take a band if that is possible."""
    aligned = 1
    while aligned * line_bytes % LINE:
        aligned *= 2
    return min(height, aligned * max(1, _BAND // (aligned * line_bytes)))


@numba_compiled(CROP.format(FLOATS))
def crop(
    images: Bytes,
    indices: Numbers,
    tops: Numbers,
    lefts: Numbers,
    flips: Bytes,
    fill: Bytes,
    mode: int,
    shift: Floats,
    scale: Floats,
    holes: Numbers,
    values: Floats,
    noise: Floats,
    streamed: bool,
    out: Pixels,
) -> None:
    """Windows of images, cropped, padded, flipped, colored, erased.

    Lines are in the innermost loops and are written in the order of the output's memory. ``target`` is flat, and is the
    output itself or the band of lines that is streamed next, already in the dtype of the output.

    Args:
        images: uint8 [N, C, H, W].
        indices: int64 [B], which of the images each sample is.
        tops: int64 [B], first row of its window, in or outside of the image.
        lefts: int64 [B], first column of it.
        flips: uint8 [B], the bits :data:`FLIPPED_X` and :data:`FLIPPED_Y`.
        fill: uint8 [C], the constant outside.
        mode: what lies outside, a place in :data:`~mmload.render.framing.PADDING_MODES`.
        shift: float32 [C]; a value becomes (x - shift) * scale.
        scale: float32 [C].
        holes: int64 [B, n, 5], what is overwritten, as :func:`~mmload.render.hole_kernels.erase` has them.
        values: float32 [n, C], by what.
        noise: float32 [w + 1], working memory.
        streamed: whether lines go past the caches, as :func:`~mmload.runtime.numba_compile.stream` asks for them.
        out: float32, or the bits of float16 or bfloat16, [B, C, h, w]; or uint8, for a color map that gives integers.
    """
    count, channels, height, width = out.shape
    lines = _lines_at_once(height, width * out.itemsize) if streamed else height
    flat, band = out.reshape(-1), np.empty(lines * width if streamed else 0, out.dtype)
    target = borrowed(band if streamed else flat)
    row_sources, column_sources = np.empty(height, np.int64), np.empty(width, np.int64)
    holes, values, noise = borrowed(holes), borrowed(values), borrowed(noise)
    for k in range(_U(count)):
        index = _U(indices[k])
        rows = _span(tops[k], height, images.shape[2], flips[k] & FLIPPED_Y != 0)
        columns = _span(lefts[k], width, images.shape[3], flips[k] & FLIPPED_X != 0)
        erased = erased_lines(holes, k)
        _find_sources(rows, images.shape[2], mode, row_sources)
        if mode != CONSTANT:
            _find_sources(columns, images.shape[3], mode, column_sources)
        for c in range(_U(channels)):
            less, times = shift[c], scale[c]
            blank = rounded((np.float32(fill[c]) - less) * times, flat)
            for start in range(0, height, lines):
                stop = min(start + lines, height)
                begun = ((k * _U(channels) + c) * _U(height) + _U(start)) * _U(width)
                for y in range(_U(start), _U(stop)):
                    at = (y - _U(start)) * _U(width) + (_U(0) if streamed else begun)
                    shown = mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end)
                    left, right = (_U(columns.begin), _U(columns.end)) if shown else (_U(width), _U(width))
                    row = _U(row_sources[y])
                    if shown:
                        _copy_inside(images, index, c, row, columns, less, times, target, at)
                    # The margins are no inlined functions: called from branches, these count references in every line,
                    # with which streamed crops took twice as long.
                    if mode == CONSTANT:
                        for x in range(left):
                            target[at + x] = blank
                        for x in range(right, _U(width)):
                            target[at + x] = blank
                    else:
                        for m in range(_U(width) - (right - left)):
                            beside = m if m < left else m + (right - left)
                            value = np.float32(images[index, c, row, _U(column_sources[beside])])
                            target[at + beside] = rounded((value - less) * times, target)
                if erased.begin < stop and erased.end > start:
                    erase(holes, values, k, c, 1, start, stop, width, noise, target, _U(0) if streamed else begun)
                if streamed:
                    stream(band, flat, begun, (stop - start) * width)
    if streamed:
        all_streamed()


@numba_compiled("void(float32[::1], float32)")
def fill(out: Floats, value: float) -> None:
    """All of ``out``, which is whole cache lines, past the caches: as fast as memory can be written."""
    band = np.full(_BAND // out.itemsize, value, out.dtype)
    for at in range(0, out.size, band.size):
        stream(band, out, at, min(band.size, out.size - at))
    all_streamed()


@inlined
def _interleave(images: Bytes, index: Index, row: Index, columns: _Span, line: Bytes) -> None:
    """A row's columns inside of the image into a line of w * C values.

    Bytes are interleaved first and colored afterwards, a whole line at once: writing colored values at a stride of
    three took 1.8 times as long. Three channels have loops of their own, as a constant stride is quick.
    """
    channels = images.shape[1]
    origin = _U(columns.origin)
    if channels == 3 and columns.flipped:
        for x in range(_U(columns.begin), _U(columns.end)):
            line[_U(3) * x] = images[index, 0, row, origin - x]
            line[_U(3) * x + _U(1)] = images[index, 1, row, origin - x]
            line[_U(3) * x + _U(2)] = images[index, 2, row, origin - x]
    elif channels == 3:
        for x in range(_U(columns.begin), _U(columns.end)):
            line[_U(3) * x] = images[index, 0, row, origin + x]
            line[_U(3) * x + _U(1)] = images[index, 1, row, origin + x]
            line[_U(3) * x + _U(2)] = images[index, 2, row, origin + x]
    else:
        for c in range(_U(channels)):
            for x in range(_U(columns.begin), _U(columns.end)):
                line[x * _U(channels) + c] = images[index, c, row, origin - x if columns.flipped else origin + x]


def crop_interleaved(
    images: Bytes,
    indices: Numbers,
    tops: Numbers,
    lefts: Numbers,
    flips: Bytes,
    fill: Bytes,
    mode: int,
    shift: Floats,
    scale: Floats,
    holes: Numbers,
    values: Floats,
    noise: Floats,
    streamed: bool,
    out: Pixels,
) -> None:
    """:func:`crop` into the memory of channels_last: ``out`` is [B, h, w * C]."""
    count, height, across = out.shape
    channels = images.shape[1]
    width = across // channels
    lines = _lines_at_once(height, across * out.itemsize) if streamed else height
    flat, band = out.reshape(-1), np.empty(lines * across if streamed else 0, out.dtype)
    target, line = borrowed(band if streamed else flat), np.empty(across, np.uint8)
    # The color map is repeated for every value of a line, so that the last pass is one plain loop.
    less, times = np.empty(across, np.float32), np.empty(across, np.float32)
    for i in range(across):
        less[i], times[i] = shift[i % channels], scale[i % channels]
    row_sources, column_sources = np.empty(height, np.int64), np.empty(width, np.int64)
    holes, values, noise = borrowed(holes), borrowed(values), borrowed(noise)
    for k in range(_U(count)):
        index = _U(indices[k])
        rows = _span(tops[k], height, images.shape[2], flips[k] & FLIPPED_Y != 0)
        columns = _span(lefts[k], width, images.shape[3], flips[k] & FLIPPED_X != 0)
        erased = erased_lines(holes, k)
        _find_sources(rows, images.shape[2], mode, row_sources)
        _find_sources(columns, images.shape[3], mode, column_sources)
        for start in range(0, height, lines):
            stop = min(start + lines, height)
            begun = (k * _U(height) + _U(start)) * _U(across)
            for y in range(_U(start), _U(stop)):
                shown = mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end)
                row = _U(row_sources[y])
                if shown:
                    _interleave(images, index, row, columns, line)
                left, right = (_U(columns.begin), _U(columns.end)) if shown else (_U(width), _U(width))
                # One loop for both kinds of margins and for blank lines: with loops of their own, LLVM compiles the
                # rest of the body once for each kind and does not vectorize the last pass, which took twice as long.
                for m in range(_U(width) - (right - left)):
                    x = m if m < left else m + (right - left)
                    for c in range(_U(channels)):
                        value = fill[c] if mode == CONSTANT else images[index, c, row, _U(column_sources[x])]
                        line[x * _U(channels) + c] = value
                base = (y - _U(start)) * _U(across) + (_U(0) if streamed else begun)
                for i in range(_U(across)):
                    target[base + i] = rounded((np.float32(line[i]) - less[i]) * times[i], flat)
            if erased.begin < stop and erased.end > start:
                erase(holes, values, k, 0, channels, start, stop, across, noise, target, _U(0) if streamed else begun)
            if streamed:
                stream(band, flat, begun, (stop - start) * across)
    if streamed:
        all_streamed()


def crop_into(out: Pixels) -> Callable[..., None]:
    """:func:`crop` or :func:`crop_interleaved` for an output of this shape and dtype.

    Contiguous float32 is compiled with the module; each other by its first call, which takes 3 to 5 s once a machine.
    """
    kind = kind_of(out)
    return crop if kind == FLOATS else variant(crop if out.ndim == 4 else crop_interleaved, CROP.format(kind))


def kind_of(out: Pixels) -> str:
    """The type of an output in signatures."""
    return f"{out.dtype}[:, :, :, ::1]" if out.ndim == 4 else f"{out.dtype}[:, :, ::1]"
