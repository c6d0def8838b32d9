"""The loops that mix samples on a CPU, compiled: a sample with the one before it, while both are in cache.

Levels (uint8, after geometry and operations on them) are kept from sample to sample, as lines of one channel each, or
of interleaved channels where the output is channels_last. They are colored, erased, blended and pasted in float32, each
operation rounded, as by torch's operations on the whole batch: no fused multiply-add. Only results are rounded to half
precision. Nothing is checked here:
:mod:`mmload.render.cpu_mixing` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmload.render.cpu_kernels import (
    FLIPPED_X,
    FLIPPED_Y,
    Bytes,
    Floats,
    Index,
    Numbers,
    Pixels,
    _find_sources,
    _Span,
    _span,
)
from mmload.render.hole_kernels import erase
from mmload.render.padded_positions import CONSTANT
from mmload.runtime.half_precision import rounded
from mmload.runtime.numba_compile import LINE, all_streamed, borrowed, called, numba_compiled, stream, variant

SLOTS = 3
"""Samples whose levels are kept: the first, which is mixed with the last, and two that take turns."""

_BAND = 2 * 2**10
"""Bytes of the lines that are mixed, and streamed, at a time: few, as in :mod:`mmload.render.cpu_kernels`."""

_CUT = 8
"""Bands that are cut out of an image before they are mixed: 1 took 1.17 times as long, a whole sample 1.03 times."""

_U = np.uintp


def lines_at_once(height: int, line_bytes: int) -> int:
    """How many lines are mixed at a time: if it is possible they end with a cache line, and take a band."""
    aligned = 1
    while aligned * line_bytes % LINE:
        aligned *= 2
    return min(height, aligned * max(1, _BAND // (aligned * line_bytes)))


def slot_of(sample: int) -> int:
    """Where a sample's levels are kept."""
    return 1 + (sample & 1) if sample else 0


_slot_of = called(slot_of)


@called
def _cut(
    images: Bytes,
    index: Index,
    plane: Index,
    depth: Index,
    rows: _Span,
    row_sources: Numbers,
    columns: _Span,
    column_sources: Numbers,
    fill: Bytes,
    mode: int,
    start: int,
    stop: int,
    levels: Bytes,
    base: Index,
) -> None:
    """Lines ``start`` to ``stop`` of a sample's window into the kept levels, whose first line is at ``base``.

    A loop for each direction and for one and three channels: only a constant stride is vectorized.
    """
    width = _U(len(column_sources))
    origin = _U(columns.origin)
    for y in range(_U(start), _U(stop)):
        at = base + y * width * depth
        row = _U(row_sources[y])
        shown = mode != CONSTANT or _U(rows.begin) <= y < _U(rows.end)
        begin, end = (_U(columns.begin), _U(columns.end)) if shown else (width, width)
        if depth == _U(1) and columns.flipped:
            for x in range(begin, end):
                levels[at + x] = images[index, plane, row, origin - x]
        elif depth == _U(1):
            for x in range(begin, end):
                levels[at + x] = images[index, plane, row, origin + x]
        elif depth == _U(3) and columns.flipped:
            for x in range(begin, end):
                levels[at + _U(3) * x] = images[index, 0, row, origin - x]
                levels[at + _U(3) * x + _U(1)] = images[index, 1, row, origin - x]
                levels[at + _U(3) * x + _U(2)] = images[index, 2, row, origin - x]
        elif depth == _U(3):
            for x in range(begin, end):
                levels[at + _U(3) * x] = images[index, 0, row, origin + x]
                levels[at + _U(3) * x + _U(1)] = images[index, 1, row, origin + x]
                levels[at + _U(3) * x + _U(2)] = images[index, 2, row, origin + x]
        else:
            for c in range(depth):
                for x in range(begin, end):
                    levels[at + x * depth + c] = images[index, c, row, origin - x if columns.flipped else origin + x]
        for m in range(width - (end - begin)):
            x = m if m < begin else m + (end - begin)  # type: ignore[assignment]  # a literal is an index, too
            for c in range(depth):
                value = fill[plane + c] if mode == CONSTANT else images[index, plane + c, row, _U(column_sources[x])]
                levels[at + x * depth + c] = value


@called
def _color(
    levels: Bytes, begin: Index, count: Index, shift: Floats, scale: Floats, plane: Index, target: Pixels, at: Index
) -> None:
    """Values of one sample."""
    for i in range(_U(count)):
        target[at + i] = rounded((np.float32(levels[begin + i]) - shift[plane, i]) * scale[plane, i], target)


@called
def _blend(
    levels: Bytes,
    own: Index,
    other: Index,
    count: Index,
    shift: Floats,
    scale: Floats,
    plane: Index,
    share: float,
    target: Pixels,
    at: Index,
) -> None:
    """Values of two samples, blended."""
    rest = np.float32(1) - share
    for i in range(_U(count)):
        value = (np.float32(levels[own + i]) - shift[plane, i]) * scale[plane, i]
        partner = (np.float32(levels[other + i]) - shift[plane, i]) * scale[plane, i]
        target[at + i] = rounded(value * share + partner * rest, target)


@called
def _is_erased(holes: Numbers, sample: int, begin: int, end: int) -> bool:
    """Whether a hole of a sample crosses these lines."""
    for n in range(holes.shape[1]):
        top, height = holes[sample, n, 0], holes[sample, n, 2]
        if height and top < end and top + height > begin:
            return True
    return False


@called
def _hold(memory: Floats, sources: Numbers) -> None:
    """Does nothing, but what it is given lives as long."""


_MIX = (
    "void(uint8[:, :, :, ::1], int64[::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64, "
    "float32[:, ::1], float32[:, ::1], int64, boolean, float32[::1], int64[:, ::1], int64[:, :, ::1], "
    "float32[:, ::1], float32[::1], uint8[::1], boolean, {})"
)


@numba_compiled(_MIX.format("float32[:, :, :, ::1]"), _MIX.format("uint8[:, :, :, ::1]"))
def mix(
    images: Bytes,
    indices: Numbers,
    tops: Numbers,
    lefts: Numbers,
    flips: Bytes,
    fill: Bytes,
    mode: int,
    shift: Floats,
    scale: Floats,
    first: int,
    last: bool,
    shares: Floats,
    boxes: Numbers,
    holes: Numbers,
    values: Floats,
    noise: Floats,
    levels: Bytes,
    streamed: bool,
    out: Pixels,
) -> None:
    """Windows of images, cropped, padded, flipped, colored, erased, each mixed with the one of the sample before.

    The batch's first sample is only kept, and mixed in a call of its own after the last. Lines are [P, h, V]: those of
    C channels with w values each, or lines of w * C interleaved values.

    Args:
        images: uint8 [N, C, H, W].
        indices: int64 [b], which of the images each sample is.
        tops: int64 [b], as :func:`mmload.render.cpu_kernels.crop` has them, like the next four.
        lefts: int64 [b].
        flips: uint8 [b].
        fill: uint8 [C].
        mode: what lies outside.
        shift: float32 [P, l * V], of every value of l = :func:`lines_at_once`; a value becomes (x - shift) * scale.
        scale: float32 [P, l * V].
        first: place of the first of these samples in the batch.
        last: whether all are kept, and only the batch's first sample is to be mixed, with the last.
        shares: float32 [B], what every sample keeps of itself where it is blended; 1: all.
        boxes: int64 [B, 4], x1 y1 x2 y2 of what is pasted; empty: nothing.
        holes: int64 [B, n, 5], what is overwritten before, as :func:`~mmload.render.hole_kernels.erase` has them.
        values: float32 [n, C], by what.
        noise: float32 [w + 1], working memory.
        levels: uint8 [SLOTS * C * h * w], kept from call to call.
        streamed: whether lines go past the caches.
        out: float32, or the bits of float16 or bfloat16, [b, P, h, V]; or uint8, for a color map that gives integers.
    """
    count, planes, height, across = out.shape
    depth = images.shape[1] // planes
    lines = shift.shape[1] // across
    flat = out.reshape(-1)
    band = np.empty(lines * across if streamed else 0, out.dtype)
    erased = holes.shape[1] > 0
    memory = np.empty((2, lines * across if erased else 0), np.float32)
    sources = np.empty((2, max(height, across // depth)), np.int64)
    # Nothing in the loop over bands may count references.
    target = borrowed(band if streamed else flat)
    images, fill, levels, shift, scale = (
        borrowed(images),
        borrowed(fill),
        borrowed(levels),
        borrowed(shift),
        borrowed(scale),
    )
    holes, values, noise = borrowed(holes), borrowed(values), borrowed(noise)
    own_lines, other_lines = borrowed(memory[0]), borrowed(memory[1])
    row_sources, column_sources = borrowed(sources[0, :height]), borrowed(sources[1, : across // depth])
    size = _U(planes * height * across)
    for k in range(count):
        sample = first + k
        before = (sample if sample else len(shares)) - 1
        own, other = _U(_slot_of(sample)) * size, _U(_slot_of(before)) * size
        index = _U(indices[k])
        rows = _span(tops[k], height, images.shape[2], flips[k] & FLIPPED_Y != 0)
        columns = _span(lefts[k], across // depth, images.shape[3], flips[k] & FLIPPED_X != 0)
        _find_sources(rows, images.shape[2], mode, row_sources)
        _find_sources(columns, images.shape[3], mode, column_sources)
        share = shares[sample]
        left, top, right, bottom = boxes[sample, 0], boxes[sample, 1], boxes[sample, 2], boxes[sample, 3]
        left, right = left * depth, right * depth
        for p in range(_U(planes)):
            plane = p * _U(height * across)
            for start in range(0, height, lines):
                if not last and start % (_CUT * lines) == 0:
                    cut = min(start + _CUT * lines, height)
                    _cut(
                        images,
                        index,
                        p,
                        _U(depth),
                        rows,
                        row_sources,
                        columns,
                        column_sources,
                        fill,
                        mode,
                        start,
                        cut,
                        levels,
                        own + plane,
                    )
                if not last and sample == 0:
                    continue
                stop = min(start + lines, height)
                count_here = _U((stop - start) * across)
                skipped = plane + _U(start * across)
                begun = _U(k) * size + skipped
                at = _U(0) if streamed else begun
                pasted = range(max(start, top), min(stop, bottom) if right > left else 0)
                if erased and (_is_erased(holes, sample, start, stop) or _is_erased(holes, before, start, stop)):
                    _color(levels, own + skipped, count_here, shift, scale, p, own_lines, _U(0))
                    _color(levels, other + skipped, count_here, shift, scale, p, other_lines, _U(0))
                    erase(holes, values, sample, p, depth, start, stop, across, noise, own_lines, 0)
                    erase(holes, values, before, p, depth, start, stop, across, noise, other_lines, 0)
                    rest = np.float32(1) - share
                    for i in range(count_here):
                        blended = own_lines[i] * share + other_lines[i] * rest
                        target[at + i] = rounded(own_lines[i] if share == np.float32(1) else blended, target)
                    for y in pasted:
                        for i in range(_U((y - start) * across + left), _U((y - start) * across + right)):
                            target[at + i] = rounded(other_lines[i], target)
                else:
                    if share == np.float32(1):
                        _color(levels, own + skipped, count_here, shift, scale, p, target, at)
                    else:
                        _blend(levels, own + skipped, other + skipped, count_here, shift, scale, p, share, target, at)
                    for y in pasted:
                        into = _U((y - start) * across + left)
                        _color(levels, other + skipped + into, _U(right - left), shift, scale, p, target, at + into)
                if streamed:
                    stream(band, flat, begun, count_here)
    if streamed:
        all_streamed()
    _hold(memory, sources)


def mix_into(out: Pixels) -> Callable[..., None]:
    """:func:`mix` for an output of this dtype; half precision is compiled by its first call."""
    if out.dtype in (np.float32, np.uint8):
        return mix
    return variant(mix, _MIX.format(f"{out.dtype}[:, :, :, ::1]"))
