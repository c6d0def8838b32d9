"""RandomRotation, RandomAffine and RandomPerspective, named and set as in ``torchvision.transforms.v2``.

The size stays. Boxes become the boxes around their warped corners, clipped; masks take the nearest pixel. Matrices have
torchvision's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmload.augment.arguments import (
    LONGEST_SIDE,
    argument_error,
    around,
    chance,
    elements,
    flag,
    mask_level,
    mode_of,
    number,
    numbers,
    per_channel,
    span,
)
from mmload.augment.step import ANY_CHANNELS, Doubles, Draws, Flags, LevelStep, whole_numbers
from mmload.render import level_operations as levels
from mmload.render.plan import Plan, Program, check_fill
from mmload.runtime.kernels import called, filled, numba_compiled

_MOST_PIXELS = 2**31 - 1
"""Upper bound on the pixels of an image with a frame of one pixel: a warp counts them in 32 bits."""


class WarpingStep(LevelStep):
    """Base of all steps that warp images: the interpolation, and the fill outside of a warped image."""

    moves_pixels = True

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None) -> None:
        super().__init__()
        self.interpolation = mode_of(interpolation, ("nearest", "bilinear"))
        self.fill = None if fill is None else per_channel("fill", fill)

    def check_images(self, plan: Plan) -> None:
        super().check_images(plan)
        if (plan.height + 2) * (plan.width + 2) > _MOST_PIXELS:
            raise ValueError(
                f"images of {plan.height} x {plan.width} are too large for {type(self).__name__}; crop them first"
            )
        if self.fill is None:
            return
        check_fill(self.fill, plan.source[0], plan.peak)
        if plan.peak == 1 and not 0 <= min(self.fill) <= max(self.fill) <= 1:
            got = ", ".join(f"{one:g}" for one in self.fill)
            raise ValueError(f"fill is {got} and the images are floats from 0 to 1: give a fill from 0 to 1")


class _Warp(WarpingStep):
    """Warp that boxes and masks follow."""

    channels = ANY_CHANNELS

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None, mask_fill: int) -> None:
        super().__init__(interpolation, fill)
        self.mask_fill = mask_level(mask_fill)

    def warp(self, nearest: int, bilinear: int, plan: Plan, matrix: Doubles, on: Flags | None = None) -> Program:
        """Returns the operation of this interpolation with a matrix per sample, [B, N]."""
        operation = nearest if self.interpolation == "nearest" else bilinear
        return Program.single_operation(
            operation, plan.count, *matrix.T, apply_mask=on, fill=self.fill, mask_fill=self.mask_fill
        )


class RandomRotation(_Warp):
    """Rotated counterclockwise by an angle drawn per sample.

    Args:
        degrees: the greatest angle either way, or (least, greatest).
        interpolation: ``nearest`` or ``bilinear``, or torchvision's name for it.
        expand: only False: images of a batch keep one size.
        center: (x, y) in pixels from the top left corner; None: the image's center.
        fill: outside of the rotated image, in the images' values; one number or one per channel.
        mask_fill: outside of a rotated mask, 0 to 255: 255 is void (torchvision: ``fill``).

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: float | Sequence[float] | None = 0,
        mask_fill: int = 255,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill)
        self.degrees = _angles("degrees", degrees)
        if flag("expand", expand):
            raise ValueError("expand is True, expected False: images of a batch keep one size")
        self.center = _center(center)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws one angle per sample."""
        angle = _between(self.degrees, draws.uniform(1)[:, 0])
        nothing = np.zeros_like(angle)
        matrix = affine_matrix(
            -angle, (nothing, nothing), nothing + 1, (nothing, nothing), _from_center(self.center, plan)
        )
        return self.warp(levels.AFFINE_NEAREST, levels.AFFINE_BILINEAR, plan, matrix)


class RandomAffine(_Warp):
    """Rotated, moved, scaled and sheared, each drawn per sample.

    Args:
        degrees: the greatest angle either way, or (least, greatest).
        translate: the greatest shares of width and height that the image is moved either way; None: not moved.
        scale: (least, greatest); None: not scaled.
        shear: the greatest angle in x either way, (least, greatest) in x, or (least x, greatest x, least y, greatest
            y); None: not sheared.
        interpolation: ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of the moved image, in the images' values; one number or one per channel.
        center: (x, y) in pixels from the top left corner; None: the image's center.
        mask_fill: outside of a moved mask, 0 to 255: 255 is void (torchvision: ``fill``).

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = 0,
        center: Sequence[float] | None = None,
        mask_fill: int = 255,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill)
        self.degrees = _angles("degrees", degrees)
        self.translate: tuple[float, ...] | None = None
        if translate is not None:
            expected = "two shares of width and height, from 0 to 1"
            self.translate = numbers("translate", translate, least=0.0, greatest=1.0, count=2, expected=expected)
        self.scale = None if scale is None else span("scale", scale, least=1e-3, greatest=1e3)
        self.shear = None if shear is None else _shears(shear)
        self.center = _center(center)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws six numbers per sample, for an angle, a move by integer pixels in x and y, a scale and two shears."""
        uniform = draws.uniform(6)
        angle = _between(self.degrees, uniform[:, 0])
        across, over = self.translate or (0.0, 0.0)
        across, over = across * plan.width, over * plan.height
        moves = _between((-across, across), uniform[:, 1]).round(), _between((-over, over), uniform[:, 2]).round()
        scale = _between(self.scale or (1.0, 1.0), uniform[:, 3])
        shear = self.shear or (0.0, 0.0, 0.0, 0.0)
        shears = _between(shear[:2], uniform[:, 4]), _between(shear[2:], uniform[:, 5])
        matrix = affine_matrix(angle, moves, scale, shears, _from_center(self.center, plan))
        return self.warp(levels.AFFINE_NEAREST, levels.AFFINE_BILINEAR, plan, matrix)


class RandomPerspective(_Warp):
    """Seen from the side, with probability ``p``: the corners move inwards by distances drawn per sample.

    Args:
        distortion_scale: greatest displacement of a corner, as a share (0 to 1) of half of the image's sides.
        p: probability that a sample is changed.
        interpolation: ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of the distorted image, in the images' values; one number or one per channel.
        mask_fill: outside of a distorted mask, 0 to 255: 255 is void (torchvision: ``fill``).

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Any = "bilinear",
        fill: float | Sequence[float] | None = 0,
        mask_fill: int = 255,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill)
        self.distortion_scale = number("distortion_scale", distortion_scale, least=0.0, greatest=1.0, unit="a share")
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws per sample whether it is changed, and where its four corners go."""
        on, uniform = draws.chance(self.p), draws.uniform(8)
        height, width = plan.height, plan.width
        wide = int(self.distortion_scale * (width // 2)) + 1
        high = int(self.distortion_scale * (height // 2)) + 1
        left, low = whole_numbers(uniform[:, :4], wide), whole_numbers(uniform[:, 4:], high)
        x = np.stack((left[:, 0], width - 1 - left[:, 1], width - 1 - left[:, 2], left[:, 3]), 1)
        y = np.stack((low[:, 0], low[:, 1], height - 1 - low[:, 2], height - 1 - low[:, 3]), 1)
        start = np.array([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)], np.float64)
        matrix = perspective_coefficients(start, np.stack((x, y), 2).astype(np.float64))
        return self.warp(levels.PERSPECTIVE_NEAREST, levels.PERSPECTIVE_BILINEAR, plan, matrix, on)

    def check_images(self, plan: Plan) -> None:
        super().check_images(plan)
        if min(plan.height, plan.width) < 2:
            raise ValueError(
                f"RandomPerspective needs images of 2 x 2 pixels or more, not {plan.height} x {plan.width}"
            )


def _between(ends: Sequence[float], uniform: Doubles) -> Doubles:
    drawn: Doubles = ends[0] + (ends[1] - ends[0]) * uniform
    return drawn


def _angles(name: str, degrees: object) -> tuple[float, float]:
    """Checks angles and returns (least, greatest) in degrees."""
    return around(name, degrees, 0.0, least=-1e6, reach=1e6, unit="degrees")


def _shears(shear: object) -> tuple[float, float, float, float]:
    """Checks shears and returns (least x, greatest x, least y, greatest y) in degrees."""
    values = elements(shear)
    both = (shear, (0.0, 0.0)) if values is None or len(values) != 4 else (values[:2], values[2:])
    across, over = (_angles("shear", one) for one in both)
    if max(abs(end) for end in (*across, *over)) >= 90:
        raise argument_error("shear", shear, "angles below 90 degrees")
    return (*across, *over)


def _center(center: object) -> tuple[float, ...] | None:
    bounds: dict[str, Any] = {"least": -LONGEST_SIDE, "greatest": LONGEST_SIDE}
    return None if center is None else numbers("center", center, **bounds, count=2, expected="(x, y) in pixels")


def _from_center(center: tuple[float, ...] | None, plan: Plan) -> tuple[float, float]:
    """Returns a point (x, y) relative to the image's center, rounded to float32."""
    x, y = (0.0, 0.0) if center is None else (center[0] - 0.5 * plan.width, center[1] - 0.5 * plan.height)
    return float(np.float32(x)), float(np.float32(y))


def affine_matrix(
    angle: Doubles,
    translate: tuple[Doubles, Doubles],
    scale: Doubles,
    shear: tuple[Doubles, Doubles],
    center: tuple[float, float],
) -> Doubles:
    """Returns matrices from output to input coordinates, as torchvision's ``_get_inverse_affine_matrix``.

    Numbers are float64 [B]: angle and shears (x, y) in degrees, the move (x, y) in pixels; the center is (x, y) from
    the image's center in pixels.

    Returns:
        float64 [B, 6], rows of a 2 x 3 matrix.
    """
    drawn = np.stack((angle, *translate, scale, *shear), 1)
    return filled(_write_affine, (len(drawn), 6), np.float64, drawn, *center)


# Sines and linear systems are compiled, as the bits of NumPy's and torch's depend on the processor.


@numba_compiled("float64[:, ::1], float64, float64, float64[:, ::1]", nogil=False)
def _write_affine(drawn: Doubles, x: float, y: float, out: Doubles) -> None:
    unit = math.pi / 180
    for k in range(len(out)):
        rotation, shear_x, shear_y = drawn[k, 0] * unit, drawn[k, 4] * unit, drawn[k, 5] * unit
        moved_x, moved_y, scale = x + drawn[k, 1], y + drawn[k, 2], drawn[k, 3]
        cos_y, tan_x, turned = math.cos(shear_y), math.tan(shear_x), rotation - shear_y
        a, c = math.cos(turned) / cos_y, math.sin(turned) / cos_y
        b, d = -(a * tan_x + math.sin(rotation)), math.cos(rotation) - c * tan_x
        a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
        out[k, 0], out[k, 1], out[k, 2] = a, b, x - a * moved_x - b * moved_y
        out[k, 3], out[k, 4], out[k, 5] = c, d, y - c * moved_x - d * moved_y


def perspective_coefficients(start: Doubles, end: Doubles) -> Doubles:
    """Returns coefficients from output to input coordinates, as torchvision's ``_get_perspective_coeffs``.

    The corners, x and y, are float64 [4, 2] in the input and [B, 4, 2] in the output.

    Returns:
        float64 [B, 8].
    """
    x, y = end[:, :, 0], end[:, :, 1]
    u, v = start.T
    systems = np.zeros((len(end), 8, 8))
    systems[:, :4, 0], systems[:, :4, 1], systems[:, :4, 2] = x, y, 1.0
    systems[:, 4:, 3], systems[:, 4:, 4], systems[:, 4:, 5] = x, y, 1.0
    systems[:, :4, 6], systems[:, :4, 7] = -u * x, -u * y
    systems[:, 4:, 6], systems[:, 4:, 7] = -v * x, -v * y
    solved = np.tile(np.concatenate((u, v)), (len(end), 1))
    _eliminate(systems, solved)
    return solved


@numba_compiled("float64[:, :, ::1], float64[:, ::1]", nogil=False)
def _eliminate(systems: Doubles, solved: Doubles) -> None:
    """Replaces the right-hand sides by the solutions; destroys systems."""
    for k in range(len(systems)):
        _eliminate_one(systems[k], solved[k])


@called
def _eliminate_one(system: Doubles, solved: Doubles) -> None:
    """Replaces a right-hand side by the solution: Gaussian elimination with partial pivoting."""
    size = len(system)
    for column in range(size):
        pivot = column
        for row in range(column + 1, size):
            if abs(system[row, column]) > abs(system[pivot, column]):
                pivot = row
        for place in range(column, size):
            kept = system[column, place]
            system[column, place] = system[pivot, place]
            system[pivot, place] = kept
        kept = solved[column]
        solved[column] = solved[pivot]
        solved[pivot] = kept
        for row in range(column + 1, size):
            factor = system[row, column] / system[column, column]
            for place in range(column, size):
                system[row, place] -= factor * system[column, place]
            solved[row] -= factor * solved[column]
    for column in range(size - 1, -1, -1):
        total = solved[column]
        for place in range(column + 1, size):
            total -= system[column, place] * solved[place]
        solved[column] = total / system[column, column]
