"""The deterministic steps between decoding and storing: uint8 in, uint8 out.

A step takes a :class:`~mmload.records.Sample` and returns it with images, masks and boxes transformed alike. Names,
rules and pixels are those of torchvision v2 with antialiasing. A step that moves pixels says where by a
:class:`Framing`; :func:`framed` carries it out, with the geometry of augmentation (:mod:`mmload.render.motion`). No
step is random: random steps belong to load time (:mod:`mmload.augment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mmload.errors import RecipeError, choices
from mmload.pictures.instance_masks import mask_of_runs, of_boxes, parts_of, runs_of_mask
from mmload.records import PER_BOX, SEGMENT_FIELDS, SEGMENTS, VOID, Sample
from mmload.store.variable_rows import MAX_PIXELS

if TYPE_CHECKING:
    from mmload.render.motion import Motion, Move

_MILD, _SMALL = 2.0, 1 << 21
"""Shrinking by a larger factor is faster in torch's kernel, else in the compiled one; the bits are the same. Of an
image with fewer pixels it is up to 4% of decoding, for which torch, which takes 2 s, is not imported."""
_MOST = 65_535  # upper bound on the pixels of a side, as in a JPEG

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]

Size = tuple[int, int]
"""(height, width)."""
Window = tuple[int, int, int, int]
"""(top, left, height, width); it may lie outside the image."""


@dataclass(frozen=True, kw_only=True)
class Framing:
    """What a step does with the pixels of an image: it resizes them, then cuts a window out.

    Attributes:
        size: the size after the resize.
        interpolation: "bilinear" or "bicubic" for images; masks always use the nearest pixel.
        window: the window; None: all of it, and boxes are not clipped.
        fill: value of the pixels of a window that are outside of the image; of masks it is 255, void.
    """

    size: Size
    interpolation: str = "bilinear"
    window: Window | None = None
    fill: int = 0

    @property
    def pixels(self) -> Window:
        """The window."""
        return self.window or (0, 0, *self.size)


def middle(have: int, want: int) -> int:
    """Returns where torchvision's center_crop starts, or (negative) what it pads before."""
    return int(round((have - want) / 2.0)) if have >= want else -((want - have) // 2)


def is_inside(window: Window, size: tuple[int, ...]) -> bool:
    """Returns whether a window lies completely inside an image of (height, width)."""
    top, left, height, width = window
    return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]


def cut(pixels: Array, window: Window, fill: int) -> Array:
    """Returns the pixels [..., H, W] of a window; those outside the image are ``fill``."""
    top, left, height, width = window
    have_height, have_width = pixels.shape[-2:]
    if is_inside(window, (have_height, have_width)):
        return pixels[..., top : top + height, left : left + width]
    out = np.full((*pixels.shape[:-2], height, width), fill, pixels.dtype)
    y0, y1 = max(top, 0), min(top + height, have_height)
    x0, x1 = max(left, 0), min(left + width, have_width)
    out[..., y0 - top : y1 - top, x0 - left : x1 - left] = pixels[..., y0:y1, x0:x1]
    return out


def image_of(sample: Sample) -> Array:
    """Returns the image of a sample, [C, H, W]; raises ValueError if it has none that steps take."""
    if "images" not in sample.fields:
        raise ValueError("it has no image to transform")
    if any(sample.fields[name].dtype == np.uint16 for name in sample.fields.keys() & {"images", "masks"}):
        raise ValueError("its image or mask is bfloat16, which no transform takes; give float32, or uint8")
    return np.asarray(sample.fields["images"])


def framed(sample: Sample, framing: Framing, out: Pixels | None = None) -> Sample:
    """Returns a sample with all its fields resized and cut; the image is in ``out`` if that has its shape."""
    have, window = _size_of(sample), framing.pixels
    for height, width in (framing.size, window[2:]):
        if height * width > MAX_PIXELS:
            raise ValueError(f"{height} x {width} pixels is over the limit of {MAX_PIXELS}")
    fields = {**sample.fields, "images": _framed_image(image_of(sample), framing, out)}
    if "masks" in fields:
        fields["masks"] = _framed_mask(fields["masks"], framing, VOID)
    inside = _inside(sample.inside or (0, 0, *have), have, framing)
    cut_off = _move_targets(fields, have, framing, sample)
    return replace(sample, fields=fields, inside=None if inside == (0, 0, *window[2:]) else inside, cut=cut_off)


def _size_of(sample: Sample) -> Size:
    height, width = image_of(sample).shape[-2:]
    return height, width


def _inside(inside: Window, have: Size, framing: Framing) -> Window:
    """Returns the part of the window that shows the image, without pixels that a border before reaches into."""
    spans = []
    for axis in (0, 1):
        size, (start, length) = framing.size[axis], framing.pixels[axis::2]
        first = max(-(-inside[axis] * size // have[axis]) - start, 0)
        stop = min((inside[axis] + inside[axis + 2]) * size // have[axis] - start, length)
        spans.append((first, max(stop - first, 0)))
    (top, height), (left, width) = spans
    return top, left, height, width


# Pixels.


def _framed_image(images: Array, framing: Framing, out: Pixels | None) -> Array:
    """Resizes [C, H, W] and returns the window; only its pixels are computed where that is inside."""
    size, window, (height, width) = framing.size, framing.pixels, images.shape[-2:]
    if size == (height, width):
        return cut(images, window, framing.fill)
    part = window if is_inside(window, size) else (0, 0, *size)
    # torch returns wrong pixels for a width of 1 (2.11 and 2.15)
    is_mild = (height <= _MILD * size[0] and width <= _MILD * size[1]) or size[1] == 1
    if (is_mild or height * width < _SMALL) and images.dtype == np.uint8:
        resized = _resize_part(images, framing, part, out)
        return resized if part == window else cut(resized, window, framing.fill)
    return cut(_interpolated(images, size, framing.interpolation), window, framing.fill)


def _resize_part(images: Array, framing: Framing, part: Window, out: Pixels | None) -> Array:
    from mmload.render.antialiased_resize import REACHES, resize_part

    shape = len(images), *part[2:]
    if out is None or out.shape != shape:
        out = np.empty(shape, np.uint8)
    resize_part(images, framing.size, part, REACHES[framing.interpolation], out)
    return out


def _interpolated(images: Array, size: Size, interpolation: str) -> Array:
    """Resizes [C, H, W] by the call of torch that torchvision's resize makes; to import torchvision takes 2 s.

    The stride of the batch tells torch that colors are interleaved, where they are: it then copies none.
    """
    import torch
    from torch.nn.functional import interpolate

    is_taken = images.dtype in (np.uint8, np.float32, np.float64)
    batch = torch.from_numpy(images if is_taken else images.astype(np.float32))
    batch = batch.as_strided((1, *batch.shape), (batch.numel(), *batch.stride()))
    resized: Array = interpolate(batch, list(size), mode=interpolation, align_corners=False, antialias=True)[0].numpy()
    return (resized if is_taken or images.dtype.kind == "f" else resized.round()).astype(images.dtype, copy=False)


def _framed_mask(mask: Array, framing: Framing, fill: int) -> Array:
    """Resizes [H, W] by the nearest pixel, as torch and torchvision do, and returns the window."""
    rows, cols = map(_nearest, mask.shape, framing.size)
    return cut(mask[rows][:, cols], framing.pixels, fill)


def _nearest(have: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the position that each pixel of a resized line is taken from, in float32 as torch finds it: int64 [n]."""
    step = np.float32(have) / np.float32(size)
    return np.minimum((np.arange(size, dtype=np.float32) * step).astype(np.int64), have - 1)


# Boxes, points and the masks of objects.


def _move_targets(fields: dict[str, Array], have: Size, framing: Framing, sample: Sample) -> Array | None:
    """Moves boxes, points and masks of objects in ``fields``; returns which boxes were cut, now or before.

    A window clips boxes, drops those that it does not show, and makes keypoints outside of it unlabeled.
    """
    if "boxes" not in fields and not sample.lists:
        return sample.cut
    from mmload.render.motion import SCALE, SHIFT, Motion

    top, left, height, width = framing.pixels
    factors = (framing.size[1] / have[1], framing.size[0] / have[0])
    moves: list[Move] = [(SCALE, factors, (0, 0))]
    if framing.window is not None:
        moves.append((SHIFT, (left, top), (width, height)))
    motion = Motion.of_moves(1, moves)
    for name in sample.lists.intersection(("keypoints", "corners", "polygons")):
        fields[name] = _moved_points(fields[name], motion)
    _change_runs(fields, have, framing)
    if "boxes" not in fields:
        return sample.cut
    is_cut = _move_boxes(fields, motion, factors, sample.lists)
    if framing.window is None:
        return sample.cut
    return _drop_boxes(fields, is_cut if sample.cut is None else is_cut | sample.cut, sample.lists)


def _move_boxes(fields: dict[str, Array], motion: Motion, factors: tuple[float, float], lists: frozenset[str]) -> Array:
    """Moves and clips the boxes in ``fields``, and their areas, which grow by two factors; returns which are cut."""
    from mmload.render.motion import move_boxes

    boxes = fields["boxes"][None].astype(np.float32)
    is_cut, share = np.zeros(boxes.shape[:2], np.bool_), np.ones(boxes.shape[:2], np.float32)
    move_boxes(boxes, motion, is_cut, share)
    fields["boxes"] = boxes[0]
    if "area" in lists:
        fields["area"] = _floats(fields["area"]) * np.array(factors, np.float32).prod() * share[0]
    return np.asarray(is_cut[0])


def _floats(values: Array) -> Array:
    """Returns numbers as float32, but float64 as they are."""
    return values if values.dtype == np.float64 else values.astype(np.float32)


def _moved_points(points: Array, motion: Motion) -> Array:
    """Moves points [..., 2], or keypoints [..., 3], which are 0, 0 and not labeled if they are outside or were not."""
    from mmload.render.motion import moved_points

    exact = _floats(points)
    places, inside = moved_points(exact[..., :2][None], motion)
    labels = exact[..., 2:] * inside[0, ..., None]
    is_shown = labels > 0 if labels.shape[-1] else 1
    return np.concatenate([places[0] * is_shown, labels], -1).astype(points.dtype)


def _change_runs(fields: dict[str, Array], have: Size, framing: Framing) -> None:
    """Changes the masks that are stored as run lengths, each of an image of (height, width) ``have``."""
    owners, values = SEGMENTS[1]
    if not len(fields.get(owners, ())):
        return
    masks = (mask_of_runs(runs, *have) for _, runs in parts_of(fields, owners, values))
    runs = [runs_of_mask(_framed_mask(mask, framing, 0)) for mask in masks]
    fields[values] = np.concatenate(runs)
    fields[owners] = np.stack([fields[owners][:, 0], np.array(list(map(len, runs)), np.int32)], 1)


def _drop_boxes(fields: dict[str, Array], cut_off: Array, lists: frozenset[str]) -> Array:
    """Keeps the boxes with a positive area in ``fields``, with all that belongs to them; returns which were cut."""
    boxes = fields["boxes"]
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    for name in lists.intersection(("boxes", *PER_BOX)):
        fields[name] = fields[name][keep]
    fields |= of_boxes({name: fields[name] for name in SEGMENT_FIELDS.keys() & lists}, keep)
    fields["counts"] = np.array(keep.sum())
    return cut_off[keep]


# Steps, declared as recipes write them.

Side = Annotated[int, Meta(ge=1, le=_MOST)]
Sides = Side | Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)]
"""One number, or [height, width]; of tuple[Side, Side] beside an integer with limits, msgspec 0.22 reads memory that is
not its own."""
Border = Annotated[int, Meta(ge=0, le=_MOST)]
Borders = Border | Annotated[tuple[Border, ...], Meta(min_length=4, max_length=4)]
"""One number, or [left, top, right, bottom]."""
Level = Annotated[int, Meta(ge=0, le=255)]
Interpolation = Literal["bilinear", "bicubic"]


class Transform(Protocol):
    """One step. Deterministic, thread-safe, picklable; the step determines the output shapes of all fields."""

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Returns the sample after this step; its image may be in ``out``, uint8 [C, H, W], if that has its shape."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step"):
    """Base of all steps, whose ``step`` in a recipe is the name of their class without Sample."""


class _FramingStep(_Step, frozen=True):
    """Base of the steps that move pixels."""

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Returns the sample, framed."""
        framing = self.framing(_size_of(sample))
        return sample if framing is None else framed(sample, framing, out)

    def framing(self, have: Size) -> Framing | None:
        """Returns what is done with an image of size ``have``; None, as here: it stays as it is."""
        return None


class ResizeSample(_FramingStep, frozen=True, tag="Resize"):
    """Resize like torchvision's ``Resize(size, antialias=True)``.

    Attributes:
        size: pixels of the short side, keeping the aspect ratio; or (height, width) exactly.
        interpolation: "bilinear" or "bicubic" for images; masks always use the nearest pixel.
    """

    size: Sides
    interpolation: Interpolation = "bilinear"

    def framing(self, have: Size) -> Framing:
        height, width = (
            self.size if isinstance(self.size, tuple) else (int(self.size * side / min(have)) for side in have)
        )
        return Framing(size=(height, width), interpolation=self.interpolation)


class ShrinkSample(_FramingStep, frozen=True, tag="Shrink"):
    """Resize the short side to ``size`` where it is longer, keeping the aspect ratio; smaller images stay as they are.

    Attributes:
        size: pixels of the short side at most.
        interpolation: "bilinear" or "bicubic" for images; masks always use the nearest pixel.
    """

    size: Side
    interpolation: Interpolation = "bilinear"

    def framing(self, have: Size) -> Framing | None:
        resize = ResizeSample(size=self.size, interpolation=self.interpolation)
        return resize.framing(have) if min(have) > self.size else None


class CenterCropSample(_FramingStep, frozen=True, tag="CenterCrop"):
    """Crop the center like torchvision's ``CenterCrop(size)``; a smaller image is padded with ``fill``."""

    size: Sides
    fill: Level = 0

    def framing(self, have: Size) -> Framing:
        height, width = _pair(self.size)
        window = middle(have[0], height), middle(have[1], width), height, width
        return Framing(size=have, window=window, fill=self.fill)


class PadSample(_FramingStep, frozen=True, tag="Pad"):
    """Pad like torchvision's ``Pad(padding, fill)``: padding is one number, or (left, top, right, bottom)."""

    padding: Borders
    fill: Level = 0

    def framing(self, have: Size) -> Framing:
        left, top, right, bottom = (self.padding,) * 4 if isinstance(self.padding, int) else self.padding
        window = -top, -left, have[0] + top + bottom, have[1] + left + right
        return Framing(size=have, window=window, fill=self.fill)


class LetterboxSample(_FramingStep, frozen=True, tag="Letterbox"):
    """Fit the whole image into ``size``, keeping the aspect ratio, and pad the rest evenly with ``fill``.

    Attributes:
        size: pixels of the square, or (height, width).
        fill: the border's value; 114 is common for detection models.
        interpolation: "bilinear" or "bicubic".
    """

    size: Sides
    fill: Level = 114
    interpolation: Interpolation = "bilinear"

    def framing(self, have: Size) -> Framing:
        height, width = canvas = _pair(self.size)
        scale = min(height / have[0], width / have[1])
        rows, cols = (max(1, min(most, round(side * scale))) for most, side in zip(canvas, have, strict=True))
        window = -((height - rows) // 2), -((width - cols) // 2), height, width
        return Framing(size=(rows, cols), interpolation=self.interpolation, window=window, fill=self.fill)


def _pair(size: Sides) -> Size:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


class _ResizedMiddle(_FramingStep, frozen=True):
    """A Resize followed by a CenterCrop: only the pixels that are kept are computed, with identical bits."""

    resize: ResizeSample
    crop: CenterCropSample

    def framing(self, have: Size) -> Framing:
        resized = self.resize.framing(have)
        return replace(self.crop.framing(resized.size), interpolation=resized.interpolation)


class GrayscaleSample(_Step, frozen=True, tag="Grayscale"):
    """Convert to gray like torchvision's ``Grayscale``: 0.2989 R + 0.587 G + 0.114 B; 3 channels repeat it."""

    num_output_channels: Literal[1, 3] = 1

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Returns the sample with a gray image."""
        import torch
        from torchvision.transforms.v2.functional import rgb_to_grayscale_image  # takes 2 s

        gray = rgb_to_grayscale_image(torch.from_numpy(image_of(sample)), self.num_output_channels)
        return replace(sample, fields={**sample.fields, "images": gray.numpy()})


class RGBSample(_Step, frozen=True, tag="RGB"):
    """Convert to three channels like torchvision's ``RGB``: a gray image is repeated."""

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Returns the sample with an image of three channels."""
        import torch
        from torchvision.transforms.v2.functional import grayscale_to_rgb_image  # takes 2 s

        images = grayscale_to_rgb_image(torch.from_numpy(image_of(sample)))
        return replace(sample, fields={**sample.fields, "images": images.numpy()})


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
        self.steps: list[Transform] = []
        for step in map(_made, specs):
            match self.steps[-1:], step:
                case [ResizeSample() as last], CenterCropSample():
                    self.steps[-1] = _ResizedMiddle(resize=last, crop=step)
                case _:
                    self.steps.append(step)

    def __call__(self, sample: Sample, out: Pixels | None = None) -> Sample:
        """Applies every step; the image is in ``out``, uint8 [C, H, W], if the last step can write to it."""
        for step in self.steps:
            sample = step(sample, out if step is self.steps[-1] else None)
        return sample


def _made(spec: Mapping[str, Any]) -> Transform:
    name = spec.get("step")
    if not isinstance(name, str) or name not in TransformChain.STEPS:
        raise RecipeError(
            f"transform {dict(spec)!r:.80} is no step of a build, which has {choices(TransformChain.STEPS)}: it stores "
            "each image once, as uint8; random steps and Normalize belong to load time, in mmload.Collate"
        )
    kind = TransformChain.STEPS[name]
    try:
        step: Transform = msgspec.convert(spec, kind)
    except (ValueError, OverflowError, RecursionError) as error:
        takes = choices(kind.__struct_fields__) if kind.__struct_fields__ else "no argument"
        raise RecipeError(f"transform {dict(spec)!r:.80}: {error}; {name} takes {takes}") from error
    return step
