"""The deterministic steps between decoding and storing: uint8 in, uint8 out.

A step takes a :class:`~mmload.records.Sample` and returns it with images, masks and boxes transformed alike. Names,
rules and pixels are torchvision v2's, antialiased. Nothing here is random: random steps belong to load time
(:mod:`mmload.augment`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.errors import RecipeError, choices
from mmload.records import Sample
from mmload.sources.decode import MAX_PIXELS
from mmload.sources.image_windows import Size, Window, cut, is_inside, middle, scaled, seen
from mmload.sources.randomness import is_random_name

if TYPE_CHECKING:
    from torchvision.transforms import InterpolationMode

_MOST = 65_535  # pixels of a side, as in a JPEG
INTERPOLATIONS = ("bilinear", "bicubic")
_ROUNDED = 1 / 64
"""Pixels that a box may lose to the rounding of float32, without having been cut."""
_MILD = 2.0
"""Shrinking by more is faster in torch's kernel, by less (or growing) in the compiled one; the bits are the same."""

Pixels = npt.NDArray[np.uint8]


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
        return _resize(sample, self.target(_size_of(sample)), self.interpolation)

    def target(self, have: Size) -> Size:
        """The (height, width) that an image of ``have`` gets."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = sorted(have)
        scaled = int(self.size * long / short)
        return (self.size, scaled) if have[0] <= have[1] else (scaled, self.size)


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
        return _cut_out(sample, self.window(_size_of(sample)), self.fill)

    def window(self, have: Size) -> Window:
        """Where the middle of an image of ``have`` is."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return middle(have[0], height), middle(have[1], width), height, width


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Pad as torchvision's ``Pad(padding, fill)``: padding is one number, or (left, top, right, bottom)."""

    padding: int | tuple[int, int, int, int]
    fill: int = 0

    def __post_init__(self) -> None:
        sides = self.padding if isinstance(self.padding, tuple) else (self.padding,) * 4
        if len(sides) != 4 or any(type(side) is not int or not 0 <= side <= _MOST for side in sides):
            raise RecipeError(
                f"Pad: padding is {self.padding!r}; use an integer or [left, top, right, bottom], "
                f"each from 0 to {_MOST:,}"
            )
        _check_fill(self)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a border."""
        left, top, right, bottom = (self.padding,) * 4 if isinstance(self.padding, int) else self.padding
        height, width = _size_of(sample)
        return _cut_out(sample, (-top, -left, height + top + bottom, width + left + right), self.fill)


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
        """The whole image, centered on a canvas of ``size``."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        have_height, have_width = _size_of(sample)
        scale = min(height / have_height, width / have_width)
        inner = (
            max(1, min(height, round(have_height * scale))),
            max(1, min(width, round(have_width * scale))),
        )
        resized = _resize(sample, inner, self.interpolation)
        window = (-((height - inner[0]) // 2), -((width - inner[1]) // 2), height, width)
        return _cut_out(resized, window, self.fill)


@dataclass(frozen=True, kw_only=True)
class Grayscale:
    """Convert to gray as torchvision's ``Grayscale``: 0.2989 R + 0.587 G + 0.114 B; 3 channels repeat it."""

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if type(self.num_output_channels) is not int or self.num_output_channels not in (1, 3):
            raise RecipeError(f"Grayscale: num_output_channels is {self.num_output_channels!r}; use 1 or 3")

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a gray image."""
        gray = _torchvision().rgb_to_grayscale_image(_images_of(sample), num_output_channels=self.num_output_channels)
        return replace(sample, fields={**sample.fields, "images": gray})


@dataclass(frozen=True, kw_only=True)
class RGB:
    """Convert to three channels as torchvision's ``RGB``: a gray image is repeated."""

    def __call__(self, sample: Sample) -> Sample:
        """The sample with an image of three channels."""
        images = _torchvision().grayscale_to_rgb_image(_images_of(sample))
        return replace(sample, fields={**sample.fields, "images": images})


class TransformChain:
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
        self.steps = _joined([_make(spec) for spec in specs])

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """The sample after every step; its image in ``out``, uint8 [C, H, W], if the last step can make it there."""
        for step in self.steps:
            if isinstance(step, _ResizedMiddle) and step is self.steps[-1]:
                return step(sample, out)
            sample = step(sample)
        return sample


@dataclass(frozen=True, kw_only=True)
class _ResizedMiddle:
    """A Resize and the CenterCrop that follows it; computes only the pixels that are kept, with equal bits."""

    resize: Resize
    crop: CenterCrop

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """The middle of the sample in its new size, its image in ``out`` if that can be."""
        size = self.resize.target(_size_of(sample))
        window = self.crop.window(size)
        if not is_inside(window, size):
            return self.crop(self.resize(sample))
        return _resize(sample, size, self.resize.interpolation, window, out)


def _joined(steps: Sequence[Transform]) -> list[Transform]:
    """The steps, with every Resize and CenterCrop in one."""
    joined: list[Transform] = []
    for step in steps:
        if isinstance(step, CenterCrop) and joined and isinstance(joined[-1], Resize):
            joined[-1] = _ResizedMiddle(resize=joined[-1], crop=step)
        else:
            joined.append(step)
    return joined


def _make(spec: Mapping[str, Any]) -> Transform:
    name = spec.get("step")
    if not isinstance(name, str) or name not in TransformChain.STEPS:
        raise RecipeError(_unknown_step(name))
    step = TransformChain.STEPS[name]
    known = {field.name for field in fields(step)}
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items() if key != "step"}
    for key in given:
        if key not in known:
            raise RecipeError(f"transform {name} has no argument {key!r}; it takes {choices(known)}")
    try:
        transform: Transform = step(**given)
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


def _check_size(step: Any) -> None:
    sizes = step.size if isinstance(step.size, tuple) else (step.size,) * 2
    if len(sizes) != 2 or any(type(size) is not int or not 1 <= size <= _MOST for size in sizes):
        raise RecipeError(
            f"{type(step).__name__}: size is {step.size!r}; use pixels, an integer from 1 to {_MOST:,}, "
            "or [height, width]"
        )


def _check_interpolation(step: Any) -> None:
    if not isinstance(step.interpolation, str) or step.interpolation not in INTERPOLATIONS:
        raise RecipeError(
            f"{type(step).__name__}: interpolation is {step.interpolation!r}; use one of {choices(INTERPOLATIONS)}"
        )


def _check_fill(step: Any) -> None:
    if type(step.fill) is not int or not 0 <= step.fill <= 255:
        raise RecipeError(f"{type(step).__name__}: fill is {step.fill!r}; use an integer from 0 to 255")


def _images_of(sample: Sample) -> Tensor:
    if "images" not in sample.fields:
        raise ValueError("it has no image to transform")
    return sample.fields["images"]


def _size_of(sample: Sample) -> Size:
    height, width = _images_of(sample).shape[-2:]
    return height, width


@functools.cache
def _torchvision() -> Any:
    """Torchvision's functions, imported on first use: it takes 3 s of processor time, and few checks need them."""
    from torchvision.transforms.v2 import functional

    return functional


def _resize(sample: Sample, size: Size, kind: str, window: Window | None = None, out: Pixels | None = None) -> Sample:
    """The sample in another size, or a window inside of that; see :meth:`TransformChain.__call__` for ``out``."""
    height, width = _size_of(sample)
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"resizing {height} x {width} to {size[0]} x {size[1]} is over the limit of {MAX_PIXELS}")
    fields = dict(sample.fields)
    if "masks" in fields:
        fields["masks"] = _torchvision().resize_mask(fields["masks"], list(size))
    if "boxes" in fields:
        fields["boxes"] = fields["boxes"] * torch.tensor([size[1] / width, size[0] / height] * 2)
    cut_off = sample.cut if window is None else _cut_targets(fields, window, sample.cut)
    fields["images"] = _resize_pixels(fields["images"], size, kind, window or (0, 0, *size), out)
    inside = None if sample.inside is None else scaled(sample.inside, (height, width), size)
    if inside is not None and window is not None:
        inside = seen(inside, window)
    return replace(sample, fields=fields, inside=inside, cut=cut_off)


def _resize_pixels(images: Tensor, size: Size, kind: str, window: Window, out: Pixels | None) -> Tensor:
    """[C, H, W] in another size, of which the window."""
    height, width = images.shape[-2:]
    if size == (height, width):
        return cut(images, window, 0)
    mild = height <= _MILD * size[0] and width <= _MILD * size[1]
    if mild and kind == "bilinear" and images.dtype == torch.uint8:
        return _resize_mildly(images, size, window, out)
    mode = _torchvision().InterpolationMode(kind)
    if size[1] > 1:
        return cut(_torchvision().resize_image(images, list(size), mode, antialias=True), window, 0)
    # torch gives wrong pixels where a width is 1 (2.11 and 2.15), so each axis in turn is resized as the height
    narrow = _of_height(_of_height(images.float().mT, 1, mode).mT, size[0], mode)
    return cut(narrow.round().clamp(0, 255).to(torch.uint8), window, 0)


def _resize_mildly(images: Tensor, size: Size, window: Window, out: Pixels | None) -> Tensor:
    from mmload.render.antialiased_resize import resize_part  # imports numba, which checking a recipe does not need

    top, left, height, width = window
    pixels = images.numpy().transpose(1, 2, 0)
    planes = pixels[None] if pixels.flags.c_contiguous else images.contiguous().numpy()[..., None]
    if out is None or out.shape != (len(images), height, width):
        out = np.empty((len(images), height, width), np.uint8)
    resize_part(planes, *size, top, left, out.reshape(len(planes), -1, height, width))
    return torch.from_numpy(out)


def _of_height(images: Tensor, height: int, mode: InterpolationMode) -> Tensor:
    """In another height, with every column twice on the way."""
    twice = torch.cat([images, images], 2)
    resized: Tensor = _torchvision().resize_image(twice, [height, twice.shape[2]], mode, antialias=True)
    return resized[..., : images.shape[2]]


def _cut_out(sample: Sample, window: Window, fill: int) -> Sample:
    """The window of the sample; what is outside the image is ``fill`` (masks: 255, void)."""
    if window[2] * window[3] > MAX_PIXELS:
        raise ValueError(f"{window[2]} x {window[3]} pixels is over the limit of {MAX_PIXELS}")
    out = dict(sample.fields)
    inside = seen(sample.inside or (0, 0, *_size_of(sample)), window)
    out["images"] = cut(out["images"], window, fill)
    cut_off = _cut_targets(out, window, sample.cut)
    return replace(sample, fields=out, inside=None if inside == (0, 0, *window[2:]) else inside, cut=cut_off)


def _cut_targets(fields: dict[str, Tensor], window: Window, before: Tensor | None) -> Tensor | None:
    """Cut the mask, and move and clip the boxes; which of them have lost something, now or ``before``."""
    top, left, height, width = window
    if "masks" in fields:
        fields["masks"] = cut(fields["masks"], window, 255)
    if "boxes" in fields:
        moved = fields["boxes"] - torch.tensor([left, top] * 2)
        limits = torch.tensor([width, height] * 2, dtype=moved.dtype)
        kept = moved.clamp(min=0).minimum(limits)
        cut_off = ((moved - kept).abs() > _ROUNDED).any(1)
        own = dict(fields) | {"cut": cut_off if before is None else cut_off | before}
        own.update(_repack(own, kept))
        before = own.pop("cut")
        fields.update(own)
    return before


def _repack(sample: Mapping[str, Tensor], boxes: Tensor) -> dict[str, Tensor]:
    """The boxes that still have an area, moved to the front with their labels, and their new count."""
    count = int(sample["counts"])
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    keep &= torch.arange(len(boxes)) < count
    kept = int(keep.sum())
    out = {"counts": torch.tensor(kept), "boxes": torch.zeros_like(boxes)}
    out["boxes"][:kept] = boxes[keep]
    for name, empty in (("labels", -1), ("difficult", 0), ("cut", 0)):
        if name in sample:
            out[name] = torch.full_like(sample[name], empty)
            out[name][:kept] = sample[name][keep]
    return out
