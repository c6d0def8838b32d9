"""Resized samples, rendered by one call: each is resized, changed if it has operations, and colored before the next.

Calls from Python for four samples at a time took a tenth of the time of a batch of resized crops, as the loops evict
the interpreter from the caches. The kernels are called by their addresses, as in :mod:`mmload.render.changed_crops`.
Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mmload.render.cpu_kernels import Bytes, Floats, Numbers, Pixels, crop_into, kind_of
from mmload.render.kernel_signatures import CROP, FLOATS, KINDS, RENDER_CHANGED, RENDER_RESIZED, RESIZE
from mmload.render.resized_windows import resize
from mmload.runtime.native_calls import address_of, call_by
from mmload.runtime.numba_compile import numba_compiled, variant

_resize = call_by(RESIZE)
_change = call_by(*(RENDER_CHANGED.format(kind) for kind in KINDS))
_color = call_by(*(CROP.format(kind) for kind in KINDS))


@numba_compiled(RENDER_RESIZED.format(FLOATS))
def render_resized(
    memory: Bytes,
    places: Numbers,
    windows: Numbers,
    placements: Numbers,
    fill: Bytes,
    mode: int,
    ground: Bytes,
    reach: int,
    full: Bytes,
    tops: Numbers,
    lefts: Numbers,
    flips: Bytes,
    fill_after: Bytes,
    mode_after: int,
    shift: Floats,
    scale: Floats,
    holes: Numbers,
    values: Floats,
    noise: Floats,
    streamed: bool,
    out: Pixels,
    codes: Numbers,
    numbers: Floats,
    fills: Numbers,
    spare: Bytes,
    floats: Floats,
    packed: npt.NDArray[np.uint32],
    levels: Bytes,
    origin: int,
    changing: Numbers,
    addresses: Numbers,
) -> None:
    """Resizes samples, changes their levels, colors and erases them.

    Args:
        memory: as for :func:`~mmload.render.resized_windows.resize`, as is all up to ``full``.
        places: see there.
        windows: see there.
        placements: see there.
        fill: see there.
        mode: see there.
        ground: see there.
        reach: see there.
        full: see there; of one sample after the other.
        tops: as for :func:`~mmload.render.changed_crops.render_changed`, as is all up to ``changing``; the frames are
            in ``full``.
        lefts: see there.
        flips: see there.
        fill_after: see there.
        mode_after: see there.
        shift: see there.
        scale: see there.
        holes: see there.
        values: see there.
        noise: see there.
        streamed: see there.
        out: see there.
        codes: see there; without places where levels do not change.
        numbers: see there.
        fills: see there.
        spare: see there.
        floats: see there.
        packed: see there.
        levels: see there.
        origin: see there.
        changing: see there: its ``addresses``.
        addresses: of ``resize``, ``render_changed`` or 0, and a crop to ``out``.
    """
    only = np.zeros(1, np.int64)
    for k in range(len(places)):
        where = windows[k : k + 1], placements[k : k + 1]
        _resize(addresses[0], (memory, places[k : k + 1], *where, fill, mode, ground, reach, full))
        frame = full, only, tops[k : k + 1], lefts[k : k + 1], flips[k : k + 1], fill_after, mode_after
        colors = shift, scale, holes[k : k + 1], values, noise, streamed, out[k : k + 1]
        if codes.shape[1]:
            program = codes[k : k + 1], numbers[k : k + 1], fills, spare, floats, packed
            _change(addresses[1], (*frame, *colors, *program, levels, origin, changing))
        else:
            _color(addresses[2], (*frame, *colors))


def render_into(out: Pixels) -> Callable[..., None]:
    """:func:`render_resized` for an output of this type; all but contiguous float32 is compiled by the first call."""
    kind = kind_of(out)
    return render_resized if kind == FLOATS else variant(render_resized, RENDER_RESIZED.format(kind))


def addresses_for(out: Pixels, changing: bool) -> Numbers:
    """Those of the kernels that :func:`render_resized` calls for an output, with operations or without."""
    kind, color = kind_of(out), crop_into(out)
    if not changing:
        return _addresses(kind, color, None)
    from mmload.render import changed_crops  # compiled only by those who have such steps

    return _addresses(kind, color, changed_crops.render_into(out))


@lru_cache(maxsize=2 * len(KINDS))
def _addresses(kind: str, color: Callable[..., None], change: Callable[..., None] | None) -> Numbers:
    """Where the three are."""
    changes = 0 if change is None else address_of(change, RENDER_CHANGED.format(kind))
    return np.array([address_of(resize, RESIZE), changes, address_of(color, CROP.format(kind))], np.uintp)
