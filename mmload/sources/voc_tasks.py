"""The fields that are stored beside a VOC image: one small class for each task.

It lists no folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import SampleError
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE, VOID
from mmload.sources.decode import LOSSY, RefusedImage, read_with_pillow
from mmload.sources.files import read_bytes
from mmload.sources.objects import EDGE
from mmload.sources.voc_devkit import VocObject

if TYPE_CHECKING:
    from torch import Tensor

Box = tuple[float, float, float, float]

_ROUNDED = (
    "boxes reach over the edge of the image by a pixel and are cut there; if the files count pixels from 0, set "
    "one_based=false"
)
"""Loss of a sample, and the text of its note."""

_CODE = np.array([65536, 256, 1])  # red, green, blue as one number


class VocItem(NamedTuple):
    """One image of a list.

    Attributes:
        image: its path relative to the devkit, which is its id.
        revision: changes when its files change.
        objects: its annotation's objects, or the reason why they cannot be read.
        size: (height, width) of the image by its annotation; None: not given.
        beside: path of the annotation or mask that belongs to the image, relative to the devkit.
    """

    image: str
    revision: str
    objects: tuple[VocObject, ...] | str
    size: tuple[int, int] | None = None
    beside: str = ""


@dataclass(frozen=True, kw_only=True)
class VocTask(ABC):
    """A task: which items it keeps, which fields it stores, for class names by index. Picklable."""

    classes: tuple[str, ...]

    def dropped(self, item: VocItem) -> str | None:
        """Returns why an item is not part of the split; None if it is."""
        return None

    def fitted(self, items: Sequence[VocItem]) -> Self:
        """Returns the task for a split of these items."""
        return self

    @abstractmethod
    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the fields beside an image of (height, width) ``size``; raises SampleError if they are invalid."""

    def losses(self, item: VocItem, size: tuple[int, int]) -> dict[str, int]:
        """Returns how much :meth:`fields` had to leave out, by names such as :data:`~mmload.records.CLIPPED`."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Detection(VocTask):
    """Boxes, labels and difficult flags, padded to the split's own maximum.

    Attributes:
        one_based: boxes count pixels from 1 and include the last, as VOC's do; False: from 0, half-open.
        clip_boxes: cut boxes that reach over the image's edge, instead of refusing them.
        most: the largest number of objects of an item.
    """

    one_based: bool = True
    clip_boxes: bool = False
    most: int = 1

    def fitted(self, items: Sequence[VocItem]) -> Self:
        """Returns the task with room for the most objects that an item of the split has."""
        counts = [len(item.objects) for item in items if not isinstance(item.objects, str)]
        return replace(self, most=max([1, *counts]))

    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns ``boxes`` float32 [M, 4] (xyxy, half-open), ``labels`` [M], ``difficult`` [M], ``counts`` []."""
        import torch

        objects = _objects(item)
        boxes = torch.zeros(self.most, 4, dtype=torch.float32, device="cpu")
        labels = torch.full((self.most,), -1, device="cpu")
        difficult = torch.zeros(self.most, dtype=torch.bool, device="cpu")
        for row, each in enumerate(objects):
            try:
                boxes[row] = torch.tensor(self._box(each, size), dtype=torch.float32, device="cpu")
                labels[row] = _index(self.classes, each.name)
            except ValueError as error:
                raise SampleError(item.image, f"object {row + 1} ({each.name}): {error}{_hint(item, size)}") from error
            difficult[row] = each.difficult
        return {
            "boxes": boxes,
            "labels": labels,
            "difficult": difficult,
            "counts": torch.tensor(len(objects), device="cpu"),
        }

    def losses(self, item: VocItem, size: tuple[int, int]) -> dict[str, int]:
        """Returns how many boxes were cut at the edge, and whether the annotation gives another image size."""
        unclipped = [self._sides(each.box) for each in _objects(item) if each.box is not None]
        losses = {CLIPPED if self.clip_boxes else _ROUNDED: sum(sides != _clipped(sides, size) for sides in unclipped)}
        if item.size not in (None, size):
            losses[SWAPPED_SIZE if item.size == size[::-1] else OTHER_SIZE] = 1
        return losses

    def _box(self, each: VocObject, size: tuple[int, int]) -> Box:
        if each.box is None:
            raise ValueError("it has no bndbox")
        height, width = size
        sides = self._sides(each.box)
        inside = _clipped(sides, size)
        shown = f"the box xmin, ymin, xmax, ymax = {', '.join(f'{side:g}' for side in each.box)}"
        over = max(-sides[0], -sides[1], sides[2] - width, sides[3] - height)
        if over > EDGE and not self.clip_boxes:
            raise ValueError(f"{shown} leaves the {width} x {height} image; clip_boxes cuts such boxes")
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            raise ValueError(f"{shown} is empty in the {width} x {height} image")
        return inside

    def _sides(self, box: Box) -> Box:
        """Returns the sides counted from 0, half-open."""
        x0, y0, x1, y1 = box
        return (x0 - 1, y0 - 1, x1, y1) if self.one_based else box


@dataclass(frozen=True, kw_only=True)
class Classification(VocTask):
    """Multi-label classes by VOC's rule: a class with only difficult objects does not count."""

    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns ``targets`` float32 [K], 1 for a class in the image; ``ignored`` bool [K], 1 where only difficult."""
        import torch

        targets = torch.zeros(len(self.classes), dtype=torch.float32, device="cpu")
        present = torch.zeros(len(self.classes), dtype=torch.bool, device="cpu")
        for each in _objects(item):
            try:
                index = _index(self.classes, each.name)
            except ValueError as error:
                raise SampleError(item.image, str(error)) from error
            present[index] = True
            if not each.difficult:
                targets[index] = 1
        return {"targets": targets, "ignored": present & (targets == 0)}


@dataclass(frozen=True, kw_only=True)
class Segmentation(VocTask):
    """A class for each pixel; ``classes`` begin with the background."""

    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns ``masks`` uint8 [H, W]: class indices, 255 = void."""
        mask = read_mask(root, item.beside, item.image)
        if mask.shape != size:
            raise SampleError(
                item.image,
                f"its mask is {mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}",
            )
        odd = mask[(mask >= len(self.classes)) & (mask != VOID)]
        if len(odd):
            raise SampleError(
                item.image,
                f"its mask has the value {int(odd[0])}; classes are 0 to {len(self.classes) - 1}, and 255 is void; "
                "name your own in classes, or take those in the masks: --set classes=auto",
            )
        return {"masks": mask}


@dataclass(frozen=True, kw_only=True)
class SingleLabel(VocTask):
    """The class of the one object in the image, by the name that another class list has for it.

    ``class_map`` leads from VOC's names to the other's, which are ``classes``.
    """

    class_map: Mapping[str, str]

    def dropped(self, item: VocItem) -> str | None:
        """Drops all but images with one object of a class in the map; an unreadable one fails when it is read."""
        if isinstance(item.objects, str):
            return None
        if len(item.objects) != 1:
            return "several objects" if item.objects else "no object"
        name = item.objects[0].name
        return None if name in self.class_map else f"{name} is not in the class map"

    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns ``targets`` int64 []."""
        import torch

        (only,) = _objects(item)
        return {"targets": torch.tensor(self.classes.index(self.class_map[only.name]), device="cpu")}


def read_mask(root: Path, name: str, sample: str) -> Tensor:
    """Reads a class mask as uint8 [H, W]: the indices of a palette, gray levels, or the numbers of VOC's colors.

    Raises:
        SampleError: of ``sample``, if it is missing, broken, or of another kind.
    """
    import torch

    try:
        return torch.from_numpy(read_with_pillow(read_bytes(root, name, sample), _class_numbers))
    except ValueError as error:
        raise SampleError(sample, f"its mask {name} cannot be read: {error}") from error


def _class_numbers(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Returns the class of each pixel, uint8 [H, W]; raises RefusedImage if the pixels do not say it."""
    if image.format in LOSSY:
        raise RefusedImage(f"it is a {image.format}, which does not keep class numbers")
    pixels, mode = np.array(image), image.mode
    if mode in ("LA", "RGBA"):
        if (pixels[..., -1] != 255).any():
            raise RefusedImage("it has transparent pixels, of which the class is unclear")
        pixels, mode = pixels[..., :-1], mode[:-1]
    if mode == "RGB":
        codes = pixels.astype(np.int64) @ _CODE
        colors = voc_colors().astype(np.int64) @ _CODE
        order = np.argsort(colors)
        place = order[np.searchsorted(colors, codes, sorter=order).clip(max=len(colors) - 1)]
        unknown = pixels[colors[place] != codes]
        if len(unknown):
            raise RefusedImage(f"its color {tuple(unknown[0].tolist())} is none of VOC's colors of classes")
        return np.asarray(place, np.uint8)
    if mode not in ("P", "L"):
        raise RefusedImage(f"it is of mode {mode}; use palette, 8-bit gray, or VOC's colors")
    return np.ascontiguousarray(pixels.reshape(pixels.shape[:2]))


def voc_colors() -> npt.NDArray[np.uint8]:
    """Returns the color of each class, uint8 [256, 3], as VOC's devkit makes them: bits of the number, by threes."""
    numbers = np.arange(256)[:, None, None]
    places = np.arange(8)
    bits = (numbers >> (3 * places + np.arange(3)[:, None])) & 1
    return np.asarray((bits << (7 - places)).sum(2), np.uint8)


def _clipped(sides: Box, size: tuple[int, int]) -> Box:
    """Cuts a box at the edges of an image of (height, width)."""
    x0, y0, x1, y1 = sides
    return max(x0, 0.0), max(y0, 0.0), min(x1, size[1]), min(y1, size[0])


def _hint(item: VocItem, size: tuple[int, int]) -> str:
    """Returns a possible reason why a box does not fit."""
    if item.size in (None, size):
        return ""
    return f"; its annotation is for an image of {item.size[1]} x {item.size[0]}"


def _objects(item: VocItem) -> tuple[VocObject, ...]:
    if isinstance(item.objects, str):
        raise SampleError(item.image, item.objects)
    return item.objects


def _index(classes: tuple[str, ...], name: str) -> int:
    if name not in classes:
        shown = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
        raise ValueError(
            f"{name!r} is not one of the classes: {shown}; name your own in classes, or take those in the annotations: "
            "--set classes=auto"
        )
    return classes.index(name)
