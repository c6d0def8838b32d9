"""Samples that are resized or whose levels change, rendered by one call: each is finished before the next one.

Calls from Python for each of these steps, four samples at a time, took 50 us per image where levels change and a tenth
of the time of a batch of resized crops, as the loops evict the interpreter from the caches. The levels of one sample
stay in the L2 cache. The kernels are called by their addresses: these loops are compiled for each kind of output, the
kernels are not. Nothing is checked here; :mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mmload.render.arrival import is_there
from mmload.render.cpu_kernels import crop, crop_interleaved, crop_into
from mmload.render.holes import no_holes
from mmload.render.kernel_arguments import (
    BLEND,
    BYTES,
    COPY_WINDOWS,
    IN_PLACE,
    INSIDE,
    OUTPUTS,
    PAINT,
    RESIZE,
    RUN,
    WINDOW,
    Addresses,
    Arrival,
    Bytes,
    Changes,
    Composed,
    Crops,
    Holes,
    Operations,
    Paint,
    Pixels,
    Resizes,
    Scratch,
    changed_signature,
    compiled_for,
    composed_signature,
    crop_signature,
    resized_signature,
    stored_signature,
)
from mmload.render.level_program import MOST_NUMBERS, Program
from mmload.runtime.declarations import CallBy, Signature, inlined
from mmload.runtime.memory_pool import scratch
from mmload.runtime.numba_compile import address_of, numba_compiled, variant

_KINDS = tuple(OUTPUTS.values())

_NO_ADDRESSES: Addresses = np.zeros(0, np.uintp)
_NO_SCRATCH = Scratch(np.empty(0, np.uint8), np.empty(0, np.float32), np.empty(0, np.uint32))

_copy_windows, _crop_bytes, _run, _resize = map(CallBy, (COPY_WINDOWS, crop_signature(BYTES), RUN, RESIZE))
_paint_tiles, _blend = map(CallBy, (PAINT, BLEND))
_change = CallBy(*map(changed_signature, _KINDS))
_color = CallBy(*map(crop_signature, _KINDS))


@inlined
def _paint_of(paint: Paint, k: int) -> Paint:
    """Returns the color map with the holes of one sample."""
    holes = Holes(paint.holes.sides[k : k + 1], paint.holes.values, paint.holes.noise)
    return Paint(paint.shift, paint.scale, holes, paint.streamed)


@inlined
def _operations_of(operations: Operations, k: int) -> Operations:
    """Returns the operations of one sample."""
    return Operations(operations.codes[k : k + 1], operations.numbers[k : k + 1], operations.fills)


@numba_compiled(*map(changed_signature, _KINDS))
def render_changed(crops: Crops, paint: Paint, changes: Changes, out: Pixels) -> None:
    """Cuts samples out, changes their levels, colors and erases them.

    The addresses are those of :func:`~mmload.render.level_kernels.copy_windows`, a crop to bytes, ``run_operations``,
    and a crop to ``out``, or 0 for none. Flips that are due after the operations are written into the windows.
    """
    addresses, levels = changes.addresses, changes.levels
    for k in range(len(crops.windows)):
        window = crops.windows[k : k + 1]
        flips, window[0].flips = window[0].flips, 0
        image = levels[k % len(levels) : k % len(levels) + 1]
        if changes.origin == IN_PLACE:
            image = crops.images[window[0].index : window[0].index + 1]
        elif changes.origin == INSIDE:
            _copy_windows(addresses[0], (crops.images, window, image))
        else:
            _crop_bytes(addresses[1], (Crops(crops.images, window, crops.fill, crops.mode), changes.plain, image))
        window[0].flips = flips
        _run(addresses[2], (image, window, _operations_of(changes.operations, k), changes.scratch))
        if addresses[3]:
            changes.still[0].flips = window[0].flips
            still = Crops(image, changes.still, crops.fill, crops.mode)
            _color(addresses[3], (still, _paint_of(paint, k), out[k : k + 1]))


@inlined
def _finish(k: int, crops: Crops, paint: Paint, changes: Changes, addresses: Addresses, out: Pixels) -> None:
    """Cuts sample ``k`` out of the only image of ``crops``, changes its levels, colors and erases it.

    Without operations no levels change. The addresses are :func:`render_changed` or 0, and a crop to ``out``.
    """
    window = Crops(crops.images, crops.windows[k : k + 1], crops.fill, crops.mode)
    if changes.operations.codes.shape[1]:
        own = Changes(
            _operations_of(changes.operations, k),
            changes.scratch,
            changes.levels,
            changes.still,
            changes.plain,
            changes.origin,
            changes.addresses,
        )
        _change(addresses[0], (window, _paint_of(paint, k), own, out[k : k + 1]))
    else:
        _color(addresses[1], (window, _paint_of(paint, k), out[k : k + 1]))


@numba_compiled(*map(stored_signature, _KINDS))
def render_stored(
    arrival: Arrival, crops: Crops, paint: Paint, changes: Changes, addresses: Addresses, out: Pixels
) -> None:
    """Finishes samples as their rows, which are among the images of ``crops``, arrive.

    The addresses are those of :func:`_finish`.
    """
    for k in range(len(crops.windows)):
        if not is_there(arrival, arrival.first + k):
            break
        _finish(k, crops, paint, changes, addresses, out)


@numba_compiled(*map(resized_signature, _KINDS))
def render_resized(
    resizes: Resizes,
    arrival: Arrival,
    crops: Crops,
    paint: Paint,
    changes: Changes,
    addresses: Addresses,
    out: Pixels,
) -> None:
    """Resizes samples into the image of ``crops`` and finishes them, as their rows arrive.

    The addresses are those of :func:`_finish`, and :func:`~mmload.render.resized_windows.resize`.
    """
    for k in range(len(resizes.windows)):
        if not is_there(arrival, arrival.first + k):
            break
        place, resized = resizes.places[k : k + 1], resizes.windows[k : k + 1]
        memory, decoded, fill, ground = resizes.memory, resizes.decoded, resizes.fill, resizes.ground
        one = Resizes(memory, place, decoded, resized, fill, resizes.mode, ground, resizes.reach)
        _resize(addresses[2], (one, crops.images))
        _finish(k, crops, paint, changes, addresses, out)


@numba_compiled(*map(composed_signature, _KINDS))
def render_composed(
    composed: Composed,
    arrival: Arrival,
    crops: Crops,
    paint: Paint,
    changes: Changes,
    addresses: Addresses,
    out: Pixels,
) -> None:
    """Paints samples, whose canvas is the image of ``crops``, and finishes them; paints tiles of the next one.

    The rows of tiles arrive one after another; what follows one that cannot is not rendered.

    The addresses are those of :func:`_finish`, and those of :func:`~mmload.render.canvas_kernels.paint` and ``blend``.
    """
    count = len(composed.shares)
    for k in range(count + 1):
        begin, end = composed.starts[k], composed.starts[k + 1] if k < count else len(composed.tiles)
        places, tiles, row = composed.places[begin:end], composed.tiles[begin:end], arrival.first + begin
        stored = composed.memory, places, composed.decoded, arrival, row
        _paint_tiles(addresses[2], (*stored, tiles, composed.ground, composed.levels))
        if arrival.address and arrival.failed[0] >= 0:
            break
        if k < count:
            if not np.isnan(composed.shares[k]):
                _blend(addresses[3], (composed.levels, composed.shares[k]))
            _finish(k, crops, paint, changes, addresses, out)


def store_into(out: Pixels) -> Callable[..., None]:
    """Returns :func:`render_stored` for an output."""
    return compiled_for(out, render_stored, stored_signature)


def change_into(out: Pixels) -> Callable[..., None]:
    """Returns :func:`render_changed` for an output."""
    return compiled_for(out, render_changed, changed_signature)


def resize_into(out: Pixels) -> Callable[..., None]:
    """Returns :func:`render_resized` for an output."""
    return compiled_for(out, render_resized, resized_signature)


def compose_into(out: Pixels) -> Callable[..., None]:
    """Returns :func:`render_composed` for an output."""
    return compiled_for(out, render_composed, composed_signature)


def store_addresses(out: Pixels, changing: bool) -> Addresses:
    """Returns the addresses that :func:`render_stored` takes for an output, with operations or without."""
    return _finish_addresses(out.dtype, out.ndim, changing, ())


def resize_addresses(out: Pixels, changing: bool) -> Addresses:
    """Returns the addresses that :func:`render_resized` takes for an output, with operations or without."""
    from mmload.render.resized_windows import resize  # compiled only by those who resize

    return _finish_addresses(out.dtype, out.ndim, changing, ((resize, RESIZE),))


def compose_addresses(out: Pixels, changing: bool) -> Addresses:
    """Returns the addresses that :func:`render_composed` takes for an output, with operations or without."""
    from mmload.render.canvas_kernels import blend, paint  # compiled only by those who have such steps

    return _finish_addresses(out.dtype, out.ndim, changing, ((paint, PAINT), (blend, BLEND)))


@lru_cache(maxsize=4 * len(OUTPUTS))
def _finish_addresses(
    dtype: np.dtype[Any], ndim: int, changing: bool, more: tuple[tuple[Callable[..., None], Signature], ...]
) -> Addresses:
    kind = OUTPUTS[dtype, ndim]
    change = address_of(render_changed, changed_signature(kind)) if changing else 0
    color = address_of(crop if ndim == 4 else crop_interleaved, crop_signature(kind))
    return np.array([change, color, *(address_of(kernel, signature) for kernel, signature in more)], np.uintp)


@lru_cache(maxsize=len(OUTPUTS) + 1)
def _change_addresses(kind: tuple[np.dtype[Any], int] | None, color: Callable[..., None]) -> Addresses:
    """Returns the addresses that :func:`render_changed` takes for an output of a type; None: it colors nothing."""
    from mmload.render.level_kernels import copy_windows, run_operations  # compiled only by those who have such steps

    to_bytes = variant(crop, crop_signature(BYTES))
    colors = 0 if kind is None else address_of(color, crop_signature(OUTPUTS[kind]))
    cuts = address_of(copy_windows, COPY_WINDOWS), address_of(to_bytes, crop_signature(BYTES))
    return np.array([*cuts, address_of(run_operations, RUN), colors], np.uintp)


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


def changes_of(operations: Operations, samples: slice, levels: Bytes, origin: int, out: Pixels | None) -> Changes:
    """Returns what :func:`render_changed` takes for some samples, with working memory of the calling thread.

    Args:
        operations: operations of all samples.
        samples: which of them.
        levels: uint8 [n, C, h, w], memory for one sample, or without an output for all of them.
        origin: origin of the levels, as :class:`~mmload.render.kernel_arguments.Changes` has it.
        out: the output; None: levels are not colored.
    """
    _, channels, height, width = levels.shape
    own = operations._replace(codes=operations.codes[samples], numbers=operations.numbers[samples])
    black = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    plain = Paint(*black, no_holes(1, channels), False)
    scratch_memory, addresses = _NO_SCRATCH, _NO_ADDRESSES
    if own.codes.shape[1]:
        size, framed = channels * height * width, (height + 2) * (width + 2)
        floats, packed = scratch("floats", (size,), np.float32), scratch("packed", (framed,), np.uint32)
        scratch_memory = Scratch(scratch("spare", (size,)), floats, packed)
        kind, color = (None, crop) if out is None else ((out.dtype, out.ndim), crop_into(out))
        addresses = _change_addresses(kind, color)
    return Changes(own, scratch_memory, levels, np.zeros(1, WINDOW), plain, origin, addresses)
