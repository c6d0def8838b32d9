"""Rows of a field of a split: where each lies in the files of the shards, and how these are read.

A fixed-size row begins at its number times its bytes, a variable-size row or a list where its shard's offsets say.
Files are opened at their first use. Rows are read here if they cannot be mapped (:mod:`mmload.store.row_reader`), or if
only a few are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.lazy import lazy_property
from mmload.runtime.host_memory import sections_of, zeros
from mmload.store.dataset_folder import Folder, OpenedFile
from mmload.store.manifest import (
    BYTES,
    ENCODINGS,
    OFFSETS,
    ORDER_DTYPE,
    ORDER_NAME,
    SIZES,
    SplitRecord,
    file_name,
    parts_of,
)
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import ROW, MappedRows, Places, bytes_of, row_map
from mmload.store.row_sources import Samples
from mmload.store.variable_rows import RAW, Index, encoding_of, fault_of

_MOST_BYTES = 8 * 2**20  # of rows that one call reads


class FieldRows:
    """Rows of one field of a split. Thread-safe.

    Attributes:
        files: files of the split.
        name: name of the field.
        file: name of the files with the rows.
        shards: number of shards, each of which has one file of rows.
    """

    def __init__(self, files: LocalFiles, name: str) -> None:
        self.files, self.name, self.spec = files, name, files.record.fields[name]
        self.file = file_name(name, self.spec)
        shards = files.record.shards
        self.shards = len(shards)
        self._first_rows = np.cumsum([0, *(shard.rows for shard in shards)])
        self._first_bytes = np.cumsum([0, *(shard.files[self.file].bytes for shard in shards)])

    def __len__(self) -> int:
        return self.files.record.rows

    def opened(self) -> list[OpenedFile]:
        """Returns the open files of the rows."""
        return [self.files.opened(self.file, shard) for shard in range(self.shards)]

    def mapped(self, ranks: int = 1) -> MappedRows | None:
        return row_map(self.opened, self.spec, ranks)

    def located(self, rows: Numbers) -> Places:
        spec, rows = self.spec, self.files.shard_rows(rows)
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

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        ranges = self._ranges(places, out, starts) if len(places) else []
        for file, offset, part in ranges if len(ranges) > 1 else ():
            file.prefetch(offset, len(part))
        for file, offset, part in ranges:
            file.fill(part, offset)
        for file in {file for file, _, _ in ranges}:
            file.check()

    def _ranges(self, places: Places, out: memoryview, starts: Numbers) -> list[tuple[OpenedFile, int, memoryview]]:
        """Returns the ranges of files to read, and where to: rows that follow each other in a file and in memory."""
        file, offset, size = places["file"], places["offset"], places["bytes"]
        breaks = (np.diff(file) != 0) | (offset[1:] != offset[:-1] + size[:-1])
        breaks |= (starts[1:] != starts[:-1] + size[:-1]) | (np.diff(starts // _MOST_BYTES) != 0)
        heads = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        lasts = np.append(heads[1:], len(places)) - 1
        lists = file[heads], offset[heads], starts[heads], starts[lasts] + size[lasts]
        return [
            (self.files.opened(self.file, number), at, out[start:end])  # of lists, not arrays: 5 us less a row
            for number, at, start, end in zip(*(values.tolist() for values in lists), strict=True)
        ]

    def damaged(self, row: int, reason: str) -> DamagedError:
        files = self.files
        try:
            sample = repr(Samples(files.folder, files.split, files.record).source(row).id)
        except MmloadError:
            sample = "an unknown sample (its list is damaged)"
        where = f"row {row} of split {files.split!r} of {files.folder.title}, made from {sample}"
        return DamagedError(f"{self.name} of {where}, is damaged: {reason}; {files.folder.remedy}")

    @lazy_property
    def index(self) -> Index:
        """Places of all variable-size rows of the shards: read and checked at the first use.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the file.
            StoreError: if a file cannot be opened or read, or was written to.
        """
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
                raise self.files.opened(f"{self.name}.{OFFSETS}", shard).damaged(f"row {fault[0]}: {fault[1]}")
            offsets[first : stop + 1] = parts[OFFSETS] + before
        return Index(offsets=offsets, sizes=sizes, encodings=encodings)

    def _read_part(self, part: str, shard: int) -> npt.NDArray[Any]:
        """Reads a shard's offsets, sizes or encodings."""
        file, rows = parts_of(self.spec)[part], self.files.record.shards[shard].rows
        out = np.empty((rows + file.more, *file.spec.shape), file.spec.dtype)
        self.files.opened(f"{self.name}.{part}", shard).fill_checked(bytes_of(out))
        return out


class LocalFiles:
    """Files of a split in a folder. Thread-safe, picklable, and safe to use after a fork."""

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self.folder, self.split, self.record = folder, split, record
        self._opened_files: dict[tuple[int, str], OpenedFile] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.split, self.record)  # files are opened again, lazily

    def field(self, name: str) -> FieldRows:
        """Returns the rows of a field."""
        return FieldRows(self, name)

    @lazy_property
    def order(self) -> Numbers | None:
        """For each row its number over all shards, int64 [rows]; None: the same number. Read at the first use.

        Raises:
            DamagedError: if it is not the list that the manifest names.
            StoreError: if it cannot be read.
        """
        if self.record.order is None:
            return None
        name = f"{self.split}/{self.record.list_name(ORDER_NAME)}"
        file = OpenedFile(self.folder, name, self.record.order.rows)
        order = np.empty(self.record.rows, ORDER_DTYPE)
        file.fill_checked(bytes_of(order))
        if len(order) and not 0 <= order.min() <= order.max() < self.record.rows_of_shards.sum():
            raise file.damaged("it has rows that no shard has")
        return order.astype(np.int64, copy=False)

    def shard_rows(self, rows: Numbers) -> Numbers:
        """Returns the number over all shards of each row, int64 [B]."""
        order = self.order
        return rows if order is None else order[rows]

    def opened(self, name: str, shard: int) -> OpenedFile:
        """Returns an open file of a shard, by its name without ``.memmap``.

        Lock-free, as a fork could leave a lock held.
        """
        key = (shard, name)
        opened = self._opened_files.get(key)
        if opened is None:
            path, record = f"{self.record.shard_folder(self.split, shard)}/{name}.memmap", self.record.shards[shard]
            opened = self._opened_files.setdefault(key, OpenedFile(self.folder, path, record.files[name]))
        return opened

    def check(self) -> None:
        """Checks that all that was read of open files so far belongs to the dataset; raises what a file does."""
        for file in list(self._opened_files.values()):
            file.check()
