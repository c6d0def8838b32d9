"""VOC's annotations: the objects in an XML file, and what a row has of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from mmload.errors import shown
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE
from mmload.sources.annotation_values import flag, number
from mmload.sources.file_kinds import describe_content
from mmload.sources.files import SampleFiles
from mmload.sources.listing import Beside
from mmload.sources.objects import ImageObjects, ObjectError, fields_of_objects

Box = tuple[float, float, float, float]

_ROUNDED = (
    "boxes reach over the edge of the image by a pixel and are cut there; if the files count pixels from 0, set "
    "one_based=false"
)
"""Loss of a sample, and the text of its note."""

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
    """

    objects: tuple[VocObject, ...] = ()
    size: tuple[int, int] | None = None


def read_annotation(files: SampleFiles, name: str) -> VocAnnotation:
    """Reads an annotation file.

    Raises:
        SampleError: if it cannot be read.
        ValueError: as for :func:`parse_annotation`; the message names the file.
    """
    data = files.read(name, MAX_BYTES)
    try:
        return parse_annotation(data)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


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


def label_of(name: str, classes: tuple[str, ...]) -> int:
    """Returns the index of a class; raises ValueError if there is no such class."""
    if name not in classes:
        first = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
        raise ValueError(
            f"{name!r} is not one of the classes: {first}; name your own in classes, or take those in the "
            "annotations: --set classes=auto"
        )
    return classes.index(name)


def detection_fields(
    annotation: VocAnnotation, classes: tuple[str, ...], size: tuple[int, int], *, one_based: bool, clip: bool
) -> Beside:
    """Returns the objects of an image of (height, width) ``size`` as lists: ``boxes``, ``labels``, ``difficult``.

    Boxes become half-open and count from 0: those in files that are ``one_based`` count from 1 and include the last
    pixel.

    Raises:
        ValueError: if an object is wrong; the message names it.
    """
    objects, listed = annotation.objects, annotation.size
    labels = np.array([label_of(each.name, classes) for each in objects], np.int64)
    written = [each.box for each in objects if each.box is not None]
    if len(written) < len(objects):
        place = [each.box for each in objects].index(None)
        raise ValueError(f"object {place + 1} ({objects[place].name}) has no bndbox")
    boxes = np.array(written, np.float64).reshape(-1, 4) - np.array([1, 1, 0, 0]) * one_based
    difficult = np.array([each.difficult for each in objects], np.bool_)
    own = ImageObjects(boxes=boxes, per_box={"labels": labels, "difficult": difficult})
    try:
        fields, losses, lists = fields_of_objects(own, size, clip)
    except ObjectError as error:
        sides = ", ".join(f"{side:g}" for side in written[error.index])
        other = f"; its annotation is for an image of {listed[1]} x {listed[0]}" if listed else ""
        raise ValueError(
            f"object {error.index + 1} ({objects[error.index].name}) of {', '.join(SIDES)} = {sides}: {error.reason}"
            f"{other if listed != size else ''}"
        ) from error
    over = int(((boxes < 0) | (boxes > [size[1], size[0]] * 2)).any(1).sum())
    loss = CLIPPED if clip else _ROUNDED
    losses = {**losses, loss: max(over, losses.get(loss, 0))}
    if listed not in (None, size):
        losses = {**losses, SWAPPED_SIZE if listed == size[::-1] else OTHER_SIZE: 1}
    return Beside(fields, losses, lists)


def classification_fields(annotation: VocAnnotation, classes: tuple[str, ...]) -> Beside:
    """Returns ``targets`` float32 [K], 1 for the classes in an image, and ``ignored`` bool [K].

    By VOC's rule a class with only difficult objects does not count, and is ignored.

    Raises:
        ValueError: if an object is of another class.
    """
    import torch

    targets = torch.zeros(len(classes), dtype=torch.float32, device="cpu")
    present = torch.zeros(len(classes), dtype=torch.bool, device="cpu")
    for each in annotation.objects:
        index = label_of(each.name, classes)
        present[index] = True
        targets[index] += not each.difficult
    return Beside({"targets": targets.clamp(max=1), "ignored": present & (targets == 0)})
