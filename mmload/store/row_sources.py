"""Maps rows to the samples that they were made from, and back: ``samples.jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, UsageError, counted
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, OpenedFile
from mmload.store.manifest import SAMPLES_NAME, SplitRecord

_CHUNK_BYTES, _LINES_AT_ONCE = 16 * 2**20, 2**16


class RowSource(NamedTuple):
    """Sample that a row is made of: its id, usually a path below the root, and (height, width) before any transform."""

    id: str
    size: tuple[int, int] | None


class Samples:
    """Lines of a split's ``samples.jsonl``. Thread-safe; picklable, without its caches.

    The first use reads the file once and verifies its checksum; after that a row takes one short read. It caches 8
    bytes per row, and 16 more after the first lookup by id.
    """

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self._folder, self._split, self._record = folder, split, record
        self._file = f"{split}/{record.list_name(SAMPLES_NAME)}"
        self._opened_file: OpenedFile | None = None
        self._index: NDArray[np.int64] | None = None
        self._ids: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "split": self._split, "record": self._record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the file is opened again, lazily

    def source(self, row: int) -> RowSource:
        """Returns the sample that a row was made from; the row is in [0, rows).

        Raises:
            DamagedError: if the file is not what the manifest says.
            StoreError: if it cannot be read.
        """
        return self.sources(np.array([row]))[0]

    def sources(self, rows: NDArray[np.int64]) -> list[RowSource]:
        """Returns the samples that rows were made from, in their order; neighboring rows take one read.

        Raises:
            DamagedError, StoreError: as :meth:`source`.
        """
        ends = self._ends()
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        found: list[RowSource] = []
        for run in np.split(rows, breaks) if len(rows) else ():
            start = int(ends[run[0] - 1]) if run[0] else 0
            found += self._parsed(self._bytes(start, int(ends[run[-1]]) - start))
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
        raise UsageError(
            f"no row of {what} was made from {name!r}; give an id that is in {self._folder.name(self._file)}"
        )

    def rows_of(self, name: str) -> list[int]:
        """Returns all rows that were made from a sample, in ascending order.

        Raises:
            DamagedError, StoreError: as :meth:`source`.
        """
        hashes, rows = self._by_hash()
        key = hash(name)
        first, last = np.searchsorted(hashes, key, "left"), np.searchsorted(hashes, key, "right")
        return sorted(row for row in map(int, rows[first:last]) if self.source(row).id == name)

    def _ends(self) -> NDArray[np.int64]:
        """Returns the offset at which each row's line ends; the first call reads the file and verifies its checksum."""
        if self._index is None:
            ends, checksum, offset = [], 0, 0
            for chunk in self._chunks():
                checksum = crc32(chunk, checksum)
                ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + offset + 1)
                offset += len(chunk)
            index = np.concatenate([np.empty(0, np.int64), *ends])
            record = self._record
            size = os.fstat(self._opened().handle).st_size
            if size != record.samples.bytes or f"{checksum:08x}" != record.samples.crc32 or len(index) != record.rows:
                raise self._damaged("it is not the file that the manifest names")
            self._index = index
        return self._index

    def _by_hash(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the hashes of the ids in ascending order, and the row of each."""
        if self._ids is None:
            hashes = np.empty(self._record.rows, np.int64)
            for first in range(0, len(hashes), _LINES_AT_ONCE):
                rows = np.arange(first, min(first + _LINES_AT_ONCE, len(hashes)))
                hashes[rows] = [hash(source.id) for source in self.sources(rows)]
            order = np.argsort(hashes, kind="stable")
            self._ids = hashes[order], order
        return self._ids

    def _chunks(self) -> Iterator[bytes]:
        offset = 0
        while offset < self._record.samples.bytes:
            chunk = self._bytes(offset, min(_CHUNK_BYTES, self._record.samples.bytes - offset))
            yield chunk
            offset += len(chunk)

    def _opened(self) -> OpenedFile:
        """Returns the file, opened at its first use."""
        if self._opened_file is None:
            self._opened_file = OpenedFile(self._folder, self._file, self._record.samples)
        return self._opened_file

    def _bytes(self, start: int, count: int) -> bytes:
        """Reads ``count`` bytes of the file."""
        opened, out = self._opened(), bytearray(count)
        try:
            opened.fill(memoryview(out), start)
        except DamagedError as error:
            raise self._damaged("it was truncated") from error
        opened.check()
        return bytes(out)

    def _parsed(self, lines: bytes) -> list[RowSource]:
        try:
            items = json.loads(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]")
            return [RowSource(item["id"], tuple(item["size"]) if item["size"] else None) for item in items]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(f"a line of it is no sample ({error})") from error

    def _damaged(self, why: str) -> DamagedError:
        path = self._folder.name(self._file)
        return DamagedError(f"{path} is damaged: {why}; run: mmload verify {self._folder.path}")
