"""Reads rows of a split for the page, as numpy arrays: without torch, whose import takes longer than all the rest."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.pictures.contact_sheet import SHOWN, Cell, cells_of, name_of_target
from mmload.pictures.drawing import name_of
from mmload.records import has_images
from mmload.store.dataset_folder import Folder
from mmload.store.field_rows import LocalFiles
from mmload.store.manifest import SplitRecord
from mmload.store.row_cells import class_field, labels_of, members_of, skeleton_of
from mmload.store.row_reader import RowReader
from mmload.store.row_sources import RowSource, Samples

Rows = npt.NDArray[np.int64]

_KEPT = 8  # classes whose rows are remembered


class SplitRows:
    """The rows of one split. Thread-safe.

    Attributes:
        owner: name of the split that the rows are in: its own, or of a subset that of its split.
    """

    def __init__(self, folder: Folder, name: str, record: SplitRecord) -> None:
        self.name, self.record = name, record
        self.owner = record.subset_of or name
        files = LocalFiles(folder, name, record)
        self._reader = RowReader(f"split {name!r} of {folder.title}", files.field, record.fields)
        self.samples = Samples(folder, name, record)
        self._members: OrderedDict[int, Rows] = OrderedDict()
        self._lock = Lock()

    def of_class(self, index: int) -> Rows:
        """Returns the rows of a class, ascending, from a small field alone.

        Raises:
            UsageError: if there is no such class, or rows have none.
        """
        field = class_field(self.record)
        if field is None or not 0 <= index < len(self.record.classes):
            raise UsageError(f"split {self.name} has no class {index} to choose rows by")
        with self._lock:
            if index not in self._members:
                self._members[index] = members_of(self._reader, self.record, field, index)
                while len(self._members) > _KEPT:
                    self._members.popitem(last=False)
            return self._members[index]

    def cell(self, row: int) -> Cell:
        """Reads a row's picture, boxes and mask.

        Raises:
            UsageError: if there is no such row, or it has no picture.
        """
        if not has_images(self.record.fields):
            raise UsageError(f"split {self.name} has no uint8 images to show; it has {choices(self.record.fields)}")
        rows = self._checked([row])
        shown = {name: self.record.fields[name] for name in SHOWN if name in self.record.fields}
        fields = {
            name: self._reader.rows(name, rows)[0][None] if spec.variable_size else self._reader.array(name, rows)
            for name, spec in shown.items()
        }
        skeleton = skeleton_of(self.record)
        return cells_of({**fields, "ids": rows}, self.record.classes, skeleton=skeleton)[0]

    def names(self, rows: Rows) -> list[str]:
        """Returns the classes of rows as text; of boxes each class once."""
        rows, classes = self._checked(rows), self.record.classes
        if "targets" in self.record.fields:
            return [name_of_target(target, classes) for target in self._reader.array("targets", rows)]
        if "labels" in self.record.fields:
            labels = labels_of(self._reader, self.record, rows)
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
