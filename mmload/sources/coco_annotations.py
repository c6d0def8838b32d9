"""Reads annotation files of COCO, in any spelling that tools write: JSON to the objects of each image.

A file of half a gigabyte has a million objects. They are decoded one after another, and each is kept as a line of JSON
with what its image needs of it, so that no objects of Python remain. An error in one object is one of its image.

The usual spelling of a record is decoded straight to a struct. Where that fails, the record is decoded to Python's
values, and each value is read by the rule of its field; null is absent.
"""

from __future__ import annotations

import json
import re
from array import array
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from mmload.errors import SourceError, naming, shown
from mmload.sources import Findings
from mmload.sources.annotation_values import read_flag, read_integer
from mmload.sources.files import read_source
from mmload.sources.list_rows import MAX_CLASSES, MAX_NUMBER
from mmload.sources.objects import MAX_KEYPOINTS

MOST_BYTES = 2**34

T = TypeVar("T")

Key = int | str
"""An id: a number, or a text that is none."""

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
if TYPE_CHECKING:
    _Id = Key
else:
    _Id = _Int64  # decoded at once; :func:`_lenient_record` sets a text
_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)] | bool | None
_Float32 = Annotated[float, msgspec.Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER)]
_Point = Annotated[float, msgspec.Meta(ge=-1_000_000, le=1_000_000)]  # pixels from the image's corner
_Polygons = list[Annotated[list[_Point], msgspec.Meta(min_length=6)]]
_Box = tuple[float, float, float, float]
_AROUND = "(box around its polygons)"
"""Name of a value that no file has, of an object without a box."""
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
    counts: str | list[_Int64]


class Annotation(msgspec.Struct, gc=False):
    """Object with a box: x, y, width, height."""

    image_id: _Id
    category_id: _Id
    bbox: _Box
    id: _Id | None = None
    area: _Float32 | None = None
    iscrowd: _Flag = 0
    is_around: bool = msgspec.field(default=False, name=_AROUND)


class Instance(Annotation, gc=False):
    """Object with a mask: polygons of at least three points, or run lengths."""

    shape: _Polygons | RunLengths | None = msgspec.field(default=None, name="segmentation")


class Person(Annotation, gc=False):
    """Object with keypoints: x, y and visibility of each."""

    shape: list[_Float32] | None = msgspec.field(default=None, name="keypoints")


class Segment(Annotation, gc=False, kw_only=True):
    """Segment of a panoptic map, whose image is that of its map."""

    image_id: _Id = -1


class Panoptic(msgspec.Struct, gc=False):
    """All segments of an image, and the name of their map."""

    image_id: _Id
    file_name: str
    segments_info: list[Segment]


class CocoObject(msgspec.Struct, array_like=True, gc=False):
    """Object as it is kept in a line.

    Attributes:
        name: how messages name it: by its id, or without one by its place in the file.
        id: its id in the file.
        category: the id of its category.
        is_crowd: whether it is a crowd.
        area: its area; that of its box where the file has none.
        box: x, y, width, height.
        shape: what its task needs beside the box: polygons, run lengths as a table, or keypoints.
    """

    name: str
    id: int | str | None
    category: int | str
    is_crowd: bool
    area: float
    box: _Box
    shape: Any


_Records = list[msgspec.Raw] | dict[str, msgspec.Raw] | None  # some tools write a table by id in place of a list


class _File(msgspec.Struct):
    images: _Records
    categories: _Records = None
    annotations: _Records = None


Task = Literal["detection", "instances", "keypoints", "panoptic"]
_KINDS: Mapping[Task, type[Any]] = {
    "detection": Annotation,
    "instances": Instance,
    "keypoints": Person,
    "panoptic": Panoptic,
}
_LINES = msgspec.json.Decoder(CocoObject)
_ENCODER = msgspec.json.Encoder()


class AnnotationFile:
    """Content of an annotation file, as far as a task needs it; with crowds if ``crowds``.

    Attributes:
        path: the file.
        images: the images that it lists.
        faults: place of an image -> what is wrong with its record, or first with that of one of its objects.
        objects: lines of the objects of each image, for :func:`objects_in`.
        maps: place of an image -> name of its map of segments, if there is one, for the task "panoptic".
        left_out: place of an image -> ids of crowds that were left out.
        categories: ordered by id, numbers before texts.
        used: ids of categories that an annotation names.
        findings: what was left out, merged or guessed; the caller may add more.

    Raises:
        SourceError: if it is cut off, or is no such file.
        OSError: if it cannot be read.
    """

    def __init__(self, path: Path, task: Task, crowds: bool = True) -> None:
        self.path, self.findings = path, Findings()
        self._task, self._crowds = task, crowds
        file = _parsed(path, self.findings)
        self.categories = self._read_categories(_listed(file.categories))
        self._check_categories()
        annotations = _listed(file.annotations)
        if annotations and not self.categories:
            raise SourceError(f"{path} has annotations, but no categories; add them, each with its id and name")
        self.images: list[CocoImage] = []
        self.faults: dict[int, str] = {}
        self._places: dict[Key, int] = {}
        self._read_images(_listed(file.images))
        self.objects = [bytearray() for _ in self.images]
        self.maps: dict[int, str] = {}
        self.left_out: dict[int, list[Any]] = defaultdict(list)
        self.used: set[Key] = set()
        self._owners: dict[Key, int] = {}  # id of an object -> image of the last one that has it
        self._boxes = array("d")
        self._read_objects(annotations)
        boxes = np.frombuffer(self._boxes).reshape(-1, 4)
        if len(boxes) and (boxes[:, :2] + boxes[:, 2:]).max() <= 1 and (boxes % 1).any():
            raise SourceError(
                f"{path}: all boxes lie between 0 and 1, as shares of an image; COCO's are in pixels: convert them"
            )

    def notes(self) -> tuple[str, ...]:
        """Returns notes on what was found."""
        return self.findings.notes() + (() if any(self.objects) or self.faults else ("no image has an object",))

    def _check_categories(self) -> None:
        points = max((len(category.keypoints) for category in self.categories), default=0)
        if len(self.categories) > MAX_CLASSES or points > MAX_KEYPOINTS:
            raise SourceError(
                f"{self.path} has {len(self.categories):,} categories of up to {points:,} keypoints, at most "
                f"{MAX_CLASSES:,} and {MAX_KEYPOINTS} are read"
            )
        if self._task == "keypoints" and not points:
            raise SourceError(
                f"no category of {self.path} has keypoints; give a file such as person_keypoints_train2017.json"
            )

    def _read_categories(self, raws: Sequence[msgspec.Raw]) -> list[Category]:
        """Returns the categories; raises SourceError if one is damaged, or two have one id."""
        found: dict[Key, Category] = {}
        for position, raw in enumerate(raws):
            with naming(f"{self.path}, categories[{position}]: ", to=SourceError):
                body = _values_of_record(raw)
                texts = {name: str(body[name]) for name in ("name", "supercategory") if body.get(name) is not None}
                points = {name: body.get(name) for name in ("keypoints", "skeleton") if self._task == "keypoints"}
                category = _lenient_record(Category, {"id": body.get("id"), **texts, **points})
            other = found.setdefault(category.id, category)
            if other.name != category.name:
                raise SourceError(
                    f"{self.path} has two categories of the id {shown(category.id)}, {shown(other.name)} and "
                    f"{shown(category.name)}; give each its own"
                )
            if other is not category:
                self.findings.add("categories that are listed again are read once", shown(category.name))
        return sorted(found.values(), key=lambda category: (isinstance(category.id, str), category.id))

    def _read_images(self, raws: Sequence[msgspec.Raw]) -> None:
        images, faults = self.images, self.faults
        for position, raw in enumerate(raws):
            try:
                image = _record(CocoImage, raw)
            except ValueError as error:
                faults[len(images)] = f"{self.path}, images[{position}]: {error}"
                image = CocoImage(~position, f"images[{position}]")
            place = self._places.setdefault(image.id, len(images))
            if place < len(images):
                if images[place].file_name == image.file_name:
                    self.findings.add("images that are listed again are read once", image.file_name)
                    continue
                faults[place] = faults[len(images)] = (
                    f"{self.name_of(image)}: {shown(images[place].file_name)} and {shown(image.file_name)} have this "
                    "id; give each its own"
                )
            images.append(image)

    def name_of(self, image: CocoImage) -> str:
        """Returns how messages name an image."""
        return f"{self.path}, image {shown(image.id)}"

    def _read_objects(self, raws: Sequence[msgspec.Raw]) -> None:
        """Reads annotations: an object each, or the segments of an image."""
        kind = _KINDS[self._task]
        for number, raw in enumerate(raws):
            try:
                each = _record(kind, raw)
            except ValueError as error:
                self._add_fault(number, raw, error)
                continue
            if isinstance(each, Panoptic) and each.image_id in self._places:
                self.maps[self._places[each.image_id]] = each.file_name
            for one in each.segments_info if isinstance(each, Panoptic) else [each]:
                one.image_id = each.image_id
                self._add(number, one)

    def _add_fault(self, number: int, raw: msgspec.Raw, error: ValueError) -> None:
        """Keeps what is wrong with an annotation for its image."""
        body, image = {}, None
        with suppress(ValueError):
            body = _values_of_record(raw)
            image = self._places.get(key(body.get("image_id")))
        fault = f"{_annotation_name(body.get('id'), number)}: {error}"
        if image is None:
            self.findings.add("annotations that cannot be read and belong to no listed image are left out", fault)
        else:
            self.faults.setdefault(image, f"{self.name_of(self.images[image])}, {fault}")

    def _add(self, number: int, each: Annotation) -> None:
        """Adds an object, unless it is left out."""
        image, name = self._places.get(each.image_id), _annotation_name(each.id, number)
        shape = getattr(each, "shape", None)
        self.used.add(each.category_id)
        if each.is_around:
            self.findings.add("objects without a bbox have the box around their polygons", name)
        if image is None:
            self.findings.add(
                "annotations of images that the file does not list are left out",
                f"{name} of image {shown(each.image_id)}",
            )
            return
        if each.iscrowd and not self._crowds:
            self.left_out[image].append(each.id)
            return
        if each.id in self._owners:
            self._note_again(name, self._owners[each.id] == image)
        if each.id is not None:
            self._owners[each.id] = image
        area = each.area
        if area is None:
            self.findings.add("objects without an area have that of their box", name)
            area = min(abs(each.bbox[2] * each.bbox[3]), MAX_NUMBER)
        if self._task == "instances" and not shape:
            self.findings.add("objects without segmentation, to whose masks no pixel belongs", name)
        self._boxes.extend(each.bbox)
        kept = CocoObject(name, each.id, each.category_id, bool(each.iscrowd), area, each.bbox, shape)
        self.objects[image] += _ENCODER.encode(kept) + b"\n"

    def _note_again(self, name: str, is_of_same_image: bool) -> None:
        """Notes an object of the id of an earlier one."""
        if is_of_same_image:
            self.findings.add("annotations are left out for a later one of the same id, as in pycocotools", name)
        elif self._task != "panoptic":
            self.findings.add(
                "annotations have the id of one of another image: both are read, and pycocotools mixes them up", name
            )


def objects_in(lines: bytes) -> list[CocoObject]:
    """Returns the objects in the lines of an image; the last one of each id, as in pycocotools."""
    return list({(each.id, each.name): each for each in _LINES.decode_lines(lines)}.values())


def leave_out_groups(files: Iterable[AnnotationFile]) -> None:
    """Leaves out categories that only group others, such as Roboflow's first one, so that they do not shift the labels.

    Another category names them as ``supercategory``, and no annotation of any split has them.
    """
    files = list(files)
    used = set[Key]().union(*(file.used for file in files))
    for file in files:
        parents = {each.supercategory for each in file.categories if each.supercategory != each.name}
        groups = [each for each in file.categories if each.name in parents and each.id not in used]
        for category in groups:
            file.categories.remove(category)
            file.findings.add(
                "categories without annotations that are the supercategory of others are left out", shown(category.name)
            )


def _parsed(path: Path, findings: Findings) -> _File:
    """Parses a file; as in Python's json, it may be UTF-16, and NaN and Infinity are read, here as null."""
    content = read_source(path, MOST_BYTES).removeprefix(BOM_UTF8)
    try:
        try:
            return msgspec.json.decode(content, type=_File)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = json.loads(
                content,
                parse_constant=lambda name: findings.add("values that JSON does not have are read as null", name),
            )
            return msgspec.json.decode(msgspec.json.encode(body), type=_File)
    except msgspec.ValidationError as error:
        raise SourceError(f"{path} is no annotation file of COCO ({error})") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise SourceError(f"{path} is no JSON, or was cut off ({error}; it has {len(content):,} bytes)") from error


def _listed(records: _Records) -> list[msgspec.Raw]:
    return list(records.values()) if isinstance(records, dict) else records or []


def _record(kind: type[T], raw: msgspec.Raw) -> T:
    """Decodes a record in any spelling; raises ValueError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return _lenient_record(kind, _values_of_record(raw))


def _values_of_record(raw: msgspec.Raw) -> dict[str, Any]:
    """Decodes a record to Python's values; raises ValueError if it is no object."""
    body = json.loads(bytes(raw))
    if not isinstance(body, dict):
        raise ValueError(f"it is {shown(body)}, expected an object")
    return body


def _lenient_record(kind: type[T], body: Mapping[str, Any]) -> T:
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
            values |= {"bbox": _box_around(msgspec.convert(polygons, _Polygons, strict=False)), _AROUND: True}
    if "coco_url" in values:  # as LVIS has it
        values.setdefault("file_name", "/".join(str(values["coco_url"]).split("/")[-2:]))
    if "iscrowd" in values:
        values["iscrowd"] = read_flag(values["iscrowd"])
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
        return read_integer(value)
    except ValueError:
        if type(value) not in (str, int, float) or value == "":
            raise ValueError(f"{shown(value)} is no id; use a number or a text") from None
        return str(value)


def _annotation_name(own: object, number: int) -> str:
    """Returns how messages name an annotation by its id, or without one by its place in the file."""
    return f"annotations[{number}]" if own is None else f"annotation {shown(own)}"


def _box_around(polygons: list[list[float]]) -> list[float]:
    """Returns the box around polygons: x, y, width, height."""
    x, y = ([side for polygon in polygons for side in polygon[axis::2]] for axis in (0, 1))
    return [min(x), min(y), max(x) - min(x), max(y) - min(y)]
