"""Parses a VOC annotation: XML bytes to names, difficult flags, boxes and the image's size, unchanged.

Document types are refused, so there are no entities to expand and nothing to fetch.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.parsers import expat

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Limits on one annotation; PASCAL's largest is 30 KB, and 5 deep."""

MAX_SIDE = 2**31
"""Sizes of images from here on are invalid."""

SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One object: its class's name, its difficult flag, and xmin, ymin, xmax, ymax as written (or None)."""

    name: str
    difficult: bool
    box: tuple[float, float, float, float] | None


class VocAnnotation(NamedTuple):
    """What an annotation says.

    Attributes:
        objects: in the file's order; parts of objects (heads, hands) are left aside.
        size: (height, width) of the image that the boxes were drawn on; None where it is missing, 0 or no number.
    """

    objects: tuple[VocObject, ...]
    size: tuple[int, int] | None


def parse_annotation(data: bytes) -> VocAnnotation:
    """The objects of an annotation, and the size that it gives for the image.

    Args:
        data: the whole file.

    Raises:
        ValueError: if it is not XML, has a document type (which VOC never has, and which attacks need), is no
            annotation, or an object in it has no name or a side that is no number; the message says which.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"the annotation has {len(data):,} bytes; over {MAX_BYTES:,} are refused")
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except (expat.ExpatError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"malformed XML ({error})") from error
    objects = tuple(_object(number, values) for number, values in enumerate(reader.objects, 1))
    return VocAnnotation(objects, _size(reader.size))


class _Reader:
    """Expat's handlers; keeps the text under each object's known paths, and under ``size``."""

    def __init__(self) -> None:
        self.objects: list[dict[str, str]] = []
        self.size: dict[str, str] = {}
        self.path: list[str] = []
        self.text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text.append

    def doctype(self, *_: object) -> None:
        raise ValueError("the XML has a document type, which VOC annotations never have; entities are refused")

    def start(self, tag: str, _: object) -> None:
        self.path.append(tag)
        if len(self.path) > MAX_DEPTH:
            raise ValueError(f"the XML is over {MAX_DEPTH} elements deep")
        if self.path[0] != "annotation":
            raise ValueError(f"the XML is a <{self.path[0][:40]}>, not an <annotation>")
        if self.path[1:] == ["object"]:
            self.objects.append({})
        self.text.clear()

    def end(self, _: str) -> None:
        if len(self.path) > 2 and self.path[1] == "object":
            self.objects[-1]["/".join(self.path[2:])] = "".join(self.text).strip()
        if self.path[1:-1] == ["size"]:
            self.size[self.path[-1]] = "".join(self.text).strip()
        self.text.clear()
        self.path.pop()


def _object(number: int, values: dict[str, str]) -> VocObject:
    name = values.get("name", "")
    if not name:
        raise ValueError(f"object {number} has no name")
    difficult = values.get("difficult", "") or "0"
    if difficult not in ("0", "1"):
        raise ValueError(f"object {number} ({name}): difficult is {difficult[:40]!r}, expected 0 or 1")
    if "bndbox" not in values:
        return VocObject(name, difficult == "1", None)
    xmin, ymin, xmax, ymax = (_side(number, name, side, values.get(f"bndbox/{side}", "")) for side in SIDES)
    return VocObject(name, difficult == "1", (xmin, ymin, xmax, ymax))


def _size(values: dict[str, str]) -> tuple[int, int] | None:
    """None if the size is unknown: many tools write 0 or nothing."""
    try:
        height, width = (float(values.get(side, "")) for side in ("height", "width"))
    except ValueError:
        return None
    valid = all(1 <= side < MAX_SIDE and side.is_integer() for side in (height, width))
    return (int(height), int(width)) if valid else None


def _side(number: int, name: str, side: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"object {number} ({name}): {side} is {text[:40]!r}, expected a number")
    return value
