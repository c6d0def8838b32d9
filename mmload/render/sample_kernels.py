"""Samples that arrive, are made of other pixels or change their levels, rendered by one call: one after the other.

Calls from Python for each of these steps, four samples at a time, took 50 us per image where levels change and a tenth
of the time of a batch of resized crops, as the loops evict the interpreter from the caches. The levels of one sample
stay in the L2 cache. Kernels are called by their addresses, so that none is compiled anew into this loop. Nothing is
checked here; :mod:`mmload.render.kernel_arguments` describes the arguments.
"""

from __future__ import annotations

import numpy as np

from mmload.render.arrival import is_there
from mmload.render.kernel_arguments import (
    BYTES,
    COLOR,
    OUTPUTS,
    PAINT,
    RENDER,
    RESIZE,
    RUN,
    Bytes,
    Calls,
    Composed,
    Crops,
    Holes,
    ImageLines,
    Operations,
    OutputMemory,
    Paint,
    Resizes,
    crop_signature,
)
from mmload.runtime.declarations import CallBy
from mmload.runtime.intrinsics import USED, Arena, reshaped
from mmload.runtime.numba_compile import numba_compiled

_color, _cut, _run = CallBy(COLOR), CallBy(crop_signature(OUTPUTS[BYTES])), CallBy(RUN)
_resize, _paint_tiles = CallBy(RESIZE), CallBy(PAINT)


@numba_compiled(RENDER)
def render(
    lines: ImageLines,
    resizes: Resizes,
    composed: Composed,
    crops: Crops,
    paint: Paint,
    operations: Operations,
    levels: Bytes,
    calls: Calls,
    arena: Arena,
    out: OutputMemory,
) -> None:
    """Renders samples until the row of one cannot arrive: makes each, cuts it out, changes its levels, colors it.

    A sample is a row as it is stored, or is resized or painted into the only image of ``crops``; of the next one, the
    tiles that there are are painted. Without a cut, levels are changed in that image, which ``levels`` are then. Flips
    that are due after the operations are written into the windows.
    """
    begun, count = arena[USED], len(crops.windows)
    for k in range(count + 1 if calls.paint else count):
        arena[USED] = begun
        if calls.paint:
            begin, end = composed.starts[k], composed.starts[k + 1]
            tiles, ground, share = composed.tiles[begin:end], composed.ground, composed.shares[k]
            _paint_tiles(calls.paint, (lines, begin, tiles, ground, composed.canvases, share, arena))
            if k == count or lines.arrival.failed[0] >= 0:
                break
        elif not is_there(lines, k, arena):
            break
        if calls.resize:
            _resize(calls.resize, (lines, k, resizes, crops.images, arena))
        window = crops.windows[k : k + 1]
        shown, holes = Crops(crops.images, window, crops.fill, crops.mode), paint.holes
        if calls.cut:
            flips, window[0].flips = window[0].flips, 0
            whole = Paint(paint.shift, paint.scale, Holes(reshaped(holes.sides, (1, 0)), holes.values), False)
            _cut(calls.cut, (shown, whole, arena, levels))
            window[0].index, window[0].top, window[0].left, window[0].flips = 0, 0, 0, flips
        if calls.run:
            own = Operations(operations.codes[k : k + 1], operations.numbers[k : k + 1], operations.fills)
            _run(calls.run, (levels, window, own, arena))
            shown = Crops(levels, window, crops.fill, crops.mode)
        painted = Paint(paint.shift, paint.scale, Holes(holes.sides[k : k + 1], holes.values), paint.streamed)
        place = out.address + np.uintp(k * out.step)
        _color(calls.color, (shown, painted, arena, OutputMemory(place, 1, out.first, out.second, out.third, out.step)))
