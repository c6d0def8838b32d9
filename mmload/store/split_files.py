"""Files of a split's shards: opened at their first use, checked for changes, and read.

Files can be overwritten in place under a reader (``cp -r new/. old/``, ``rsync --inplace``): the same descriptor then
returns other bytes. Data is therefore valid only after a check that the file was not written to since the dataset was
opened: one ``fstat`` for each file of a batch.

Rows are read here if they cannot be mapped (:mod:`mmload.store.row_map`), or if only a few are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, StoreError
from mmload.records import FieldSpec
from mmload.runtime.regular_files import read_at
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, Revision, revision_of
from mmload.store.manifest import SplitRecord, shard_name
from mmload.store.shard_table import FileRecord
from mmload.store.variable_rows import Index

Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.void]

_CHUNK_BYTES = 2**20
_MOST_BYTES = 8 * 2**20  # of rows that one call reads


class HeldFile:
    """Open file of a dataset. Thread-safe.

    Args:
        folder: of the dataset.
        file: path inside it.
        record: the file's manifest entry.
        expected: its revision when the dataset was opened; None: its current one.

    Attributes:
        handle: the descriptor, closed with this object.
        path: absolute, for messages.

    Raises:
        StoreError: if it cannot be opened, or has other content than when the dataset was opened.
        DamagedError: if it was truncated.
    """

    def __init__(self, folder: Folder, file: str, record: FileRecord, expected: Revision | None) -> None:
        self.handle = folder.open(file)
        self.path = folder.name(file)
        self._folder, self._record = folder, record
        self._revision = expected
        self.check()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        handle = self.__dict__.get("handle")
        if handle is not None:
            close(handle)

    def check(self) -> None:
        """Checks that everything read so far belongs to the dataset that was opened; call it after reading.

        A file that was replaced or touched is accepted if its bytes have the manifest's checksum, as after a repair.

        Raises:
            StoreError: if the file was written to.
            DamagedError: if it was truncated.
        """
        current = revision_of(os.fstat(self.handle))
        if current == self._revision:
            return
        self._folder.check()
        if current[1] < self._record.bytes:
            raise DamagedError(
                f"{self.path} is damaged: it ends at byte {current[1]}, the manifest says {self._record.bytes}: "
                "it was truncated; repair or rebuild the dataset"
            )
        if self._revision is not None and not self._is_intact():
            raise StoreError(
                f"{self.path} was written to or replaced while the dataset was open; open it again, "
                f"or run: mmload verify {self._folder.path}"
            )
        if revision_of(os.fstat(self.handle)) != current:
            raise StoreError(f"{self.path} is being written to; open the dataset again when that has ended")
        self._revision = current

    def fill(self, out: memoryview, offset: int, done: int = 0) -> None:
        """Reads bytes from ``offset`` on into ``out``, after its first ``done``; they are valid after :meth:`check`.

        Raises:
            StoreError: if the file cannot be read.
            DamagedError: if it ends before.
        """
        while done < len(out):
            try:
                got = read_at(self.handle, out[done:] if done else out, offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
            if got == 0:
                raise DamagedError(
                    f"{self.path} ends at byte {offset + done}, before its last row: "
                    "it was truncated; repair or rebuild the dataset"
                )
            done += got

    def _is_intact(self) -> bool:
        """Returns whether the file has the size and checksum of the manifest."""
        if os.fstat(self.handle).st_size != self._record.bytes:
            return False
        buffer, offset, checksum = memoryview(bytearray(_CHUNK_BYTES)), 0, 0
        try:
            while got := read_at(self.handle, buffer, offset):
                checksum = crc32(buffer[:got], checksum)
                offset += got
        except OSError as error:
            raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
        return f"{checksum:08x}" == self._record.crc32


def check_files(files: Iterable[HeldFile]) -> None:
    """Checks that what was read of files belongs to the dataset that was opened: one ``fstat`` each.

    Raises:
        DamagedError, StoreError: if a file was written to.
    """
    for file in set(files):
        file.check()


class Field(Protocol):
    """Rows of a field, as :class:`mmload.store.field_rows.FieldRows` describes them."""

    name: str
    file: str
    spec: FieldSpec

    @property
    def index(self) -> Index:
        """Places of all variable-size rows."""

    def damaged(self, row: int, reason: str) -> DamagedError:
        """Returns the error of a row."""


class _Range(NamedTuple):
    """Range of a file that fills ``out`` from ``offset`` on, with the rows from ``first`` on."""

    file: HeldFile
    offset: int
    out: memoryview
    first: int
    rows: int


class LocalFiles:
    """Files of a split in a folder. Thread-safe, picklable, and safe to use after a fork.

    Args:
        folder: of the dataset.
        split: name of the split.
        record: its manifest entry.

    Attributes:
        is_local: whether the files stay where they are; else blocks come and go, and :meth:`arriving` fetches them.
    """

    is_local = True

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self.folder, self.split, self.record = folder, split, record
        self._held: dict[tuple[int, str], HeldFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "split": self.split, "record": self.record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # files are opened again, lazily

    def revision(self, name: str, shard: int) -> Revision:
        """Returns the revision of a file that rows are read from."""
        recorded = self.folder.recorded_revision(self.split, name, shard)
        return revision_of(self.folder.stat(self._path(name, shard))) if recorded is None else recorded

    def held(self, name: str, shard: int) -> HeldFile:
        """Returns an open file of a shard, by its name without ``.memmap``.

        Lock-free, as a fork could leave a lock held.
        """
        key = (shard, name)
        held = self._held.get(key)
        if held is None:
            revision = self.folder.recorded_revision(self.split, name, shard)
            record = self.record.shards.file(shard, name)
            held = self._held.setdefault(key, HeldFile(self.folder, self._path(name, shard), record, revision))
        return held

    def arriving(
        self,
        field: Field,
        rows: Numbers,
        places: Places,
        out: memoryview,
        starts: Numbers,
        groups: Sequence[int],
    ) -> Iterator[None]:
        """Reads rows of a field, as :meth:`mmload.store.field_rows.Rows.arriving`; one system call reads neighbors.

        Batches read rows from maps where these are safe.
        """
        ranges = self._ranges(field, places, out, starts, groups)
        ends = np.searchsorted([each.first for each in ranges], groups).tolist()
        requested, done = False, 0
        for end in ends:
            for index in range(done, end):
                each = ranges[index]
                got = 0 if requested else _read_cached(each.file.handle, each.out, each.offset)
                if got < len(each.out) and not requested:
                    requested = True
                    _request_readahead(ranges[index:])
                try:
                    each.file.fill(each.out, each.offset, got)
                except DamagedError:
                    _raise_first(field, each, rows, places)
                    raise
            check_files(each.file for each in ranges[done:end])
            done = end
            yield

    def _ranges(
        self, field: Field, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> list[_Range]:
        """Returns the ranges to read: rows that follow each other in a file and in memory, of one group."""
        if not len(places):
            return []
        file, offset, size = places["file"], places["offset"], places["bytes"]
        breaks = (np.diff(file) != 0) | (offset[1:] != offset[:-1] + size[:-1])
        breaks |= (starts[1:] != starts[:-1] + size[:-1]) | (np.diff(starts // _MOST_BYTES) != 0)
        breaks[np.array(groups[:-1], np.int64) - 1] = True
        heads = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        stops = np.append(heads[1:], len(places))
        files = {number: self.held(field.file, number) for number in np.unique(file).tolist()}
        lists = file[heads], offset[heads], starts[heads], starts[stops - 1] + size[stops - 1], heads, stops - heads
        return [
            _Range(files[number], at, out[start:end], first, rows)  # iterating over lists, not arrays: 5 us less a row
            for number, at, start, end, first, rows in zip(*(values.tolist() for values in lists), strict=True)
        ]

    def _path(self, name: str, shard: int) -> str:
        return f"{self.split}/{shard_name(shard)}/{name}.memmap"


def _raise_first(field: Field, each: _Range, rows: Numbers, places: Places) -> None:
    """Raises the error of the first row of a range that cannot be read, if it still cannot."""
    for index in range(each.first, each.first + each.rows):
        offset, size = int(places["offset"][index]), int(places["bytes"][index])
        try:
            each.file.fill(memoryview(bytearray(size)), offset)
        except DamagedError as error:
            raise field.damaged(int(rows[index]), str(error)) from error


def _request_readahead(ranges: Sequence[_Range]) -> None:
    """Asks the system to read ahead; only a hint."""
    if not hasattr(os, "posix_fadvise"):
        return
    for each in ranges:
        with suppress(OSError):
            os.posix_fadvise(each.file.handle, each.offset, len(each.out), os.POSIX_FADV_WILLNEED)


def _read_cached(handle: int, out: memoryview, offset: int) -> int:
    """Reads what is in the page cache, without waiting for the disk; 0 where the system cannot do that."""
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        return os.preadv(handle, [out], offset, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: nothing is cached; the blocking read reports any other error
        return 0
