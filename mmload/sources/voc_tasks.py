"""The fields that are stored beside a VOC image: one small class for each task.

It lists no folder.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from PIL import Image, UnidentifiedImageError

from mmload.errors import SampleError
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE
from mmload.sources.decode import FORMATS, LOSSY, libtiff_silenced, warnings_suppressed
from mmload.sources.files import read_bytes
from mmload.sources.voc_devkit import VocObject
from mmload.store.variable_rows import MAX_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

Box = tuple[float, float, float, float]

VOID = 255
"""The mask value of pixels that count for no class: borders and what the annotators could not decide."""


class VocItem(NamedTuple):
    """One image of a list.

    Attributes:
        image: its path relative to the devkit, which is its id.
        revision: changes when its files change.
        objects: its annotation's objects, or the reason why they cannot be read.
        mask: its class mask's path relative to the devkit.
        size: (height, width) of the image by its annotation; None: not given.
        beside: path of the annotation or mask that belongs to the image, relative to the devkit.
    """

    image: str
    revision: str
    objects: tuple[VocObject, ...] | str
    mask: str
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
        boxes = torch.zeros(self.most, 4)
        labels = torch.full((self.most,), -1)
        difficult = torch.zeros(self.most, dtype=torch.bool)
        for row, each in enumerate(objects):
            try:
                boxes[row] = torch.tensor(self._box(each, size))
                labels[row] = _index(self.classes, each.name)
            except ValueError as error:
                raise SampleError(item.image, f"object {row + 1} ({each.name}): {error}{_hint(item, size)}") from error
            difficult[row] = each.difficult
        return {"boxes": boxes, "labels": labels, "difficult": difficult, "counts": torch.tensor(len(objects))}

    def losses(self, item: VocItem, size: tuple[int, int]) -> dict[str, int]:
        """Returns how many boxes ``clip_boxes`` cut, and whether the annotation gives another image size."""
        losses = {}
        if item.size not in (None, size):
            losses[SWAPPED_SIZE if item.size == size[::-1] else OTHER_SIZE] = 1
        if not self.clip_boxes:
            return losses
        unclipped = [self._sides(each.box) for each in _objects(item) if each.box is not None]
        return {**losses, CLIPPED: sum(sides != _clipped(sides, size) for sides in unclipped)}

    def _box(self, each: VocObject, size: tuple[int, int]) -> Box:
        if each.box is None:
            raise ValueError("it has no bndbox")
        height, width = size
        x0, y0, x1, y1 = self._sides(each.box)
        if self.clip_boxes:
            x0, y0, x1, y1 = _clipped((x0, y0, x1, y1), size)
        shown = f"the box xmin, ymin, xmax, ymax = {', '.join(f'{side:g}' for side in each.box)}"
        if x1 <= x0 or y1 <= y0:
            raise ValueError(f"{shown} is empty in the {width} x {height} image")
        if x0 < 0 or y0 < 0 or x1 > width or y1 > height:
            raise ValueError(f"{shown} leaves the {width} x {height} image; clip_boxes cuts such boxes")
        return x0, y0, x1, y1

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

        targets = torch.zeros(len(self.classes))
        present = torch.zeros(len(self.classes), dtype=torch.bool)
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
        mask = read_mask(root, item.mask, item.image)
        if mask.shape != size:
            raise SampleError(
                item.image,
                f"its mask is {mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}",
            )
        odd = mask[(mask >= len(self.classes)) & (mask != VOID)]
        if len(odd):
            valid = (
                f"classes are 0 to {len(self.classes) - 1}, and 255 is void; name your own in classes, or take those"
            )
            raise SampleError(
                item.image, f"its mask has the value {int(odd[0])}; {valid} in the masks: --set classes=auto"
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
        return {"targets": torch.tensor(self.classes.index(self.class_map[only.name]))}


def read_mask(root: Path, name: str, sample: str) -> Tensor:
    """Reads a class mask, palette or gray, as uint8 [H, W] of the indices in its file.

    Raises:
        SampleError: of ``sample``, if it is missing, broken, or of another kind.
    """
    import torch

    data = read_bytes(root, name, sample)
    try:
        with warnings_suppressed, libtiff_silenced, Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.format in LOSSY:
                raise SampleError(sample, f"its mask {name} is a {image.format}, which does not keep class numbers")
            if image.mode not in ("P", "L"):
                raise SampleError(sample, f"its mask {name} is of mode {image.mode}; use palette or 8-bit gray")
            if image.width * image.height > MAX_PIXELS:
                raise SampleError(sample, f"its mask {name} has over {MAX_PIXELS} pixels: a decompression bomb?")
            return torch.from_numpy(np.array(image))
    except (UnidentifiedImageError, ImportError) as error:  # the second as in mmload.sources.decode
        raise SampleError(sample, f"its mask {name} is not an image") from error
    except (OSError, SyntaxError, EOFError, IndexError, ValueError, Image.DecompressionBombError) as error:
        raise SampleError(sample, f"its mask {name} is broken ({error})") from error


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
