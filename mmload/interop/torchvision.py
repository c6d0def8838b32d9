"""The ``torchvision.transforms.v2.Compose`` that is equivalent to a collate or a recipe.

It takes a :class:`~mmload.augment.collate.Collate`, a :class:`~mmload.builder.recipe.BuildRecipe`, or a recipe from a
manifest, and returns torchvision's own transforms with the same settings, for one image at a time. It refuses what
torchvision does not have, and never leaves a step out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL import ImageOps
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.mix import MixChoice, MixStep
from mmload.augment.step import AfterStep, Step
from mmload.augment.views import Views
from mmload.builder.recipe import BuildRecipe
from mmload.errors import UsageError, choices
from mmload.interop.canvas import Letterbox, letterbox, scale_jitter, shortest_size
from mmload.interop.shrink import Shrink
from mmload.sources.voc_tasks import VOID


def torchvision_equivalent(meaning: Collate | BuildRecipe | Mapping[str, Any]) -> v2.Compose:
    """The equivalent torchvision v2 ``Compose``.

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
    raise _not_one(meaning)


def _not_one(meaning: object) -> TypeError:
    """The error for what has no equivalent, or several."""
    if isinstance(meaning, Views):
        return TypeError(
            f"got {type(meaning).__name__} of {len(meaning.views)}: a Compose makes one image of one, so give the "
            "collates one by one: [torchvision_equivalent(collate) for collate in views.collates]"
        )
    return TypeError(f"got {type(meaning).__name__}, expected a Collate, a BuildRecipe or a manifest's recipe")


def conversion(collate: Collate) -> int:
    """The index of the step before which a collate converts to floats; the number of steps if none needs them.

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
    if isinstance(step, Step):
        return isinstance(step, augment.Normalize) or (isinstance(step, MixStep) and step.makes_floats)
    return not (isinstance(step, AfterStep) and step.takes_uint8)


class Decoded(v2.Transform):  # type: ignore[misc]  # torchvision has no types
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
        """The image in the mode; unchanged if it has that mode."""
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
        """16 bits as 8, round(value / 257); the transparent gray level becomes the background."""
        wide = np.asarray(image).astype(np.float64)
        gray = np.floor(wide / 257 + 0.5).astype(np.uint8)
        key = image.info.get("transparency")
        if not isinstance(key, int):
            return PIL.Image.fromarray(gray)
        color = np.stack([gray] * 3, axis=2)
        color[wide == key] = self.background
        return PIL.Image.fromarray(color)


class CenterCrop(v2.CenterCrop):  # type: ignore[misc]  # torchvision has no types
    """torchvision's CenterCrop, but masks are padded with 255 (void): it has no fill argument and pads with class 0."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image, boxes or a mask, padded where it is smaller and cropped."""
        if isinstance(inpt, tv_tensors.Mask):
            rows, cols = (max(want - have, 0) for want, have in zip(self.size, F.get_size(inpt), strict=True))
            inpt = F.pad(inpt, [cols // 2, rows // 2, (cols + 1) // 2, (rows + 1) // 2], fill=VOID)
        return super().transform(inpt, params)


def _of_recipe(decode: Mapping[str, Any], transforms: Sequence[Mapping[str, Any]]) -> list[Any]:
    steps: list[Any] = [Decoded(**{key: value for key, value in decode.items() if key != "device"})]
    for spec in transforms:
        name, arguments = spec["step"], {key: value for key, value in spec.items() if key != "step"}
        if name not in _RECIPE_STEPS:
            raise UsageError(
                f"the recipe's step {name} has no torchvision equivalent; those with one are {choices(_RECIPE_STEPS)}"
            )
        steps.append(_RECIPE_STEPS[name](**arguments))
    return steps


def _resize(size: Any, interpolation: str = "bilinear") -> Any:
    target = size if isinstance(size, int) else list(size)
    return v2.Resize(target, interpolation=InterpolationMode(interpolation), antialias=True)


def _center_crop(size: Any, fill: int = 0) -> Any:
    if fill != 0:
        raise UsageError(f"CenterCrop with fill={fill} has no torchvision equivalent: its CenterCrop pads with 0")
    return CenterCrop(size)


def _pad(padding: Any, fill: int = 0) -> Any:
    sides = padding if isinstance(padding, int) else list(padding)
    return v2.Pad(sides, fill={tv_tensors.Mask: VOID, "others": fill})


def _letterbox(size: Any, fill: int = 114, interpolation: str = "bilinear") -> Any:
    canvas = (size, size) if isinstance(size, int) else tuple(size)
    return Letterbox(canvas, fill, InterpolationMode(interpolation))


_RECIPE_STEPS: Mapping[str, Callable[..., Any]] = {
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "Pad": _pad,
    "Letterbox": _letterbox,
    "Shrink": Shrink,
    "Grayscale": v2.Grayscale,
    "RGB": v2.RGB,
}


def _of_collate(collate: Collate) -> list[Any]:
    dtype, index = collate.dtype, conversion(collate)
    steps = [equivalent_of(_now(step, collate.epoch)) for step in collate.steps]
    if dtype != torch.uint8:
        steps.insert(index, v2.ToDtype(torch.float32, scale=True))
    if dtype not in (torch.uint8, torch.float32):
        steps.append(v2.ToDtype(dtype, scale=True))
    return [v2.ToImage(), *steps]


def _now(step: nn.Module, epoch: int | None) -> nn.Module:
    """The step with the settings of the epoch, if that is known."""
    return step.at_epoch(epoch) if isinstance(step, Step) and epoch is not None else step


def equivalent_of(step: nn.Module) -> Any:
    """The torchvision transform of one step of a collate; torchvision's own stay as they are.

    Raises:
        UsageError: if there is none.
    """
    for kind, make in _STEPS.items():
        if isinstance(step, kind):
            return make(step)
    if isinstance(step, augment.PerSample):
        return equivalent_of(step.module)
    if isinstance(step, v2.Transform):
        return step
    raise UsageError(f"the step {type(step).__name__} has no torchvision equivalent; run it separately")


def _random_crop(step: augment.RandomCrop) -> Any:
    padding = list(step.padding) if any(step.padding) else None
    fill = _fill(step.fill)
    if fill != step.mask_fill:
        fill = {tv_tensors.Mask: step.mask_fill, "others": fill}
    return v2.RandomCrop(step.size, padding, step.pad_if_needed, fill, step.padding_mode)


def _random_resized_crop(step: augment.RandomResizedCrop) -> Any:
    _refuse_epochs(step)
    mode = InterpolationMode(step.mode)
    return v2.RandomResizedCrop(step.size, step.scale, step.ratio, interpolation=mode, antialias=step.antialias)


def _resized(step: augment.Resize) -> Any:
    _refuse_epochs(step)
    size: Any = step.short if step.size is None else step.size
    return v2.Resize(size, InterpolationMode(step.mode), max_size=step.max_size, antialias=step.antialias)


def _refuse_epochs(step: augment.RandomResizedCrop | augment.Resize) -> None:
    if callable(step.size):
        raise UsageError(
            f"the size of {type(step).__name__} follows the epoch, and torchvision has one size: call the collate's "
            "set_epoch(epoch), for the equivalent in that epoch"
        )


def _iou_crop(step: augment.RandomIoUCrop) -> Any:
    scales = step.min_scale, step.max_scale, step.min_aspect_ratio, step.max_aspect_ratio
    return v2.RandomIoUCrop(*scales, list(step.sampler_options), step.trials)


def _erasing(step: augment.RandomErasing) -> Any:
    value: Any = "random" if step.value is None else list(step.value)
    return v2.RandomErasing(step.p, step.scale, step.ratio, value[0] if len(value) == 1 else value)


def _batch_mixing(make: Any) -> Callable[[Any], Any]:
    def of(step: augment.MixUp | augment.CutMix) -> Any:
        if step.p != 1:
            raise UsageError(
                f"{type(step).__name__} with p={step.p:g} has no torchvision equivalent: there every batch is mixed"
            )
        return make(alpha=step.alpha, num_classes=step.num_classes)

    return of


def _fill(fill: tuple[float, ...] | None) -> Any:
    """One number, one per channel, or None."""
    return None if fill is None else fill[0] if len(fill) == 1 else list(fill)


def _warp_fill(step: Any) -> Any:
    """Of images and masks, as torchvision takes both."""
    fill = _fill(step.fill)
    return fill if fill == step.mask_fill else {tv_tensors.Mask: step.mask_fill, "others": fill}


def _rotation(step: augment.RandomRotation) -> Any:
    center = None if step.center is None else list(step.center)
    return v2.RandomRotation(step.degrees, InterpolationMode(step.interpolation), center=center, fill=_warp_fill(step))


def _affine(step: augment.RandomAffine) -> Any:
    return v2.RandomAffine(
        step.degrees,
        step.translate,
        step.scale,
        step.shear,
        InterpolationMode(step.interpolation),
        _warp_fill(step),
        None if step.center is None else list(step.center),
    )


def _perspective(step: augment.RandomPerspective) -> Any:
    mode = InterpolationMode(step.interpolation)
    return v2.RandomPerspective(step.distortion_scale, step.p, mode, _warp_fill(step))


def _distortion(step: augment.RandomPhotometricDistort) -> Any:
    return v2.RandomPhotometricDistort(step.brightness, step.contrast, step.saturation, step.hue, step.p)


def _drawing(step: Any) -> dict[str, Any]:
    """What all policies share."""
    return {"interpolation": InterpolationMode(step.interpolation), "fill": _fill(step.fill)}


def _rand_augment(step: augment.RandAugment) -> Any:
    return v2.RandAugment(step.num_ops, step.magnitude, step.num_magnitude_bins, **_drawing(step))


def _auto_augment(step: augment.AutoAugment) -> Any:
    return v2.AutoAugment(v2.AutoAugmentPolicy(step.policy), **_drawing(step))


def _aug_mix(step: augment.AugMix) -> Any:
    shares = step.severity, step.mixture_width, step.chain_depth, step.alpha, step.all_ops
    return v2.AugMix(*shares, **_drawing(step))


def _of_each(step: Any) -> list[Any]:
    return [equivalent_of(one) for one in step.transforms]


_STEPS: Mapping[type[nn.Module], Callable[[Any], Any]] = {
    augment.RandomCrop: _random_crop,
    augment.CenterCrop: lambda step: CenterCrop(step.size),
    augment.RandomResizedCrop: _random_resized_crop,
    augment.Resize: _resized,
    augment.Letterbox: lambda step: letterbox(step, _fill(step.fill)),
    augment.ScaleJitter: lambda step: scale_jitter(step, _fill(step.fill)),
    augment.RandomShortestSize: lambda step: shortest_size(step, _fill(step.fill)),
    augment.RandomZoomOut: lambda step: v2.RandomZoomOut(_warp_fill(step), list(step.side_range), step.p),
    augment.RandomIoUCrop: _iou_crop,
    augment.RandomHorizontalFlip: lambda step: v2.RandomHorizontalFlip(step.p),
    augment.RandomVerticalFlip: lambda step: v2.RandomVerticalFlip(step.p),
    augment.Normalize: lambda step: v2.Normalize(step.mean.tolist(), step.std.tolist()),
    augment.RandomGrayscale: lambda step: v2.RandomGrayscale(step.p),
    augment.RandomErasing: _erasing,
    augment.ColorJitter: lambda step: v2.ColorJitter(*step.ranges),
    augment.RandomInvert: lambda step: v2.RandomInvert(step.p),
    augment.RandomAutocontrast: lambda step: v2.RandomAutocontrast(step.p),
    augment.RandomEqualize: lambda step: v2.RandomEqualize(step.p),
    augment.RandomPosterize: lambda step: v2.RandomPosterize(step.bits, step.p),
    augment.RandomSolarize: lambda step: v2.RandomSolarize(step.threshold, step.p),
    augment.RandomAdjustSharpness: lambda step: v2.RandomAdjustSharpness(step.sharpness_factor, step.p),
    augment.GaussianBlur: lambda step: v2.GaussianBlur(list(step.kernel_size), step.sigma),
    augment.RandomPhotometricDistort: _distortion,
    augment.RandomRotation: _rotation,
    augment.RandomAffine: _affine,
    augment.RandomPerspective: _perspective,
    augment.RandAugment: _rand_augment,
    augment.TrivialAugmentWide: lambda step: v2.TrivialAugmentWide(step.num_magnitude_bins, **_drawing(step)),
    augment.AutoAugment: _auto_augment,
    augment.AugMix: _aug_mix,
    augment.RandomApply: lambda step: v2.RandomApply(_of_each(step), step.p),
    augment.RandomChoice: lambda step: v2.RandomChoice(_of_each(step), list(step.p)),
    augment.RandomOrder: lambda step: v2.RandomOrder(_of_each(step)),
    augment.MixUp: _batch_mixing(v2.MixUp),
    augment.CutMix: _batch_mixing(v2.CutMix),
    MixChoice: lambda step: v2.RandomChoice(_of_each(step), list(step.p)),
}
