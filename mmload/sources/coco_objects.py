"""Objects of all images of an annotation file of COCO, as arrays that are grouped by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import counted
from mmload.sources.objects import ImageObjects

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Polygons or run lengths of all images.

    Attributes:
        starts: int64 [images + 1], the first of each image.
        owners: int32 [m], the object of each, counted within its image.
        begins: int64 [m], its first value.
        counts: int32 [m], its number of values.
        values: float32 [n, 2] points, or int32 [n] runs.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoObjects:
    """Objects of all images of an annotation file, image after image.

    Attributes:
        starts: int64 [images + 1], the first object of each image.
        ids: int64 [n], number of each object in the file.
        boxes: float64 [n, 4], xyxy in pixels.
        per_box: ``labels``, ``iscrowd``, ``area`` and perhaps ``keypoints``, [n, ...] each.
        segments: pairs of names of :data:`~mmload.pictures.instance_masks.SEGMENTS` -> masks of the objects.
        faults: image -> what is wrong with one of its objects.
        strays: objects of images that the file does not list.
        maps: image -> name of its map of segments, for the task "panoptic".
        left_out: image -> numbers of crowds in that map that were left out.
    """

    starts: Array
    ids: Array
    boxes: Array
    per_box: Mapping[str, Array]
    segments: Mapping[tuple[str, str], Segments] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    strays: int = 0
    maps: Mapping[int, str] = field(default_factory=dict)
    left_out: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was left out, and on masks that are missing."""
        strays = f"{counted(self.strays, 'annotation')} of images that the file does not list: left out"
        has_mask = np.zeros(len(self.ids), np.bool_)
        for each in self.segments.values():
            has_mask[np.repeat(self.starts[:-1], np.diff(each.starts)) + each.owners] = True
        missing = int((~has_mask).sum()) if self.segments else 0
        empty = f"{counted(missing, 'object')} without segmentation: no pixel belongs to such a mask"
        return (strays,) * (self.strays > 0) + (empty,) * (missing > 0)

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
