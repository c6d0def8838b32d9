"""The rows of one field of a split: where each lies in the files of the shards, and how they are read.

A row of fixed size lies at its number times its bytes, a row of its own size where its shard's offsets say. Both have
one description, :data:`ROW`, which is all that reading, mapping and rendering need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.records import FieldSpec
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord
from mmload.store.row_sources import Samples
from mmload.store.whole_rows import RAW

Numbers = npt.NDArray[np.int64]

ROW = np.dtype(
    [
        ("file", np.int64),
        ("offset", np.int64),
        ("bytes", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("encoding", np.uint8),
    ],
    align=True,
)
"""Where a row is: the number of its file, its first byte there, and its bytes; of an image or a mask its height and
width, else 0; and its encoding, :data:`~mmload.store.whole_rows.RAW` or :data:`~mmload.store.whole_rows.JPEG`."""

Places = npt.NDArray[np.void]
"""Structured [B] of :data:`ROW`."""


class Rows(Protocol):
    """The rows of one field: :class:`FieldRows`, or those of several splits. Thread-safe."""

    spec: FieldSpec

    def __len__(self) -> int: ...

    def files(self) -> tuple[list[HeldFile], list[int]] | None:
        """Returns the open files of the rows and the bytes of each; None where they lie in no files of their own."""

    def located(self, rows: Numbers) -> Places:
        """Returns where rows, int64 [B], lie in :meth:`files`.

        Raises:
            DamagedError: if what says where they are contradicts itself or the manifest's checksums.
            StoreError: if it cannot be read, or was written to.
        """

    def arriving(
        self, rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> Iterator[None]:
        """Reads rows into memory, some at a time.

        Args:
            rows: int64 [B].
            places: [B], where they are, or where the part of each that is read is.
            out: where they go.
            starts: int64 [B], the byte of ``out`` at which each begins.
            groups: after which of the rows those so far must be there and right; the last is B.

        Yields:
            After each group, which was checked to belong to the dataset that was opened.

        Raises:
            DamagedError: if a row cannot be read from its file; it names the row.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """

    def damaged(self, row: int, reason: str) -> DamagedError:
        """Returns the error of a row: its number, the sample it was made from, what is wrong, and what to do."""


class SplitFiles(Protocol):
    """The files of a split's shards. Thread-safe."""

    folder: Folder
    split: str
    record: SplitRecord

    def held(self, name: str, shard: int) -> HeldFile:
        """Returns an open file of a shard, by its name without ``.memmap``."""

    def revision(self, name: str, shard: int) -> Revision:
        """Returns the revision of a file that rows are read from."""

    @property
    def is_local(self) -> bool:
        """Whether files are read where they lie; else they come and go, and :meth:`arriving` knows how."""

    def arriving(
        self,
        field: FieldRows,
        rows: Numbers,
        places: Places,
        out: memoryview,
        starts: Numbers,
        groups: Sequence[int],
    ) -> Iterator[None]:
        """See :meth:`Rows.arriving`."""


class FieldRows:
    """The rows of one field of a split, all of one size. Thread-safe.

    Args:
        files: of the split.
        name: the field; or one of the files of a field whose rows have their own sizes, such as ``images.sizes``.
        spec: its dtype and shape.

    Attributes:
        name: of the field.
        file: name of the files that the rows are in.
    """

    def __init__(self, files: SplitFiles, name: str, spec: FieldSpec) -> None:
        self._files, self.name, self.spec = files, name, spec
        self.file = name
        self._first_rows = np.concatenate([[0], np.cumsum(files.record.shards.rows)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def shards(self) -> int:
        """How many shards there are: the number of files."""
        return len(self._first_rows) - 1

    def files(self) -> tuple[list[HeldFile], list[int]] | None:
        """See :class:`Rows`."""
        if not self._files.is_local:
            return None
        sizes = self._files.record.shards.bytes[self.file]
        return [self.held(shard) for shard in range(self.shards)], [int(size) for size in sizes]

    def located(self, rows: Numbers) -> Places:
        """See :class:`Rows`."""
        places, shape = np.empty(len(rows), ROW), self.spec.shape
        shards = np.searchsorted(self._first_rows, rows, side="right") - 1
        places["file"], places["bytes"] = shards, self.spec.row_bytes
        places["offset"] = (rows - self._first_rows[shards]) * self.spec.row_bytes
        places["height"], places["width"] = shape[-2:] if len(shape) > 1 else (0, 0)
        places["encoding"] = RAW
        return places

    def arriving(
        self, rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> Iterator[None]:
        """See :class:`Rows`."""
        return self._files.arriving(self, rows, places, out, starts, groups)

    def held(self, shard: int) -> HeldFile:
        """Returns the open file of a shard's rows."""
        return self._files.held(self.file, shard)

    def damaged(self, row: int, reason: str) -> DamagedError:
        """See :class:`Rows`."""
        files = self._files
        try:
            sample = repr(Samples(files.folder, files.split, files.record).source(row).id)
        except MmloadError:
            sample = "a sample that its damaged list does not name"
        where = f"row {row} of split {files.split!r} of {files.folder.title}, made from {sample}"
        return DamagedError(f"{self.name} of {where}, is damaged: {reason}; {files.folder.remedy}")


def read(field: Rows, rows: Numbers, out: memoryview, starts: Numbers | None = None) -> None:
    """Reads rows, int64 [B], to each of ``starts`` in ``out``; None: one after another. See :meth:`Rows.arriving`."""
    if not len(rows):
        return
    places = field.located(rows)
    if starts is None:
        starts = np.cumsum(places["bytes"]) - places["bytes"]
    for _ in field.arriving(rows, places, out, starts, [len(rows)]):
        pass
