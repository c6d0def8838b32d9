"""Counts the classes of rows that have several: of boxes, of masks, of vectors of classes. Reads labels, not images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmload.inspection.row_kernels import count_values
from mmload.store.dataset import Split

_PART_BYTES = 16 * 2**20  # of labels or masks that are read at a time

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ClassRows:
    """How often classes occur.

    Attributes:
        rows: int64 [K], rows in which each class is.
        amounts: int64 [K], its boxes or pixels; None of vectors of classes.
        unit: of the amounts: boxes or pixels.
    """

    rows: Counts
    amounts: Counts | None = None
    unit: str = ""


def class_rows(split: Split) -> ClassRows | None:
    """How often each class of a split occurs; None if its rows have one class each, or none."""
    fields = split.fields
    if "labels" in fields and fields["labels"].dtype == "int64" and len(fields["labels"].shape) == 1:
        return _of_boxes(split)
    if "masks" in fields and fields["masks"].dtype == "uint8" and len(fields["masks"].shape) == 2:
        return _of_masks(split)
    targets = fields.get("targets")
    if targets is not None and targets.shape == (len(split.classes),) and split.classes:
        parts = (split.reader.array("targets", rows) > 0 for rows in _parts(split, "targets"))
        return ClassRows(rows=sum((part.sum(0, dtype=np.int64) for part in parts), np.zeros(targets.shape, np.int64)))
    return None


def _of_boxes(split: Split) -> ClassRows:
    rows, boxes = np.zeros(len(split.classes), np.int64), np.zeros(len(split.classes), np.int64)
    for part in _parts(split, "labels"):
        labels = split.reader.array("labels", part)
        real = (labels >= 0) & (labels < len(rows))
        if "counts" in split.fields:
            real &= np.arange(labels.shape[1]) < split.reader.array("counts", part)[:, None]
        boxes += np.bincount(labels[real], minlength=len(rows))
        row, _ = np.nonzero(real)
        rows += np.bincount(np.unique(row * len(rows) + labels[real]) % max(1, len(rows)), minlength=len(rows))
    return ClassRows(rows=rows, amounts=boxes, unit="boxes")


def _of_masks(split: Split) -> ClassRows:
    rows, pixels = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for masks in _masks(split):
        counted = np.zeros((len(masks), 256), np.int64)
        count_values(masks, counted)
        rows += (counted > 0).sum(0)
        pixels += counted.sum(0)
    known = min(256, len(split.classes)) or int(np.flatnonzero(pixels).max(initial=-1)) + 1
    return ClassRows(rows=rows[:known], amounts=pixels[:known], unit="pixels")


def _masks(split: Split) -> Iterator[npt.NDArray[np.uint8]]:
    """All masks in order, some of one size at a time: [n, H, W]."""
    if split.fields["masks"].own_sizes:
        reader = split.reader.sized("masks")
        for row in range(len(split)):
            yield np.ascontiguousarray(reader.pixels(row))[None]
    else:
        for part in _parts(split, "masks"):
            yield split.reader.array("masks", part)


def _parts(split: Split, field: str) -> Iterator[Counts]:
    """Row numbers in order, as many at a time as make up a few megabytes of a field."""
    at_once = max(1, _PART_BYTES // split.fields[field].row_bytes)
    for start in range(0, len(split), at_once):
        yield np.arange(start, min(start + at_once, len(split)))
