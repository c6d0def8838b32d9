"""Samples whose levels change, rendered by one call: each is cut out, changed and colored before the next one.

A call from Python for each of these, four samples at a time, took 50 us an image, as the loops evict the interpreter
from the caches. The levels of one sample stay in the L2 cache. The kernels are called by their addresses: this loop is
compiled for each kind of output, they are not. Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mmload.render.cpu_kernels import IN_PLACE, INSIDE, Bytes, Floats, Numbers, Pixels, crop, crop_into, kind_of
from mmload.render.hole_kernels import SIDES
from mmload.render.kernel_signatures import BYTES, COPY_WINDOWS, CROP, FLOATS, KINDS, RENDER_CHANGED, RUN
from mmload.runtime.native_calls import address_of, call_by
from mmload.runtime.numba_compile import numba_compiled, variant

Words = npt.NDArray[np.uint32]

_BYTES = CROP.format(BYTES)

_copy_windows, _crop_bytes, _run = call_by(COPY_WINDOWS), call_by(_BYTES), call_by(RUN)
_color = call_by(*(CROP.format(kind) for kind in KINDS))


@numba_compiled(RENDER_CHANGED.format(FLOATS))
def render_changed(
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
    codes: Numbers,
    numbers: Floats,
    fills: Numbers,
    spare: Bytes,
    floats: Floats,
    packed: Words,
    levels: Bytes,
    origin: int,
    addresses: Numbers,
) -> None:
    """Cuts samples out, changes their levels, colors and erases them.

    Args:
        images: as for :func:`~mmload.render.cpu_kernels.crop`, as is all up to ``out``.
        indices: see there.
        tops: see there.
        lefts: see there.
        flips: see there; what is left of them after the operations is written here.
        fill: see there.
        mode: see there.
        shift: see there.
        scale: see there.
        holes: see there.
        values: see there.
        noise: see there.
        streamed: see there.
        out: see there.
        codes: as for :func:`~mmload.render.level_kernels.run`, as are the next five.
        numbers: see there.
        fills: see there.
        spare: see there.
        floats: see there.
        packed: see there.
        levels: uint8 [n, C, h, w], of one sample after the other.
        origin: one of :data:`~mmload.render.cpu_kernels.IN_PLACE`, ``INSIDE`` and ``ANYWHERE``.
        addresses: of :func:`~mmload.render.level_kernels.copy_windows`, a crop to bytes, ``run``, and a crop to ``out``
            or 0, for none.
    """
    nothing, left = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    dark, plain = np.zeros(len(shift), np.float32), np.ones(len(shift), np.float32)
    # Made here, as a slice of no holes is no contiguous array in its type.
    none, no_values = np.zeros((1, 0, SIDES), np.int64), np.zeros((0, len(shift)), np.float32)
    for k in range(len(indices)):
        index, top, beside = indices[k : k + 1], tops[k : k + 1], lefts[k : k + 1]
        image = levels[k % len(levels) : k % len(levels) + 1]
        left[0] = 0
        if origin == IN_PLACE:
            image = images[indices[k] : indices[k] + 1]
        elif origin == INSIDE:
            _copy_windows(addresses[0], (images, index, top, beside, image))
        else:
            frame = index, top, beside, left
            erased = none, no_values, noise
            _crop_bytes(addresses[1], (images, *frame, fill, mode, dark, plain, *erased, False, image))
        left[0] = flips[k]
        _run(addresses[2], (image, left, codes[k : k + 1], numbers[k : k + 1], fills, spare, floats, packed))
        flips[k] = left[0]
        if addresses[3]:
            where = image, nothing, nothing, nothing, left
            erased = holes[k : k + 1], values, noise
            _color(addresses[3], (*where, fill, mode, shift, scale, *erased, streamed, out[k : k + 1]))


def render_into(out: Pixels) -> Callable[..., None]:
    """:func:`render_changed` for an output of this type; all but contiguous float32 is compiled by the first call."""
    kind = kind_of(out)
    return render_changed if kind == FLOATS else variant(render_changed, RENDER_CHANGED.format(kind))


def addresses_for(out: Pixels | None) -> Numbers:
    """Those of the kernels that :func:`render_changed` calls for an output; None: it colors nothing."""
    return _addresses(*("", crop) if out is None else (kind_of(out), crop_into(out)))


@lru_cache(maxsize=len(KINDS) + 1)
def _addresses(kind: str, color: Callable[..., None]) -> Numbers:
    """Where the four are."""
    from mmload.render.level_kernels import copy_windows, run  # compiled only by those who have such steps

    cuts = address_of(copy_windows, COPY_WINDOWS), address_of(variant(crop, _BYTES), _BYTES)
    colors = address_of(color, CROP.format(kind)) if kind else 0
    return np.array([*cuts, address_of(run, RUN), colors], np.uintp)
