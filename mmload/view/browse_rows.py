"""Reads rows of a split for the page, as numpy arrays: without torch, whose import takes longer than all the rest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.pictures.contact_sheet import SHOWN, Cell, cells_of, name_of_target
from mmload.pictures.drawing import name_of
from mmload.store.dataset_folder import Folder
from mmload.store.field_rows import LocalFiles
from mmload.store.manifest import SplitRecord
from mmload.store.row_cells import skeleton_of
from mmload.store.row_reader import RowReader
from mmload.store.row_sources import RowSource, Samples

Rows = npt.NDArray[np.int64]

_AT_ONCE = 2**16  # rows of a small field
_KEPT = 8  # classes whose rows are remembered


class SplitRows:
    """The rows of one split. Thread-safe.

    Args:
        folder: the dataset's.
        name: the split's.
        record: its manifest entry.

    Attributes:
        owner: name of the split that the rows are in: its own, or of a subset that of its split.
    """

    def __init__(self, folder: Folder, name: str, record: SplitRecord) -> None:
        self.name, self.record = name, record
        self.owner = record.subset_of or name
        self._reader = RowReader(f"split {name!r} of {folder.path}", LocalFiles(folder, name, record).field)
        self.samples = Samples(folder, name, record)
        self._members: OrderedDict[int, Rows] = OrderedDict()
        self._lock = Lock()

    @property
    def filter_field(self) -> str | None:
        """Field with the classes of a row; None if only pixels have classes."""
        fields = self.record.fields
        if not self.record.classes:
            return None
        spec = fields.get("targets")
        if spec is not None:
            single = spec.shape == () and spec.dtype.startswith("int")
            return "targets" if single or spec.shape == (len(self.record.classes),) else None
        return "labels" if "labels" in fields else None

    @property
    def has_images(self) -> bool:
        """True if there are pictures to show."""
        spec = self.record.fields.get("images")
        return spec is not None and spec.dtype == "uint8" and len(spec.shape) == 3

    def of_class(self, index: int) -> Rows:
        """Returns the rows of a class, ascending, from a small field alone.

        Raises:
            UsageError: if there is no such class, or rows have none.
        """
        field = self.filter_field
        if field is None or not 0 <= index < len(self.record.classes):
            raise UsageError(f"split {self.name} has no class {index} to choose rows by")
        with self._lock:
            if index not in self._members:
                found = [first + _members(values, index) for first, values in self._blocks(field)]
                self._members[index] = np.concatenate([np.empty(0, np.int64), *found])
                while len(self._members) > _KEPT:
                    self._members.popitem(last=False)
            return self._members[index]

    def cell(self, row: int) -> Cell:
        """Reads a row's picture, boxes and mask.

        Raises:
            UsageError: if there is no such row, or it has no picture.
        """
        if not self.has_images:
            raise UsageError(f"split {self.name} has no uint8 images to show; it has {choices(self.record.fields)}")
        rows = self._checked([row])
        shown = {name: self.record.fields[name] for name in SHOWN if name in self.record.fields}
        fields = {
            name: self._reader.rows(name, rows)[0][None] if spec.variable_size else self._read(name, rows)
            for name, spec in shown.items()
        }
        skeleton = skeleton_of(self.record)
        return cells_of({**fields, "ids": rows}, self.record.classes, skeleton=skeleton)[0]

    def names(self, rows: Rows) -> list[str]:
        """Returns the classes of rows as text; of boxes each class once."""
        rows, classes = self._checked(rows), self.record.classes
        if "targets" in self.record.fields:
            return [name_of_target(target, classes) for target in self._read("targets", rows)]
        if "labels" in self.record.fields:
            labels = self._read("labels", rows)
            return [", ".join(name_of(each, classes) for each in np.unique(own[own >= 0]).tolist()) for own in labels]
        return [""] * len(rows)

    def source(self, row: int) -> RowSource:
        """Returns the sample that a row was made of.

        Raises:
            UsageError: if there is no such row.
        """
        self._checked([row])
        return self.samples.source(row)

    def _checked(self, rows: list[int] | Rows) -> Rows:
        """Checks that rows exist, and returns their numbers."""
        checked = np.asarray(rows, np.int64)
        if checked.size and not 0 <= int(checked.min()) <= int(checked.max()) < self.record.rows:
            raise UsageError(f"row {int(checked.max())} is not in split {self.name}, which has {self.record.rows:,}")
        return checked

    def _read(self, field: str, rows: Rows) -> npt.NDArray[Any]:
        """Reads rows of a field: [n, *row shape]."""
        if self.record.fields[field].dtype == "bfloat16":
            raise UsageError(f"{field} of split {self.name} is bfloat16, which cannot be shown")
        return self._reader.array(field, rows)

    def _blocks(self, field: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yields all rows of a field, some at a time, each with the number of its first row."""
        for first in range(0, self.record.rows, _AT_ONCE):
            yield first, self._reader.array(field, np.arange(first, min(first + _AT_ONCE, self.record.rows)))


def _members(values: npt.NDArray[Any], index: int) -> Rows:
    """Returns the rows of a class among these: by its index, a vector with a share per class, or labels of boxes."""
    if values.ndim == 1:
        return np.flatnonzero(values == index)
    if values.dtype.kind == "f":
        return np.flatnonzero(values[:, index] > 0)
    return np.flatnonzero((values == index).any(1))
