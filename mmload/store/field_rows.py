"""Rows of a field of a split: where each lies in the files of the shards, and how these are read.

A fixed-size row begins at its number times its bytes, a variable-size row or a list where its shard's offsets say.
Files are opened at their first use. Rows are read here if they cannot be mapped (:mod:`mmload.store.row_reader`), or if
only a few are needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.records import FieldSpec
from mmload.runtime.host_memory import sections_of, zeros
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, OpenedFile
from mmload.store.manifest import (
    BYTES,
    ENCODINGS,
    OFFSETS,
    ORDER_DTYPE,
    ORDER_NAME,
    SIZES,
    FileRecord,
    SplitRecord,
    file_name,
    files_of,
    parts_of,
)
from mmload.store.row_reader import ROW, Numbers, Places, bytes_of, read_rows
from mmload.store.row_sources import Samples
from mmload.store.variable_rows import RAW, Bytes, Index, encoding_of, fault_of

_MOST_BYTES = 8 * 2**20  # of rows that one call reads


class FieldRows:
    """Rows of one field of a split, or of one of the files of such a field (``images.sizes``). Thread-safe.

    Attributes:
        split_files: files of the split.
        name: name of the field.
        file: name of the files with the rows.
        shards: number of shards, each of which has one file of rows.
    """

    def __init__(self, files: LocalFiles, name: str, spec: FieldSpec) -> None:
        self.split_files, self.name, self.spec = files, name, spec
        self.file = file_name(name, spec)
        shards = files.record.shards
        self.shards = len(shards)
        self._first_rows = np.cumsum([0, *(shard.rows for shard in shards)])
        self._first_bytes = np.cumsum([0, *(shard.files[self.file].bytes for shard in shards)])

    def __len__(self) -> int:
        return self.split_files.record.rows

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Height and width of each variable-size row, int32 [rows, 2]; raises what :attr:`index` does."""
        order = self.split_files.order
        return self.index.sizes if order is None else self.index.sizes[order]

    @property
    def index(self) -> Index:
        """Places of all variable-size rows of the shards: read and checked at the first use.

        Raises:
            TypeError: if rows have a fixed size.
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the row and its sample, or the file.
            StoreError: if a file cannot be opened or read, or was written to.
        """
        return self.split_files.index(self.name)

    def offsets(self) -> Numbers:
        if self.split_files.order is None:
            return self.index.offsets
        return np.concatenate([[0], np.cumsum(self.located(np.arange(len(self)))["bytes"])])

    def files(self) -> list[OpenedFile] | None:
        if not self.split_files.is_local and not self.spec.is_list:
            return None
        return [self.split_files.opened(self.file, shard) for shard in range(self.shards)]

    def located(self, rows: Numbers) -> Places:
        return self._located(self.split_files.shard_rows(rows))

    def _located(self, rows: Numbers) -> Places:
        """Returns where rows of the shards lie."""
        spec = self.spec
        if spec.encoding is None:
            size, (height, width) = spec.row_bytes, spec.shape[-2:] if len(spec.shape) > 1 else (0, 0)
            places, begins = np.array([(0, 0, size, height, width, RAW)], ROW).repeat(len(rows)), rows * size
        else:
            index, places = self.index, zeros(len(rows), ROW)
            begins = index.offsets[rows]
            places["bytes"] = index.offsets[rows + 1] - begins
            places["height"], places["width"] = index.sizes[:, 0][rows], index.sizes[:, 1][rows]
            places["encoding"] = index.encodings[rows]
        shards = sections_of(rows, self._first_rows[:-1]) if self.shards > 1 else zeros(len(rows), np.int64)
        places["file"] = shards
        places["offset"] = begins - self._first_bytes[shards]
        return places

    def fill(self, rows: Numbers, places: Places, out: memoryview, starts: Numbers) -> None:
        self.split_files.fill(self, rows, places, out, starts)

    def encoded(self, row: int) -> Bytes:
        """Reads a row as it is stored, uint8 [n].

        Raises:
            DamagedError, StoreError: as :func:`read_rows`.
        """
        return read_rows(self, np.array([row])).bytes

    def damaged(self, row: int, reason: str) -> DamagedError:
        files = self.split_files
        try:
            sample = repr(Samples(files.folder, files.split, files.record).source(row).id)
        except MmloadError:
            sample = "an unknown sample (its list is damaged)"
        where = f"row {row} of split {files.split!r} of {files.folder.title}, made from {sample}"
        return DamagedError(f"{self.name} of {where}, is damaged: {reason}; {files.folder.remedy}")

    def read_index(self) -> Index:
        """Reads and checks what :attr:`index` caches."""
        if self.spec.encoding is None:
            raise TypeError(f"rows of {self.name} have a fixed size")
        rows, encoding = int(self._first_rows[-1]), encoding_of(self.spec)
        offsets, is_list = np.zeros(rows + 1, np.int64), self.spec.is_list
        sizes = np.broadcast_to(np.int32(0), (rows, 2)) if is_list else np.empty((rows, 2), np.int32)
        encodings = np.empty(rows, np.uint8) if encoding is None else np.broadcast_to(np.uint8(encoding), rows)
        for shard, (first, stop) in enumerate(zip(self._first_rows[:-1], self._first_rows[1:], strict=True)):
            parts = {part: self._read_part(part, shard) for part in parts_of(self.spec) if part != BYTES}
            before, after = self._first_bytes[shard : shard + 2].tolist()
            if not is_list:
                sizes[first:stop] = parts[SIZES]
            if encoding is None:
                encodings[first:stop] = parts[ENCODINGS]
            fault = fault_of(parts[OFFSETS], sizes[first:stop], encodings[first:stop], self.spec, after - before)
            if fault is not None:
                raise self._damaged_in_shard(shard, *fault)
            offsets[first : stop + 1] = parts[OFFSETS] + before
        return Index(offsets=offsets, sizes=sizes, encodings=encodings)

    def _read_part(self, part: str, shard: int) -> npt.NDArray[Any]:
        """Reads a shard's offsets, sizes or encodings, and compares their checksum with the manifest."""
        file, record = parts_of(self.spec)[part], self.split_files.record.shards[shard]
        out = np.empty((record.rows + file.more, *file.spec.shape), file.spec.dtype)
        opened, content = self.split_files.opened(f"{self.name}.{part}", shard), bytes_of(out)
        opened.fill(content, 0)
        opened.check()
        if f"{crc32(content):08x}" != record.files[f"{self.name}.{part}"].crc32:
            raise self._damaged_file(shard, part, "checksum mismatch, so sizes or places of rows have changed")
        return out

    def _damaged_in_shard(self, shard: int, row: int, reason: str) -> DamagedError:
        """Returns the error of a row of a shard; of the file, if a version has removed the row."""
        stored, order = int(self._first_rows[shard]) + row, self.split_files.order
        rows = np.array([stored]) if order is None else np.flatnonzero(order == stored)
        return self.damaged(int(rows[0]), reason) if len(rows) else self._damaged_file(shard, OFFSETS, reason)

    def _damaged_file(self, shard: int, part: str, reason: str) -> DamagedError:
        path = self.split_files.opened(f"{self.name}.{part}", shard).path
        return DamagedError(f"{path} is damaged: {reason}; {self.split_files.folder.remedy}")


class _Range(NamedTuple):
    """Range of a file that fills ``out`` from ``offset`` on, with the rows from ``first`` on."""

    file: OpenedFile
    offset: int
    out: memoryview
    first: int
    rows: int


class LocalFiles:
    """Files of a split in a folder. Thread-safe, picklable, and safe to use after a fork.

    Attributes:
        is_local: whether the files stay where they are; else blocks come and go, and :meth:`fill` fetches them.
    """

    is_local = True

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self.folder, self.split, self.record = folder, split, record
        self._opened_files: dict[tuple[int, str], OpenedFile] = {}
        self._order: Numbers | None = None
        self._indexes: dict[str, Index] = {}  # not the fields: these refer to the files, which close with the last user

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "split": self.split, "record": self.record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # files are opened again, lazily

    def field(self, name: str) -> FieldRows:
        """Returns the rows of a field; or of one of its files, such as ``images.sizes``, which has a row for each."""
        return FieldRows(self, name, self.record.fields.get(name) or files_of(self.record.fields)[name].spec)

    @property
    def order(self) -> Numbers | None:
        """For each row its number over all shards, int64 [rows]; None: the same number. Read at the first use.

        Raises:
            DamagedError: if it is not the list that the manifest names.
            StoreError: if it cannot be read.
        """
        if self._order is None and self.record.order is not None:
            self._order = self._read_order(self.record.order.rows)
        return self._order

    def shard_rows(self, rows: Numbers) -> Numbers:
        """Returns the number over all shards of each row, int64 [B]."""
        order = self.order
        return rows if order is None else order[rows]

    def _read_order(self, record: FileRecord) -> Numbers:
        name = f"{self.split}/{self.record.list_name(ORDER_NAME)}"
        file = OpenedFile(self.folder, name, record)
        order = np.empty(self.record.rows, ORDER_DTYPE)
        file.fill(memoryview(order.view(np.uint8).data), 0)
        file.check()
        is_listed = f"{crc32(order.view(np.uint8).data):08x}" == record.crc32
        if not is_listed or (len(order) and not 0 <= order.min() <= order.max() < self.record.rows_of_shards.sum()):
            raise DamagedError(f"{file.path} is damaged: it is not what the manifest names; {self.folder.remedy}")
        return order.astype(np.int64, copy=False)

    def index(self, name: str) -> Index:
        """Returns the places of the variable-size rows of a field; raises what :attr:`FieldRows.index` does."""
        found = self._indexes.get(name)
        return found or self._indexes.setdefault(name, self.field(name).read_index())

    def opened(self, name: str, shard: int) -> OpenedFile:
        """Returns an open file of a shard, by its name without ``.memmap``.

        Lock-free, as a fork could leave a lock held.
        """
        key = (shard, name)
        opened = self._opened_files.get(key)
        if opened is None:
            record = self.record.shards[shard].files[name]
            opened = self._opened_files.setdefault(key, OpenedFile(self.folder, self._path(name, shard), record))
        return opened

    def check(self) -> None:
        """Checks that all that was read of open files so far belongs to the dataset; raises what a file does."""
        for file in list(self._opened_files.values()):
            file.check()

    def fill(self, field: FieldRows, rows: Numbers, places: Places, out: memoryview, starts: Numbers) -> None:
        """Reads rows of a field, as :meth:`Rows.fill`; one system call reads neighbors."""
        ranges = self._ranges(field, places, out, starts)
        for each in ranges if len(ranges) > 1 else ():
            each.file.prefetch(each.offset, len(each.out))
        for each in ranges:
            try:
                each.file.fill(each.out, each.offset)
            except DamagedError:
                _raise_first(field, each, rows, places)
                raise
        for file in {each.file for each in ranges}:
            file.check()

    def _ranges(self, field: FieldRows, places: Places, out: memoryview, starts: Numbers) -> list[_Range]:
        """Returns the ranges to read: rows that follow each other in a file and in memory."""
        if not len(places):
            return []
        file, offset, size = places["file"], places["offset"], places["bytes"]
        breaks = (np.diff(file) != 0) | (offset[1:] != offset[:-1] + size[:-1])
        breaks |= (starts[1:] != starts[:-1] + size[:-1]) | (np.diff(starts // _MOST_BYTES) != 0)
        heads = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        stops = np.append(heads[1:], len(places))
        files = {number: self.opened(field.file, number) for number in np.unique(file).tolist()}
        lists = file[heads], offset[heads], starts[heads], starts[stops - 1] + size[stops - 1], heads, stops - heads
        return [
            _Range(files[number], at, out[start:end], first, rows)  # iterating over lists, not arrays: 5 us less a row
            for number, at, start, end, first, rows in zip(*(values.tolist() for values in lists), strict=True)
        ]

    def _path(self, name: str, shard: int) -> str:
        return f"{self.record.shard_folder(self.split, shard)}/{name}.memmap"


def _raise_first(field: FieldRows, each: _Range, rows: Numbers, places: Places) -> None:
    """Raises the error of the first row of a range that cannot be read, if it still cannot."""
    for index in range(each.first, each.first + each.rows):
        offset, size = int(places["offset"][index]), int(places["bytes"][index])
        try:
            each.file.fill(memoryview(bytearray(size)), offset)
        except DamagedError as error:
            raise field.damaged(int(rows[index]), str(error)) from error
