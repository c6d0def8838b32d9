"""Records of COCO's annotation files, in any spelling that tools write.

The usual spelling is decoded straight to a record. Where that fails, the record is decoded to Python's values, and each
value is read by the rule of its field; null is absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from mmload.errors import SourceError, shown
from mmload.sources.annotation_values import Findings, flag, integer
from mmload.sources.list_rows import MAX_NUMBER

Key = int | str
"""An id: a number, or a text that is none."""

_MOST_RUNS = 2**31
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
if TYPE_CHECKING:
    _Id = Key
else:
    _Id = _Int64  # decoded at once; :func:`lenient_record` sets a text
_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)] | bool | None
_Float32 = Annotated[float, msgspec.Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER)]
_Point = Annotated[float, msgspec.Meta(ge=-1_000_000, le=1_000_000)]  # pixels from the image's corner
_Polygons = list[Annotated[list[_Point], msgspec.Meta(min_length=6)]]
_FIELD = re.compile(r"at `\$\.(\w+)")  # in an error of msgspec


class CocoImage(msgspec.Struct, gc=False):
    """Image of an annotation file; height and width are 0 where the file does not have them."""

    id: _Id
    file_name: Annotated[str, msgspec.Meta(min_length=1)]
    height: _Int64 = 0
    width: _Int64 = 0


class Category(msgspec.Struct):
    """Category of an annotation file; the skeleton has pairs of keypoints, counted from 1."""

    id: _Id
    name: Annotated[str, msgspec.Meta(min_length=1)]
    supercategory: str = ""
    keypoints: list[str] = []
    skeleton: list[tuple[int, int]] = []


class RunLengths(msgspec.Struct, gc=False):
    """Mask of an object: height and width, and runs, compressed or not."""

    size: tuple[int, int]
    counts: str | list[int]


class Annotation(msgspec.Struct, gc=False):
    """Object with a box: x, y, width, height."""

    image_id: _Id
    category_id: _Id
    bbox: tuple[float, float, float, float]
    id: _Id | None = None
    area: _Float32 | None = None
    iscrowd: _Flag = 0


class Instance(Annotation, gc=False):
    """Object with a mask: polygons of at least three points, or run lengths."""

    segmentation: _Polygons | RunLengths | None = None


class Person(Annotation, gc=False):
    """Object with keypoints: x, y and visibility of each."""

    keypoints: list[_Float32] | None = None


class Segment(Annotation, gc=False, kw_only=True):
    """Segment of a panoptic map, whose image is that of its map."""

    image_id: _Id = -1


class Panoptic(msgspec.Struct, gc=False):
    """All segments of an image, and the name of their map."""

    image_id: _Id
    file_name: str
    segments_info: list[Segment]


class CocoImages(NamedTuple):
    """Images of a file, the place of each id in these, and place -> what is wrong with an image or its objects."""

    images: list[CocoImage]
    places: dict[Key, int]
    faults: dict[int, str]


_IMAGE = msgspec.json.Decoder(CocoImage)

T = TypeVar("T")


def read_categories(path: Path, raws: Sequence[msgspec.Raw], keypoints: bool, findings: Findings) -> list[Category]:
    """Decodes the categories, perhaps with their keypoints, ordered by id, numbers before texts.

    Raises:
        SourceError: if one is damaged, or two have one id.
    """
    found: dict[Key, Category] = {}
    for position, raw in enumerate(raws):
        try:
            body = values_of_record(raw)
            texts = {name: str(body[name]) for name in ("name", "supercategory") if body.get(name) is not None}
            points = {name: body.get(name) for name in ("keypoints", "skeleton") if keypoints}
            category = lenient_record(Category, {"id": body.get("id"), **texts, **points})
        except ValueError as error:
            raise SourceError(f"{path}, categories[{position}]: {error}") from error
        other = found.setdefault(category.id, category)
        if other.name != category.name:
            raise SourceError(
                f"{path} has two categories of the id {shown(category.id)}, {shown(other.name)} and "
                f"{shown(category.name)}; give each its own"
            )
        if other is not category:
            findings.add("categories that are listed again are read once", shown(category.name))
    return sorted(found.values(), key=lambda category: (isinstance(category.id, str), category.id))


def read_images(path: Path, raws: Sequence[msgspec.Raw], findings: Findings) -> CocoImages:
    """Decodes the images of a file; keeps what is wrong with one for its place."""
    images: list[CocoImage] = []
    places: dict[Key, int] = {}
    faults: dict[int, str] = {}
    for position, raw in enumerate(raws):
        try:
            image = _image(raw)
        except ValueError as error:
            faults[len(images)] = f"{path}, images[{position}]: {error}"
            image = CocoImage(~position, f"images[{position}]")
        place = places.setdefault(image.id, len(images))
        if place < len(images):
            if images[place].file_name == image.file_name:
                findings.add("images that are listed again are read once", image.file_name)
                continue
            faults[place] = faults[len(images)] = (
                f"{path}, image {shown(image.id)}: {shown(images[place].file_name)} and {shown(image.file_name)} have "
                "this id; give each its own"
            )
        images.append(image)
    return CocoImages(images, places, faults)


def _image(raw: msgspec.Raw) -> CocoImage:
    try:
        return _IMAGE.decode(raw)
    except msgspec.DecodeError:
        body = values_of_record(raw)
        name = body.get("file_name") or "/".join(str(body.get("coco_url") or "").split("/")[-2:])  # as LVIS has it
        return lenient_record(CocoImage, {**body, "file_name": name})


def values_of_record(raw: msgspec.Raw) -> dict[str, Any]:
    """Decodes a record to Python's values; raises ValueError if it is no object."""
    body = json.loads(bytes(raw))
    if not isinstance(body, dict):
        raise ValueError(f"it is {shown(body)}, expected an object")
    return body


def lenient_record(kind: type[T], body: Mapping[str, Any]) -> T:
    """Returns a record of values in any spelling; an object without a box has the box around its polygons.

    Raises:
        ValueError: if a value is wrong or missing.
    """
    values = {name: value for name, value in body.items() if value not in (None, [], {})}
    found = values.get("segmentation")
    if isinstance(found, list):
        polygons = values["segmentation"] = [
            each for each in (found if isinstance(found[0], list) else [found]) if each
        ]
        if polygons and "bbox" not in values:
            values["bbox"] = _box_around(msgspec.convert(polygons, _Polygons, strict=False))
    if "iscrowd" in values:
        values["iscrowd"] = flag(values["iscrowd"])
    ids = {name: key(values[name]) for name in ("id", "image_id", "category_id") if name in values}
    try:
        record = msgspec.convert(values | dict.fromkeys(ids, 0), kind, strict=False)
    except msgspec.ValidationError as error:
        name = next(iter(_FIELD.findall(str(error))), None)
        raise ValueError(f"its {name} is {shown(values[name])}: {error}" if name in values else str(error)) from error
    for name, own in ids.items():
        setattr(record, name, own)
    return record


def key(value: object) -> Key:
    """Returns an id as a number if it is one in any spelling, else as a text.

    Raises:
        ValueError: if it is neither a number nor a text.
    """
    try:
        return integer(value)
    except ValueError:
        if type(value) not in (str, int, float) or value == "":
            raise ValueError(f"{shown(value)} is no id; use a number or a text") from None
        return str(value)


def annotation_name(own: object, number: int) -> str:
    """Returns how messages name an annotation by its id, or without one by its place in the file."""
    return f"annotations[{number}]" if own is None else f"annotation {shown(own)}"


def _box_around(polygons: list[list[float]]) -> list[float]:
    """Returns the box around polygons: x, y, width, height."""
    x, y = ([side for polygon in polygons for side in polygon[axis::2]] for axis in (0, 1))
    return [min(x), min(y), max(x) - min(x), max(y) - min(y)]


def runs_of(found: RunLengths) -> list[int]:
    """Returns the runs of a mask; raises ValueError unless they cover its image."""
    runs = found.counts if isinstance(found.counts, list) else decoded_runs(found.counts.encode("latin-1", "replace"))
    height, width = found.size
    if not all(0 <= run < _MOST_RUNS for run in runs) or sum(runs) != height * width:
        raise ValueError(f"its run lengths do not cover an image of {width} x {height}")
    return runs


def decoded_runs(text: bytes) -> list[int]:
    """Decodes the compressed run lengths of pycocotools: differences of 5 bits per character, from "0" on.

    Raises:
        ValueError: if the text ends in the middle of a number.
    """
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(codes):
        return []
    is_last = (codes & 0x20) == 0
    if not is_last[-1] or (codes < 0).any() or (codes > 63).any():
        raise ValueError("its compressed run lengths are damaged")
    ends = np.flatnonzero(is_last)
    firsts = np.concatenate([[0], ends[:-1] + 1])
    digit = np.arange(len(codes)) - np.repeat(firsts, ends - firsts + 1)
    numbers = np.add.reduceat((codes & 0x1F) << (5 * digit), firsts)
    negative = (codes[ends] & 0x10) != 0
    numbers = np.where(negative, numbers - (np.int64(1) << (5 * (digit[ends] + 1))), numbers)
    for first in (1, 2):  # from the fourth on, a number is the difference from the one two places before
        numbers[first::2] = np.cumsum(numbers[first::2])
    runs: list[int] = numbers.tolist()
    return runs
