"""Reads rows of one split from its files into memory that the caller owns.

Here rows are read (``preadv``); :mod:`mmload.store.row_map` maps them for those who read many. torch is imported only
where tensors are asked for: :meth:`RowReader.array` needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmload.records import FieldSpec
from mmload.store.field_files import files_of, need_one_size
from mmload.store.field_rows import FieldRows, Numbers, SplitFiles, read
from mmload.store.sized_rows import SizedRows

if TYPE_CHECKING:
    from torch import Tensor

COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) stays in memory after the first read, if all of it is at most this large."""

SMALL_ROW = 1024
"""The most bytes of a small row."""

_COLUMN_ROWS = 2**16
"""Rows of a column that are read at a time: numbers of all of them took 60 bytes a row."""


class RowReader:
    """Reads rows of a split. Thread-safe, picklable, and safe to use after a fork.

    Args:
        files: of the split.
    """

    def __init__(self, files: SplitFiles) -> None:
        self.files = files
        self._columns: dict[str, Tensor] = {}
        self._fields: dict[str, FieldRows] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # rows are read again, lazily

    def field(self, name: str) -> FieldRows:
        """Returns the rows of a field; or of one of its files, such as ``images.sizes``, which has a row for each."""
        found = self._fields.get(name)
        if found is None:
            spec = self.files.record.fields.get(name) or files_of(self.files.record.fields)[name].spec
            kind = SizedRows if spec.own_sizes else FieldRows
            found = self._fields.setdefault(name, kind(self.files, name, spec))
        return found

    def sized(self, name: str) -> SizedRows:
        """Returns the rows of a field whose rows have their own sizes."""
        found = self.field(name)
        if not isinstance(found, SizedRows):
            raise TypeError(f"rows of {name} have one size")
        return found

    def array(self, name: str, rows: Numbers) -> NDArray[Any]:
        """Rows of a field, without torch.

        Args:
            name: the field.
            rows: int64 [B].

        Returns:
            [B, *row shape]; of bfloat16, which numpy does not have, float32.

        Raises:
            DamagedError, StoreError: as :meth:`gather`.
        """
        spec = self._alike(name)
        half = spec.dtype == "bfloat16"
        out = np.empty((len(rows), *spec.shape), np.uint16 if half else spec.dtype)
        read(self.field(name), rows, memoryview(out.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]  # numpy 2 on 3.11
        return (out.astype(np.uint32) << 16).view(np.float32) if half else out

    def gather(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of a field.

        Args:
            name: the field.
            rows: int64 [B].
            out: contiguous [B, *row shape] to read into; None: new memory.

        Returns:
            [B, *row shape].

        Raises:
            DamagedError: if a file is shorter than its manifest says.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """
        import torch

        column = self._column(name)
        if column is not None:
            if out is not None or column.dtype == torch.bfloat16:  # which numpy does not have
                return torch.index_select(column, 0, rows, out=out)
            return torch.from_numpy(column.numpy()[rows.numpy()])
        spec = self._alike(name)
        if out is None:
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        read(self.field(name), rows.numpy(), memory_of(out))
        return out

    def _alike(self, name: str) -> FieldSpec:
        """The dtype and shape of each row of a field whose rows have one size."""
        spec = self.field(name).spec
        need_one_size({name: spec}, f"split {self.files.split!r} of {self.files.folder.path}", "this")
        return spec

    def _column(self, name: str) -> Tensor | None:
        """All rows of a field, if they are small and few enough to keep."""
        import torch

        column = self._columns.get(name)
        if column is None:
            spec, rows = self._alike(name), self.files.record.rows
            if spec.row_bytes > SMALL_ROW or spec.row_bytes * rows > COLUMN_BYTES:
                return None
            column = torch.empty((rows, *spec.shape), dtype=spec.torch_dtype)
            for first in range(0, rows, _COLUMN_ROWS):
                part = np.arange(first, min(first + _COLUMN_ROWS, rows))
                read(self.field(name), part, memory_of(column[first : first + len(part)]))
            self._columns[name] = column
        return column


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, not copied."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2 on 3.11
