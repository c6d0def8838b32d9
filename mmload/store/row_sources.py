"""Maps rows to the samples that they were made from, and back: ``samples.jsonl``."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import UsageError, counted
from mmload.lazy import lazy_property
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, OpenedFile
from mmload.store.manifest import SAMPLES_NAME, SplitRecord
from mmload.store.row_numbers import Numbers, row_blocks

_CHUNK_BYTES = 16 * 2**20


class RowSource(NamedTuple):
    """Sample that a row is made of: its id, usually a path below the root, and (height, width) before any transform."""

    id: str
    size: tuple[int, int] | None


class Samples:
    """Lines of a split's ``samples.jsonl``. Thread-safe; picklable, without what it has read.

    The first use reads the file once and verifies its checksum; after that a row takes one short read. It caches 8
    bytes per row, and 16 more after the first lookup by id.
    """

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self._folder, self._split, self._record = folder, split, record

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._folder, self._split, self._record)

    def source(self, row: int) -> RowSource:
        """Returns the sample that a row was made from; the row is in [0, rows).

        Raises:
            DamagedError: if the file is not what the manifest says.
            StoreError: if it cannot be read.
        """
        return self.sources(np.array([row]))[0]

    def sources(self, rows: Numbers) -> list[RowSource]:
        """Returns the samples that rows were made from, in their order; neighboring rows take one read.

        Raises:
            DamagedError, StoreError: as :meth:`source`.
        """
        begins = self._begins
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        found: list[RowSource] = []
        for run in np.split(rows, breaks) if len(rows) else ():
            found += self._parsed(self._bytes(int(begins[run[0]]), int(begins[run[-1] + 1])))
        return found

    def row_of(self, name: str) -> int:
        """Returns the row that was made from a sample.

        Raises:
            UsageError: if no row was made from it, or several were.
            DamagedError, StoreError: as :meth:`source`.
        """
        found = self.rows_of(name)
        if len(found) == 1:
            return found[0]
        what = f"split {self._split!r} of {self._folder.path}"
        if found:
            raise UsageError(
                f"{name!r} is in {counted(len(found), 'row')} of {what}: {', '.join(map(str, found[:5]))}; "
                "give a row number"
            )
        raise UsageError(f"no row of {what} was made from {name!r}; give an id that is in {self._file.path}")

    def rows_of(self, name: str) -> list[int]:
        """Returns all rows that were made from a sample, in ascending order.

        Raises:
            DamagedError, StoreError: as :meth:`source`.
        """
        hashes, rows = self._by_hash
        first, last = (np.searchsorted(hashes, hash(name), side) for side in ("left", "right"))
        return sorted(row for row in rows[first:last].tolist() if self.source(row).id == name)

    @lazy_property
    def _file(self) -> OpenedFile:
        name = f"{self._split}/{self._record.list_name(SAMPLES_NAME)}"
        return OpenedFile(self._folder, name, self._record.samples)

    @lazy_property
    def _begins(self) -> Numbers:
        """Byte at which each row's line begins, and the end of the last; the file has the manifest's checksum."""
        begins, checksum, size = [np.zeros(1, np.int64)], 0, self._record.samples.bytes
        for first in range(0, size, _CHUNK_BYTES):
            chunk = self._bytes(first, min(first + _CHUNK_BYTES, size))
            checksum = crc32(chunk, checksum)
            begins.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + first + 1)
        found = np.concatenate(begins)
        is_longer = os.fstat(self._file.handle).st_size > size
        if is_longer or f"{checksum:08x}" != self._record.samples.crc32 or len(found) != self._record.rows + 1:
            raise self._file.damaged("it is not the file that the manifest names")
        return found

    @lazy_property
    def _by_hash(self) -> tuple[Numbers, Numbers]:
        """Hashes of the ids in ascending order, and the row of each."""
        hashes = np.empty(self._record.rows, np.int64)
        for rows in row_blocks(len(hashes)):
            hashes[rows] = [hash(source.id) for source in self.sources(rows)]
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def _bytes(self, start: int, stop: int) -> bytearray:
        """Reads a range of the file."""
        out = bytearray(stop - start)
        self._file.fill(memoryview(out), start)
        self._file.check()
        return out

    def _parsed(self, lines: bytearray) -> list[RowSource]:
        try:
            items = json.loads(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]")
            return [RowSource(item["id"], tuple(item["size"]) if item["size"] else None) for item in items]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._file.damaged(f"a line of it is no sample ({error})") from error
