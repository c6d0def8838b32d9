"""Chooses rows of a split for a preview, and makes the cells of a contact sheet from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.pictures.contact_sheet import SHOWN, Cell, cells_of, first_to_see
from mmload.records import FieldSpec
from mmload.store.manifest import SplitRecord
from mmload.store.row_numbers import row_array

if TYPE_CHECKING:
    from mmload.store.row_reader import RowReader

Numbers = npt.NDArray[np.int64]

_NAMED = 8  # classes that a message names


class ShownSplit(Protocol):
    """Split of an open dataset, as far as previews need it. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the split."""

    @property
    def path(self) -> Path:
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

    def check_changed(self) -> None:
        """Raises a StoreError if the folder contains another dataset."""


def cells_of_rows(split: ShownSplit, rows: Any) -> list[Cell]:
    """Returns stored rows as cells of a :func:`~mmload.pictures.contact_sheet.contact_sheet`.

    Raises:
        UsageError: if the split has no uint8 images, or no row is chosen.
        IndexError, TypeError: as :meth:`~mmload.store.dataset.Split.rows`.
    """
    where = f"split {split.name!r} of {split.path}"
    spec = split.fields.get("images")
    if spec is None or spec.dtype != "uint8":
        raise UsageError(f"{where} has no uint8 images to show; it has {choices(split.fields)}")
    numbers = row_array(rows, len(split), f"split {split.name!r}")
    if not len(numbers):
        raise UsageError(f"no row of {where} is chosen, so there is nothing to show")
    split.check_changed()
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
    """Returns rows for a first look: as many of each class as possible, drawn at random, sorted by class.

    Args:
        split: split of the rows.
        count: upper bound on their number.
        seed: seed of the draw.
        of_class: name of a class; returns only its rows.

    Returns:
        int64 [n].

    Raises:
        UsageError: if there is no such class, or rows have no single class.
    """
    spec = split.fields.get("targets")
    targets = None
    if spec is not None and spec.shape == () and split.classes:
        targets = split.reader.array("targets", np.arange(len(split)))
    if of_class is None:
        return first_to_see(targets, len(split), count, seed)
    where = f"split {split.name!r} of {split.path}"
    if of_class not in split.classes:
        raise UsageError(f"{where} has no class {of_class!r}; it has {_some(split.classes)}")
    if targets is None:
        raise UsageError(f"rows of {where} have no single class; choose rows by their numbers")
    members = (targets == split.classes.index(of_class)).nonzero()[0]
    chosen: Numbers = members[first_to_see(None, len(members), count, seed)]
    return chosen


def _some(names: Sequence[str]) -> str:
    """Formats the first names for a message: there may be thousands."""
    more = f", ... ({len(names) - _NAMED:,} more)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
