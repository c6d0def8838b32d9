"""Reads annotation files of COCO, in any spelling that tools write: JSON to packed objects of each image.

A file of half a gigabyte has a million objects. They are decoded one after another and packed to bytes, so that no
objects of Python remain. An error in one image or object is kept for its image, and raised when that image is read.

The usual spelling of a record is decoded straight to a struct. Where that fails, the record is decoded to Python's
values, and each value is read by the rule of its field; null is absent.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.errors import SourceError, counted, shown
from mmload.sources.annotation_values import Findings, flag, integer
from mmload.sources.files import read_source
from mmload.sources.list_rows import MAX_CLASSES, MAX_NUMBER
from mmload.sources.objects import MAX_KEYPOINTS

Array = npt.NDArray[Any]

OBJECT = np.dtype([("id", "<i8"), ("label", "<i4"), ("iscrowd", "?"), ("area", "<f8"), ("box", "<f8", 4)])
"""An object of an image as it is packed. Without an id that is a natural number, it has its place in the file, inverted
(~). The box is x, y, width, height."""
_PACK = struct.Struct("<qi?d4d").pack

PARTS: Mapping[str, Sequence[tuple[str, str, int]]] = {
    "detection": (),
    "panoptic": (),
    "keypoints": (("keypoints", "<f4", 3),),
    "instances": (("rings", "<i4", 2), ("polygons", "<f8", 2), ("run_boxes", "<i4", 2), ("runs", "<i4", 0)),
}
"""Task -> what is packed beside the objects: field, dtype, and size of its last dimension, if it has two."""

TASKS = tuple(PARTS)
MOST_BYTES = 2**34

T = TypeVar("T")

Key = int | str
"""An id: a number, or a text that is none."""

_MOST_RUNS = 2**31
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
if TYPE_CHECKING:
    _Id = Key
else:
    _Id = _Int64  # decoded at once; :func:`_lenient_record` sets a text
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


_Records = list[msgspec.Raw] | dict[str, msgspec.Raw] | None  # some tools write a table by id in place of a list


class _File(msgspec.Struct):
    images: _Records
    categories: _Records = None
    annotations: _Records = None


_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "detection": msgspec.json.Decoder(Annotation),
    "instances": msgspec.json.Decoder(Instance),
    "keypoints": msgspec.json.Decoder(Person),
    "panoptic": msgspec.json.Decoder(Panoptic),
}
_IMAGE = msgspec.json.Decoder(CocoImage)


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """Content of an annotation file.

    Attributes:
        path: the file.
        images: the images that it lists.
        packed: objects of each image, first all :data:`OBJECT`, then the :data:`PARTS` of the task.
        faults: place of an image -> what is wrong with it, or one of its objects; the caller may add more.
        maps: place of an image -> name of its map of segments, for the task "panoptic".
        left_out: place of an image -> numbers of crowds in that map that were left out.
        categories: ordered by id, numbers before texts.
        labels: index of the category of each number in the packed objects.
        used: ids of categories that an annotation names.
        findings: what was left out, merged or guessed; the caller may add more.
        notes: sentences on all objects.
    """

    path: Path
    images: Sequence[CocoImage]
    packed: list[list[bytearray]]
    faults: dict[int, str]
    maps: Mapping[int, str]
    left_out: Mapping[int, list[int]]
    categories: Sequence[Category]
    labels: Array
    used: frozenset[Key]
    findings: Findings
    notes: tuple[str, ...]


def read_annotations(path: Path, task: str, crowds: bool = True) -> AnnotationFile:
    """Reads what one of :data:`TASKS` needs of an annotation file; objects with ``iscrowd`` if ``crowds``.

    Raises:
        SourceError: if it is cut off, or is no such file.
        OSError: if it cannot be read.
    """
    findings = Findings()
    file = _parsed(path, findings)
    categories = _read_categories(path, _listed(file.categories), task == "keypoints", findings)
    points = max((len(category.keypoints) for category in categories), default=0) if task == "keypoints" else 0
    if len(categories) > MAX_CLASSES or points > MAX_KEYPOINTS:
        raise SourceError(
            f"{path} has {len(categories):,} categories of up to {points:,} keypoints, at most {MAX_CLASSES:,} and "
            f"{MAX_KEYPOINTS} are read"
        )
    if task == "keypoints" and not points:
        raise SourceError(f"no category of {path} has keypoints; give a file such as person_keypoints_train2017.json")
    annotations = _listed(file.annotations)
    if annotations and not categories:
        raise SourceError(f"{path} has annotations, but no categories; add them, each with its id and name")
    listed = _read_images(path, _listed(file.images), findings)
    labels = {category.id: label for label, category in enumerate(categories)}
    reader = _Objects(path, task, listed, labels, points, crowds, findings)
    reader.add(annotations)
    every = np.frombuffer(b"".join(parts[0] for parts in reader.packed), OBJECT)
    images = np.repeat(np.arange(len(reader.packed)), [len(parts[0]) // OBJECT.itemsize for parts in reader.packed])
    _note_doubles(images, every["id"], task, findings)
    corners = every["box"][:, :2] + every["box"][:, 2:]
    if len(every) and corners.max() <= 1 and (every["box"] % 1).any():
        raise SourceError(
            f"{path}: all boxes lie between 0 and 1, as shares of an image; COCO's are in pixels: convert them"
        )
    bare = f"{counted(reader.bare, 'object')} without segmentation: no pixel belongs to such a mask"
    none = ("no image has an object",) * (not (len(every) or listed.faults))
    return AnnotationFile(
        path=path,
        images=listed.images,
        packed=reader.packed,
        faults=listed.faults,
        maps=reader.maps,
        left_out=reader.left_out,
        categories=categories,
        labels=np.arange(len(categories)),
        used=frozenset({categories[label].id for label in np.unique(every["label"])} | reader.used),
        findings=findings,
        notes=(bare,) * (reader.bare > 0) + none,
    )


def without_groups(files: Mapping[str, AnnotationFile]) -> dict[str, AnnotationFile]:
    """Leaves out categories that only group others, such as Roboflow's first one, so that they do not shift the labels.

    Another category names them as ``supercategory``, and no annotation of any split has them.
    """
    used = frozenset[Key]().union(*(file.used for file in files.values()))
    left = {}
    for split, file in files.items():
        children = Counter(each.supercategory for each in file.categories if each.supercategory != each.name)
        is_group = np.array([each.name in children and each.id not in used for each in file.categories], np.bool_)
        for category in compress(file.categories, is_group):
            file.findings.add(
                "categories without annotations that are the supercategory of others are left out", shown(category.name)
            )
        categories = list(compress(file.categories, ~is_group))
        left[split] = replace(file, categories=categories, labels=file.labels - np.cumsum(is_group))
    return left


def _note_doubles(images: Array, ids: Array, task: str, findings: Findings) -> None:
    """Counts objects of the id of another one, of which the images, int64 [n], and ids are given."""
    if np.diff(np.sort(ids)).all():  # a sixth of the time of the sort of both
        return
    order = np.lexsort((images, ids))
    is_again = ids[order][:-1] == ids[order][1:]
    is_replaced = is_again & (images[order][:-1] == images[order][1:])
    for own in ids[order[:-1][is_replaced]].tolist():
        findings.add("annotations are left out for a later one of the same id, as in pycocotools", shown_object(own))
    for own in ids[order[:-1][is_again & ~is_replaced]].tolist() if task != "panoptic" else ():
        findings.add(
            "annotations have the id of one of another image: both are read, and pycocotools mixes them up",
            shown_object(own),
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


class _Objects:
    """Objects of each image, in the order of the file, while they are read."""

    def __init__(
        self,
        path: Path,
        task: str,
        listed: CocoImages,
        labels: Mapping[Key, int],
        keypoints: int,
        crowds: bool,
        findings: Findings,
    ) -> None:
        self._path, self._task, self._labels, self._findings = path, task, labels, findings
        self._listed, self._places, self._faults = listed
        self._points, self._crowds, self._decoder = keypoints, crowds, _DECODERS[task]
        self._numbers: dict[Key, int] = {}
        self.packed = [[bytearray() for _ in range(1 + len(PARTS[task]))] for _ in self._listed]
        self.maps: dict[int, str] = {}
        self.left_out: dict[int, list[int]] = {}
        self.used: set[Key] = set()  # categories of annotations that are not packed
        self.bare = 0  # objects without a mask, where they should have one

    def add(self, raws: Sequence[msgspec.Raw]) -> None:
        """Adds the annotations of the file: an object each, or the segments of an image."""
        decode = self._decoder.decode
        for number, raw in enumerate(raws):
            try:
                each = decode(raw)
            except msgspec.DecodeError:
                each = self._lenient(number, raw)
            if isinstance(each, Annotation):
                self._add(number, each)
            elif each is not None:
                if each.image_id in self._places:
                    self.maps[self._places[each.image_id]] = each.file_name
                for segment in each.segments_info:
                    segment.image_id = each.image_id
                    self._add(number, segment)

    def _lenient(self, number: int, raw: msgspec.Raw) -> Any:
        """Decodes an annotation in any spelling; keeps what is wrong with it for its image, and returns None then."""
        body, image = {}, None
        try:
            body = _values_of_record(raw)
            image = self._places.get(key(body.get("image_id")))
            each = _lenient_record(self._decoder.type, body)
        except ValueError as error:
            name = _annotation_name(body.get("id"), number)
            if image is None:
                self._findings.add(
                    "annotations that cannot be read and belong to no listed image are left out", f"{name}: {error}"
                )
            else:
                self._fault(image, name, error)
            return None
        if isinstance(each, Annotation) and not body.get("bbox"):
            self._findings.add(
                "objects without a bbox have the box around their polygons", _annotation_name(each.id, number)
            )
        return each

    def _fault(self, image: int, annotation: str, error: ValueError) -> None:
        self._faults.setdefault(image, f"{self._path}, image {shown(self._listed[image].id)}, {annotation}: {error}")

    def _add(self, number: int, each: Any) -> None:
        """Adds an object: a million times, so what is odd is looked at in other functions."""
        image, own, area = self._places.get(each.image_id), each.id, each.area
        if image is None or (each.iscrowd and not self._crowds):
            self._leave_out(number, each)
            return
        try:
            label = self._labels.get(each.category_id)
            if label is None:
                raise ValueError(
                    f"category {shown(each.category_id)} does not exist; the file has {len(self._labels)}, the first "
                    f"is {shown(next(iter(self._labels)))}"
                )
            parts = self.packed[image]
            if self._task == "instances":
                self._add_segments(each.segmentation, self._listed[image], *parts)
            elif self._task == "keypoints":
                parts[1] += array("f", self._points_of(each))
        except ValueError as error:
            self.used.add(each.category_id)
            self._fault(image, _annotation_name(own, number), error)
            return
        if type(own) is not int or own < 0:  # the place in the file, inverted: of the first annotation of this id
            own = ~(number if own is None else self._numbers.setdefault(own, number))
        if area is None:
            self._findings.add("objects without an area have that of their box", _annotation_name(each.id, number))
            area = min(each.bbox[2] * each.bbox[3], MAX_NUMBER)
        parts[0] += _PACK(own, label, bool(each.iscrowd), area, *each.bbox)

    def _leave_out(self, number: int, each: Any) -> None:
        """Leaves out a crowd, or an object of an image that is not listed."""
        self.used.add(each.category_id)
        image = self._places.get(each.image_id)
        if image is None:
            self._findings.add(
                "annotations of images that the file does not list are left out",
                f"{_annotation_name(each.id, number)} of image {shown(each.image_id)}",
            )
        elif self._task == "panoptic":
            self.left_out.setdefault(image, []).append(each.id)

    def _points_of(self, each: Any) -> list[float]:
        points: list[float] = each.keypoints or [0.0] * (3 * self._points)
        if len(points) != 3 * self._points:
            raise ValueError(f"it has {len(points) / 3:g} keypoints, the category with most has {self._points}")
        if not {0, 1, 2}.issuperset(points[2::3]):
            raise ValueError("a keypoint has another visibility than 0, 1 and 2")
        return points

    def _add_segments(
        self,
        found: list[list[float]] | RunLengths | None,
        image: CocoImage,
        objects: bytearray,
        rings: bytearray,
        polygons: bytearray,
        run_boxes: bytearray,
        runs: bytearray,
    ) -> None:
        """Adds the masks of an object, after all of them were checked."""
        owner = len(objects) // OBJECT.itemsize
        if isinstance(found, RunLengths):
            height, width = found.size
            if 0 not in (image.height, image.width) and (height, width) != (image.height, image.width):
                raise ValueError(
                    f"its run lengths are of an image of {width} x {height}, listed is {image.width} x {image.height}"
                )
            own = _runs_of(found)
            run_boxes += array("i", (owner, len(own)))
            runs += array("i", own)
            return
        for polygon in found or ():
            if len(polygon) % 2:
                raise ValueError(f"a polygon has {len(polygon) / 2:g} points")
        for polygon in found or ():
            rings += array("i", (owner, len(polygon) // 2))
            polygons += array("d", polygon)
        self.bare += not found


def shown_object(own: int) -> str:
    """Returns how messages name an object by its :attr:`CocoObjects.ids`."""
    return _annotation_name(own if own >= 0 else None, ~own)


def _read_categories(path: Path, raws: Sequence[msgspec.Raw], keypoints: bool, findings: Findings) -> list[Category]:
    """Decodes the categories, perhaps with their keypoints, ordered by id, numbers before texts.

    Raises:
        SourceError: if one is damaged, or two have one id.
    """
    found: dict[Key, Category] = {}
    for position, raw in enumerate(raws):
        try:
            body = _values_of_record(raw)
            texts = {name: str(body[name]) for name in ("name", "supercategory") if body.get(name) is not None}
            points = {name: body.get(name) for name in ("keypoints", "skeleton") if keypoints}
            category = _lenient_record(Category, {"id": body.get("id"), **texts, **points})
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


def _read_images(path: Path, raws: Sequence[msgspec.Raw], findings: Findings) -> CocoImages:
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
        body = _values_of_record(raw)
        name = body.get("file_name") or "/".join(str(body.get("coco_url") or "").split("/")[-2:])  # as LVIS has it
        return _lenient_record(CocoImage, {**body, "file_name": name})


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


def _annotation_name(own: object, number: int) -> str:
    """Returns how messages name an annotation by its id, or without one by its place in the file."""
    return f"annotations[{number}]" if own is None else f"annotation {shown(own)}"


def _box_around(polygons: list[list[float]]) -> list[float]:
    """Returns the box around polygons: x, y, width, height."""
    x, y = ([side for polygon in polygons for side in polygon[axis::2]] for axis in (0, 1))
    return [min(x), min(y), max(x) - min(x), max(y) - min(y)]


def _runs_of(found: RunLengths) -> list[int]:
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
