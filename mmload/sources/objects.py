"""Objects of detection datasets as fields of a row: boxes with all that belongs to them, as lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.pictures.instance_masks import SEGMENTS, of_boxes
from mmload.records import CLIPPED, PER_BOX, ObjectsRecord

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]
Size = tuple[int, int]

MAX_KEYPOINTS = 256
"""Keypoints of an object: the table of a flip has a byte for each."""

EDGE = 1.0
"""Pixels by which a box may reach over the edge of its image without being an error, as tools round: it is cut."""


class ObjectError(ValueError):
    """Error of one object of an image.

    Args:
        index: number of the object in its image, from 0.
        reason: what is wrong.
    """

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


def fields_of_objects(objects: ImageObjects, size: Size, clip: bool) -> ObjectFields:
    """Returns the fields of an image's objects: boxes float32 [n, 4], what belongs to them, and ``counts``.

    Args:
        objects: objects of the image.
        size: height and width of the image.
        clip: cut boxes that leave the image, and leave out those of no area, instead of rejecting the image.

    Raises:
        ObjectError: if a box has no area, or leaves the image.
    """
    import torch

    height, width = size
    boxes = objects.boxes.reshape(-1, 4)
    inside = np.clip(boxes, 0, [width, height, width, height])
    has_area = (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])
    outside = (np.abs(inside - boxes) > EDGE).any(1)
    if not clip:
        _check(boxes, has_area, outside, size)
    unsure = [name for name in objects.per_box if name not in PER_BOX]
    if unsure:
        raise ValueError(f"{unsure[0]} is no field of boxes")
    arrays = {"boxes": inside[has_area].astype(np.float32)}
    arrays |= {name: values[has_area] for name, values in objects.per_box.items()}
    arrays |= of_boxes(objects.segments, has_area)
    fields = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    lists = frozenset(fields)
    fields["counts"] = torch.tensor(int(has_area.sum()))
    return ObjectFields(fields, lists, {CLIPPED: int((outside | ~has_area).sum())} if clip else {})


def _check(boxes: Array, has_area: npt.NDArray[np.bool_], outside: npt.NDArray[np.bool_], size: Size) -> None:
    wrong = np.flatnonzero(~has_area | outside | ~np.isfinite(boxes).all(1))
    if len(wrong):
        index = int(wrong[0])
        x0, y0, x1, y1 = (f"{side:g}" for side in boxes[index])
        why = "leaves" if outside[index] else "has no area in"
        advice = "clip_boxes cuts such boxes, and leaves out those of no area"
        raise ObjectError(index, f"the box {x0}, {y0}, {x1}, {y1} {why} the {size[1]} x {size[0]} image; {advice}")


def empty_segments(with_runs: bool) -> dict[str, Array]:
    """Returns the fields of the masks of an image without objects; those of run lengths only if they are used."""
    empty = {
        "rings": np.empty((0, 2), np.int32),
        "polygons": np.empty((0, 2), np.float32),
        "run_boxes": np.empty((0, 2), np.int32),
        "runs": np.empty(0, np.int32),
    }
    used = SEGMENTS if with_runs else SEGMENTS[:1]
    return {name: empty[name] for pair in used for name in pair}


def flip_field(objects: ObjectsRecord) -> dict[str, Tensor]:
    """Returns ``keypoint_flips`` uint8 [K], for each keypoint the one that it becomes where an image is mirrored.

    A number per row, which takes a byte per keypoint, goes with the row into any batch. Without such a table there is
    no field.
    """
    import torch

    return {"keypoint_flips": torch.tensor(objects.flip, dtype=torch.uint8)} if objects.flip else {}


_SIDE = re.compile(r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:left|right|l|r)(?![a-z])")
"""A side at the start of a word of a name: left_eye, LeftEye, kneeL."""
_SWAPPED = {"left": "right", "right": "left", "l": "r", "r": "l"}


def _other_side(side: re.Match[str]) -> str:
    """Returns the other side, written as this one is."""
    other = _SWAPPED[side[0].lower()]
    if side[0].isupper():
        return other.upper()
    return other.capitalize() if side[0][0].isupper() else other


def notes_on_flip(objects: ObjectsRecord) -> tuple[str, ...]:
    """Returns a note if there are several keypoints, of which a flip exchanges none."""
    count = len(objects.keypoints)
    if count < 2 or objects.flip != tuple(range(count)):
        return ()
    return (f"flips of images will exchange none of the {count} keypoints: no names of left and right were found",)


def mirrored_names(names: Sequence[str]) -> tuple[int, ...]:
    """Returns for each keypoint the one of the other side: "left" and "right" are exchanged in its name."""
    places = {name: place for place, name in enumerate(names)}
    table = tuple(places.get(_SIDE.sub(_other_side, name), place) for place, name in enumerate(names))
    return table if sorted(table) == list(range(len(names))) else tuple(range(len(names)))
