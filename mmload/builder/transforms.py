"""The deterministic steps between decoding and storing: uint8 in, uint8 out.

A step takes a :class:`~mmload.records.Sample` and returns it with images, masks and boxes transformed alike. Names,
rules and pixels are those of torchvision v2 with antialiasing. No step is random: random steps belong to load time
(:mod:`mmload.augment`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from mmload.builder.sample_geometry import (
    Pixels,
    Size,
    Window,
    cut_sample,
    images_of,
    is_inside,
    middle,
    resize_sample,
    size_of,
    torchvision_functional,
)
from mmload.errors import RecipeError, choices
from mmload.records import Sample
from mmload.sources.randomness import is_random_name

_MOST = 65_535  # upper bound on the pixels of a side, as in a JPEG
INTERPOLATIONS = ("bilinear", "bicubic")


def _is_integer(value: object, least: int, most: int = _MOST) -> bool:
    return type(value) is int and least <= value <= most


def _are_integers(value: object, count: int, least: int) -> bool:
    """Returns whether a value is one integer, or so many."""
    values = value if isinstance(value, tuple) else (value,) * count
    return len(values) == count and all(_is_integer(each, least) for each in values)


_SIDE = f"an integer from 1 to {_MOST:,}"

_ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "size": (lambda size: _are_integers(size, 2, 1), f"pixels, {_SIDE}, or [height, width]"),
    "Shrink.size": (lambda size: _is_integer(size, 1), f"pixels of the short side, {_SIDE}"),
    "interpolation": (lambda kind: kind in INTERPOLATIONS, f"one of {choices(INTERPOLATIONS)}"),
    "padding": (
        lambda sides: _are_integers(sides, 4, 0),
        f"an integer or [left, top, right, bottom], each from 0 to {_MOST:,}",
    ),
    "fill": (lambda value: _is_integer(value, 0, 255), "an integer from 0 to 255"),
    "num_output_channels": (lambda count: _is_integer(count, 1) and count in (1, 3), "1 or 3"),
}
"""Arguments of all steps in recipes, or of one: the check of a value, and what to use."""


class Transform(Protocol):
    """One step. Deterministic, thread-safe, picklable; the step determines the output shapes of all fields."""

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample after this step."""


@dataclass(frozen=True, kw_only=True)
class ResizeSample:
    """Resize like torchvision's ``Resize(size, antialias=True)``.

    Attributes:
        size: pixels of the short side, keeping the aspect ratio; or (height, width) exactly.
        interpolation: "bilinear" or "bicubic" for images; masks always use the nearest pixel.
    """

    size: int | tuple[int, int]
    interpolation: str = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with its short side (or both sides) resized to ``size``."""
        return resize_sample(sample, self.target(size_of(sample)), self.interpolation)

    def target(self, have: Size) -> Size:
        """Returns the output (height, width) for an image of size ``have``."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = sorted(have)
        scaled = int(self.size * long / short)
        return (self.size, scaled) if have[0] <= have[1] else (scaled, self.size)


@dataclass(frozen=True, kw_only=True)
class ShrinkSample:
    """Resize the short side to ``size`` where it is longer, keeping the aspect ratio; smaller images stay as they are.

    Attributes:
        size: pixels of the short side at most.
        interpolation: "bilinear" or "bicubic" for images; masks always use the nearest pixel.
    """

    size: int
    interpolation: str = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with its short side resized to at most ``size``."""
        if min(size_of(sample)) <= self.size:
            return sample
        return ResizeSample(size=self.size, interpolation=self.interpolation)(sample)


@dataclass(frozen=True, kw_only=True)
class CenterCropSample:
    """Crop the center like torchvision's ``CenterCrop(size)``; a smaller image is padded with ``fill``."""

    size: int | tuple[int, int]
    fill: int = 0

    def __call__(self, sample: Sample) -> Sample:
        """Returns the center [height, width] of the sample."""
        return cut_sample(sample, self.window(size_of(sample)), self.fill)

    def window(self, have: Size) -> Window:
        """Returns the center window in an image of size ``have``."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return middle(have[0], height), middle(have[1], width), height, width


@dataclass(frozen=True, kw_only=True)
class PadSample:
    """Pad like torchvision's ``Pad(padding, fill)``: padding is one number, or (left, top, right, bottom)."""

    padding: int | tuple[int, int, int, int]
    fill: int = 0

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with a border."""
        left, top, right, bottom = (self.padding,) * 4 if isinstance(self.padding, int) else self.padding
        height, width = size_of(sample)
        return cut_sample(sample, (-top, -left, height + top + bottom, width + left + right), self.fill)


@dataclass(frozen=True, kw_only=True)
class LetterboxSample:
    """Fit the whole image into ``size``, keeping the aspect ratio, and pad the rest evenly with ``fill``.

    Attributes:
        size: pixels of the square, or (height, width).
        fill: the border's value; 114 is common for detection models.
        interpolation: "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    fill: int = 114
    interpolation: str = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Returns the whole image, centered on a canvas of ``size``."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        have_height, have_width = size_of(sample)
        scale = min(height / have_height, width / have_width)
        inner = (
            max(1, min(height, round(have_height * scale))),
            max(1, min(width, round(have_width * scale))),
        )
        resized = resize_sample(sample, inner, self.interpolation)
        window = (-((height - inner[0]) // 2), -((width - inner[1]) // 2), height, width)
        return cut_sample(resized, window, self.fill)


@dataclass(frozen=True, kw_only=True)
class GrayscaleSample:
    """Convert to gray like torchvision's ``Grayscale``: 0.2989 R + 0.587 G + 0.114 B; 3 channels repeat it."""

    num_output_channels: int = 1

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with a gray image."""
        gray = torchvision_functional().rgb_to_grayscale_image(
            images_of(sample), num_output_channels=self.num_output_channels
        )
        return replace(sample, fields={**sample.fields, "images": gray})


@dataclass(frozen=True, kw_only=True)
class RGBSample:
    """Convert to three channels like torchvision's ``RGB``: a gray image is repeated."""

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with an image of three channels."""
        images = torchvision_functional().grayscale_to_rgb_image(images_of(sample))
        return replace(sample, fields={**sample.fields, "images": images})


def _step_name(step: type[Any]) -> str:
    """Returns the name of a step in recipes."""
    return step.__name__.removesuffix("Sample")


class TransformChain:
    """Several steps in sequence, each given by its ``step`` name and its arguments, as in a recipe.

    Raises:
        RecipeError: if a step is unknown, random, or has invalid arguments.
    """

    STEPS: ClassVar[Mapping[str, type[Any]]] = {
        _step_name(step): step
        for step in (
            ResizeSample,
            ShrinkSample,
            CenterCropSample,
            PadSample,
            LetterboxSample,
            GrayscaleSample,
            RGBSample,
        )
    }

    def __init__(self, specs: Sequence[Mapping[str, Any]]) -> None:
        self.steps = _joined([_make(spec) for spec in specs])

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Applies every step; the image is in ``out``, uint8 [C, H, W], if the last step can write to it."""
        for step in self.steps:
            if isinstance(step, _ResizedMiddle) and step is self.steps[-1]:
                return step(sample, out)
            sample = step(sample)
        return sample


@dataclass(frozen=True, kw_only=True)
class _ResizedMiddle:
    """A Resize followed by a CenterCrop; computes only the pixels that are kept, with identical bits."""

    resize: ResizeSample
    crop: CenterCropSample

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Returns the center of the resized sample, with its image in ``out`` if possible."""
        size = self.resize.target(size_of(sample))
        window = self.crop.window(size)
        if not is_inside(window, size):
            return self.crop(self.resize(sample))
        return resize_sample(sample, size, self.resize.interpolation, window, out)


def _joined(steps: Sequence[Transform]) -> list[Transform]:
    """Returns the steps, with every Resize and CenterCrop pair fused."""
    joined: list[Transform] = []
    for step in steps:
        if isinstance(step, CenterCropSample) and joined and isinstance(joined[-1], ResizeSample):
            joined[-1] = _ResizedMiddle(resize=joined[-1], crop=step)
        else:
            joined.append(step)
    return joined


def _make(spec: Mapping[str, Any]) -> Transform:
    name = spec.get("step")
    if name is None:
        raise RecipeError(f'transform {dict(spec)} has no step; name one, as in step = "Resize"')
    if not isinstance(name, str) or name not in TransformChain.STEPS:
        raise RecipeError(_unknown_step(name))
    step = TransformChain.STEPS[name]
    known = {field.name for field in fields(step)}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items() if key != "step"}
    for key, value in values.items():
        if key not in known:
            raise RecipeError(f"transform {name} has no argument {key!r}; it takes {choices(known)}")
        is_possible, use = _ARGUMENTS.get(f"{name}.{key}", _ARGUMENTS[key])
        if not is_possible(value):
            raise RecipeError(f"{name}: {key} is {value!r:.80}; use {use}")
    try:
        transform: Transform = step(**values)
    except TypeError as error:
        raise RecipeError(f"transform {name}: {error}; it takes {choices(known)}") from error
    return transform


_AT_LOAD = (
    *("Normalize", "ToTensor", "ToDtype", "ToImage", "ToPureTensor", "PILToTensor", "ToPILImage"),
    *("ConvertImageDtype", "ConvertDtype", "LinearTransformation"),
)


def _unknown_step(name: object) -> str:
    if isinstance(name, str) and is_random_name(name):
        return (
            f"transform {name} is random: a build stores each image once, so every epoch would see the same draw; "
            f"give it to mmload.Collate at load time, and keep {choices(TransformChain.STEPS)} here"
        )
    if name in _AT_LOAD:
        return (
            f"transform {name} belongs to load time: a build stores uint8 pixels, and mmload.Collate makes normalized "
            f"floats of them (mmload.augment.Normalize); leave it out, and keep {choices(TransformChain.STEPS)} here"
        )
    return f"unknown transform {name!r}; use one of {choices(TransformChain.STEPS)}"
