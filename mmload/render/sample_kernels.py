"""Samples that are resized or whose levels change, rendered by one call: each is finished before the next one.

Calls from Python for each of these steps, four samples at a time, took 50 us per image where levels change and a tenth
of the time of a batch of resized crops, as the loops evict the interpreter from the caches. The levels of one sample
stay in the L2 cache. Kernels are called by their addresses, so that none is compiled anew into these loops. Nothing is
checked here; :mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mmload.render.arrival import is_there
from mmload.render.cpu_kernels import crop, crop_interleaved
from mmload.render.holes import no_holes
from mmload.render.kernel_arguments import (
    BLEND,
    BYTES,
    CHANGE,
    COLOR,
    COPY_WINDOWS,
    FINISH_COMPOSED,
    FINISH_RESIZED,
    FINISH_STORED,
    IN_PLACE,
    INSIDE,
    OUTPUTS,
    PAINT,
    RESIZE,
    RUN,
    WINDOW,
    Arrival,
    Bytes,
    Calls,
    Changes,
    Composed,
    Crops,
    Holes,
    Operations,
    Output,
    Paint,
    Pixels,
    Resizes,
    crop_signature,
)
from mmload.render.level_program import MOST_NUMBERS, Program
from mmload.runtime.arena import USED, Arena
from mmload.runtime.declarations import CallBy, inlined
from mmload.runtime.numba_compile import address_of, numba_compiled

_copy_windows, _crop_bytes, _run = CallBy(COPY_WINDOWS), CallBy(crop_signature(BYTES)), CallBy(RUN)
_resize, _paint_tiles, _blend = CallBy(RESIZE), CallBy(PAINT), CallBy(BLEND)
_change, _color = CallBy(CHANGE), CallBy(COLOR)


@inlined
def _paint_of(paint: Paint, k: int) -> Paint:
    """Returns the color map with the holes of one sample."""
    return Paint(paint.shift, paint.scale, Holes(paint.holes.sides[k : k + 1], paint.holes.values), paint.streamed)


@inlined
def _operations_of(operations: Operations, k: int) -> Operations:
    """Returns the operations of one sample."""
    return Operations(operations.codes[k : k + 1], operations.numbers[k : k + 1], operations.fills)


@inlined
def _sample_of(out: Output, k: int) -> Output:
    """Returns the memory of one sample."""
    return Output(out.address + np.uintp(k * out.step), 1, out.first, out.second, out.third, out.step)


@numba_compiled(CHANGE)
def render_changed(crops: Crops, paint: Paint, changes: Changes, calls: Calls, arena: Arena, out: Output) -> None:
    """Cuts samples out, changes their levels, colors and erases them.

    Flips that are due after the operations are written into the windows.
    """
    levels, begun = changes.levels, arena[USED]
    for k in range(len(crops.windows)):
        arena[USED] = begun
        window = crops.windows[k : k + 1]
        flips, window[0].flips = window[0].flips, 0
        image = levels[k % len(levels) : k % len(levels) + 1]
        if changes.origin == IN_PLACE:
            image = crops.images[window[0].index : window[0].index + 1]
        elif changes.origin == INSIDE:
            _copy_windows(calls.cut, (crops.images, window, image))
        else:
            shown = Crops(crops.images, window, crops.fill, crops.mode)
            _crop_bytes(calls.pad, (shown, changes.plain, arena, image))
        window[0].flips = flips
        _run(calls.run, (image, window, _operations_of(changes.operations, k), arena))
        if calls.color:
            changes.still[0].flips = window[0].flips
            still = Crops(image, changes.still, crops.fill, crops.mode)
            _color(calls.color, (still, _paint_of(paint, k), arena, _sample_of(out, k)))


@inlined
def _finish(k: int, crops: Crops, paint: Paint, changes: Changes, calls: Calls, arena: Arena, out: Output) -> None:
    """Cuts sample ``k`` out of the only image of ``crops``, changes its levels, colors and erases it.

    Without operations no levels change.
    """
    window = Crops(crops.images, crops.windows[k : k + 1], crops.fill, crops.mode)
    if changes.operations.codes.shape[1]:
        operations = _operations_of(changes.operations, k)
        own = Changes(operations, changes.levels, changes.still, changes.plain, changes.origin)
        _change(calls.change, (window, _paint_of(paint, k), own, calls, arena, _sample_of(out, k)))
    else:
        _color(calls.color, (window, _paint_of(paint, k), arena, _sample_of(out, k)))


@numba_compiled(FINISH_STORED)
def render_stored(
    arrival: Arrival, crops: Crops, paint: Paint, changes: Changes, calls: Calls, arena: Arena, out: Output
) -> None:
    """Finishes samples as their rows, which are among the images of ``crops``, arrive."""
    begun = arena[USED]
    for k in range(len(crops.windows)):
        arena[USED] = begun
        if not is_there(arrival, arrival.first + k, arena):
            break
        _finish(k, crops, paint, changes, calls, arena, out)


@numba_compiled(FINISH_RESIZED)
def render_resized(
    resizes: Resizes,
    arrival: Arrival,
    crops: Crops,
    paint: Paint,
    changes: Changes,
    calls: Calls,
    arena: Arena,
    out: Output,
) -> None:
    """Resizes samples into the image of ``crops`` and finishes them, as their rows arrive."""
    begun = arena[USED]
    for k in range(len(resizes.windows)):
        arena[USED] = begun
        if not is_there(arrival, arrival.first + k, arena):
            break
        place, resized = resizes.places[k : k + 1], resizes.windows[k : k + 1]
        memory, decoded, fill, ground = resizes.memory, resizes.decoded, resizes.fill, resizes.ground
        one = Resizes(memory, place, decoded, resized, fill, resizes.mode, ground, resizes.reach)
        _resize(calls.resize, (one, crops.images, arena))
        _finish(k, crops, paint, changes, calls, arena, out)


@numba_compiled(FINISH_COMPOSED)
def render_composed(
    composed: Composed,
    arrival: Arrival,
    crops: Crops,
    paint: Paint,
    changes: Changes,
    calls: Calls,
    arena: Arena,
    out: Output,
) -> None:
    """Paints samples, whose canvas is the image of ``crops``, and finishes them; paints tiles of the next one.

    The rows of tiles arrive one after another; what follows one that cannot is not rendered.
    """
    count, begun = len(composed.shares), arena[USED]
    for k in range(count + 1):
        arena[USED] = begun
        begin, end = composed.starts[k], composed.starts[k + 1] if k < count else len(composed.tiles)
        places, tiles, row = composed.places[begin:end], composed.tiles[begin:end], arrival.first + begin
        stored = composed.memory, places, composed.decoded, arrival, row
        _paint_tiles(calls.paint, (*stored, tiles, composed.ground, composed.levels, arena))
        if arrival.address and arrival.failed[0] >= 0:
            break
        if k < count:
            if not np.isnan(composed.shares[k]):
                _blend(calls.blend, (composed.levels, composed.shares[k]))
            _finish(k, crops, paint, changes, calls, arena, out)


def calls_for(out: Pixels | None, kernel: Callable[..., Any], *, changing: bool) -> Calls:
    """Returns the addresses of what a kernel of this module calls.

    Args:
        out: the output; None: levels are changed, and not colored.
        kernel: the kernel, of any signature.
        changing: whether there are operations.
    """
    return _calls_for(None if out is None else (out.dtype, out.ndim), kernel, changing)


@lru_cache(maxsize=8 * len(OUTPUTS))
def _calls_for(kind: tuple[np.dtype[Any], int] | None, kernel: Callable[..., Any], changing: bool) -> Calls:
    calls = Calls()
    if kind is not None:
        output, color = OUTPUTS[kind], crop if kind[1] == 4 else crop_interleaved
        calls = calls._replace(color=address_of(color, crop_signature(output)))
    # What follows is compiled only by those who have such steps.
    if changing:
        from mmload.render.level_kernels import copy_windows, run_operations

        cut, pad = address_of(copy_windows, COPY_WINDOWS), address_of(crop, crop_signature(BYTES))
        change, run = address_of(render_changed, CHANGE), address_of(run_operations, RUN)
        calls = calls._replace(cut=cut, pad=pad, run=run, change=change)
    if kernel is render_resized:
        from mmload.render.resized_windows import resize

        calls = calls._replace(resize=address_of(resize, RESIZE))
    if kernel is render_composed:
        from mmload.render.canvas_kernels import blend, paint

        calls = calls._replace(paint=address_of(paint, PAINT), blend=address_of(blend, BLEND))
    return calls


def operations_of(program: Program, channels: int) -> Operations:
    """Returns the operations of a program as kernels take them; a missing fill is -1."""
    fills = [
        (-1.0,) * channels if slot.fill is None else slot.fill * (channels // len(slot.fill)) for slot in program.slots
    ]
    shape = len(program.codes), len(program.slots), MOST_NUMBERS
    numbers = np.ascontiguousarray(program.numbers).reshape(shape)
    codes = np.ascontiguousarray(program.codes)
    return Operations(codes, numbers, np.array(fills, np.int64).reshape(-1, channels))


def no_operations(count: int, channels: int) -> Operations:
    """Returns no operations, for ``count`` samples."""
    nothing = np.zeros((count, 0), np.int64), np.zeros((count, 0, MOST_NUMBERS), np.float32)
    return Operations(*nothing, np.zeros((0, channels), np.int64))


def changes_of(operations: Operations, samples: slice, levels: Bytes, origin: int) -> Changes:
    """Returns what :func:`render_changed` takes for some samples.

    Args:
        operations: operations of all samples.
        samples: which of them.
        levels: uint8 [n, C, h, w], memory for one sample, or without an output for all of them.
        origin: origin of the levels, as :class:`~mmload.render.kernel_arguments.Changes` has it.
    """
    channels = levels.shape[1]
    own = operations._replace(codes=operations.codes[samples], numbers=operations.numbers[samples])
    black = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    plain = Paint(*black, no_holes(1, channels), False)
    return Changes(own, levels, np.zeros(1, WINDOW), plain, origin)
