"""A VOC annotation file: XML text -> the objects in it.

Comes in: bytes. Goes out: names, difficult flags and boxes as they are written. Expat reads it with document types
refused, so that there are no entities to expand and nothing to fetch. Knows nothing of images and class lists.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.parsers import expat

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Limits on one annotation; PASCAL's largest is 30 KB, and 5 deep."""

SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One object: its class's name, its difficult flag, and xmin, ymin, xmax, ymax as written (or None)."""

    name: str
    difficult: bool
    box: tuple[float, float, float, float] | None


def parse_annotation(data: bytes) -> tuple[VocObject, ...]:
    """The objects of an annotation, in the file's order; parts of objects (heads, hands) are left aside.

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
    except expat.ExpatError as error:
        raise ValueError(f"malformed XML ({error})") from error
    return tuple(_object(number, values) for number, values in enumerate(reader.objects, 1))


class _Reader:
    """Expat's handlers; keeps the text under each object's known paths."""

    def __init__(self) -> None:
        self.objects: list[dict[str, str]] = []
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


def _side(number: int, name: str, side: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"object {number} ({name}): {side} is {text[:40]!r}, expected a number")
    return value
