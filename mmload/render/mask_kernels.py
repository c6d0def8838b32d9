"""Moves uint8 masks as a plan moves pixels, by the nearest pixel, compiled: one call per batch.

Positions are torch's: nearest pixels are counted in float32, from the side that the plan says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mmload.render import level_operations as levels
from mmload.render.cpu_kernels import CONSTANT, reflected
from mmload.render.kernel_arguments import FLIPPED_X, FLIPPED_Y, PADDING_MODES, Bytes, Flags, Floats, Numbers
from mmload.render.plan import Plan, Program
from mmload.render.torch_sampling import Axis, axes_of
from mmload.render.warp_kernels import flip, warp_nearest
from mmload.runtime.intrinsics import Arena, carve, reshaped
from mmload.runtime.kernels import ARENA, USED, called, inlined, numba_compiled

_U = np.uintp

_PADDED, _BESIDE = -1, -2
"""Sources of pixels outside of the image, and beside the resized window on its canvas."""


class _Side(NamedTuple):
    """One axis of the windows of B masks, as :class:`~mmload.render.torch_sampling.Axis`: int64 or bool [B] each.

    ``resized`` is 0 where the window keeps its size.
    """

    source: Numbers
    start: Numbers
    size: Numbers
    resized: Numbers
    part: Numbers
    flip: Flags
    mirror: Flags


def moved_masks(memory: Bytes, starts: Numbers, plan: Plan) -> Bytes:
    """Renders masks: uint8 [B, h, w].

    Args:
        memory: uint8 [n], the pixels of all masks, line by line.
        starts: int64 [B], index of each mask's first pixel.
        plan: the plan of their images.

    Raises:
        IndexError: if the memory ends before a mask.
    """
    sizes = np.array([plan.source[1:]]) if plan.sizes is None else plan.sizes
    if np.any(starts + sizes[:, 0] * sizes[:, 1] > len(memory)):
        raise IndexError(f"masks of the sizes of their images end behind their {len(memory)} pixels")
    padding, resampling = plan.padding, plan.resampling
    mode = PADDING_MODES.index(padding.mode)
    middle, ground = (False, 0) if resampling is None else (resampling.exact_masks, resampling.mask_fill)
    out = np.empty((plan.count, plan.height, plan.width), np.uint8)
    over, across = (_side(axis, sizes[:, place], plan.count) for place, axis in enumerate(axes_of(plan)))
    moves = _warps_of(plan.program)
    _move(memory, starts, over, across, mode, middle, padding.mask_fill, ground, *moves, out)
    return out


def _side(axis: Axis, source: Numbers, count: int) -> _Side:
    given = source, axis.start, axis.size, axis.resized, axis.part, axis.flip, axis.mirror
    return _Side._make(np.full(count, value) for value in given)


def _warps_of(program: Program) -> tuple[Numbers, Floats, Numbers]:
    """Returns codes and numbers of a program, and the fill of masks at each position."""
    codes, numbers = np.ascontiguousarray(program.codes), np.ascontiguousarray(program.numbers)
    return codes, numbers, np.array([slot.mask_fill for slot in program.slots], np.int64)


@inlined
def _inside(position: int, length: int, mode: int) -> int:
    """Returns the position in an axis that a position in or outside of it shows, or ``_PADDED``."""
    if mode == CONSTANT and not 0 <= position < length:
        return _PADDED
    return reflected(position, length, mode)


@called
def _find_sources(side: Any, k: int, mode: int, middle: bool, found: Numbers) -> None:
    """Writes the source of each position of the output along one axis of mask ``k``."""
    size, length = side.size[k], side.resized[k]
    step = np.float32(size) / np.float32(max(length, 1))
    half = np.float32(0.5) if middle else np.float32(0)
    for number in range(len(found)):
        place = (len(found) - 1 - number if side.flip[k] else number) + side.part[k]
        if length > 0:
            if not 0 <= place < length:
                found[number] = _BESIDE
                continue
            place = length - 1 - place if side.mirror[k] else place
            place = min(np.int64(np.floor((np.float32(place) + half) * step)), size - 1)
            place = size - 1 - place if side.mirror[k] else place
        found[number] = _inside(place + side.start[k], side.source[k], mode)


@numba_compiled(
    "uint8[::1], int64[::1]", _Side, _Side, "int64, boolean, int64, int64, int64[:, ::1], float32[:, :, ::1]",
    "int64[::1], uint8[:, :, ::1]", ARENA,
)  # fmt: skip
def _move(
    memory: Bytes, starts: Numbers, over: Any, across: Any, mode: int, middle: bool, fill: int, ground: int,
    codes: Numbers, numbers: Floats, fills: Numbers, out: Bytes, arena: Arena,
) -> None:  # fmt: skip
    """Picks the source of each output pixel, and runs the operations that move pixels.

    ``fill`` is outside of the masks, ``ground`` beside placed windows, and ``fills`` outside of warped masks.
    """
    count, height, width = out.shape
    rows, columns = carve(arena, height, np.int64), carve(arena, width, np.int64)
    begun = arena[USED]
    for k in range(count):
        _find_sources(over, k, mode, middle, rows)
        _find_sources(across, k, mode, middle, columns)
        is_inside = True
        for x in range(width):
            is_inside &= columns[x] >= 0
        for y in range(height):
            line = starts[k] + rows[y] * across.source[k]
            if is_inside and rows[y] >= 0:
                for x in range(_U(width)):
                    out[k, y, x] = memory[_U(line + columns[x])]
                continue
            for x in range(width):
                nearer = min(rows[y], columns[x])
                outside = ground if nearer == _BESIDE else fill
                out[k, y, x] = memory[line + columns[x]] if nearer >= 0 else np.uint8(outside)
        mask = reshaped(out[k], (1, height, width))
        for place in range(codes.shape[1]):
            code, arena[USED] = codes[k, place], begun
            if code in (levels.FLIP_X, levels.FLIP_Y):
                flip(mask, FLIPPED_X if code == levels.FLIP_X else FLIPPED_Y, arena)
            elif levels.AFFINE_NEAREST <= code <= levels.PERSPECTIVE_BILINEAR:
                is_perspective = code >= levels.PERSPECTIVE_NEAREST
                warp_nearest(mask, numbers[k, place], is_perspective, False, fills[place : place + 1], arena)
