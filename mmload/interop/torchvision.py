"""The ``torchvision.transforms.v2.Compose`` that is equivalent to a collate or a recipe.

It takes a :class:`~mmload.augment.collate.Collate`, a :class:`~mmload.builder.recipe.BuildRecipe`, or a recipe from a
manifest, and returns torchvision's own transforms with the same settings, for one image at a time. It refuses what
torchvision does not have, and never leaves a step out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL import ImageOps
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import AfterStep, Step, arguments_of
from mmload.builder.recipe import BuildRecipe
from mmload.errors import UsageError, choices
from mmload.interop.shrink import ShortestMaxSize
from mmload.records import VOID


def torchvision_equivalent(meaning: Collate | BuildRecipe | Mapping[str, Any]) -> v2.Compose:
    """Returns the equivalent torchvision v2 ``Compose``.

    For a recipe: it makes a stored image from a file. It takes PIL images as ``PIL.Image.open`` returns them
    (``ImageFolder(root, transform, loader=PIL.Image.open)``; torchvision's default loader drops transparency and EXIF
    before a transform sees them), or for uint8 tensors, whose pixels are then the stored ones exactly.

    For a collate: it makes what training sees from a stored image, as a PIL image or a uint8 tensor. torchvision draws
    from its own generator: the draws differ, their distributions do not. ``MixUp`` and ``CutMix`` keep their position,
    but torchvision's take a batch and draw once for it: put them into the ``collate_fn``. The collate's ``box_rule``
    needs ``v2.SanitizeBoundingBoxes(min_size=...)`` after it; ``device`` and ``memory_format`` are not transforms and
    are left out. A size that follows the epoch is that of ``collate.epoch``.

    Args:
        meaning: a collate, a recipe, or ``dataset.manifest.recipe``.

    Raises:
        UsageError: if a step or setting has no counterpart in torchvision.
        TypeError: if it is something else, such as a Views: its collates have an equivalent each.
    """
    if isinstance(meaning, Collate):
        return v2.Compose(_of_collate(meaning))
    if isinstance(meaning, BuildRecipe):
        return v2.Compose(_of_recipe(meaning.decode, meaning.transforms))
    if isinstance(meaning, Mapping):
        return v2.Compose(_of_recipe(meaning["decode"], meaning["transforms"]))
    raise TypeError(
        f"got {type(meaning).__name__}, expected a Collate, a BuildRecipe or a manifest's recipe; of Views, which make "
        "several images of one, give the collates one by one: [torchvision_equivalent(one) for one in views.collates]"
    )


def conversion(collate: Collate) -> int:
    """Returns the index of the step before which a collate converts to floats; the number of steps if none does.

    Images stay uint8 until Normalize, mixing, or a foreign module; a RandomErasing that no step of mmload
    follows overwrites floats.
    """
    steps = list(collate.steps)
    for index, step in enumerate(steps):
        if _needs_floats(step):
            return index
        if isinstance(step, augment.RandomErasing):
            after = next((s for s in steps[index:] if not isinstance(s, augment.RandomErasing)), None)
            if after is None or (_needs_floats(after) and not isinstance(after, augment.Normalize)):
                return index
    return len(steps)


def _needs_floats(step: nn.Module) -> bool:
    return not isinstance(step, Step | AfterStep) or bool(step.makes_floats)


class DecodeTransform(v2.Transform):  # type: ignore[misc]  # torchvision has no types
    """A PIL image of any kind with 8 bits a channel, in ``mode``, by the rules of docs/images.md.

    Args:
        mode: "RGB" or "L".
        exif_orient: rotate the image as its EXIF orientation says.
        background: the color behind transparent pixels: a gray level or (red, green, blue).
    """

    _transformed_types = (PIL.Image.Image,)

    def __init__(self, mode: str = "RGB", exif_orient: bool = False, background: int | Sequence[int] = 255) -> None:
        super().__init__()
        self.mode, self.exif_orient = mode, exif_orient
        self.background = (background,) * 3 if isinstance(background, int) else tuple(background)

    def transform(self, inpt: PIL.Image.Image, params: dict[str, Any]) -> PIL.Image.Image:
        """Returns the image in the mode; unchanged if it has that mode."""
        kind = inpt.format
        if self.mode == "L":
            inpt.draft("L", None)  # the luma of a JPEG; no effect on other formats
        image = ImageOps.exif_transpose(inpt) if self.exif_orient else inpt
        image.load()
        if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
            image = self._narrowed(image)
        elif image.has_transparency_data:
            ground = PIL.Image.new("RGBA", image.size, (*self.background, 255))
            image = PIL.Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
        return image if image.mode == self.mode else image.convert(self.mode)

    def _narrowed(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """Scales 16 bits to 8, round(value / 257); the transparent gray level becomes the background."""
        wide = np.asarray(image).astype(np.float64)
        gray = np.floor(wide / 257 + 0.5).astype(np.uint8)
        key = image.info.get("transparency")
        if not isinstance(key, int):
            return PIL.Image.fromarray(gray)
        color = np.stack([gray] * 3, axis=2)
        color[wide == key] = self.background
        return PIL.Image.fromarray(color)


class VoidCenterCrop(v2.CenterCrop):  # type: ignore[misc]  # torchvision has no types
    """torchvision's CenterCrop, but masks are padded with 255 (void): it has no fill argument and pads with class 0."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, tv_tensors.Mask):
            rows, cols = (max(want - have, 0) for want, have in zip(self.size, F.get_size(inpt), strict=True))
            inpt = F.pad(inpt, [cols // 2, rows // 2, (cols + 1) // 2, (rows + 1) // 2], fill=VOID)
        return super().transform(inpt, params)


def _of_recipe(decode: Mapping[str, Any], transforms: Sequence[Mapping[str, Any]]) -> list[Any]:
    for name in (spec["step"] for spec in transforms if spec["step"] not in _RECIPE_STEPS):
        raise UsageError(
            f"the recipe's step {name} has no torchvision equivalent; those with one are {choices(_RECIPE_STEPS)}"
        )
    made = [_made(_RECIPE_STEPS[spec["step"]], spec["step"], {**spec}) for spec in transforms]
    return [DecodeTransform(**decode), *made]


def _of_collate(collate: Collate) -> list[Any]:
    dtype, index, epoch = collate.dtype, conversion(collate), collate.epoch
    now = (step if epoch is None or not isinstance(step, Step) else step.at_epoch(epoch) for step in collate.steps)
    steps = list(map(equivalent_of, now))
    if dtype != torch.uint8:
        steps.insert(index, v2.ToDtype(torch.float32, scale=True))
    if dtype not in (torch.uint8, torch.float32):
        steps.append(v2.ToDtype(dtype, scale=True))
    return [v2.ToImage(), *steps]


def equivalent_of(step: nn.Module) -> Any:
    """Returns the torchvision transform of one step of a collate; torchvision's own are returned unchanged.

    Raises:
        UsageError: if there is none.
    """
    if isinstance(step, v2.Transform):
        return step
    if isinstance(step, augment.PerSample):
        return equivalent_of(step.module)
    names = [kind.__name__ for kind in type(step).__mro__ if kind.__module__.startswith(f"{augment.__name__}.")]
    kind = next((found for name in names if (found := _OWN.get(name, getattr(v2, name, None)))), None)
    if kind is None:
        raise UsageError(f"the step {type(step).__name__} has no torchvision equivalent; run it separately")
    if isinstance(step, augment.MixUp | augment.CutMix) and step.p != 1:
        raise UsageError(
            f"{type(step).__name__} with p={step.p:g} has no torchvision equivalent: there every batch is mixed"
        )
    return _made(kind, type(step).__name__, arguments_of(step))


def _made(kind: Callable[..., Any], step: str, arguments: Mapping[str, Any]) -> Any:
    """Makes a transform of the arguments of a step that it knows; the others are checked before."""
    known = inspect.signature(kind).parameters
    made = {name: _argument(step, name, value) for name, value in arguments.items() if name in known}
    if "mask_fill" not in known and arguments.get("mask_fill", made.get("fill")) != made.get("fill"):
        made["fill"] = {tv_tensors.Mask: arguments["mask_fill"], "others": made["fill"]}
    return kind(**made)


def _argument(step: str, name: str, value: Any) -> Any:
    """Returns an argument of a step as torchvision takes it."""
    if name == "size" and callable(value):
        raise UsageError(
            f"the size of {step} follows the epoch, and torchvision has one size: call the collate's "
            "set_epoch(epoch), for the equivalent in that epoch"
        )
    if name == "padding" and not isinstance(value, int):
        return list(value) if any(value) else None
    if name in ("value", "fill") and isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    if name == "transforms":
        return [equivalent_of(one) for one in value]
    of_enum = {"interpolation": InterpolationMode, "policy": v2.AutoAugmentPolicy}.get(name)
    return value if of_enum is None else of_enum(value)


def _center_crop(size: Any, fill: int = 0) -> Any:
    if fill != 0:
        raise UsageError(f"CenterCrop with fill={fill} has no torchvision equivalent: its CenterCrop pads with 0")
    return VoidCenterCrop(size)


def _pad(padding: Any, fill: int = 0) -> Any:
    return v2.Pad(padding or 0, fill={tv_tensors.Mask: VOID, "others": fill})


class OnCanvas(v2.Transform):  # type: ignore[misc]  # torchvision has no types
    """A resize of torchvision's, and its result at the top left of a canvas; what is larger is cropped at random.

    Args:
        resize: ``v2.ScaleJitter`` or ``v2.RandomShortestSize``.
        canvas: (height, width), or a function that returns that of an image of (height, width).
        fill: fill of the canvas.
        mask_fill: fill of a mask's canvas.
    """

    def __init__(
        self,
        resize: v2.Transform,
        canvas: tuple[int, ...] | Callable[[int, int], tuple[int, ...]],
        fill: Any,
        mask_fill: int,
    ) -> None:
        super().__init__()
        self.resize, self.canvas, self.fill, self.mask_fill = resize, canvas, fill, mask_fill

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Returns the canvas, the size, and the row and column of the image at the canvas's corner."""
        canvas = self.canvas if isinstance(self.canvas, tuple) else self.canvas(*_size_of(flat_inputs))
        size = self.resize.make_params(flat_inputs)["size"]
        share = float(torch.rand(1, device="cpu"))
        top, left = (int(max(have - want, 0) * share) for have, want in zip(size, canvas, strict=True))
        return {"canvas": canvas, "size": size, "top": top, "left": left}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        resized = self.resize.transform(inpt, {"size": params["size"]})
        rows, cols = (min(pair) for pair in zip(params["size"], params["canvas"], strict=True))
        cropped = F.crop(resized, max(params["top"], 0), max(params["left"], 0), rows, cols)
        above, before = max(-params["top"], 0), max(-params["left"], 0)
        border = [before, above, params["canvas"][1] - cols - before, params["canvas"][0] - rows - above]
        fill = self.mask_fill if isinstance(inpt, tv_tensors.Mask) else self.fill
        return F.pad(cropped, border, fill=fill)


def _size_of(flat_inputs: list[Any]) -> list[int]:
    """Returns height and width of the first image, mask or boxes."""
    size: list[int] = F.get_size(next(one for one in flat_inputs if isinstance(one, Tensor) or hasattr(one, "size")))
    return size


class CanvasLetterbox(OnCanvas):
    """The whole image, as large as fits, on a canvas.

    Args:
        size: (height, width) of the canvas, or one number for both.
        fill: fill of the canvas.
        interpolation: interpolation of images.
        antialias: whether the resize of images is antialiased.
        mask_fill: fill of a mask's canvas.
        scaleup: whether smaller images are enlarged.
        center: whether the image lies in the middle; else at the top left.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        fill: Any = 114,
        interpolation: InterpolationMode = InterpolationMode.BILINEAR,
        antialias: bool = True,
        mask_fill: int = VOID,
        scaleup: bool = True,
        center: bool = True,
    ) -> None:
        canvas = (size, size) if isinstance(size, int) else tuple(size)
        resize = v2.ScaleJitter(canvas, (1.0, 1.0), interpolation, antialias)
        super().__init__(resize, canvas, fill, mask_fill)
        self.size, self.scaleup, self.center = canvas, scaleup, center

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Returns the canvas, the size of the image, and where the canvas's corner is from the image."""
        have, canvas = _size_of(flat_inputs), self.size
        share = min(want / side for want, side in zip(canvas, have, strict=True))
        share = share if self.scaleup else min(share, 1.0)
        size = [max(1, min(want, round(side * share))) for want, side in zip(canvas, have, strict=True)]
        top, left = (-((want - side) // 2) * self.center for want, side in zip(canvas, size, strict=True))
        return {"canvas": canvas, "size": size, "top": top, "left": left}


def _scale_jitter(
    target_size: Any, scale_range: Any, interpolation: Any, antialias: bool, fill: Any, mask_fill: int
) -> OnCanvas:
    resize = v2.ScaleJitter(target_size, scale_range, interpolation, antialias)
    return OnCanvas(resize, tuple(target_size), fill, mask_fill)


def _shortest_size(
    min_size: Any, max_size: Any, interpolation: Any, antialias: bool, fill: Any, mask_fill: int
) -> OnCanvas:
    resize = v2.RandomShortestSize(list(min_size), max_size, interpolation, antialias)
    return OnCanvas(resize, augment.RandomShortestSize(min_size, max_size).canvas, fill, mask_fill)


_OWN: Mapping[str, Callable[..., Any]] = {
    "CenterCrop": _center_crop,
    "Letterbox": CanvasLetterbox,
    "ScaleJitter": _scale_jitter,
    "RandomShortestSize": _shortest_size,
    "MixChoice": v2.RandomChoice,
}
"""Names of steps -> what makes their transforms, where that is not torchvision's class of the same name."""

_RECIPE_STEPS: Mapping[str, Callable[..., Any]] = {
    "Resize": v2.Resize,
    "CenterCrop": _center_crop,
    "Pad": _pad,
    "Letterbox": CanvasLetterbox,
    "Shrink": ShortestMaxSize,
    "Grayscale": v2.Grayscale,
    "RGB": v2.RGB,
}
"""Names of a recipe's steps -> what makes their transforms."""
