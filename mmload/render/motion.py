"""Motion: how points of each sample move through a plan, or from the images of tiles to canvases and on to the output.

It is the one geometry of boxes, keypoints, corners of rotated boxes and polygons: a list of moves per sample, compiled
loops that carry them out, and what is cut off on the way. Boxes are their corners, with clips and visible shares. A
move is rounded to the dtype of the points, as torchvision rounds between two transforms. Bits do not depend on the
processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.kernel_arguments import NEAR, Numbers
from mmload.render.level_operations import AFFINE_BILINEAR, AFFINE_NEAREST, FLIP_X, FLIP_Y, MOVES, NONE, Array
from mmload.render.plan import Plan
from mmload.runtime.host_memory import zeros
from mmload.runtime.kernels import called, inlined, numba_compiled

Flags = npt.NDArray[np.bool_]
Boxes = npt.NDArray[Any]
"""Boxes [B, M, 4], x0 y0 x1 y1 in pixels, float32 or float64."""

SHIFT, SCALE, VIEW = -1, -2, -3
"""Kinds of moves beside those of :data:`~mmload.render.level_operations.MOVES`: by minus two numbers x and y; by two
factors, which are rounded to the dtype of the points, as torchvision does; and by a matrix of nine numbers, row by row,
after which what is behind the point of view is far away."""

_MOST_NUMBERS = 9

_CUT = 1e-3
"""Pixels by which the clip of a scaled box moves its sides although nothing is cut off: float32 rounds its factor."""

_ROUNDED = 1 / 64
"""Tolerance in pixels: rounding moves a point on the edge of an image by less when it is scaled."""

_FAR = 1e9
"""Coordinate in pixels to which points on the horizon of a warp are moved: outside of every image."""

_IS_MOVE = np.isin(np.arange(64), list(MOVES))


class Motion(NamedTuple):
    """Moves of the points of B samples, S of each, in their order.

    Attributes:
        kinds: int64 [B, S], what each is: :data:`SHIFT`, :data:`SCALE`, :data:`VIEW`, an operation of
            :data:`~mmload.render.level_operations.MOVES`, or :data:`~mmload.render.level_operations.NONE`.
        numbers: float64 [B, S, 9], its numbers.
        frames: float64 [B, S, 2], width and height of the frame in which a flip mirrors, and outside of which all is
            cut off after any other move; 0: nothing is.
    """

    kinds: Annotated[Numbers, "int64[:, ::1]"]
    numbers: Annotated[npt.NDArray[np.float64], "float64[:, :, ::1]"]
    frames: Annotated[npt.NDArray[np.float64], "float64[:, :, ::1]"]

    @classmethod
    def of_plan(cls, plan: Plan) -> Motion:
        """Returns the motion through window, resize, placement, crop, flips and warps."""
        frame, resampling, program = (plan.width, plan.height), plan.resampling, plan.program
        moves: list[Move] = [(SHIFT, (plan.left, plan.top), (plan.cols, plan.rows))]
        if resampling is not None:
            sizes = (resampling.cols, plan.cols), (resampling.rows, plan.rows)
            factors = [1 / old * new if isinstance(new, int) else new / old for new, old in sizes]
            moves += [(SCALE, factors, (0, 0)), (SHIFT, (-resampling.left, -resampling.top), frame)]
        moves += [(kind * flip, (), plan.frame[::-1]) for kind, flip in ((FLIP_X, plan.flip_x), (FLIP_Y, plan.flip_y))]
        for place, slot in enumerate(program.slots):
            if slot.operations & MOVES:
                codes = program.codes[:, place]
                moves.append((codes * _IS_MOVE[codes], program.numbers[:, place].T, frame))
        return cls.of_moves(plan.count, moves)

    @classmethod
    def empty(cls, count: int, moves: int) -> Motion:
        """Returns the memory of so many moves of ``count`` samples, with numbers of 0."""
        shape = count, moves
        return cls(np.empty(shape, np.int64), zeros((*shape, _MOST_NUMBERS)), np.empty((*shape, 2)))

    @classmethod
    def of_moves(cls, count: int, moves: Sequence[Move]) -> Motion:
        """Returns the motion of ``count`` samples by moves."""
        motion = cls.empty(count, len(moves))
        for place, (kind, numbers, (width, height)) in enumerate(moves):
            motion.kinds[:, place] = kind
            motion.frames[:, place, 0], motion.frames[:, place, 1] = width, height
            for column, number in enumerate(numbers):
                motion.numbers[:, place, column] = number
        return motion

    @property
    def mirrors(self) -> Flags:
        """Samples whose left and right are exchanged: bool [B]."""
        odd: Flags = ((self.kinds == FLIP_X) | (self.kinds == FLIP_Y)).sum(1) % 2 == 1
        return odd


Move = tuple[Array | int, Sequence[Array | float] | Array, Sequence[Array | int] | Array]
"""Kind, numbers and frame (width, height) of a move, each one for all samples or one per sample."""


def moved_points(points: Array, motion: Motion, *, pixels: bool = False) -> tuple[Array, Flags]:
    """Moves points, and never clips them.

    Args:
        points: float32 or float64 [B, ..., 2], x and y in source pixels.
        motion: that of the B samples.
        pixels: whether a flip takes them for numbers of pixels, as torchvision does with keypoints, so that x becomes
            width - 1 - x; else width - x, as edges of boxes.

    Returns:
        The points in output pixels, and which of them were inside after every move that cuts off, bool [B, ...].
    """
    shape = len(points), math.prod(points.shape[1:-1])
    moved, inside = np.array(points, order="C").reshape(*shape, 2), np.ones(shape, np.bool_)
    _MOVE_POINTS[moved.dtype.name](moved, inside, motion, float(pixels))
    return moved.reshape(points.shape), inside.reshape(points.shape[:-1])


def move_boxes(boxes: Array, motion: Motion, cut: Flags, share: Array) -> None:
    """Moves and clips boxes in place.

    Args:
        boxes: float32 or float64 [B, M, 4] xyxy.
        motion: that of the B samples.
        cut: bool [B, M]; becomes true where a part of a box is cut off.
        share: [B, M] in the dtype of the boxes; multiplied by the visible share of each box's area.
    """
    _MOVE_BOXES[boxes.dtype.name](boxes, cut, share, motion)


@inlined
def _matrix(kind: int, numbers: Any, wide: float, high: float, points: Array) -> Any:
    """Returns the numbers of a move of points; those of a warp, from output to input, as its matrix to the output."""
    a, b, c, d, e = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    f, g, h, i = numbers[5], numbers[6], numbers[7], numbers[8]
    if kind == SCALE:
        a, b = points.dtype.type(a), points.dtype.type(b)
    if kind in (AFFINE_NEAREST, AFFINE_BILINEAR):  # around the center
        across, over = 0.5 * wide, 0.5 * high
        c, f = c + across - a * across - b * over, f + over - d * across - e * over
    if kind >= AFFINE_NEAREST:
        a, b, c, d, e, f, g, h, i = (
            e - f * h, c * h - b, b * f - c * e, f * g - d, a - c * g, c * d - a * f, d * h - e * g, b * g - a * h,
            a * e - b * d,
        )  # fmt: skip
    return a, b, c, d, e, f, g, h, i


@called
def _moved(kind: int, numbers: Any, wide: float, high: float, x: float, y: float) -> Any:
    """Moves a point, by numbers of :func:`_matrix`; a flip mirrors in a frame of this size."""
    if kind == SHIFT:
        return x - numbers[0], y - numbers[1]
    if kind == SCALE:
        return x * numbers[0], y * numbers[1]
    if kind == FLIP_X:
        return wide - x, 1.0 * y
    if kind == FLIP_Y:
        return 1.0 * x, high - y
    a, b, c, d, e, f, g, h, i = numbers
    below = g * x + h * y + i
    if kind == VIEW:
        below = max(below, NEAR)
    return _not_infinite((a * x + b * y + c) / below), _not_infinite((d * x + e * y + f) / below)


@inlined
def _not_infinite(value: float) -> float:
    return value if np.isfinite(value) else (_FAR if value > 0 else -_FAR)


def _move_points(points: Array, inside: Flags, motion: Any, pixel: float) -> None:
    """Moves points in place as :func:`moved_points` does; ``pixel`` is taken off the frame of a flip."""
    for k in range(len(points)):
        for s in range(motion.kinds.shape[1]):
            kind, wide, high = motion.kinds[k, s], motion.frames[k, s, 0], motion.frames[k, s, 1]
            if kind == NONE:
                continue
            numbers = _matrix(kind, motion.numbers[k, s], wide, high, points)
            cuts = wide > 0 and kind not in (FLIP_X, FLIP_Y)
            for n in range(points.shape[1]):
                point = points[k, n]
                point[0], point[1] = _moved(kind, numbers, wide - pixel, high - pixel, point[0], point[1])
                x, y = point[0], point[1]  # rounded
                is_in = -_ROUNDED <= x <= wide + _ROUNDED and -_ROUNDED <= y <= high + _ROUNDED
                inside[k, n] = inside[k, n] and (is_in or not cuts)


_MOVE_POINTS = {
    kind: numba_compiled(f"{kind}[:, :, ::1]", "boolean[:, ::1]", Motion, "float64")(_move_points)
    for kind in ("float32", "float64")
}


def _move_boxes(boxes: Array, cut: Flags, share: Array, motion: Any) -> None:
    """Moves the corners of boxes, and clips the boxes around them, as :func:`move_boxes` does.

    Areas are in the dtype of the boxes.
    """
    for k in range(len(boxes)):
        for s in range(motion.kinds.shape[1]):
            kind, wide, high = motion.kinds[k, s], motion.frames[k, s, 0], motion.frames[k, s, 1]
            if kind == NONE:
                continue
            numbers = _matrix(kind, motion.numbers[k, s], wide, high, boxes)
            cuts = wide > 0 and kind not in (FLIP_X, FLIP_Y)
            for n in range(boxes.shape[1]):
                box = boxes[k, n]
                u0, v0, u1, v1 = np.inf, np.inf, -np.inf, -np.inf
                for corner in range(4):
                    x, y = box[2 * (corner & 1)], box[1 + 2 * (corner >> 1)]
                    u, v = _moved(kind, numbers, wide, high, x, y)
                    u0, v0, u1, v1 = min(u0, u), min(v0, v), max(u1, u), max(v1, v)
                box[0], box[1], box[2], box[3] = u0, v0, u1, v1
                if not cuts:
                    continue
                whole = (box[2] - box[0]) * (box[3] - box[1])
                for side in range(4):
                    before = box[side]
                    box[side] = min(max(before, 0.0), high if side & 1 else wide)
                    cut[k, n] = cut[k, n] or abs(box[side] - before) > _CUT
                part = (box[2] - box[0]) * (box[3] - box[1])
                share[k, n] *= part / whole if whole > 0 else 0.0


_MOVE_BOXES = {
    kind: numba_compiled(f"{kind}[:, :, ::1]", "boolean[:, ::1]", f"{kind}[:, ::1]", Motion, nogil=False)(_move_boxes)
    for kind in ("float32", "float64")
}
