"""The deterministic steps between decoding and storing: uint8 in, uint8 out.

A step takes a :class:`~mmload.records.Sample` and returns it with images, masks and boxes transformed alike. Names,
rules and pixels are those of torchvision v2 with antialiasing. No step is random: random steps belong to load time
(:mod:`mmload.augment`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, get_type_hints

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mmload.errors import RecipeError, choices
from mmload.pictures.instance_masks import SEGMENTS, mask_of_runs, of_boxes, parts_of, runs_of_mask
from mmload.records import PADDING, PER_BOX, Sample, checked
from mmload.sources.randomness import is_random_name
from mmload.store.variable_rows import MAX_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDED = 1 / 64
"""Tolerance in pixels for float32 rounding: a box may lose this much without counting as cut, and a point that lies
outside by as much counts as inside."""
_MILD = 2.0
"""Shrinking by a larger factor is faster in torch's kernel, else in the compiled one; the bits are the same."""

Pixels = npt.NDArray[np.uint8]

Size = tuple[int, int]
"""(height, width)."""
Window = tuple[int, int, int, int]
"""(top, left, height, width); it may lie outside the image."""


def middle(have: int, want: int) -> int:
    """Returns where torchvision's center_crop starts, or (negative) what it pads before."""
    return int(round((have - want) / 2.0)) if have >= want else -((want - have) // 2)


def is_inside(window: Window, size: tuple[int, ...]) -> bool:
    """Returns whether a window lies completely inside an image of (height, width)."""
    top, left, height, width = window
    return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]


def visible_part(inside: Window, window: Window) -> Window:
    """Returns the part of a window that shows the image, from the window's corner; empty if there is none."""
    top, left = max(inside[0] - window[0], 0), max(inside[1] - window[1], 0)
    bottom = min(inside[0] + inside[2] - window[0], window[2])
    right = min(inside[1] + inside[3] - window[1], window[3])
    return top, left, max(bottom - top, 0), max(right - left, 0)


def scaled(inside: Window, have: Size, size: Size) -> Window:
    """Scales a window to another image size; pixels that a border reaches into count as border."""
    top, left = -(-inside[0] * size[0] // have[0]), -(-inside[1] * size[1] // have[1])
    bottom, right = ((inside[axis] + inside[axis + 2]) * size[axis] // have[axis] for axis in (0, 1))
    return top, left, max(bottom - top, 0), max(right - left, 0)


def cut(pixels: Tensor, window: Window, fill: int) -> Tensor:
    """Returns the pixels [..., H, W] of a window; those outside the image are ``fill``."""
    top, left, height, width = window
    have_height, have_width = pixels.shape[-2:]
    if is_inside(window, (have_height, have_width)):
        return pixels[..., top : top + height, left : left + width]
    out = pixels.new_full((*pixels.shape[:-2], height, width), fill)
    y0, y1 = max(top, 0), min(top + height, have_height)
    x0, x1 = max(left, 0), min(left + width, have_width)
    out[..., y0 - top : y1 - top, x0 - left : x1 - left] = pixels[..., y0:y1, x0:x1]
    return out


def images_of(sample: Sample) -> Tensor:
    """Returns the image of a sample, [C, H, W]; raises ValueError if it has none."""
    if "images" not in sample.fields:
        raise ValueError("it has no image to transform")
    return sample.fields["images"]


def size_of(sample: Sample) -> Size:
    """Returns the height and width of a sample's image."""
    height, width = images_of(sample).shape[-2:]
    return height, width


@functools.cache
def torchvision_functional() -> Any:
    """Imports the functions of torchvision, lazily: it takes 3 s of processor time, and few checks need it."""
    from torchvision.transforms.v2 import functional

    return functional


def resize_sample(
    sample: Sample, size: Size, kind: str, window: Window | None = None, out: Pixels | None = None
) -> Sample:
    """Resizes a sample, or computes a window of the result; writes the image to ``out`` if its shape matches."""
    import torch

    height, width = size_of(sample)
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"resizing {height} x {width} to {size[0]} x {size[1]} is over the limit of {MAX_PIXELS}")
    fields = dict(sample.fields)
    if "masks" in fields:
        fields["masks"] = torchvision_functional().resize_mask(fields["masks"], list(size))
    exact = torch.tensor([size[1] / width, size[0] / height], dtype=torch.float64, device="cpu")
    factors = exact.float()
    if "boxes" in fields:
        fields["boxes"] = fields["boxes"] * factors.repeat(2)
    _move_points(fields, sample.lists, lambda points: points * exact.to(points.dtype))
    if "area" in sample.lists:
        fields["area"] = fields["area"] * factors.prod()
    _change_runs(fields, (height, width), lambda mask: torchvision_functional().resize_mask(mask, list(size)))
    cut_off = sample.cut if window is None else _cut_targets(fields, size, window, sample)
    fields["images"] = _resize_pixels(fields["images"], size, kind, window or (0, 0, *size), out)
    inside = None if sample.inside is None else scaled(sample.inside, (height, width), size)
    if inside is not None and window is not None:
        inside = visible_part(inside, window)
    return replace(sample, fields=fields, inside=inside, cut=cut_off)


def _resize_pixels(images: Tensor, size: Size, kind: str, window: Window, out: Pixels | None) -> Tensor:
    """Resizes [C, H, W] and returns the window."""
    import torch

    height, width = images.shape[-2:]
    if size == (height, width):
        return cut(images, window, 0)
    mild = height <= _MILD * size[0] and width <= _MILD * size[1]
    if mild and images.dtype == torch.uint8:
        return _resize_mildly(images, size, kind, window, out)
    if size[1] > 1:
        return cut(_interpolated(images, size, kind), window, 0)
    # torch returns wrong pixels for a width of 1 (2.11 and 2.15), so each axis is resized separately, as the height
    narrow = _resize_height(_resize_height(images.float().mT, 1, kind).mT, size[0], kind)
    return cut(narrow.round().clamp(0, 255).to(torch.uint8), window, 0)


def _resize_mildly(images: Tensor, size: Size, kind: str, window: Window, out: Pixels | None) -> Tensor:
    import torch

    from mmload.render.antialiased_resize import REACHES, resize_part

    top, left, height, width = window
    pixels = images.numpy().transpose(1, 2, 0)
    planes = pixels[None] if pixels.flags.c_contiguous else images.contiguous().numpy()[..., None]
    if out is None or out.shape != (len(images), height, width):
        out = np.empty((len(images), height, width), np.uint8)
    resize_part(planes, *size, top, left, REACHES[kind], out.reshape(len(planes), -1, height, width))
    return torch.from_numpy(out)


def _interpolated(images: Tensor, size: Size, kind: str) -> Tensor:
    """Resizes [C, H, W] by the call of torch that torchvision's resize makes; to import torchvision takes 2 s.

    The stride of the batch tells torch that colors are interleaved, where they are: it then copies none.
    """
    import torch
    from torch.nn.functional import interpolate

    is_taken = images.dtype in (torch.uint8, torch.float32, torch.float64)
    batch = images if is_taken else images.float()
    batch = batch.as_strided((1, *batch.shape), (batch.numel(), *batch.stride()))
    resized: Tensor = interpolate(batch, list(size), mode=kind, align_corners=False, antialias=True)[0]
    if is_taken:
        return resized
    is_integer = images.dtype.is_signed and not images.dtype.is_floating_point
    return (resized.round() if is_integer else resized).to(images.dtype)


def _resize_height(images: Tensor, height: int, kind: str) -> Tensor:
    """Resizes the height, with every column duplicated during the operation."""
    import torch

    twice = torch.cat([images, images], 2)
    return _interpolated(twice, (height, twice.shape[2]), kind)[..., : images.shape[2]]


def cut_sample(sample: Sample, window: Window, fill: int) -> Sample:
    """Cuts a window out of a sample; pixels outside of the image are ``fill`` (masks: 255, void)."""
    if window[2] * window[3] > MAX_PIXELS:
        raise ValueError(f"{window[2]} x {window[3]} pixels is over the limit of {MAX_PIXELS}")
    out = dict(sample.fields)
    inside = visible_part(sample.inside or (0, 0, *size_of(sample)), window)
    out["images"] = cut(out["images"], window, fill)
    cut_off = _cut_targets(out, size_of(sample), window, sample)
    return replace(sample, fields=out, inside=None if inside == (0, 0, *window[2:]) else inside, cut=cut_off)


def _cut_targets(fields: dict[str, Tensor], size: Size, window: Window, sample: Sample) -> Tensor | None:
    """Crops masks, moves and clips boxes, moves points of ``fields``; returns which boxes were cut, now or before."""
    import torch

    top, left, height, width = window
    if "masks" in fields:
        fields["masks"] = cut(fields["masks"], window, 255)
    _move_points(fields, sample.lists, lambda points: points - torch.tensor([left, top], device="cpu"))
    if "keypoints" in sample.lists:
        fields["keypoints"] = _visible(fields["keypoints"], (height, width))
    _change_runs(fields, size, lambda mask: cut(mask, window, 0))
    if "boxes" not in fields:
        return sample.cut
    moved = fields["boxes"] - torch.tensor([left, top] * 2, device="cpu")
    limits = torch.tensor([width, height] * 2, dtype=moved.dtype, device="cpu")
    remaining = moved.clamp(min=0).minimum(limits)
    cut_off = ((moved - remaining).abs() > _ROUNDED).any(1)
    if sample.cut is not None:
        cut_off = cut_off | sample.cut
    if "area" in sample.lists:
        fields["area"] = fields["area"] * _share(remaining, moved)
    return _repack(fields, remaining, cut_off, sample.lists)


def _move_points(fields: dict[str, Tensor], lists: frozenset[str], change: Callable[[Tensor], Tensor]) -> None:
    """Moves keypoints, corners and polygons; keypoints that are not labeled stay at 0, 0."""
    for name in ("keypoints", "corners", "polygons"):
        if name in lists:
            points = fields[name].clone()
            points[..., :2] = change(points[..., :2])
            if name == "keypoints":
                points[..., :2] *= points[..., 2:] > 0
            fields[name] = points


def _visible(points: Tensor, size: Size) -> Tensor:
    """Returns keypoints [n, K, 3], those outside of an image of (height, width) as not labeled."""
    import torch

    limits = torch.tensor(size[::-1], dtype=points.dtype, device="cpu") + _ROUNDED
    inside = ((points[..., :2] >= -_ROUNDED) & (points[..., :2] <= limits)).all(-1, keepdim=True)
    return points * inside


def _change_runs(fields: dict[str, Tensor], size: Size, change: Callable[[Tensor], Tensor]) -> None:
    """Changes the masks that are stored as run lengths, each as uint8 [H, W] of (height, width) ``size``."""
    import torch

    owners, values = SEGMENTS[1]
    if not len(fields.get(owners, ())):
        return
    arrays = {name: fields[name].numpy() for name in (owners, values)}
    masks = [mask_of_runs(runs, *size).astype(np.uint8) for _, runs in parts_of(arrays, owners, values)]
    runs = [runs_of_mask(change(torch.from_numpy(mask)).numpy() > 0) for mask in masks]
    fields[values] = torch.from_numpy(np.concatenate(runs))
    counts = torch.tensor([len(each) for each in runs], dtype=torch.int32, device="cpu")
    fields[owners] = torch.stack([fields[owners][:, 0], counts], 1)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Returns the share of the area of each box, [n, 4], that a part of it has."""
    sides, all_sides = part[:, 2:] - part[:, :2], whole[:, 2:] - whole[:, :2]
    return sides.prod(1) / all_sides.prod(1).clamp(min=1e-12)


def _repack(fields: dict[str, Tensor], boxes: Tensor, cut_off: Tensor, lists: frozenset[str]) -> Tensor:
    """Keeps clipped boxes with a positive area in ``fields``, with all that belongs to them, and updates the count.

    In fields that are no lists, the values of these boxes move to the front. Returns which of the boxes were cut.
    """
    import torch

    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    keep &= torch.arange(len(boxes), device="cpu") < int(fields["counts"])
    remaining = int(keep.sum())
    is_list = "boxes" in lists
    names = [name for name in PER_BOX if name in (lists if is_list else ("labels", "difficult")) and name in fields]
    per_box = {"boxes": boxes, "cut": cut_off, **{name: fields[name] for name in names}}
    for name, values in per_box.items():
        if is_list:
            per_box[name] = values[keep]
        else:
            per_box[name] = torch.full_like(values, PADDING.get(name, 0))
            per_box[name][:remaining] = values[keep]
    cut_off = per_box.pop("cut")
    segments = {name: fields[name].numpy() for pair in SEGMENTS for name in pair if name in lists}
    per_box |= {name: torch.from_numpy(values) for name, values in of_boxes(segments, keep.numpy()).items()}
    fields.update(per_box, counts=torch.tensor(remaining, device="cpu"))
    return cut_off


_MOST = 65_535  # upper bound on the pixels of a side, as in a JPEG

Side = Annotated[int, Meta(ge=1, le=_MOST)]
ShortSide = Annotated[Side, Meta(description=f"pixels of the short side, an integer from 1 to {_MOST:,}")]
Sides = Annotated[  # of tuple[Side, Side] beside an integer with limits, msgspec 0.22 reads memory that is not its own
    Side | Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)],
    Meta(description=f"pixels, an integer from 1 to {_MOST:,}, or [height, width]"),
]
Border = Annotated[int, Meta(ge=0, le=_MOST)]
Borders = Annotated[
    Border | Annotated[tuple[Border, ...], Meta(min_length=4, max_length=4)],
    Meta(description=f"an integer or [left, top, right, bottom], each from 0 to {_MOST:,}"),
]
Level = Annotated[int, Meta(ge=0, le=255, description="an integer from 0 to 255")]
Interpolation = Annotated[Literal["bilinear", "bicubic"], Meta(description="one of bicubic, bilinear")]
GrayChannels = Annotated[Literal[1, 3], Meta(description="1 or 3")]


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

    size: Sides
    interpolation: Interpolation = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with its short side (or both sides) resized to ``size``."""
        return resize_sample(sample, self.target(size_of(sample)), self.interpolation)

    def target(self, have: Size) -> Size:
        """Returns the output (height, width) for an image of size ``have``."""
        if isinstance(self.size, tuple):
            height, width = self.size
            return height, width
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

    size: ShortSide
    interpolation: Interpolation = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with its short side resized to at most ``size``."""
        if min(size_of(sample)) <= self.size:
            return sample
        return ResizeSample(size=self.size, interpolation=self.interpolation)(sample)


@dataclass(frozen=True, kw_only=True)
class CenterCropSample:
    """Crop the center like torchvision's ``CenterCrop(size)``; a smaller image is padded with ``fill``."""

    size: Sides
    fill: Level = 0

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

    padding: Borders
    fill: Level = 0

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

    size: Sides
    fill: Level = 114
    interpolation: Interpolation = "bilinear"

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

    num_output_channels: GrayChannels = 1

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


class TransformChain:
    """Several steps in sequence, each given by its ``step`` name and its arguments, as in a recipe.

    Raises:
        RecipeError: if a step is unknown, random, or has invalid arguments.
    """

    STEPS: ClassVar[Mapping[str, type[Any]]] = {
        "Resize": ResizeSample,
        "Shrink": ShrinkSample,
        "CenterCrop": CenterCropSample,
        "Pad": PadSample,
        "Letterbox": LetterboxSample,
        "Grayscale": GrayscaleSample,
        "RGB": RGBSample,
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
    known, values = get_type_hints(step, include_extras=True), {}
    for key, value in spec.items():
        if key == "step":
            continue
        if key not in known:
            raise RecipeError(f"transform {name} has no argument {key!r}; it takes {choices(known)}")
        values[key] = checked(value, known[key], f"{name}: {key}")
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
