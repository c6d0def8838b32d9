"""Steps that change the size: RandomResizedCrop and Resize, named and set as in ``torchvision.transforms.v2``.

Sides are one number per batch or one per sample. Sizes may follow the epoch: small images in the first epochs and
larger ones in the last save training time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from mmload.augment.arguments import (
    LONGEST_SIDE,
    argument_error,
    elements,
    flag,
    integer,
    mode_of,
    pair,
    ratios,
    shares,
)
from mmload.augment.draws import Draws, whole_numbers
from mmload.augment.step import Step, arguments_of
from mmload.render.plan import Plan
from mmload.render.plan_parts import Placement, Resampling

ATTEMPTS = 10
"""Number of times that torchvision draws an area and a ratio before it falls back."""

Side: TypeAlias = Tensor | int

SizeOfEpoch = Callable[[int], Any]
"""An epoch's number -> the ``size`` that a step has in it."""

Size = int | Sequence[int] | SizeOfEpoch


class ResizingStep(Step):
    """Base of all steps that resize: the interpolation, and a ``size`` that may follow the epoch."""

    takes_sizes = True

    def __init__(self, interpolation: Any, antialias: bool | None) -> None:
        super().__init__()
        self.interpolation = mode_of(interpolation)
        self.antialias = antialias is not None and flag("antialias", antialias)

    def fits(self, plan: Plan) -> bool:
        # Only one resize fits into a pass.
        return plan.fits_resize(self.interpolation)

    def at_epoch(self, epoch: int) -> Self:
        size = getattr(self, "size", None)
        if not callable(size):
            return self
        try:
            epoch_size = size(epoch)
            if callable(epoch_size):
                raise argument_error("size", epoch_size, "an integer or (height, width)")
            return type(self)(**arguments_of(self) | {"size": epoch_size})
        except ValueError as error:
            raise ValueError(f"in epoch {epoch}, {error}") from error

    def in_epoch_of(self, draws: Draws) -> Self:
        """Returns the step with the size of the batch's epoch."""
        return self.at_epoch(draws.epoch(f"{type(self).__name__}'s size"))

    def resampling(
        self, size: tuple[int, int], *, placement: Placement | None = None, exact_masks: bool = True
    ) -> Resampling:
        """Returns the resize to (height, width), or on a canvas of this size.

        With ``exact_masks``, masks are resized by ``nearest-exact`` if images are; else by ``nearest``.
        """
        mode = self.interpolation
        return Resampling(
            height=size[0],
            width=size[1],
            mode=mode,
            antialias=self.antialias and mode in ("bilinear", "bicubic"),
            placement=placement,
            exact_masks=exact_masks and mode == "nearest-exact",
        )


class RandomResizedCrop(ResizingStep):
    """A crop of random area and aspect ratio, resized to ``size``; masks always by ``nearest``, as in torchvision.

    Args:
        size: (height, width), or one number for both; or a callable that gives either for an epoch, such as
            :class:`ProgressiveSize`.
        scale: least and greatest share of the image's area.
        ratio: least and greatest width / height; drawn uniformly in its logarithm.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self.size: tuple[int, int] | SizeOfEpoch = size if callable(size) else pair(size)
        self.scale = shares(scale)
        self.ratio = ratios(ratio)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one window per sample: the first of ten that lies inside, else the center."""
        if not isinstance(self.size, tuple):
            return self.in_epoch_of(draws).describe(plan, draws)
        return plan.resized(self._windows(plan, draws), self.resampling(self.size, exact_masks=False))

    def _windows(self, plan: Plan, draws: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draws top, left, rows and cols: int64 [B]."""
        high, wide = plan.frame
        area = high * wide
        cols, rows = rectangles(draws, _column(area), self.scale, self.ratio)
        fitting = (rows > 0) & (rows <= _column(high)) & (cols > 0) & (cols <= _column(wide))
        height, width = self._fallback(high, wide)
        found = fitting.any(1)
        h = torch.where(found, first(rows, fitting), height)
        w = torch.where(found, first(cols, fitting), width)
        corners = draws.uniform(2)
        top = torch.where(found, whole_numbers(corners[:, 0], high - h + 1), (high - height) // 2)
        left = torch.where(found, whole_numbers(corners[:, 1], wide - w + 1), (wide - width) // 2)
        return top, left, h, w

    def _fallback(self, height: Side, width: Side) -> tuple[Side, Side]:
        """Returns the size of the largest centered window within the ratios, torchvision's fallback."""
        narrowest, widest = self.ratio
        high, wide = exactly(height), exactly(width)
        aspect = wide / high
        rows = pick(aspect < narrowest, to_pixels(wide / narrowest), height)
        cols = pick(aspect > widest, to_pixels(high * widest), width)
        check_leaves_pixels("ratio", self.ratio, smaller(rows, cols), (height, width), "allow squarer crops")
        return rows, cols


class Resize(ResizingStep):
    """The whole image in another size; masks by ``nearest``, or ``nearest-exact`` if that is the interpolation.

    Args:
        size: (height, width) exactly; or one number for the shorter side, the other keeping the aspect ratio; or None:
            ``max_size`` alone decides; or a callable that gives any of them for an epoch, such as
            :class:`ProgressiveSize`.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        max_size: the longer side is not made longer than this; only where ``size`` is one number or None.
        antialias: whether shrinking averages over all source pixels.

    Raises:
        ValueError: if an argument is out of range, ``max_size`` contradicts ``size``, or (when run) it leaves no pixel
            of the shorter side.
    """

    is_random = False

    def __init__(
        self,
        size: Size | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        if size is None and max_size is None:
            raise ValueError("size and max_size are both None, expected one of them")
        self.size: tuple[int, int] | int | SizeOfEpoch | None = None
        if callable(size):
            self.size = size
        elif size is not None:
            sides = pair(size)
            self.size = sides[0] if len(elements(size) or (size,)) == 1 else sides
        self.max_size = None if max_size is None else self._longest(max_size)

    def _longest(self, max_size: object) -> int:
        """Checks the upper bound of the longer side, which must leave room for the size, and returns it."""
        longest = integer("max_size", max_size, least=1, greatest=LONGEST_SIDE, expected="a positive integer")
        if isinstance(self.size, tuple):
            raise ValueError(f"max_size is {longest}, but size {self.size} already sets both sides; leave max_size out")
        if isinstance(self.size, int) and longest <= self.size:
            raise ValueError(f"max_size is {longest}, expected more than size, {self.size}")
        return longest

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds the resize to one size for every sample, if they do not have it already; nothing is drawn."""
        if callable(self.size):
            return self.in_epoch_of(draws).describe(plan, draws)
        size: tuple[Side, Side] | int | None = self.size
        if not isinstance(size, tuple):
            if plan.is_variable_size and plan.sizes is None:
                raise ValueError("size is one number and the images are variable-size, expected (height, width)")
            size = self._keeping_aspect(size, *plan.frame)
        rows, cols = size
        if isinstance(rows, Tensor) or isinstance(cols, Tensor):  # a crop has to follow
            rows, cols = plan.per_sample(rows), plan.per_sample(cols)
            zero = torch.zeros_like(rows)
            placed = Placement(rows=rows, cols=cols, top=zero, left=zero, fill=(0.0,), mask_fill=255)
            return plan.resized(None, self.resampling((0, 0), placement=placed))
        if (rows, cols) == (plan.height, plan.width) and not plan.is_variable_size:
            return plan
        return plan.resized(None, self.resampling((rows, cols)))

    def _keeping_aspect(self, short: int | None, height: Side, width: Side) -> tuple[Side, Side]:
        """Returns the size with ``short`` as the shorter side as torchvision computes it, rounded down to pixels."""
        upright = width <= height
        shorter, longer = pick(upright, width, height), pick(upright, height, width)
        new_short: Side
        new_long: Side
        if short is None:
            new_long = self.max_size or longer
            new_short = _cut(new_long * shorter, longer)
        else:
            new_short, new_long = short, _cut(short * longer, shorter)
            if self.max_size is not None:
                beyond = new_long > self.max_size
                new_short = pick(beyond, _cut(self.max_size * new_short, new_long), new_short)
                new_long = pick(beyond, self.max_size, new_long)
        advice = "make it larger, or give size as (height, width)"
        check_leaves_pixels("max_size", self.max_size, new_short, (height, width), advice)
        return pick(upright, new_long, new_short), pick(upright, new_short, new_long)


def rectangles(
    draws: Draws, area: Side, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Draws ten rectangles per sample: sides int64 [B, 10] of a share ``scale`` of ``area``, one or [B, 1].

    The first side over the second is ``ratio``, uniform in its logarithm, as in torchvision.
    """
    uniform = draws.uniform(2 * ATTEMPTS)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    target = area * (scale[0] + (scale[1] - scale[0]) * uniform[:, :ATTEMPTS])
    aspect = (low + (high - low) * uniform[:, ATTEMPTS:]).exp()
    return _rounded(target * aspect), _rounded(target / aspect)


def first(values: Tensor, chosen: Tensor) -> Tensor:
    """Returns the first of ``values`` [B, N] in each row where ``chosen`` is true; the first of all if none is."""
    return values.gather(1, chosen.to(torch.uint8).argmax(1, keepdim=True))[:, 0]


def _rounded(square: Tensor) -> Tensor:
    return square.sqrt().round().to(torch.int64)


@dataclass(frozen=True)
class ProgressiveSize:
    """A size that rises linearly between two epochs, as in FFCV's ResNet-50 configurations, in steps of ``multiple``.

    It is ``min_size`` up to ``start_epoch`` and ``max_size`` from ``end_epoch`` on. Between them it is the multiple
    nearest to the straight line (the even one of two as near), within both sizes. FFCV's ``rn50_88_epochs.yaml`` is
    ``ProgressiveSize(160, 192, start_epoch=65, end_epoch=76)``.

    Args:
        min_size: pixels of the first epochs.
        max_size: pixels of the last epochs.
        start_epoch: the last epoch of ``min_size``; counted from 0.
        end_epoch: the first epoch of ``max_size``.
        multiple: every size between them is a multiple of this.

    Raises:
        ValueError: if an argument is out of range, or the greater one comes first.
    """

    min_size: int
    max_size: int
    start_epoch: int
    end_epoch: int
    multiple: int = 32

    def __post_init__(self) -> None:
        for name, least in (("min_size", 1), ("max_size", 1), ("multiple", 1), ("start_epoch", 0), ("end_epoch", 0)):
            greatest = None if name.endswith("epoch") else LONGEST_SIDE
            expected = f"an integer from {least}" + (f" to {LONGEST_SIDE}" if greatest else "")
            checked = integer(name, getattr(self, name), least=least, greatest=greatest, expected=expected)
            object.__setattr__(self, name, checked)
        for first, last in (("min_size", "max_size"), ("start_epoch", "end_epoch")):
            ends = getattr(self, first), getattr(self, last)
            if ends[0] > ends[1]:
                raise argument_error(f"({first}, {last})", ends, "the smaller one first")

    def __call__(self, epoch: int) -> int:
        """Returns the size in an epoch."""
        if epoch <= self.start_epoch:
            return self.min_size
        if epoch >= self.end_epoch:
            return self.max_size
        share = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        size = self.min_size + share * (self.max_size - self.min_size)
        return min(max(round(size / self.multiple) * self.multiple, self.min_size), self.max_size)


def least(side: Side) -> int:
    """Returns the smallest side; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.min()) if len(side) else 0


def greatest(side: Side) -> int:
    """Returns the largest side; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.max()) if len(side) else 0


def missing(wanted: int, side: Side) -> Side:
    """Returns the pixels by which a side is shorter than wanted."""
    return max(wanted - side, 0) if isinstance(side, int) else (wanted - side).clamp(min=0)


def smaller(first: Any, second: Any) -> Any:
    """Returns the smaller of two numbers, or of two tensors by element."""
    return torch.minimum(first, second) if isinstance(first, Tensor) else min(first, second)


def pick(condition: Tensor | bool, yes: Any, no: Any) -> Any:
    """Returns one of two values, or by element."""
    return torch.where(condition, yes, no) if isinstance(condition, Tensor) else yes if condition else no


def exactly(side: Side) -> Any:
    """Converts a side to a float or float64, for quotients and products as Python computes them, not as float32."""
    return side.to(torch.float64) if isinstance(side, Tensor) else float(side)


def over(number: Side, side: Side) -> Any:
    """Divides a number by a side, or by each side: float64, rounded as Python rounds it.

    Torch makes ``number / side`` the product with the reciprocal: another number for a quarter of all sizes.
    """
    return (
        torch.as_tensor(number, dtype=torch.float64, device="cpu") / side if isinstance(side, Tensor) else number / side
    )


def _cut(product: Side, divisor: Side) -> Side:
    """Rounds a quotient down to pixels."""
    quotient = over(product, divisor)
    return quotient.to(torch.int64) if isinstance(quotient, Tensor) else int(quotient)


def to_pixels(side: Tensor | float) -> Side:
    """Rounds to pixels, halves to even."""
    return side.round().to(torch.int64) if isinstance(side, Tensor) else round(side)


def _column(side: Side) -> Side:
    """Returns one number, or [B, 1], to compare with several numbers per sample."""
    return side[:, None] if isinstance(side, Tensor) else side


def check_leaves_pixels(name: str, value: Any, short: Tensor | float, size: tuple[Side, Side], advice: str) -> None:
    """Rejects a setting that leaves no pixel of an image, of which ``short`` is the shorter side afterwards."""
    if (float(short.min()) if len(short) else 1.0) < 1 if isinstance(short, Tensor) else short < 1:
        images = "images" if isinstance(size[0], int) else "an image"
        raise ValueError(f"{name} {value} leaves no pixel of {images} of {size_with_least(short, *size)}: {advice}")


def size_with_least(measure: Tensor | float, height: Side, width: Side) -> str:
    """Returns a size to name in a message: that of all samples, or of the one with the least ``measure``, [B]."""
    if not isinstance(measure, Tensor) or isinstance(height, int) or isinstance(width, int):
        return f"{height} x {width}"
    place = int(measure.argmin())
    return f"{int(height[place])} x {int(width[place])}"
