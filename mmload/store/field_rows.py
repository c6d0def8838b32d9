"""Rows of one field: where each lies in the files of the shards, and how they are read.

A fixed-size row begins at its number times its bytes, a variable-size row where its shard's offsets say. Both have one
description, :data:`ROW`; reading, mapping and rendering need no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.row_sources import Samples
from mmload.store.shard_table import BYTES, ENCODINGS, OFFSETS, SIZES, parts_of
from mmload.store.split_files import HeldFile, LocalFiles
from mmload.store.variable_rows import RAW, Bytes, Index, Pixels, VariableRows, encoding_of, fault_of

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
"""Place of a row: the number of its file, its first byte there, and its bytes; height and width of an image or a mask,
else 0; and its encoding, :data:`~mmload.store.variable_rows.RAW` or :data:`~mmload.store.variable_rows.JPEG`."""

Places = npt.NDArray[np.void]
"""Structured [B] of :data:`ROW`."""


class Rows(Protocol):
    """Rows of one field of a split, :class:`FieldRows`, or of a concatenation. Thread-safe."""

    spec: FieldSpec

    def __len__(self) -> int: ...

    def files(self) -> tuple[list[HeldFile], list[int]] | None:
        """Returns the open files of the rows and the bytes of each; None if the rows are not in local files."""

    def located(self, rows: Numbers) -> Places:
        """Returns where rows, int64 [B], lie in :meth:`files`.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other or the manifest's checksums.
            StoreError: if they cannot be read, or were written to.
        """

    def arriving(
        self, rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> Iterator[None]:
        """Reads rows into memory, some at a time.

        Args:
            rows: int64 [B].
            places: [B], places of the rows, or of the parts of them to read.
            out: memory for the rows.
            starts: int64 [B], the byte of ``out`` at which each begins.
            groups: number of rows up to the end of each group; the last is B.

        Yields:
            None after each group, when it is complete and checked to belong to the dataset that was opened.

        Raises:
            DamagedError: if a row cannot be read from its file; it names the row.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """

    def damaged(self, row: int, reason: str) -> DamagedError:
        """Returns the error of a row: its number, the sample it was made from, what is wrong, and what to do."""


class FieldRows:
    """Rows of one field of a split. Thread-safe.

    Args:
        files: of the split.
        name: the field; or one of the files of a variable-size field, such as ``images.sizes``.
        spec: its dtype and shape.

    Attributes:
        name: of the field.
        file: name of the files with the rows.
    """

    def __init__(self, files: LocalFiles, name: str, spec: FieldSpec) -> None:
        self._files, self.name, self.spec = files, name, spec
        self.file = f"{name}.{BYTES}" if spec.variable_size else name
        shards = files.record.shards
        self._first_rows = np.concatenate([[0], np.cumsum(shards.rows)])
        self._first_bytes = np.concatenate([[0], np.cumsum(shards.bytes[self.file])])
        self._index: Index | None = None

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def split_files(self) -> LocalFiles:
        """Files of the split."""
        return self._files

    @property
    def shards(self) -> int:
        """Number of shards, each of which has one file of rows."""
        return len(self._first_rows) - 1

    @property
    def index(self) -> Index:
        """Places of all variable-size rows: read and checked at the first use.

        Raises:
            TypeError: if rows have a fixed size.
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the row and its sample if possible.
            StoreError: if a file cannot be opened or read, or was written to.
        """
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def files(self) -> tuple[list[HeldFile], list[int]] | None:
        if not self._files.is_local:
            return None
        held = [self._files.held(self.file, shard) for shard in range(self.shards)]
        return held, np.diff(self._first_bytes).tolist()

    def located(self, rows: Numbers) -> Places:
        places, shape = np.empty(len(rows), ROW), self.spec.shape
        places["file"] = shards = np.searchsorted(self._first_rows, rows, side="right") - 1
        if self.spec.variable_size:
            index = self.index
            begins, places["bytes"] = index.offsets[rows], index.offsets[rows + 1] - index.offsets[rows]
            places["height"], places["width"] = index.sizes[rows].T
            places["encoding"] = index.encodings[rows]
        else:
            begins, places["bytes"] = rows * self.spec.row_bytes, self.spec.row_bytes
            places["height"], places["width"] = shape[-2:] if len(shape) > 1 else (0, 0)
            places["encoding"] = RAW
        places["offset"] = begins - self._first_bytes[shards]
        return places

    def arriving(
        self, rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> Iterator[None]:
        return self._files.arriving(self, rows, places, out, starts, groups)

    def encoded(self, row: int) -> Bytes:
        """Reads a row as it is stored, uint8 [n].

        Raises:
            DamagedError, StoreError: as :func:`read_rows`.
        """
        return read_rows(self, np.array([row])).bytes

    def damaged(self, row: int, reason: str) -> DamagedError:
        files = self._files
        try:
            sample = repr(Samples(files.folder, files.split, files.record).source(row).id)
        except MmloadError:
            sample = "an unknown sample (its list is damaged)"
        where = f"row {row} of split {files.split!r} of {files.folder.title}, made from {sample}"
        return DamagedError(f"{self.name} of {where}, is damaged: {reason}; {files.folder.remedy}")

    def _read_index(self) -> Index:
        if not self.spec.variable_size:
            raise TypeError(f"rows of {self.name} have a fixed size")
        rows, encoding = len(self), encoding_of(self.spec)
        offsets, sizes = np.zeros(rows + 1, np.int64), np.empty((rows, 2), np.int32)
        encodings = np.empty(rows, np.uint8) if encoding is None else np.broadcast_to(np.uint8(encoding), rows)
        changed: list[tuple[int, str]] = []
        for shard, (first, stop) in enumerate(zip(self._first_rows[:-1], self._first_rows[1:], strict=True)):
            parts = {part: self._read_part(part, shard) for part in parts_of(self.spec) if part != BYTES}
            changed += [(shard, part) for part, content in parts.items() if not self._is_intact(part, shard, content)]
            sizes[first:stop] = parts[SIZES]
            if encoding is None:
                encodings[first:stop] = parts[ENCODINGS]
            before, after = self._first_bytes[shard : shard + 2].tolist()
            fault = fault_of(
                parts[OFFSETS], sizes[first:stop], encodings[first:stop], self.spec.channels, after - before
            )
            if fault is not None:
                raise self.damaged(int(first) + fault[0], fault[1])
            offsets[first : stop + 1] = parts[OFFSETS] + before
        index = Index(offsets=offsets, sizes=sizes, encodings=encodings)
        if changed:
            raise self._checksum_mismatch(index, *changed[0])
        return index

    def _read_part(self, part: str, shard: int) -> npt.NDArray[Any]:
        """Reads a shard's offsets, sizes or encodings."""
        file = parts_of(self.spec)[part]
        out = np.empty((int(self._files.record.shards.rows[shard]) + file.more, *file.spec.shape), file.spec.dtype)
        held = self._files.held(f"{self.name}.{part}", shard)
        held.fill(memoryview(out.reshape(-1).view(np.uint8).data), 0)
        held.check()
        return out

    def _is_intact(self, part: str, shard: int, content: npt.NDArray[Any]) -> bool:
        """Returns whether a file's content has the checksum of the manifest."""
        expected = self._files.record.shards.crc32[f"{self.name}.{part}"][shard]
        return crc32(content.reshape(-1).view(np.uint8).data) == int(expected)

    def _checksum_mismatch(self, index: Index, shard: int, part: str) -> DamagedError:
        """Returns the error of the first row whose bytes contradict a damaged index, else of the damaged file."""
        field = copy(self)
        field._index = index
        for row in range(*self._first_rows[shard : shard + 2].tolist()):
            try:
                pixels_of(field, row)
            except DamagedError as error:
                return error
        path = self._files.held(f"{self.name}.{part}", shard).path
        return DamagedError(
            f"{path} is damaged: checksum mismatch, so sizes or places of rows have changed; "
            f"{self._files.folder.remedy}"
        )


def read(field: Rows, rows: Numbers, out: memoryview, starts: Numbers | None = None) -> None:
    """Reads rows, int64 [B], to each of ``starts`` in ``out``; None: one after another."""
    if not len(rows):
        return
    places = field.located(rows)
    if starts is None:
        starts = np.cumsum(places["bytes"]) - places["bytes"]
    for _ in field.arriving(rows, places, out, starts, [len(rows)]):
        pass


def read_rows(field: Rows, rows: Numbers) -> VariableRows:
    """Reads rows, int64 [B], as they are stored.

    Raises:
        DamagedError, StoreError: as :meth:`Rows.located` and :meth:`Rows.arriving`.
    """
    places = field.located(rows)
    offsets = np.concatenate([[0], np.cumsum(places["bytes"])]).astype(np.int64)
    out = np.empty(offsets[-1], np.uint8)
    for _ in field.arriving(rows, places, out.data, offsets[:-1], [len(rows)]) if len(rows) else ():
        pass
    return VariableRows(
        bytes=out,
        offsets=offsets,
        sizes=np.stack([places["height"], places["width"]], 1),
        encodings=np.ascontiguousarray(places["encoding"]),
        channels=field.spec.channels,
    )


def pixels_of(field: Rows, row: int) -> Pixels:
    """Reads and decodes a row of variable size: uint8 [*channels, H, W], contiguous.

    Raises:
        DamagedError, StoreError: as :func:`read_rows`, and if its bytes are not a JPEG of its size.
    """
    stored = read_rows(field, np.array([row]))
    try:
        pixels = np.ascontiguousarray(stored.pixels(0))
    except DamagedError as error:
        raise field.damaged(row, str(error)) from error
    return pixels if len(field.spec.shape) == 3 else pixels[0]
