"""Steps that change the size: RandomResizedCrop and Resize, named and set as in ``torchvision.transforms.v2``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmload.augment.arguments import LONGEST_SIDE, choice, elements, flag, integer, pair, ratios, refusal, shares
from mmload.augment.draws import Draws, whole_numbers
from mmload.augment.sizes import Side, Size, SizeOfEpoch, column, exactly, least, size_with_least
from mmload.augment.step import Step, arguments_of
from mmload.render.plan import Plan
from mmload.render.plan_parts import Placement, Resampling

ATTEMPTS = 10
"""How often torchvision draws an area and a ratio before it falls back."""

MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


class RandomResizedCrop(Step):
    """A crop of random area and aspect ratio, resized to ``size``; masks always by ``nearest``, as in torchvision.

    Args:
        size: (height, width), or one number for both; or a callable that gives either for an epoch, such as
            :class:`~mmload.augment.sizes.ProgressiveSize`.
        scale: least and greatest share of the image's area.
        ratio: least and greatest width / height; drawn uniformly in its logarithm.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.

    Raises:
        ValueError: if an argument is out of range.
    """

    takes_sizes = True

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__()
        self.size: tuple[int, int] | SizeOfEpoch = size if callable(size) else pair(size)
        self.scale = shares(scale)
        self.ratio = ratios(ratio)
        self.interpolation = mode_of(interpolation)
        self.antialias = antialias is not None and flag("antialias", antialias)

    def fits(self, plan: Plan) -> bool:
        # Only one resize fits into a pass.
        return plan.fits_resize(self.interpolation)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one window per sample: the first of ten that lies inside, else the center."""
        if not isinstance(self.size, tuple):
            return self.at_epoch(draws.epoch("RandomResizedCrop's size")).describe(plan, draws)
        return plan.resized(self._windows(plan, draws), resampling_to(self.size, self.interpolation, self.antialias))

    def at_epoch(self, epoch: int) -> RandomResizedCrop:
        if isinstance(self.size, tuple):
            return self
        with _told_of(epoch):
            return RandomResizedCrop(
                _plain(self.size(epoch)), self.scale, self.ratio, self.interpolation, self.antialias
            )

    def _windows(self, plan: Plan, draws: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draws top, left, rows and cols: int64 [B]."""
        high, wide = plan.frame
        cols, rows = rectangles(draws, column(high * wide), self.scale, self.ratio)
        fitting = (rows > 0) & (rows <= column(high)) & (cols > 0) & (cols <= column(wide))
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
        rows, cols = height, width
        if isinstance(height, int) and isinstance(width, int):
            if width / height < narrowest:
                rows = int(round(width / narrowest))
            elif width / height > widest:
                cols = int(round(height * widest))
        else:
            high, wide = exactly(height), exactly(width)
            rows = torch.where(wide / high < narrowest, (wide / narrowest).round().to(torch.int64), height)
            cols = torch.where(wide / high > widest, (high * widest).round().to(torch.int64), width)
        if min(least(rows), least(cols)) < 1:
            size = size_with_least(torch.minimum(*map(torch.as_tensor, (rows, cols))), height, width)
            images = f"images of {size}" if isinstance(height, int) else f"an image of {size}"
            raise ValueError(f"ratio {self.ratio} leaves no pixel of {images}: allow squarer crops")
        return rows, cols


class Resize(Step):
    """The whole image in another size; masks by ``nearest``, or ``nearest-exact`` if that is the interpolation.

    Args:
        size: (height, width) exactly; or one number for the shorter side, the other keeping the aspect ratio; or None:
            ``max_size`` alone decides; or a callable that gives any of them for an epoch, such as
            :class:`~mmload.augment.sizes.ProgressiveSize`.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        max_size: the longer side is not made longer than this; only where ``size`` is one number or None.
        antialias: whether shrinking averages over all source pixels.

    Raises:
        ValueError: if an argument is out of range, ``max_size`` contradicts ``size``, or (when run) it leaves no pixel
            of the shorter side.
    """

    takes_sizes = True

    def __init__(
        self,
        size: Size | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        super().__init__()
        if size is None and max_size is None:
            raise ValueError("size and max_size are both None, expected one of them")
        sides = None if size is None or callable(size) else pair(size)
        single = sides is None or len(elements(size) or (size,)) == 1
        self.short = None if sides is None or not single else sides[0]
        self.size: tuple[int, int] | SizeOfEpoch | None = size if callable(size) else None if single else sides
        self.max_size = None if max_size is None else self._longest(max_size)
        self.interpolation = mode_of(interpolation)
        self.antialias = antialias is not None and flag("antialias", antialias)

    def _longest(self, max_size: object) -> int:
        """Checks the upper bound of the longer side, which must leave room for the size, and returns it."""
        longest = integer("max_size", max_size, least=1, greatest=LONGEST_SIDE, expected="a positive integer")
        if isinstance(self.size, tuple):
            raise ValueError(f"max_size is {longest} beside size {self.size}, which already decides both sides")
        if self.short is not None and longest <= self.short:
            raise ValueError(f"max_size is {longest}, expected more than size, {self.short}")
        return longest

    def fits(self, plan: Plan) -> bool:
        # Only one resize fits into a pass.
        return plan.fits_resize(self.interpolation)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds the resize to one size for every sample, if they do not have it already; nothing is drawn."""
        if callable(self.size):
            return self.at_epoch(draws.epoch("Resize's size")).describe(plan, draws)
        if plan.is_variable_size and self.size is None:
            if plan.sizes is None:
                raise ValueError("size is one number and the images are variable-size, expected (height, width)")
            return self._keeping_each_aspect(plan)
        size = self.size or self._keeping_aspect(plan.height, plan.width)
        if size == (plan.height, plan.width) and not plan.is_variable_size:
            return plan
        if min(size) == 0:
            raise ValueError(
                f"max_size {self.max_size} leaves {size[0]} x {size[1]} pixels of images of {plan.height} x "
                f"{plan.width}: make it larger, or give size as (height, width)"
            )
        how = resampling_to(size, self.interpolation, self.antialias)
        return plan.resized(None, replace(how, exact_masks=self.interpolation == "nearest-exact"))

    def at_epoch(self, epoch: int) -> Resize:
        if not callable(self.size):
            return self
        with _told_of(epoch):
            return Resize(_plain(self.size(epoch)), self.interpolation, self.max_size, self.antialias)

    def _keeping_each_aspect(self, plan: Plan) -> Plan:
        """Adds the resize of variable-size images to a size per sample; a crop has to follow."""
        height, width = (plan.per_sample(side) for side in plan.frame)
        shorter, longer = torch.minimum(height, width), torch.maximum(height, width)
        if self.short is None:
            new_long = longer if self.max_size is None else torch.full_like(longer, self.max_size)
            new_short = _cut(new_long * shorter, longer)
        else:
            new_short, new_long = torch.full_like(shorter, self.short), _cut(self.short * longer, shorter)
            if self.max_size is not None:
                beyond = new_long > self.max_size
                new_short = torch.where(beyond, _cut(self.max_size * new_short, new_long), new_short)
                new_long = new_long.clamp(max=self.max_size)
        if least(new_short) < 1:
            raise ValueError(
                f"max_size {self.max_size} leaves no pixel of an image of "
                f"{size_with_least(new_short, height, width)}: make it larger, or give size as (height, width)"
            )
        upright = width <= height
        rows, cols = torch.where(upright, new_long, new_short), torch.where(upright, new_short, new_long)
        zero = torch.zeros_like(rows)
        placed = Placement(rows=rows, cols=cols, top=zero, left=zero, fill=(0.0,), mask_fill=255)
        how = resampling_to((0, 0), self.interpolation, self.antialias)
        return plan.resized(None, replace(how, placement=placed, exact_masks=self.interpolation == "nearest-exact"))

    def _keeping_aspect(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size as torchvision computes it, rounded down to pixels."""
        shorter, longer = sorted((height, width))
        if self.short is None:
            new_long = self.max_size or longer
            new_short = int(new_long * shorter / longer)
        else:
            new_short, new_long = self.short, int(self.short * longer / shorter)
            if self.max_size is not None and new_long > self.max_size:
                new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def extra_repr(self) -> str:
        shown = arguments_of(self) | {"size": self.size or self.short}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


@contextmanager
def _told_of(epoch: int) -> Iterator[None]:
    """Says of an invalid size which epoch it is of."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"in epoch {epoch}, {error}") from error


def _plain(size: Any) -> Any:
    """Checks the size that a callable gave for an epoch: it must not be another callable."""
    if callable(size):
        raise refusal("size", size, "an integer or (height, width)")
    return size


def _cut(product: Tensor, divisor: Tensor) -> Tensor:
    """Rounds a quotient down, as ``int(product / divisor)`` of Python's numbers."""
    return (product.to(torch.float64) / divisor).to(torch.int64)


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


def resampling_to(size: tuple[int, int], mode: str, antialias: bool) -> Resampling:
    """Returns the resize to (height, width)."""
    smooth = mode in ("bilinear", "bicubic")
    return Resampling(height=size[0], width=size[1], mode=mode, antialias=antialias and smooth)


def mode_of(interpolation: Any) -> str:
    """Checks an interpolation, a name or torchvision's enum, and returns its name.

    Raises:
        ValueError: if it is none of :data:`MODES`.
    """
    return choice("interpolation", getattr(interpolation, "value", interpolation), MODES)
