"""Masks of instances as they are stored: polygons and run lengths, in lists per image.

Two list fields hold all polygons of an image: ``polygons`` float32 [n, 2], the points x, y of one after another, and
``rings`` int32 [m, 2], for each polygon the index of its box and its number of points. A box may have several polygons,
whose union is its mask. Masks that are no polygons, such as COCO's crowds, are run lengths: ``runs`` int32 [n] and
``run_boxes`` int32 [m, 2], for each mask the index of its box and its number of runs. Runs follow COCO: columns from
left to right, first the number of zeros, then of ones, and so on; they cover the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.records import PER_BOX

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

SEGMENTS = (("rings", "polygons"), ("run_boxes", "runs"))
"""Pairs of fields: one entry (index of the box, number of values) per polygon or mask, and the values of all."""


def mask_of_runs(runs: Array, height: int, width: int) -> Mask:
    """Decodes run lengths to a mask, bool [H, W].

    Raises:
        ValueError: if they are not those of such an image.
    """
    if (runs < 0).any() or int(runs.sum(dtype=np.int64)) != height * width:
        raise ValueError(f"its runs cover {int(runs.sum(dtype=np.int64)):,} pixels, the image has {height * width:,}")
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def runs_of_mask(mask: Mask) -> npt.NDArray[np.int32]:
    """Encodes a mask, bool [H, W], as run lengths."""
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate([[0] if len(flat) and flat[0] else [], [0], changes, [len(flat)]])
    return np.diff(edges).astype(np.int32)


def of_boxes(fields: Mapping[str, Array], keep: Mask) -> dict[str, Array]:
    """Returns the masks of the boxes that remain, with the boxes' new indexes.

    Args:
        fields: fields of one image, of which those of :data:`SEGMENTS` that are there are returned.
        keep: bool [boxes].
    """
    numbers, remaining = np.cumsum(keep) - 1, {}
    for owners, values in SEGMENTS:
        if owners in fields:
            box, count = fields[owners].reshape(-1, 2).T
            stays = keep[box]
            remaining[owners] = np.stack([numbers[box[stays]], count[stays]], 1).astype(np.int32)
            remaining[values] = fields[values][np.repeat(stays, count)]
    return remaining


def parts_of(fields: Mapping[str, Array], owners: str, values: str) -> list[tuple[int, Array]]:
    """Returns the box and the values of each polygon or mask of one image, in their order.

    Args:
        fields: fields of the image, without padding.
        owners: first name of a pair of :data:`SEGMENTS`.
        values: second name of the pair.
    """
    box, count = fields[owners].reshape(-1, 2).T
    ends = np.cumsum(count).tolist()
    starts = [0, *ends[:-1]]
    return [(number, fields[values][start:end]) for number, start, end in zip(box.tolist(), starts, ends, strict=False)]


def without_padding(fields: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the fields of one image as a batch has them, boxes and all that belongs to them without padding."""
    count = int(fields["counts"])
    real = {name: values[:count] for name, values in fields.items() if name == "boxes" or name in PER_BOX}
    for owners, values in SEGMENTS:
        if owners in fields:
            entries = fields[owners]
            real[owners] = entries[entries[:, 1] > 0]
            real[values] = fields[values][: int(entries[:, 1].sum())]
    return {**fields, **real}
