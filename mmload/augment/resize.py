"""Steps that change the size: RandomResizedCrop and Resize, named and set as in ``torchvision.transforms.v2``.

Sides are one number per batch or one per sample. Sizes may follow the epoch: small images in the first epochs and
larger ones in the last save training time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mmload.augment.arguments import (
    LONGEST_SIDE,
    argument_error,
    check_ascending,
    flag,
    integer,
    listed,
    mode_of,
    pair,
    ratios,
    shares,
)
from mmload.augment.step import Doubles, Draws, Step, arguments_of
from mmload.render.plan import Plan, Resampling
from mmload.runtime.kernels import numba_compiled
from mmload.runtime.random_words import Numbers, Words, unit_of_word

ATTEMPTS = 10
"""Number of times that torchvision draws an area and a ratio before it falls back."""

Sides = tuple[Numbers | int, Numbers | int]
"""Height and width: one number for all samples, or int64 [B] each."""

SizeOfEpoch = Callable[[int], Any]
"""An epoch's number -> the ``size`` that a step has in it."""

Size = int | Sequence[int] | SizeOfEpoch


class ResizingStep(Step):
    """Base of all steps that resize: the interpolation, and a ``size`` that may follow the epoch."""

    def __init__(self, interpolation: Any, antialias: bool | None) -> None:
        super().__init__()
        self.interpolation = mode_of(interpolation)
        self.antialias = antialias is not None and flag("antialias", antialias)

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

    def resampling(self, size: Sides, *, exact_masks: bool = True, **place: Any) -> Resampling:
        """Returns the resize to (height, width), with more attributes of its place.

        With ``exact_masks``, masks are resized by ``nearest-exact`` if images are; else by ``nearest``.
        """
        mode = self.interpolation
        return Resampling(
            rows=size[0],
            cols=size[1],
            mode=mode,
            antialias=self.antialias and mode in ("bilinear", "bicubic"),
            exact_masks=exact_masks and mode == "nearest-exact",
            **place,
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
        window = drawn_windows(draws, plan.frame, self.scale, self.ratio, self._fallback(*plan.frame))
        return plan.resized(window, self.resampling(self.size, exact_masks=False), self.size)

    def _fallback(self, height: Numbers | int, width: Numbers | int) -> tuple[Any, Any]:
        """Returns the size of the largest centered window within the ratios, torchvision's fallback."""
        narrowest, widest = self.ratio
        aspect = width / height
        rows = np.where(aspect < narrowest, np.rint(width / narrowest), height)
        cols = np.where(aspect > widest, np.rint(height * widest), width)
        check_leaves_pixels("ratio", self.ratio, np.minimum(rows, cols), (height, width), "allow squarer crops")
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
            self.size = sides[0] if len(listed(size)) == 1 else sides
        self.max_size = None if max_size is None else self._longest(max_size)

    def _longest(self, max_size: object) -> int:
        """Checks the upper bound of the longer side, which must leave room for the size, and returns it."""
        longest = integer("max_size", max_size, least=1, greatest=LONGEST_SIDE)
        if isinstance(self.size, tuple):
            raise ValueError(f"max_size is {longest}, but size {self.size} already sets both sides; leave max_size out")
        if isinstance(self.size, int) and longest <= self.size:
            raise ValueError(f"max_size is {longest}, expected more than size, {self.size}")
        return longest

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds the resize to one size for every sample, if they do not have it already; nothing is drawn."""
        if callable(self.size):
            return self.in_epoch_of(draws).describe(plan, draws)
        rows, cols = self.size if isinstance(self.size, tuple) else self._keeping_aspect(self.size, plan)
        if np.ndim(rows):  # a crop has to follow
            return plan.resized(None, self.resampling((rows, cols)), (0, 0))
        size = int(rows), int(cols)
        if size == (plan.height, plan.width) and not plan.is_variable_size:
            return plan
        return plan.resized(None, self.resampling(size), size)

    def _keeping_aspect(self, short: int | None, plan: Plan) -> tuple[Any, Any]:
        """Returns the size with ``short`` as the shorter side as torchvision computes it, rounded down to pixels."""
        height, width = plan.frame
        new_short, new_long = np.minimum(height, width), np.maximum(height, width)
        if short is not None:
            new_short, new_long = short, (short * new_long / new_short).astype(np.int64)
        if self.max_size is not None:
            cut = (new_long > self.max_size) | (short is None)
            new_short = np.where(cut, (self.max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(cut, self.max_size, new_long)
            advice = "make it larger, or give size as (height, width)"
            check_leaves_pixels("max_size", self.max_size, new_short, (height, width), advice)
        upright = width <= height
        return np.where(upright, new_long, new_short), np.where(upright, new_short, new_long)


def drawn_windows(
    draws: Draws,
    frame: Sides,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    fallback: Sides,
    *,
    are_holes: bool = False,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Draws a window per sample as torchvision does: the first of ten sizes that fits, at a uniformly random place.

    Args:
        draws: draws of the step; it takes 22.
        frame: height and width of the images.
        scale: least and greatest share of an image's area; drawn uniformly.
        ratio: least and greatest width / height, of holes height / width; drawn uniformly in its logarithm.
        fallback: height and width of the window in the middle where no size fits.
        are_holes: whether windows are smaller than the image and may have no pixel; else they have one and may be all
            of the image.

    Returns:
        Top, left, rows and cols: int64 [B] each.
    """
    words = draws.bits(2 * ATTEMPTS + 2).view(np.uint64)
    frames, windows = np.empty((2, len(words)), np.int64), np.empty((4, len(words)), np.int64)
    frames[0], frames[1] = frame
    windows[2], windows[3] = fallback
    _write_windows(words, frames, np.array([*scale, *map(math.log, ratio)]), are_holes, windows)
    top, left, rows, cols = windows
    return top, left, rows, cols


@numba_compiled("uint64[:, ::1], int64[:, ::1], float64[::1], boolean, int64[:, ::1]", nogil=False)
def _write_windows(words: Words, frames: Numbers, bounds: Doubles, are_holes: bool, windows: Numbers) -> None:
    """Writes the first window per sample that fits; else that of the size in ``windows``, in the middle.

    Of words [B, 2 n + 2], n draw shares of the area, n draw ratios, and two draw the place. Bounds are the extreme
    shares, and the logarithms of the extreme ratios.
    """
    tries, smallest = words.shape[1] // 2 - 1, 0 if are_holes else 1
    least, greatest, low, up = bounds[0], bounds[1], bounds[2], bounds[3]
    for k in range(len(words)):
        high, wide = frames[0, k], frames[1, k]
        for attempt in range(tries):
            area = high * wide * (least + (greatest - least) * unit_of_word(words[k, attempt]))
            ratio = math.exp(low + (up - low) * unit_of_word(words[k, tries + attempt]))
            first, second = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            rows, cols = (first, second) if are_holes else (second, first)
            if 0 <= rows - smallest < high and 0 <= cols - smallest < wide:
                windows[0, k] = np.int64(unit_of_word(words[k, 2 * tries]) * (high - rows + 1))
                windows[1, k] = np.int64(unit_of_word(words[k, 2 * tries + 1]) * (wide - cols + 1))
                windows[2, k], windows[3, k] = rows, cols
                break
        else:
            windows[0, k], windows[1, k] = (high - windows[2, k]) // 2, (wide - windows[3, k]) // 2


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
            greatest = math.inf if name.endswith("epoch") else LONGEST_SIDE
            checked = integer(name, getattr(self, name), least=least, greatest=greatest)
            object.__setattr__(self, name, checked)
        check_ascending(self, "min_size", "max_size")
        check_ascending(self, "start_epoch", "end_epoch")

    def __call__(self, epoch: int) -> int:
        """Returns the size in an epoch."""
        if epoch <= self.start_epoch:
            return self.min_size
        if epoch >= self.end_epoch:
            return self.max_size
        share = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        size = self.min_size + share * (self.max_size - self.min_size)
        return min(max(round(size / self.multiple) * self.multiple, self.min_size), self.max_size)


def check_leaves_pixels(name: str, value: Any, short: Any, frame: Sides, advice: str) -> None:
    """Rejects a setting that leaves no pixel of an image, of which ``short`` is the shorter side afterwards."""
    if np.any(np.asarray(short) < 1):
        images = "images" if isinstance(frame[0], int) else "an image"
        raise ValueError(f"{name} {value} leaves no pixel of {images} of {size_with_least(short, frame)}: {advice}")


def size_with_least(measure: Any, frame: Sides) -> str:
    """Returns a size to name in a message: that of all samples, or of the one with the least ``measure``, [B]."""
    measures, heights, widths = np.broadcast_arrays(measure, *frame)
    place = measures.argmin()
    return f"{heights.flat[place]} x {widths.flat[place]}"
