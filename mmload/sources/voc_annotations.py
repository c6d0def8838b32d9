"""VOC's annotations: the objects in an XML file, and what a row has of them."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from mmload.errors import shown
from mmload.records import CLIPPED
from mmload.sources.annotation_values import flag, integer, naming, number
from mmload.sources.decode import describe_content
from mmload.sources.files import SampleFiles
from mmload.sources.listing import Beside
from mmload.sources.objects import ImageObjects, fields_of_objects

Box = tuple[float, float, float, float]

_ROUNDED = (
    "boxes reach over the edge of the image by a pixel and are cut there; if the files count pixels from 0, set "
    "one_based=false"
)
"""Loss of a sample, and the text of its note."""

MAX_BYTES = 16 * 2**20
"""Bytes of one annotation; PASCAL's largest has 30 KB."""

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
    with naming(f"{name}: "):
        return parse_annotation(data)


def parse_annotation(data: bytes) -> VocAnnotation:
    """Returns the objects of an annotation, and the size that it gives for the image.

    Raises:
        ValueError: if it is not XML, has a document type (which VOC never has, and which attacks need), is no
            annotation, or an object in it has no name, several names, or a side that is no number; the message says
            which.
    """
    if what := describe_content(data):
        raise ValueError(f"it is {what}")
    parser = ElementTree.XMLParser(target=_WithoutDocumentType())
    with naming("malformed XML: ", ElementTree.ParseError, LookupError):  # the second: an unknown encoding
        parser.feed(data)
        root = parser.close()
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower()  # without its namespace
    if root.tag != "annotation":
        raise ValueError(f"the XML is a <{root.tag[:40]}>, not an <annotation>")
    elements = list(root.iter("object"))
    if len(list(root.iter("bndbox"))) > sum(len(list(each.iter("bndbox"))) for each in elements):
        raise ValueError("a bndbox is in no <object>")
    objects = [each for place, element in enumerate(elements, 1) for each in _objects(place, element)]
    return VocAnnotation(tuple(objects), _size(root))


class _WithoutDocumentType(ElementTree.TreeBuilder):
    """Builder that refuses document types before an entity is expanded."""

    def doctype(self, *_: object) -> None:
        raise ValueError("the XML has a document type, which VOC annotations never have; entities are refused")


def _texts(element: Element, path: str) -> list[str]:
    return [(each.text or "").strip() for each in element.findall(path)]


def _objects(place: int, element: Element) -> list[VocObject]:
    """Returns an object for each box of an ``<object>``, and one without a box if it has none."""
    names = set(_texts(element, "name")) - {""}
    if len(names) != 1:
        several = f"the names {', '.join(map(shown, sorted(names)))}" if names else "no name"
        raise ValueError(f"object {place} has {several}")
    (name,) = names
    with naming(f"object {place} ({name}): difficult is "):
        difficult = any(flag(text) for text in _texts(element, "difficult"))
    boxes = []
    for box in element.findall("bndbox"):
        sides = []
        for side in SIDES:
            with naming(f"object {place} ({name}): {side} is "):
                texts = _texts(box, side)
                sides.append(number(texts[0] if len(texts) == 1 else texts))
        boxes.append((sides[0], sides[1], sides[2], sides[3]))
    return [VocObject(name, difficult, box) for box in boxes] or [VocObject(name, difficult, None)]


def _size(root: Element) -> tuple[int, int] | None:
    """Returns (height, width); None if it is unknown: many tools write 0 or nothing."""
    with suppress(ValueError):
        height, width = (integer("".join(_texts(root, f"size/{side}")[-1:])) for side in ("height", "width"))
        return (height, width) if min(height, width) >= 1 else None
    return None


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
    drawn = f", drawn on an image of {listed[1]} x {listed[0]}" if listed not in (None, size) else ""
    names = [
        f"object {number} ({each.name}) of {', '.join(SIDES)} = {', '.join(f'{side:g}' for side in box)}{drawn}"
        for number, (each, box) in enumerate(zip(objects, written, strict=True), 1)
    ]
    per_box = {"labels": labels, "difficult": difficult}
    own = ImageObjects(boxes=boxes, names=names, per_box=per_box, listed=listed)
    fields, losses, lists = fields_of_objects(own, size, clip)
    over = int(((boxes < 0) | (boxes > [size[1], size[0]] * 2)).any(1).sum())
    loss = CLIPPED if clip else _ROUNDED
    return Beside(fields, {**losses, loss: max(over, losses.get(loss, 0))}, lists)


def classification_fields(annotation: VocAnnotation, classes: tuple[str, ...]) -> Beside:
    """Returns ``targets`` float32 [K], 1 for the classes in an image, and ``ignored`` bool [K].

    By VOC's rule a class with only difficult objects does not count, and is ignored.

    Raises:
        ValueError: if an object is of another class.
    """
    import torch

    labels = np.array([label_of(each.name, classes) for each in annotation.objects], np.int64)
    counts = np.array([not each.difficult for each in annotation.objects], np.bool_)
    targets, ignored = np.zeros(len(classes), np.float32), np.zeros(len(classes), np.bool_)
    targets[labels[counts]] = 1
    ignored[labels] = True
    ignored[labels[counts]] = False
    return Beside({"targets": torch.from_numpy(targets), "ignored": torch.from_numpy(ignored)})
