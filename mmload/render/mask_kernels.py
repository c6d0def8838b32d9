"""Moves uint8 masks as a plan moves pixels, by the nearest pixel, compiled: one call per batch.

Positions are torch's: nearest pixels are counted in float32, from the side that the plan says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render import level_program as levels
from mmload.render.kernel_arguments import Bytes, Floats, Numbers
from mmload.render.level_program import Program
from mmload.render.plan import Plan
from mmload.render.plan_parts import PADDING_MODES
from mmload.render.torch_sampling import Axis, axes_of
from mmload.runtime.arena import Arena, carve
from mmload.runtime.declarations import ARENA, called, tuple_type, void
from mmload.runtime.intrinsics import reshaped
from mmload.runtime.numba_compile import numba_compiled

_CONSTANT, _EDGE, _REFLECT, _SYMMETRIC = range(len(PADDING_MODES))

Offsets = npt.NDArray[np.int32]

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
    flip: Any
    mirror: Any


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
    placed = None if resampling is None else resampling.placement
    mode = _EDGE if padding is None else PADDING_MODES.index(padding.mode)
    fills = (0 if padding is None else padding.mask_fill, 0 if placed is None else placed.mask_fill)
    out = np.empty((plan.count, plan.height, plan.width), np.uint8)
    over, across = (_side(axis, sizes[:, place], plan.count) for place, axis in enumerate(axes_of(plan)))
    middle = resampling is not None and resampling.exact_masks
    codes, numbers, grounds = _NO_WARPS if plan.program is None else _warps_of(plan.program)
    _move(memory, starts, over, across, mode, middle, *fills, codes, numbers, grounds, out)
    return out


def _side(axis: Axis, source: Numbers, count: int) -> _Side:
    given = source, axis.start, axis.size, axis.resized, axis.part, axis.flip, axis.mirror
    made = [np.zeros(count, np.int64) for _ in given[:5]] + [np.zeros(count, np.bool_) for _ in given[5:]]
    for numbers, value in zip(made, given, strict=True):
        if value is not None:
            numbers[:] = value
    return _Side._make(made)


_NO_WARPS = np.zeros((0, 0), np.int64), np.zeros((0, 0, 0), np.float32), np.zeros(0, np.int64)


def _warps_of(program: Program) -> tuple[Numbers, Floats, Numbers]:
    """Returns codes and numbers of a program, and the fill of masks at each position."""
    codes, numbers = np.ascontiguousarray(program.codes), np.ascontiguousarray(program.numbers)
    return codes, numbers, np.array([slot.mask_fill for slot in program.slots], np.int64)


@called
def _inside(position: int, length: int, mode: int) -> int:
    """Returns the position in an axis that a position in or outside of it shows, or ``_PADDED``."""
    if 0 <= position < length:
        return position
    if mode == _CONSTANT:
        return _PADDED
    if mode == _REFLECT:
        period = max(2 * length - 2, 1)
        position %= period
        return min(position, min(period - position, length - 1))
    if mode == _SYMMETRIC:
        position %= 2 * length
        return min(position, 2 * length - 1 - position)
    return min(max(position, 0), length - 1)


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


@called
def _copy(mask: Bytes, source: Bytes) -> None:
    for y in range(len(mask)):
        for x in range(mask.shape[1]):
            source[y, x] = mask[y, x]


@called
def _warp(mask: Bytes, is_perspective: bool, numbers: Floats, fill: int, source: Bytes, offsets: Offsets) -> None:
    """Warps a mask [h, w] in place to the nearest pixels, with a copy of it as working memory.

    Coordinates are those of torch's operations in :mod:`mmload.render.torch_levels`, in their order, without fused
    products.
    """
    (height, width), zero, one, half = mask.shape, np.float32(0), np.float32(1), np.float32(0.5)
    wide, high = np.float32(width), np.float32(height)
    half_wide, half_high = np.float32(0.5 * width), np.float32(0.5 * height)
    a, b, c = numbers[0] / half_wide, numbers[1] / half_wide, numbers[2] / half_wide
    d, e, f = numbers[3] / half_high, numbers[4] / half_high, numbers[5] / half_high
    left = half if is_perspective else np.float32((1.0 - width) * 0.5)
    top = half if is_perspective else np.float32((1.0 - height) * 0.5)
    _copy(mask, source)
    pixels = reshaped(source, height * width)
    for y in range(height):
        down = np.float32(y) + top
        for x in range(_U(width)):  # a loop by itself: the one that picks pixels is not vectorized
            along = np.float32(np.int32(x)) + left
            across, over = a * along + b * down + c, d * along + e * down + f
            if is_perspective:
                below = numbers[6] * along + numbers[7] * down + one
                across, over = across / below - one, over / below - one
            column = np.rint(((across + one) * wide - one) * half)
            row = np.rint(((over + one) * high - one) * half)
            inside = (column >= zero) & (column < wide) & (row >= zero) & (row < high)  # no number is not
            offsets[x] = np.int32(row) * np.int32(width) + np.int32(column) if inside else np.int32(-1)
        for x in range(_U(width)):
            mask[y, x] = pixels[_U(offsets[x])] if offsets[x] >= 0 else np.uint8(fill)


@called
def _mirror(mask: Bytes, source: Bytes, code: int) -> None:
    height, width = mask.shape
    _copy(mask, source)
    for y in range(height):
        for x in range(width):
            mask[y, x] = source[y, width - 1 - x] if code == levels.FLIP_X else source[height - 1 - y, x]


_SIDE = tuple_type(_Side, *["int64[::1]"] * 5, "boolean[::1]", "boolean[::1]")


@numba_compiled(
    void(
        "uint8[::1]", "int64[::1]", _SIDE, _SIDE, "int64", "boolean", "int64", "int64", "int64[:, ::1]",
        "float32[:, :, ::1]", "int64[::1]", "uint8[:, :, ::1]", ARENA,
    )
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
    source, offsets = carve(arena, (height, width), np.uint8), carve(arena, width, np.int32)
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
        for place in range(codes.shape[1]):
            code = codes[k, place]
            if code in (levels.FLIP_X, levels.FLIP_Y):
                _mirror(out[k], source, code)
            elif levels.AFFINE_NEAREST <= code <= levels.PERSPECTIVE_BILINEAR:
                is_perspective = code >= levels.PERSPECTIVE_NEAREST
                _warp(out[k], is_perspective, numbers[k, place], fills[place], source, offsets)
