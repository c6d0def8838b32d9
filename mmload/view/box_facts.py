"""Counts the boxes of a split by their size and shape, and the images by their number of boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmload.store.dataset import Split

Numbers = npt.NDArray[np.int64]

SIDES = (0, 8, 16, 32, 64, 96, 128, 256, 512)
"""Edges of the sizes: roots of areas in pixels. Boxes below 32 are small for COCO's evaluation, from 96 on large."""

ASPECTS = (0.0, 0.2, 0.33, 0.5, 0.8, 1.25, 2.0, 3.0, 5.0)
"""Edges of width over height."""

PER_IMAGE = (0, 1, 2, 3, 5, 9, 17, 33, 65)
"""Edges of the numbers of boxes of an image."""

_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class BoxFacts:
    """Boxes of a split.

    Attributes:
        sizes: int64 [n], boxes from each of :data:`SIDES` to the next one.
        aspects: int64 [n], boxes from each of :data:`ASPECTS` to the next one.
        per_image: int64 [n], images from each of :data:`PER_IMAGE` to the next one.
        most: largest number of boxes of an image.
    """

    sizes: Numbers
    aspects: Numbers
    per_image: Numbers
    most: int

    @property
    def total(self) -> int:
        """Number of boxes."""
        return int(self.sizes.sum())


def box_facts(split: Split) -> BoxFacts | None:
    """Counts the boxes of a split, from its labels alone; None if it has none."""
    boxes, counts = split.fields.get("boxes"), split.fields.get("counts")
    if boxes is None or counts is None or boxes.shape[1:] != (4,) or counts.shape != ():
        return None
    found = [np.zeros(len(edges), np.int64) for edges in (SIDES, ASPECTS, PER_IMAGE)]
    most = 0
    for start in range(0, len(split), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(split)))
        number = split.reader.array("counts", rows)
        corners = split.reader.array("boxes", rows)[np.arange(boxes.shape[0]) < number[:, None]]
        width, height = np.maximum(corners[:, 2:] - corners[:, :2], 1e-6).astype(np.float64).T
        for total, values, edges in zip(
            found, (np.sqrt(width * height), width / height, number), (SIDES, ASPECTS, PER_IMAGE), strict=True
        ):
            total += np.histogram(values, bins=[*edges, np.inf])[0]
        most = max(most, int(number.max(initial=0)))
    return BoxFacts(sizes=found[0], aspects=found[1], per_image=found[2], most=most)
