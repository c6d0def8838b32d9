"""Reads annotation files of COCO: JSON to arrays of all objects, grouped by image.

A file of half a gigabyte has a million objects. They are decoded one after another, so that arrays remain and no
objects of Python. An error in one object is kept for its image, and raised when that image is read.
"""

from __future__ import annotations

from array import array
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.errors import SourceError
from mmload.runtime.regular_files import read_regular
from mmload.sources.file_kinds import describe_content
from mmload.sources.list_rows import MAX_CLASSES, MAX_NUMBER
from mmload.sources.objects import MAX_KEYPOINTS, CocoObjects, Segments

Array = npt.NDArray[Any]

TASKS = ("detection", "instances", "keypoints", "panoptic")
MOST_BYTES = 2**34
_MOST_RUNS = 2**31
_FARTHEST = 1_000_000  # pixels from the image's corner to a point of a polygon
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class CocoImage(msgspec.Struct, gc=False):
    """Image of an annotation file; height and width are 0 where the file does not have them."""

    id: _Int64
    file_name: str
    height: _Int64 = 0
    width: _Int64 = 0


class Category(msgspec.Struct):
    """Category of an annotation file; the skeleton has pairs of keypoints, counted from 1."""

    id: _Int64
    name: str
    keypoints: list[str] = []
    skeleton: list[tuple[int, int]] = []


class _RunLengths(msgspec.Struct, gc=False):
    size: tuple[int, int]
    counts: str | list[int]


class _Annotation(msgspec.Struct, gc=False):
    image_id: _Int64
    category_id: _Int64
    id: _Int64 = -1
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: int | bool = 0


class _Instance(_Annotation, gc=False):
    segmentation: list[list[float]] | _RunLengths | None = None


class _Person(_Annotation, gc=False):
    keypoints: list[float] | None = None


class _Panoptic(msgspec.Struct, gc=False):
    image_id: _Int64
    file_name: str
    segments_info: list[_Segment]


class _Segment(msgspec.Struct, gc=False):
    id: _Int64
    category_id: _Int64
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: int | bool = 0
    image_id: _Int64 = -1


class _File(msgspec.Struct):
    images: list[CocoImage]
    categories: list[Category] = []
    annotations: list[msgspec.Raw] = []


_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "detection": msgspec.json.Decoder(_Annotation),
    "instances": msgspec.json.Decoder(_Instance),
    "keypoints": msgspec.json.Decoder(_Person),
    "panoptic": msgspec.json.Decoder(_Panoptic),
}


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """Content of an annotation file."""

    path: Path
    images: Sequence[CocoImage]
    categories: Sequence[Category]
    objects: CocoObjects


def read_annotations(path: Path, task: str, crowds: bool = True) -> AnnotationFile:
    """Reads what one of :data:`TASKS` needs of an annotation file; objects with ``iscrowd`` if ``crowds``.

    Raises:
        SourceError: if it cannot be read, is cut off, or is no such file.
    """
    try:
        content = read_regular(path, most=MOST_BYTES).removeprefix(BOM_UTF8)
        file = msgspec.json.decode(content, type=_File)
    except OSError as error:
        raise SourceError(f"cannot read {path} ({error.strerror or error})") from error
    except msgspec.ValidationError as error:
        raise SourceError(f"{path} is no annotation file of COCO ({error})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = describe_content(content) or f"no JSON, or was cut off ({error}; it has {len(content):,} bytes)"
        raise SourceError(f"{path} is {what}") from error
    categories = sorted(file.categories, key=lambda category: category.id)
    places = {image.id: place for place, image in enumerate(file.images)}
    if len(places) < len(file.images) or len({category.id for category in categories}) < len(categories):
        raise SourceError(f"{path} has two images, or two categories, of one id; give each its own")
    labels = {category.id: label for label, category in enumerate(categories)}
    points = max((len(category.keypoints) for category in categories), default=0) if task == "keypoints" else 0
    if len(categories) > MAX_CLASSES or points > MAX_KEYPOINTS:
        raise SourceError(
            f"{path} has {len(categories):,} categories of up to {points:,} keypoints, at most {MAX_CLASSES:,} and "
            f"{MAX_KEYPOINTS} are read"
        )
    if task == "keypoints" and not points:
        raise SourceError(f"no category of {path} has keypoints; give a file such as person_keypoints_train2017.json")
    reader = _Objects(path, task, file.images, places, labels, points, crowds)
    for number, raw in enumerate(file.annotations):
        reader.add(number, raw)
    return AnnotationFile(path=path, images=file.images, categories=categories, objects=reader.finish())


class _Objects:
    """Columns of objects, in the order of the file, while they are read."""

    def __init__(
        self,
        path: Path,
        task: str,
        listed: Sequence[CocoImage],
        places: Mapping[int, int],
        labels: Mapping[int, int],
        keypoints: int,
        crowds: bool,
    ) -> None:
        self._path, self._task, self._places, self._labels = path, task, places, labels
        self._listed = listed
        self._points, self._crowds, self._decoder = keypoints, crowds, _DECODERS[task]
        self._images, self._ids, self._classes, self._is_crowd = array("q"), array("q"), array("q"), array("b")
        self._boxes, self._areas, self._keypoints = array("d"), array("f"), array("f")
        self._polygons, self._runs = _Parts("d", 2), _Parts("i", 1)
        self._faults: dict[int, str] = {}
        self._maps: dict[int, str] = {}
        self._left_out: dict[int, list[int]] = {}
        self._strays = 0

    def add(self, number: int, raw: msgspec.Raw) -> None:
        """Adds the object, or the segments of an image, at a place of the file."""
        try:
            each = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise SourceError(f"{self._path}, annotations[{number}]: {error}") from error
        if not isinstance(each, _Panoptic):
            self._add(each)
            return
        if each.image_id in self._places:
            self._maps[self._places[each.image_id]] = each.file_name
        for segment in each.segments_info:
            segment.image_id = each.image_id
            self._add(segment)

    def _add(self, each: Any) -> None:
        image = self._places.get(each.image_id)
        if image is None:
            self._strays += 1
            return
        if each.iscrowd and not self._crowds:
            if self._task == "panoptic":
                self._left_out.setdefault(image, []).append(each.id)
            return
        try:
            label, box = self._label(each), _box(each)
            area = box[2] * box[3] if each.area is None else each.area
            _check_numbers("area", [area])
            if self._task == "instances":
                self._add_segments(each, self._listed[image])
            elif self._task == "keypoints":
                self._keypoints.extend(self._points_of(each))
        except ValueError as error:
            self._faults.setdefault(image, f"{self._path}, image {each.image_id}, annotation {each.id}: {error}")
            return
        self._images.append(image)
        self._ids.append(each.id)
        self._classes.append(label)
        self._is_crowd.append(bool(each.iscrowd))
        self._boxes.extend((box[0], box[1], box[0] + box[2], box[1] + box[3]))
        self._areas.append(area)

    def _label(self, each: Any) -> int:
        label = self._labels.get(each.category_id)
        if label is None:
            raise ValueError(f"category {each.category_id} does not exist; the file has {len(self._labels)}")
        return label

    def _points_of(self, each: Any) -> list[float]:
        points: list[float] = each.keypoints or [0.0] * (3 * self._points)
        if len(points) != 3 * self._points:
            raise ValueError(f"it has {len(points) / 3:g} keypoints, the category with most has {self._points}")
        if any(flag not in (0, 1, 2) for flag in points[2::3]):
            raise ValueError("a keypoint has another visibility than 0, 1 and 2")
        _check_numbers("keypoints", points)
        return points

    def _add_segments(self, each: Any, image: CocoImage) -> None:
        """Adds the masks of an object, after all of them were checked."""
        found, owner = each.segmentation, len(self._images)
        if isinstance(found, _RunLengths):
            height, width = found.size
            if 0 not in (image.height, image.width) and (height, width) != (image.height, image.width):
                raise ValueError(
                    f"its run lengths are of an image of {width} x {height}, listed is {image.width} x {image.height}"
                )
            self._runs.add(owner, _runs_of(found))
            return
        for polygon in found or ():
            if len(polygon) < 6 or len(polygon) % 2:
                raise ValueError(f"a polygon has {len(polygon) / 2:g} points, expected at least 3")
            if min(polygon) < -_FARTHEST or max(polygon) > _FARTHEST:
                raise ValueError(f"a point of a polygon is more than {_FARTHEST:,} pixels away")
        for polygon in found or ():
            self._polygons.add(owner, polygon)

    def finish(self) -> CocoObjects:
        """Returns all objects, grouped by image."""
        images = np.frombuffer(self._images, np.int64)
        order = np.argsort(images, kind="stable")
        count = len(self._places)
        starts = _starts(images, count)
        places = np.empty(len(images), np.int64)  # of each object within its image
        places[order] = np.arange(len(images)) - starts[images[order]]
        per_box: dict[str, Array] = {
            "labels": np.frombuffer(self._classes, np.int64)[order],
            "iscrowd": np.frombuffer(self._is_crowd, np.bool_)[order],
            "area": np.frombuffer(self._areas, np.float32)[order],
        }
        segments: dict[tuple[str, str], Segments] = {}
        if self._task == "keypoints":
            points = np.frombuffer(self._keypoints, np.float32).reshape(-1, self._points, 3)[order]
            per_box["keypoints"] = points * (points[..., 2:] > 0)  # those that are not labeled at 0, 0
        if self._task == "instances":
            segments["rings", "polygons"] = self._polygons.finish(images, places, count)
            segments["run_boxes", "runs"] = self._runs.finish(images, places, count)
        return CocoObjects(
            starts=starts,
            ids=np.frombuffer(self._ids, np.int64)[order],
            boxes=np.frombuffer(self._boxes, np.float64).reshape(-1, 4)[order],
            per_box=per_box,
            segments=segments,
            faults=self._faults,
            strays=self._strays,
            maps=self._maps,
            left_out=self._left_out,
        )


class _Parts:
    """Polygons or run lengths of objects, in the order of the file, while they are read."""

    def __init__(self, kind: str, width: int) -> None:
        self._owners, self._counts, self._values, self._width = array("q"), array("q"), array(kind), width

    def add(self, owner: int, values: Sequence[float] | Sequence[int]) -> None:
        """Adds the values of one polygon or mask of an object."""
        self._owners.append(owner)
        self._counts.append(len(values) // self._width)
        self._values.extend(values)  # type: ignore[arg-type]  # ints of runs, floats of points

    def finish(self, images: Array, places: Array, count: int) -> Segments:
        """Returns all, grouped by image.

        ``images`` and ``places``, int64 [n], are the image of each object, and its number within its image.
        """
        owners, counts = np.frombuffer(self._owners, np.int64), np.frombuffer(self._counts, np.int64)
        own = images[owners]
        order = np.argsort(own, kind="stable")
        values: Array = np.frombuffer(self._values, self._values.typecode)
        return Segments(
            starts=_starts(own, count),
            owners=places[owners][order].astype(np.int32),
            begins=(np.cumsum(counts) - counts)[order],
            counts=counts[order].astype(np.int32),
            values=values.reshape(-1, 2) if self._width == 2 else values,
        )


def _starts(images: Array, count: int) -> Array:
    """Returns the first of each image's entries, if they were sorted by image: int64 [images + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(images, minlength=count))])


def _box(each: Any) -> list[float]:
    box: list[float] | None = each.bbox
    if box is None or len(box) != 4:
        raise ValueError("it has no bbox of four numbers" if box is None else f"its bbox has {len(box)} numbers")
    return box


def _check_numbers(name: str, numbers: Sequence[float]) -> None:
    wrong = [number for number in numbers if not abs(number) < MAX_NUMBER]
    if wrong:
        raise ValueError(f"its {name} has {wrong[0]:g}, more than float32 holds; correct the number")


def _runs_of(found: _RunLengths) -> list[int]:
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
