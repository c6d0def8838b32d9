"""Reads what belongs to a VOC image: the objects of its annotation, its mask, and the fields of each task.

Document types are refused, so there are no entities to expand and nothing to fetch. It lists no folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import SampleError, shown
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE, VOID
from mmload.sources.annotation_values import flag, number
from mmload.sources.decode import LOSSY, RefusedImage, read_with_pillow
from mmload.sources.file_kinds import describe_content
from mmload.sources.files import read_bytes
from mmload.sources.objects import EDGE

if TYPE_CHECKING:
    from torch import Tensor

Box = tuple[float, float, float, float]
Fields = tuple[dict[str, "Tensor"], dict[str, int]]
"""Fields of a row beside its image, and losses of the sample."""

_ROUNDED = (
    "boxes reach over the edge of the image by a pixel and are cut there; if the files count pixels from 0, set "
    "one_based=false"
)
"""Loss of a sample, and the text of its note."""

_CODE = np.array([65536, 256, 1])  # red, green, blue as one number

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Limits on one annotation; PASCAL's largest is 30 KB, and 5 deep."""

T = TypeVar("T")

SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One object: its class's name, its difficult flag, and xmin, ymin, xmax, ymax as written (or None)."""

    name: str
    difficult: bool
    box: Box | None


class VocAnnotation(NamedTuple):
    """Content of an annotation file.

    Attributes:
        objects: in the file's order; parts of objects (heads, hands) are left aside.
        size: (height, width) of the image that the boxes were drawn on; None where it is missing, 0 or no number.
        fault: why the file cannot be read; "" if it can.
    """

    objects: tuple[VocObject, ...] = ()
    size: tuple[int, int] | None = None
    fault: str = ""


def parse_annotation(data: bytes) -> VocAnnotation:
    """Returns the objects of an annotation, and the size that it gives for the image.

    Raises:
        ValueError: if it is not XML, has a document type (which VOC never has, and which attacks need), is no
            annotation, or an object in it has no name, several names, or a side that is no number; the message says
            which.
    """
    if what := describe_content(data):
        raise ValueError(f"it is {what}")
    parser = ElementTree.XMLParser(target=_Elements())
    try:
        parser.feed(data)
        root = parser.close()
    except (ElementTree.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"malformed XML ({error})") from error
    elements = list(root.iter("object"))
    if len(list(root.iter("bndbox"))) > sum(len(list(each.iter("bndbox"))) for each in elements):
        raise ValueError("a bndbox is in no <object>")
    objects = [each for place, element in enumerate(elements, 1) for each in _objects(place, element)]
    return VocAnnotation(tuple(objects), _size(root))


class _Elements(ElementTree.TreeBuilder):
    """Builder of elements with tags in lower case and without attributes.

    It refuses document types before an entity is expanded, and what is too deep or no annotation before it is built.
    """

    depth = 0

    def doctype(self, *_: object) -> None:
        raise ValueError("the XML has a document type, which VOC annotations never have; entities are refused")

    def start(self, tag: str, _: object) -> Element:
        self.depth += 1
        plain = _plain_tag(tag)
        if self.depth > MAX_DEPTH:
            raise ValueError(f"the XML is over {MAX_DEPTH} elements deep")
        if self.depth == 1 and plain != "annotation":
            raise ValueError(f"the XML is a <{plain[:40]}>, not an <annotation>")
        return super().start(plain, {})

    def end(self, tag: str) -> Element:
        self.depth -= 1
        return super().end(_plain_tag(tag))


def _plain_tag(tag: str) -> str:
    """Returns a tag in lower case and without its namespace."""
    return tag.rpartition("}")[2].lower()


def _texts(element: Element, path: str) -> list[str]:
    return [(each.text or "").strip() for each in element.findall(path)]


def _objects(place: int, element: Element) -> list[VocObject]:
    """Returns an object for each box of an ``<object>``, and one without a box if it has none."""
    names = set(_texts(element, "name")) - {""}
    if len(names) != 1:
        several = f"the names {', '.join(map(shown, sorted(names)))}" if names else "no name"
        raise ValueError(f"object {place} has {several}")
    (name,) = names
    where = f"object {place} ({name})"
    difficult = True in [_value(f"{where}: difficult", flag, text) for text in _texts(element, "difficult")]
    count = len(element.findall("bndbox"))
    sides = {side: _texts(element, f"bndbox/{side}") for side in SIDES}
    wrong = next((side for side, found in sides.items() if len(found) != count), None)
    if wrong is not None:
        raise ValueError(f"{where} has {count} bndbox and {len(sides[wrong])} {wrong}")
    boxes = zip(
        *([_value(f"{where}: {side}", number, text) for text in found] for side, found in sides.items()), strict=True
    )
    return [VocObject(name, difficult, box) for box in boxes] or [VocObject(name, difficult, None)]


def _size(root: Element) -> tuple[int, int] | None:
    """Returns (height, width); None if it is unknown: many tools write 0 or nothing."""
    try:
        height, width = (number("".join(_texts(root, f"size/{side}")[-1:])) for side in ("height", "width"))
    except ValueError:
        return None
    valid = all(side >= 1 and side.is_integer() for side in (height, width))
    return (int(height), int(width)) if valid else None


def _value(name: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{name} is {error}") from error


class VocItem(NamedTuple):
    """One image of a list.

    Attributes:
        image: its path relative to the devkit, which is its id.
        revision: changes when its files change.
        annotation: content of its annotation; none is read beside masks.
        beside: path of the annotation or mask that belongs to the image, relative to the devkit.
    """

    image: str
    revision: str
    annotation: VocAnnotation
    beside: str


@dataclass(frozen=True, kw_only=True)
class VocTask:
    """What is stored beside the images of a split. Picklable.

    Attributes:
        name: "detection", "classification", "segmentation" or "single-label".
        classes: class names by index; for segmentation they begin with the background.
        one_based: boxes count pixels from 1 and include the last, as VOC's do; False: from 0, half-open.
        clip_boxes: cut boxes that reach over the image's edge, instead of refusing them.
        class_map: for single-label: VOC's class name -> its name in ``classes``.
        most: the largest number of objects of an image.
    """

    name: str
    classes: tuple[str, ...]
    one_based: bool = True
    clip_boxes: bool = False
    class_map: Mapping[str, str] = field(default_factory=dict)
    most: int = 1

    def fields(self, item: VocItem, root: Path, size: tuple[int, int]) -> Fields:
        """Returns what is stored beside an image of (height, width) ``size``.

        ============== ==============================================================================================
        detection      ``boxes`` float32 [M, 4] (xyxy, half-open), ``labels`` [M], ``difficult`` [M], ``counts`` []
        classification ``targets`` float32 [K], 1 for a class in the image; ``ignored`` bool [K], 1 where only difficult
        segmentation   ``masks`` uint8 [H, W]: class indices, 255 = void
        single-label   ``targets`` int64 []
        ============== ==============================================================================================

        Raises:
            SampleError: if the annotation or the mask is wrong.
        """
        import torch

        if self.name == "segmentation":
            return {"masks": self._mask(item, root, size)}, {}
        if item.annotation.fault:
            raise SampleError(item.image, item.annotation.fault)
        if self.name == "single-label":
            (only,) = item.annotation.objects
            return {"targets": torch.tensor(self.classes.index(self.class_map[only.name]), device="cpu")}, {}
        return self._present(item) if self.name == "classification" else self._boxes(item, size)

    def _boxes(self, item: VocItem, size: tuple[int, int]) -> Fields:
        """Returns the boxes, padded to the most of the split; and how many were cut, and a size that differs."""
        import torch

        objects, listed = item.annotation.objects, item.annotation.size
        boxes = torch.zeros(self.most, 4, dtype=torch.float32, device="cpu")
        labels = torch.full((self.most,), -1, device="cpu")
        difficult = torch.zeros(self.most, dtype=torch.bool, device="cpu")
        cut = 0
        for row, each in enumerate(objects):
            try:
                sides, inside = self._sides(each, size)
                labels[row] = self._label(each.name)
            except ValueError as error:
                other = f"; its annotation is for an image of {listed[1]} x {listed[0]}" if listed else ""
                hint = other if listed != size else ""
                raise SampleError(item.image, f"object {row + 1} ({each.name}): {error}{hint}") from error
            boxes[row] = torch.tensor(inside, dtype=torch.float32, device="cpu")
            difficult[row] = each.difficult
            cut += sides != inside
        losses = {CLIPPED if self.clip_boxes else _ROUNDED: cut}
        if listed not in (None, size):
            losses[SWAPPED_SIZE if listed == size[::-1] else OTHER_SIZE] = 1
        counts = torch.tensor(len(objects), device="cpu")
        return {"boxes": boxes, "labels": labels, "difficult": difficult, "counts": counts}, losses

    def _sides(self, each: VocObject, size: tuple[int, int]) -> tuple[Box, Box]:
        """Returns the sides of a box, counted from 0 and half-open, and those of its part in the image."""
        if each.box is None:
            raise ValueError("it has no bndbox")
        (height, width), (x0, y0, x1, y1) = size, each.box
        sides = (x0 - 1, y0 - 1, x1, y1) if self.one_based else each.box
        inside = max(sides[0], 0.0), max(sides[1], 0.0), min(x1, width), min(y1, height)
        written = f"the box xmin, ymin, xmax, ymax = {', '.join(f'{side:g}' for side in each.box)}"
        over = max(-sides[0], -sides[1], x1 - width, y1 - height)
        if over > EDGE and not self.clip_boxes:
            raise ValueError(f"{written} leaves the {width} x {height} image; clip_boxes cuts such boxes")
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            raise ValueError(f"{written} is empty in the {width} x {height} image")
        return sides, inside

    def _label(self, name: str) -> int:
        if name not in self.classes:
            first = ", ".join(self.classes[:20]) + (", ..." if len(self.classes) > 20 else "")
            raise ValueError(
                f"{name!r} is not one of the classes: {first}; name your own in classes, or take those in the "
                "annotations: --set classes=auto"
            )
        return self.classes.index(name)

    def _present(self, item: VocItem) -> Fields:
        """Returns multi-label classes by VOC's rule: a class with only difficult objects does not count."""
        import torch

        targets = torch.zeros(len(self.classes), dtype=torch.float32, device="cpu")
        present = torch.zeros(len(self.classes), dtype=torch.bool, device="cpu")
        for each in item.annotation.objects:
            try:
                index = self._label(each.name)
            except ValueError as error:
                raise SampleError(item.image, str(error)) from error
            present[index] = True
            targets[index] += not each.difficult
        return {"targets": targets.clamp(max=1), "ignored": present & (targets == 0)}, {}

    def _mask(self, item: VocItem, root: Path, size: tuple[int, int]) -> Tensor:
        mask = read_mask(root, item.beside, item.image)
        if mask.shape != size:
            raise SampleError(
                item.image, f"its mask is {mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}"
            )
        if len(odd := mask[(mask >= len(self.classes)) & (mask != VOID)]):
            raise SampleError(
                item.image,
                f"its mask has the value {int(odd[0])}; classes are 0 to {len(self.classes) - 1}, and 255 is void; "
                "name your own in classes, or take those in the masks: --set classes=auto",
            )
        return mask


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
