"""The deterministic steps between decoding and storing: uint8 in, uint8 out.

Comes in: a :class:`~mmload.records.Sample` as its source read it. Goes out: the sample with its images, masks and boxes
all moved alike. The names and rules are torchvision v2's; resizing is torchvision's own, antialiased. Nothing here is
random: what is random belongs to load time (:mod:`mmload.augment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload.decode import MAX_PIXELS
from mmload.errors import RecipeError, choices
from mmload.records import Sample

_MOST = 65_535  # pixels of a side, as in a JPEG
INTERPOLATIONS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


class Transform(Protocol):
    """One step. Deterministic, thread-safe, picklable; gives every sample's fields shapes of the step's choosing."""

    def __call__(self, sample: Sample) -> Sample:
        """The sample after this step."""


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Resize as torchvision's ``Resize(size, antialias=True)``.

    Attributes:
        size: pixels of the short side, the aspect ratio kept; or (height, width) exactly.
        interpolation: "bilinear" or "bicubic" for images; masks always take the nearest pixel.
    """

    size: int | tuple[int, int]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _check_size(self)
        _check_interpolation(self)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with its short side (or both sides) at ``size``."""
        height, width = _size_of(sample)
        if isinstance(self.size, tuple):
            return _resize(sample, self.size, self.interpolation)
        short, long = sorted((height, width))
        scaled = int(self.size * long / short)
        size = (self.size, scaled) if height <= width else (scaled, self.size)
        return _resize(sample, size, self.interpolation)


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """Cut out the middle as torchvision's ``CenterCrop(size)``; an image that is smaller is padded with ``fill``."""

    size: int | tuple[int, int]
    fill: int = 0

    def __post_init__(self) -> None:
        _check_size(self)
        _check_fill(self)

    def __call__(self, sample: Sample) -> Sample:
        """The middle [height, width] of the sample."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        have_height, have_width = _size_of(sample)
        top = _middle(have_height, height)
        left = _middle(have_width, width)
        return _window(sample, top, left, height, width, self.fill)


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Pad as torchvision's ``Pad(padding, fill)``: padding is one number, or (left, top, right, bottom)."""

    padding: int | tuple[int, int, int, int]
    fill: int = 0

    def __post_init__(self) -> None:
        sides = self.padding if isinstance(self.padding, tuple) else (self.padding,) * 4
        if len(sides) != 4 or any(type(side) is not int or not 0 <= side <= _MOST for side in sides):
            raise RecipeError(
                f"Pad: padding is {self.padding!r}; use a whole number or [left, top, right, bottom], "
                f"each from 0 to {_MOST:,}"
            )
        _check_fill(self)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a border."""
        left, top, right, bottom = (self.padding,) * 4 if isinstance(self.padding, int) else self.padding
        height, width = _size_of(sample)
        return _window(sample, -top, -left, height + top + bottom, width + left + right, self.fill)


@dataclass(frozen=True, kw_only=True)
class Letterbox:
    """Fit the whole image into ``size``, its aspect ratio kept, and pad the rest evenly with ``fill``.

    Attributes:
        size: pixels of the square, or (height, width).
        fill: the border's value; 114 is the habit of detection models.
        interpolation: "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    fill: int = 114
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _check_size(self)
        _check_interpolation(self)
        _check_fill(self)

    def __call__(self, sample: Sample) -> Sample:
        """The whole image, centred on a canvas of ``size``."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        have_height, have_width = _size_of(sample)
        scale = min(height / have_height, width / have_width)
        inner = (
            max(1, min(height, round(have_height * scale))),
            max(1, min(width, round(have_width * scale))),
        )
        resized = _resize(sample, inner, self.interpolation)
        return _window(resized, -((height - inner[0]) // 2), -((width - inner[1]) // 2), height, width, self.fill)


@dataclass(frozen=True, kw_only=True)
class Grayscale:
    """Convert to gray as torchvision's ``Grayscale``: 0.2989 R + 0.587 G + 0.114 B; 3 channels repeat it."""

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if type(self.num_output_channels) is not int or self.num_output_channels not in (1, 3):
            raise RecipeError(f"Grayscale: num_output_channels is {self.num_output_channels!r}; use 1 or 3")

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a gray image."""
        gray = F.rgb_to_grayscale_image(_images_of(sample), num_output_channels=self.num_output_channels)
        return Sample(sample.id, {**sample.fields, "images": gray}, sample.size)


@dataclass(frozen=True, kw_only=True)
class RGB:
    """Convert to three channels as torchvision's ``RGB``: a gray image is repeated."""

    def __call__(self, sample: Sample) -> Sample:
        """The sample with an image of three channels."""
        images = F.grayscale_to_rgb_image(_images_of(sample))
        return Sample(sample.id, {**sample.fields, "images": images}, sample.size)


class Chain:
    """Several steps, one after the other.

    Args:
        specs: one mapping a step: its ``step`` name and its arguments, as a recipe writes them.

    Raises:
        RecipeError: if a step is unknown, random, or has wrong arguments.
    """

    STEPS: ClassVar[Mapping[str, type[Any]]] = {
        step.__name__: step for step in (Resize, CenterCrop, Pad, Letterbox, Grayscale, RGB)
    }

    def __init__(self, specs: Sequence[Mapping[str, Any]]) -> None:
        self.steps: list[Transform] = [_make(spec) for spec in specs]

    def __call__(self, sample: Sample) -> Sample:
        """The sample after every step."""
        for step in self.steps:
            sample = step(sample)
        return sample


def _make(spec: Mapping[str, Any]) -> Transform:
    name = spec.get("step")
    if not isinstance(name, str) or name not in Chain.STEPS:
        raise RecipeError(_unknown_step(name))
    step = Chain.STEPS[name]
    known = {field.name for field in fields(step)}
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items() if key != "step"}
    for key in given:
        if key not in known:
            raise RecipeError(f"transform {name} has no argument {key!r}; it takes {choices(known)}")
    try:
        made: Transform = step(**given)
    except TypeError as error:
        raise RecipeError(f"transform {name}: {error}; it takes {choices(known)}") from error
    return made


_RANDOM = (
    *("Random", "ColorJitter", "ScaleJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix"),
    *("MixUp", "CutMix", "ElasticTransform", "GaussianBlur", "GaussianNoise"),
)


def _unknown_step(name: object) -> str:
    if isinstance(name, str) and name.startswith(_RANDOM):
        return (
            f"transform {name} is random: a build stores each image once, so every epoch would see the same draw; "
            f"give it to mmload.Collate at load time, and keep {choices(Chain.STEPS)} here"
        )
    return f"unknown transform {name!r}; use one of {choices(Chain.STEPS)}"


def _check_size(step: Any) -> None:
    sizes = step.size if isinstance(step.size, tuple) else (step.size,) * 2
    if len(sizes) != 2 or any(type(size) is not int or not 1 <= size <= _MOST for size in sizes):
        raise RecipeError(
            f"{type(step).__name__}: size is {step.size!r}; use pixels, a whole number from 1 to {_MOST:,}, "
            "or [height, width]"
        )


def _check_interpolation(step: Any) -> None:
    if not isinstance(step.interpolation, str) or step.interpolation not in INTERPOLATIONS:
        raise RecipeError(
            f"{type(step).__name__}: interpolation is {step.interpolation!r}; use one of {choices(INTERPOLATIONS)}"
        )


def _check_fill(step: Any) -> None:
    if type(step.fill) is not int or not 0 <= step.fill <= 255:
        raise RecipeError(f"{type(step).__name__}: fill is {step.fill!r}; use a whole number from 0 to 255")


def _images_of(sample: Sample) -> Tensor:
    if "images" not in sample.fields:
        raise ValueError("it has no image to transform")
    return sample.fields["images"]


def _size_of(sample: Sample) -> tuple[int, int]:
    height, width = _images_of(sample).shape[-2:]
    return height, width


def _middle(have: int, want: int) -> int:
    """Where torchvision's center_crop starts, or (negative) what it pads before."""
    return int(round((have - want) / 2.0)) if have >= want else -((want - have) // 2)


def _resize(sample: Sample, size: tuple[int, int], interpolation: str) -> Sample:
    height, width = _size_of(sample)
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"resizing {height} x {width} to {size[0]} x {size[1]} is over the limit of {MAX_PIXELS}")
    out = dict(sample.fields)
    out["images"] = _resize_pixels(out["images"], size, INTERPOLATIONS[interpolation])
    if "masks" in out:
        out["masks"] = F.resize_mask(out["masks"], list(size))
    if "boxes" in out:
        out["boxes"] = out["boxes"] * torch.tensor([size[1] / width, size[0] / height] * 2)
    return Sample(sample.id, out, sample.size)


def _resize_pixels(images: Tensor, size: tuple[int, int], interpolation: InterpolationMode) -> Tensor:
    if size[1] > 1:
        sharp: Tensor = F.resize_image(images, list(size), interpolation=interpolation, antialias=True)
        return sharp
    # torch's uint8 kernel gives an output of width 1 wrong pixels or fails an internal assertion
    # (2.11 and 2.15, AVX2); its float kernel does not
    pixels: Tensor = F.resize_image(images.float(), list(size), interpolation=interpolation, antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def _window(sample: Sample, top: int, left: int, height: int, width: int, fill: int) -> Sample:
    """Cut [height, width] at (top, left), which may lie outside the image; outside is ``fill`` (masks: 255, void)."""
    if height * width > MAX_PIXELS:
        raise ValueError(f"{height} x {width} pixels is over the limit of {MAX_PIXELS}")
    out = dict(sample.fields)
    out["images"] = _cut(out["images"], top, left, height, width, fill)
    if "masks" in out:
        out["masks"] = _cut(out["masks"], top, left, height, width, 255)
    if "boxes" in out:
        moved = out["boxes"] - torch.tensor([left, top] * 2)
        limits = torch.tensor([width, height] * 2, dtype=moved.dtype)
        out.update(_repack(out, moved.clamp(min=0).minimum(limits)))
    return Sample(sample.id, out, sample.size)


def _cut(pixels: Tensor, top: int, left: int, height: int, width: int, fill: int) -> Tensor:
    have_height, have_width = pixels.shape[-2:]
    if top >= 0 and left >= 0 and top + height <= have_height and left + width <= have_width:
        return pixels[..., top : top + height, left : left + width]
    out = pixels.new_full((*pixels.shape[:-2], height, width), fill)
    y0, y1 = max(top, 0), min(top + height, have_height)
    x0, x1 = max(left, 0), min(left + width, have_width)
    out[..., y0 - top : y1 - top, x0 - left : x1 - left] = pixels[..., y0:y1, x0:x1]
    return out


def _repack(sample: Mapping[str, Tensor], boxes: Tensor) -> dict[str, Tensor]:
    """The boxes that still have an area, moved to the front with their labels, and their new count."""
    count = int(sample["counts"])
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    keep &= torch.arange(len(boxes)) < count
    kept = int(keep.sum())
    out = {"counts": torch.tensor(kept), "boxes": torch.zeros_like(boxes)}
    out["boxes"][:kept] = boxes[keep]
    for name, empty in (("labels", -1), ("difficult", 0)):
        if name in sample:
            out[name] = torch.full_like(sample[name], empty)
            out[name][:kept] = sample[name][keep]
    return out
