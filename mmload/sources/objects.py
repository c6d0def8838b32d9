"""Objects of detection datasets: as fields of a row, boxes with all that belongs to them as lists; and of all images.

Those of a file of COCO's annotations are arrays that are grouped by image.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import counted
from mmload.pictures.instance_masks import of_boxes
from mmload.records import CLIPPED, ObjectsRecord

if TYPE_CHECKING:
    from torch import Tensor


Array = npt.NDArray[Any]
Size = tuple[int, int]

MAX_KEYPOINTS = 256
"""Keypoints of an object: the table of a flip has a byte for each."""

EDGE = 1.0
"""Pixels by which a box may reach over the edge of its image without being an error, as tools round: it is cut."""


_POINTS_AWAY = "labeled keypoints lie outside of the image"
"""Loss of a sample, and the text of its note."""


class ObjectError(ValueError):
    """Error of one object of an image, by its number from 0."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageObjects:
    """Objects of one image.

    Attributes:
        boxes: float64 [n, 4], xyxy in pixels.
        per_box: further fields of :data:`~mmload.records.PER_BOX` by name, [n, ...].
        segments: fields of :data:`~mmload.pictures.instance_masks.SEGMENTS` by name.
    """

    boxes: Array
    per_box: Mapping[str, Array]
    segments: Mapping[str, Array] = field(default_factory=dict)


class ObjectFields(NamedTuple):
    """Fields of a row, the names of those that are lists, and how many boxes were cut."""

    fields: dict[str, Tensor]
    lists: frozenset[str]
    losses: dict[str, int]


def fields_of_objects(objects: ImageObjects, size: Size, clip: bool, edge: float | Array = EDGE) -> ObjectFields:
    """Returns the fields of an image's objects: boxes float32 [n, 4], what belongs to them, and ``counts``.

    With ``clip``, boxes that leave the image are cut, and those of no area left out; else the image is rejected if one
    leaves it by more than ``edge`` pixels, of all sides or each.

    Raises:
        ObjectError: if a box has no area, or leaves the image.
    """
    import torch

    height, width = size
    boxes = objects.boxes.reshape(-1, 4)
    inside = np.clip(boxes, 0, [width, height, width, height])
    has_area = (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])
    outside = (np.abs(inside - boxes) > edge).any(1)
    if not clip:
        _check(boxes, has_area, outside, size)
    arrays = {"boxes": inside[has_area].astype(np.float32)}
    arrays |= {name: values[has_area] for name, values in objects.per_box.items()}
    arrays |= of_boxes(objects.segments, has_area)
    fields = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    lists = frozenset(fields)
    fields["counts"] = torch.tensor(int(has_area.sum()), device="cpu")
    points = objects.per_box.get("keypoints", np.zeros((0, 3)))[..., :2]  # those that are not labeled are at 0, 0
    losses = {
        CLIPPED: int((outside | ~has_area).sum()) if clip else 0,
        _POINTS_AWAY: int((np.abs(points.clip(0, [width, height]) - points) > EDGE).any(-1).sum()),
    }
    return ObjectFields(fields, lists, {name: count for name, count in losses.items() if count})


def _check(boxes: Array, has_area: npt.NDArray[np.bool_], outside: npt.NDArray[np.bool_], size: Size) -> None:
    wrong = np.flatnonzero(~has_area | outside | ~np.isfinite(boxes).all(1))
    if len(wrong):
        index = int(wrong[0])
        x0, y0, x1, y1 = (f"{side:g}" for side in boxes[index])
        why = "leaves" if outside[index] else "has no area in"
        raise ObjectError(
            index,
            f"the box {x0}, {y0}, {x1}, {y1} {why} the {size[1]} x {size[0]} image; clip_boxes cuts such boxes, and "
            "leaves out those of no area",
        )


def flip_field(objects: ObjectsRecord) -> dict[str, Tensor]:
    """Returns ``keypoint_flips`` uint8 [K], for each keypoint the one that it becomes where an image is mirrored.

    A number per row, which takes a byte per keypoint, goes with the row into any batch. Without such a table there is
    no field.
    """
    import torch

    return {"keypoint_flips": torch.tensor(objects.flip, dtype=torch.uint8, device="cpu")} if objects.flip else {}


def notes_on_flip(objects: ObjectsRecord) -> tuple[str, ...]:
    """Returns a note if there are several keypoints, of which a flip exchanges none."""
    count = len(objects.keypoints)
    if count < 2 or objects.flip != tuple(range(count)):
        return ()
    return (f"flips of images will exchange none of the {count} keypoints: no names of left and right were found",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Polygons or run lengths of all images.

    Attributes:
        starts: int64 [images + 1], the first of each image.
        owners: int32 [m], the object of each, counted within its image.
        begins: int64 [m], its first value.
        counts: int32 [m], its number of values.
        values: float64 [n, 2] points, or int32 [n] runs.
    """

    starts: Array
    owners: Array
    begins: Array
    counts: Array
    values: Array

    def of_image(self, image: int) -> tuple[Array, Array]:
        """Returns the entries, int32 [m, 2], and the values of an image, as a row stores them."""
        own = slice(self.starts[image], self.starts[image + 1])
        entries = np.stack([self.owners[own], self.counts[own]], 1).astype(np.int32)
        return entries, self.values[spans(self.begins[own], self.counts[own])]

    def only(self, images: Array) -> Segments:
        """Returns those of some images, in their order."""
        counts = self.starts[images + 1] - self.starts[images]
        own = spans(self.starts[images], counts)
        lengths = self.counts[own]
        return Segments(
            starts=np.concatenate([[0], np.cumsum(counts)]),
            owners=self.owners[own],
            begins=np.cumsum(lengths, dtype=np.int64) - lengths,
            counts=lengths,
            values=self.values[spans(self.begins[own], lengths)],
        )


class SegmentColumns:
    """Polygons or run lengths of objects, in the order of the file, while they are read."""

    def __init__(self, kind: str, width: int) -> None:
        self._owners, self._counts, self._values, self._width = array("q"), array("q"), array(kind), width

    def add(self, owner: int, values: list[float] | list[int]) -> None:
        """Adds the values of one polygon or mask of an object."""
        self._owners.append(owner)
        self._counts.append(len(values) // self._width)
        self._values.fromlist(values)  # type: ignore[arg-type]  # ints or floats; half the time of extend

    def finish(self, images: Array, places: Array, count: int) -> Segments:
        """Returns all, grouped by image.

        ``images`` and ``places``, int64 [n], are the image of each object, and its number within its image.
        """
        owners, counts = np.frombuffer(self._owners, np.int64), np.frombuffer(self._counts, np.int64)
        own = images[owners]
        starts = starts_of(own, count)
        order = np.argsort(own, kind="stable")[: starts[-1]]
        values: Array = np.frombuffer(self._values, self._values.typecode)
        return Segments(
            starts=starts,
            owners=places[owners][order].astype(np.int32),
            begins=(np.cumsum(counts) - counts)[order],
            counts=counts[order].astype(np.int32),
            values=values.reshape(-1, 2) if self._width == 2 else values,
        )


def starts_of(images: Array, count: int) -> Array:
    """Returns the first of each image's entries, if they were sorted by image: int64 [images + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(images, minlength=count)[:count])])


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoObjects:
    """Objects of all images of an annotation file, image after image.

    Attributes:
        starts: int64 [images + 1], the first object of each image.
        ids: int64 [n], id of each object; without an id that is a natural number, its place in the file, inverted (~).
        boxes: float64 [n, 4], xyxy in pixels.
        per_box: ``labels``, ``iscrowd``, ``area`` and perhaps ``keypoints``, [n, ...] each.
        segments: pairs of names of :data:`~mmload.pictures.instance_masks.SEGMENTS` -> masks of the objects.
        faults: image -> what is wrong with it, or one of its objects.
        maps: image -> name of its map of segments, for the task "panoptic".
        left_out: image -> numbers of crowds in that map that were left out.
    """

    starts: Array
    ids: Array
    boxes: Array
    per_box: Mapping[str, Array]
    segments: Mapping[tuple[str, str], Segments] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    maps: Mapping[int, str] = field(default_factory=dict)
    left_out: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on masks that are missing, and on a file without any object."""
        has_mask = np.zeros(len(self.ids), np.bool_)
        for each in self.segments.values():
            has_mask[np.repeat(self.starts[:-1], np.diff(each.starts)) + each.owners] = True
        missing = int((~has_mask).sum()) if self.segments else 0
        empty = f"{counted(missing, 'object')} without segmentation: no pixel belongs to such a mask"
        none = ("no image has an object",) * (not (len(self.ids) or self.faults))
        return (empty,) * (missing > 0) + none

    def of_image(self, image: int) -> ImageObjects:
        """Returns the objects of an image."""
        own = slice(self.starts[image], self.starts[image + 1])
        segments: dict[str, Array] = {}
        for pair, each in self.segments.items():
            segments |= dict(zip(pair, each.of_image(image), strict=True))
        per_box = {name: values[own] for name, values in self.per_box.items()}
        return ImageObjects(boxes=self.boxes[own], per_box=per_box, segments=segments)

    def only(self, images: Sequence[int]) -> CocoObjects:
        """Returns the objects of some images, in their order."""
        chosen = np.asarray(images, np.int64)
        counts = self.starts[chosen + 1] - self.starts[chosen]
        own = spans(self.starts[chosen], counts)
        return replace(
            self,
            starts=np.concatenate([[0], np.cumsum(counts)]),
            ids=self.ids[own],
            boxes=self.boxes[own],
            per_box={name: values[own] for name, values in self.per_box.items()},
            segments={pair: each.only(chosen) for pair, each in self.segments.items()},
            faults={place: self.faults[image] for place, image in enumerate(images) if image in self.faults},
            maps={place: self.maps[image] for place, image in enumerate(images) if image in self.maps},
            left_out={place: self.left_out[image] for place, image in enumerate(images) if image in self.left_out},
        )


def spans(begins: Array, counts: Array) -> Array:
    """Returns the indexes of several spans, one after another: int64 [sum of counts]."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    indexes: Array = np.repeat(begins - (ends - counts), counts) + np.arange(total)
    return indexes.astype(np.int64, copy=False)
