"""Loop that mixes the samples of a batch on a CPU, compiled: each with the one before it, the first with the last.

Levels (uint8, after geometry and operations on them) are colored, erased, blended and pasted in float32, each operation
rounded, as by torch's operations on the whole batch: no fused multiply-add. Only results are rounded to half precision.
Nothing is checked here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mmload.render.cpu_kernels import Index, lines_at_once
from mmload.render.holes import LineRange, erase, erased_lines
from mmload.render.kernel_arguments import BYTES, OUTPUTS, Bytes, Floats, Numbers, Paint, Pixels
from mmload.runtime.intrinsics import Arena, carve, finish_streams, reshaped, rounded, stream
from mmload.runtime.kernels import ARENA, called, numba_compiled

_U = np.uintp

SLOTS, TURNS, _FIRST = 3, 2, np.uintp(2)
"""Places of levels: of all, of those that samples take in turn, and which one is the batch's first sample's."""


class _Colors(NamedTuple):
    """Color map of the values of some lines, float32 [l * V] each."""

    shift: Floats
    scale: Floats


@called
def _color(colors: _Colors, levels: Bytes, begin: Index, count: Index, target: Pixels, at: Index) -> None:
    """Colors values of one sample."""
    shift, scale = colors.shift, colors.scale
    for i in range(_U(count)):
        target[at + i] = rounded((np.float32(levels[begin + i]) - shift[i]) * scale[i], target)


@called
def _blend(
    colors: _Colors, levels: Bytes, begins: tuple[Any, Any], count: Index, share: float, target: Pixels, at: Index
) -> None:
    """Colors values of two samples, which begin at two places of the levels, and blends them."""
    shift, scale = colors.shift, colors.scale
    own, other = begins
    rest = np.float32(1) - share
    for i in range(_U(count)):
        value = (np.float32(levels[own + i]) - shift[i]) * scale[i]
        partner = (np.float32(levels[other + i]) - shift[i]) * scale[i]
        target[at + i] = rounded(value * share + partner * rest, target)


def mix(
    levels: Bytes, paint: Paint, shares: Floats, boxes: Numbers, first: int, samples: Numbers, arena: Arena, out: Pixels
) -> None:
    """Colors and erases samples of a batch, and mixes each with the one before it: the batch's first after its last.

    A sample is mixed while its levels and those of the one before it are in cache: they take two places in turn. The
    levels of all samples took 1.1 times as long.

    Args:
        levels: uint8 [3, P, h, V], lines of C channels with w values each, or lines of w * C interleaved values: those
            of a sample and the one before it, and a place for the batch's first.
        paint: color map and holes of all samples.
        shares: float32 [B], the share that a sample keeps of itself where it is blended; 1: it is not.
        boxes: int64 [B, 4], x1 y1 x2 y2 of the rectangle that is pasted; empty: none.
        first: number of the sample that ``samples`` count from.
        samples: int64 [2], the first sample and the one after the last, whose levels are there.
        arena: working memory.
        out: [B, P, h, V].
    """
    count, planes, height, across = out.shape
    depth, streamed, holes = len(paint.shift) // planes, paint.streamed, paint.holes
    lines = lines_at_once(height, across * out.itemsize)
    size = lines * across
    flat, source, band = reshaped(out, out.size), reshaped(levels, levels.size), carve(arena, size, out.dtype)
    target = band if streamed else flat
    own_lines, other_lines = carve(arena, size, np.float32), carve(arena, size, np.float32)
    colors = _Colors(carve(arena, size, np.float32), carve(arena, size, np.float32))
    slot = _U(planes * height * across)
    for i in range(slot if first + samples[0] == 0 else _U(0)):
        source[_FIRST * slot + i] = source[i]
    ended = first + samples[1]
    for turn in range(max(first + samples[0], 1), ended + 1 if ended == count else ended):
        k = turn % count
        before, share = (k if k else count) - 1, shares[k]
        left, right = boxes[k, 0] * depth, boxes[k, 2] * depth
        top, bottom = boxes[k, 1], boxes[k, 3]
        (begin, end), (begin_other, end_other) = erased_lines(holes, k), erased_lines(holes, before)
        begin, end = min(begin, begin_other), max(end, end_other)
        for p in range(planes):
            for i in range(size // depth):
                for c in range(depth):
                    at, channel = i * depth + c, p * depth + c
                    colors.shift[at], colors.scale[at] = paint.shift[channel], paint.scale[channel]
            for step in range((height + lines - 1) // lines):
                start, stop = step * lines, min(step * lines + lines, height)
                values = _U((stop - start) * across)
                skipped = _U((p * height + start) * across)
                own = (_U(turn % TURNS) if turn < count else _FIRST) * slot + skipped
                other, begun = _U((turn - 1) % TURNS) * slot + skipped, _U(k) * slot + skipped
                into = _U(0) if streamed else begun
                pasted = range(max(start, top), min(stop, bottom) if right > left else 0)
                if begin < stop and end > start:
                    erased = LineRange(p, depth, start, stop, across)
                    _color(colors, source, own, values, own_lines, _U(0))
                    _color(colors, source, other, values, other_lines, _U(0))
                    erase(holes, k, erased, own_lines, 0, arena)
                    erase(holes, before, erased, other_lines, 0, arena)
                    rest = np.float32(1) - share
                    for i in range(values):
                        blended = own_lines[i] * share + other_lines[i] * rest
                        target[into + i] = rounded(own_lines[i] if share == np.float32(1) else blended, target)
                    for y in pasted:
                        for i in range(_U((y - start) * across + left), _U((y - start) * across + right)):
                            target[into + i] = rounded(other_lines[i], target)
                else:
                    if share == np.float32(1):
                        _color(colors, source, own, values, target, into)
                    else:
                        _blend(colors, source, (own, other), values, share, target, into)
                    for y in pasted:
                        beside = _U((y - start) * across + left)
                        _color(colors, source, other + beside, _U(right - left), target, into + beside)
                if streamed:
                    stream(band, flat, begun, values)
    if streamed:
        finish_streams()


MIXES = {
    dtype: numba_compiled(OUTPUTS[BYTES], Paint, "float32[::1], int64[:, ::1], int64, int64[::1]", ARENA, kind)(mix)
    for dtype, kind in OUTPUTS.items()
}
"""The loop, by dtype of the output."""
