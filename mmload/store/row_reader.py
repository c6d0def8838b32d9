"""Reads rows of a split, or of a concatenation of splits, from their files into memory that the caller owns.

Here rows are read (``preadv``); :mod:`mmload.store.row_map` maps them for those who read many. torch is imported only
where tensors are asked for: :meth:`RowReader.array` needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmload.errors import UsageError
from mmload.records import FieldSpec
from mmload.store.field_rows import FieldRows, Numbers, Rows, pixels_of, read
from mmload.store.shard_table import files_of
from mmload.store.split_files import LocalFiles

if TYPE_CHECKING:
    from torch import Tensor

COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) stays in memory after the first read, if all of it is at most this large."""

SMALL_ROW = 1024
"""The most bytes of a small row."""

_COLUMN_ROWS = 2**16
"""Rows of a column that are read at a time: numbers of all of them took 60 bytes a row."""


class Reader:
    """Reads rows of whatever :meth:`field` gives. Thread-safe; a copy reads again, lazily.

    Args:
        where: names what is read, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._columns: dict[str, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}

    def field(self, name: str) -> Rows:
        """Returns the rows of a field."""
        raise NotImplementedError

    def rows(self, name: str, rows: Numbers) -> Sequence[NDArray[Any]]:
        """Reads rows of a field, without torch: for each an array of its own shape, of images the decoded pixels.

        Raises:
            DamagedError: as :meth:`gather`, or if a JPEG is broken or has another size than its row.
            StoreError: as :meth:`gather`.
        """
        field = self.field(name)
        return (
            [pixels_of(field, row) for row in rows.tolist()]
            if field.spec.variable_size
            else list(self.array(name, rows))
        )

    def array(self, name: str, rows: Numbers) -> NDArray[Any]:
        """Reads rows of a field of fixed size, without torch.

        Args:
            name: the field.
            rows: int64 [B].

        Returns:
            [B, *row shape]; of bfloat16, which numpy does not have, float32.

        Raises:
            DamagedError, StoreError: as :meth:`gather`.
        """
        spec = self._fixed(name)
        half = spec.dtype == "bfloat16"
        out = np.empty((len(rows), *spec.shape), np.uint16 if half else spec.dtype)
        read(self.field(name), rows, memoryview(out.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]  # numpy 2 on 3.11
        return (out.astype(np.uint32) << 16).view(np.float32) if half else out

    def gather(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Reads rows of a field of fixed size.

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
        spec = self._fixed(name)
        if out is None:
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        read(self.field(name), rows.numpy(), memory_of(out))
        return out

    def _fixed(self, name: str) -> FieldSpec:
        """Returns the dtype and shape of each row of a field of fixed size.

        Raises:
            UsageError: if its rows have variable size.
        """
        spec = self.field(name).spec
        if spec.variable_size:
            raise UsageError(
                f"{name} of {self._where} are whole photographs, each of its own size, and this needs rows of one "
                "size; build the dataset without --layout variable"
            )
        return spec

    def is_column(self, name: str) -> bool:
        """Returns whether all rows of a field stay in memory once they were read: if they are small and few enough."""
        field = self.field(name)
        spec = field.spec
        return not spec.variable_size and spec.row_bytes <= min(SMALL_ROW, COLUMN_BYTES / max(1, len(field)))

    def _column(self, name: str) -> Tensor | None:
        """Returns all rows of a field of fixed size, if they are a column."""
        import torch

        column = self._columns.get(name)
        if column is None:
            spec, count = self._fixed(name), len(self.field(name))
            if not self.is_column(name):
                return None
            column = torch.empty((count, *spec.shape), dtype=spec.torch_dtype)
            for first in range(0, count, _COLUMN_ROWS):
                part = np.arange(first, min(first + _COLUMN_ROWS, count))
                read(self.field(name), part, memory_of(column[first : first + len(part)]))
            self._columns[name] = column
        return column


class RowReader(Reader):
    """Reads rows of a split. Thread-safe, picklable, and safe to use after a fork.

    Args:
        files: of the split.
    """

    def __init__(self, files: LocalFiles) -> None:
        super().__init__(f"split {files.split!r} of {files.folder.path}")
        self.files = files
        self._fields: dict[str, FieldRows] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fields": {}}

    def field(self, name: str) -> FieldRows:
        """Returns the rows of a field; or of one of its files, such as ``images.sizes``, which has a row for each."""
        found = self._fields.get(name)
        if found is None:
            spec = self.files.record.fields.get(name) or files_of(self.files.record.fields)[name].spec
            found = self._fields.setdefault(name, FieldRows(self.files, name, spec))
        return found


def memory_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous CPU tensor, writable, not copied."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2 on 3.11
