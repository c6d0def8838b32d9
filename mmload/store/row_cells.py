"""Chooses rows of a split for a preview, and makes the cells of a contact sheet from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices, counted
from mmload.pictures.contact_sheet import SHOWN, Cell, cells_of, first_to_see
from mmload.records import FieldSpec
from mmload.store.manifest import SplitRecord
from mmload.store.row_numbers import row_numbers

if TYPE_CHECKING:
    from mmload.store.dataset_folder import Folder
    from mmload.store.row_reader import RowReader

Numbers = npt.NDArray[np.int64]

_NAMED = 8  # classes that a message names
_AT_ONCE = 2**16  # rows of a small field


class ShownSplit(Protocol):
    """Split of an open dataset, as far as previews need it. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the split."""

    @property
    def folder(self) -> Folder:
        """Folder of the dataset."""

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Name -> dtype and row shape."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names by index."""

    @property
    def record(self) -> SplitRecord:
        """Manifest entry of the split."""

    @property
    def reader(self) -> RowReader:
        """Reader of the rows."""

    def __len__(self) -> int: ...


def cells_of_rows(split: ShownSplit, rows: Any) -> list[Cell]:
    """Returns stored rows as cells of a :func:`~mmload.pictures.contact_sheet.contact_sheet`.

    Raises:
        UsageError: if the split has no uint8 images, or no row is chosen.
        IndexError, TypeError: as :meth:`~mmload.store.dataset.Split.rows`.
    """
    where = f"split {split.name!r} of {split.folder.title}"
    spec = split.fields.get("images")
    if spec is None or spec.dtype != "uint8":
        raise UsageError(f"{where} has no uint8 images to show; it has {choices(split.fields)}")
    numbers = row_numbers(rows, len(split), f"split {split.name!r}")
    if not len(numbers):
        raise UsageError(f"no row of {where} is chosen, so there is nothing to show")
    shown = {name: split.reader.rows(name, numbers) for name in SHOWN if name in split.fields}
    cells = []
    for place, row in enumerate(numbers):  # one by one, as no array holds images of several sizes
        fields = {"ids": row[None], **{name: rows[place][None] for name, rows in shown.items()}}
        cells += cells_of(fields, split.classes, skeleton=skeleton_of(split.record))
    return cells


def skeleton_of(record: SplitRecord) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of keypoints that a line joins; empty without keypoints."""
    return () if record.objects is None else record.objects.skeleton


def first_rows(split: ShownSplit, count: int, *, seed: int = 0, of_class: str | None = None) -> Numbers:
    """Returns at most ``count`` rows for a first look, int64 [n]: as many of each class as possible, drawn at random.

    They are sorted by class, or of one class.

    Raises:
        UsageError: as :func:`rows_of_class`.
    """
    if of_class is not None:
        members = rows_of_class(split, of_class)
        chosen: Numbers = members[first_to_see(None, len(members), count, seed)]
        return chosen
    spec = split.fields.get("targets")
    targets = None
    if spec is not None and spec.shape == () and split.classes:
        targets = split.reader.array("targets", np.arange(len(split)))
    return first_to_see(targets, len(split), count, seed)


def rows_of_class(split: ShownSplit, name: str) -> Numbers:
    """Returns the rows of the class of a name, or with a box of it, ascending: int64 [n].

    Raises:
        UsageError: if there is no such class, or rows have no classes.
    """
    where = f"split {split.name!r} of {split.folder.title}"
    if name not in split.classes:
        more = f", ... ({len(split.classes) - _NAMED:,} more)" if len(split.classes) > _NAMED else ""
        raise UsageError(f"{where} has no class {name!r}; it has {', '.join(split.classes[:_NAMED]) or 'none'}{more}")
    field = class_field(split.record)
    if field is None:
        raise UsageError(f"rows of {where}, {counted(len(split), 'row')} of {choices(split.fields)}, have no classes")
    return members_of(split.reader, split.record, field, split.classes.index(name))


def class_field(record: SplitRecord) -> str | None:
    """Returns the field that says which of a split's classes a row has; None if there is none."""
    targets, labels = record.fields.get("targets"), record.fields.get("labels")
    if targets is not None and targets.shape in ((), (len(record.classes),)):
        return "targets" if record.classes else None
    return "labels" if labels is not None and len(labels.shape) == 1 and record.classes else None


def members_of(reader: RowReader, record: SplitRecord, field: str, index: int) -> Numbers:
    """Returns the rows of a class, ascending: those with its index, a share of it in a vector, or a box of it."""
    found = [np.empty(0, np.int64)]
    for first in range(0, record.rows, _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, record.rows))
        values = labels_of(reader, record, rows) if field == "labels" else reader.array(field, rows)
        if field == "targets" and values.ndim == 2:
            is_member = values[:, index] > 0
        else:
            is_member = (values.reshape(len(rows), -1) == index).any(1)
        found.append(rows[is_member])
    return np.concatenate(found)


def labels_of(reader: RowReader, record: SplitRecord, rows: Numbers) -> npt.NDArray[Any]:
    """Returns the classes of the boxes of rows, [n, boxes]; -1 behind the boxes that they have."""
    labels, counts = reader.array("labels", rows), record.fields.get("counts")
    if counts is None or counts.shape != ():
        return labels
    return np.where(np.arange(labels.shape[1]) < reader.array("counts", rows)[:, None], labels, -1)
