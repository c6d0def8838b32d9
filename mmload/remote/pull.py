"""Copies a dataset from object storage: in parallel, checked against the manifest, only what is missing here.

It works in ``.DIR.pulling`` beside the destination, and renames that when all of it is there and durable. A file
arrives in parts; what is written beside it tells which, so an interrupted pull goes on with the next part.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmload.cloud.client import PARALLEL, PART_BYTES, Objects
from mmload.cloud.parallel import check_parallel, in_parallel
from mmload.cloud.urls import refuse_url
from mmload.errors import DamagedError, MmloadError, UsageError
from mmload.remote.push import Copied, Progress
from mmload.remote.remote_manifest import manifest_text
from mmload.runtime.durable_files import (
    begin_sync,
    lock,
    open_lock,
    remove,
    sync_everything,
    sync_folder,
    write_atomically,
)
from mmload.runtime.positioned_reads import read_at, write_at
from mmload.runtime.regular_files import open_regular
from mmload.store.checksum import crc32
from mmload.store.dataset_files import DatasetFile, dataset_files
from mmload.store.joined_checksums import joined_checksum
from mmload.store.manifest import FILE_NAME, loads, read

_LOCK, _CONTENTS, _DATASET = "lock", "contents", "dataset"
_TRIES = 2  # of a file that arrives with another checksum: what was left of an earlier pull may be the fault
_THERE = 1 << 32


def pull(url: str, out: str | Path, *, parallel: int = PARALLEL, progress: Progress | None = None) -> Copied:
    """Copy a dataset from object storage. Run again after an interruption, it copies only what is missing.

    Args:
        url: of a dataset that was pushed.
        out: the folder to make; or this dataset, from which files are missing.
        parallel: requests at once.
        progress: called with (bytes done, bytes in all).

    Raises:
        UsageError: if something else is at ``out``.
        StoreError: if there is no dataset at the URL.
        DamagedError: if an object does not have the checksum of the manifest.
        RemoteError: if the store cannot be read.
        MmloadError: if the folder cannot be written, or another pull is writing it.
    """
    refuse_url(out, "pull copies a dataset to here")
    check_parallel(parallel)
    objects, place = Objects(url), Path(out).absolute()
    text = manifest_text(objects)
    manifest = loads(text, objects.url_of(FILE_NAME))
    files = list(dataset_files(manifest))
    try:
        if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
            _check_same(place, manifest.contents)
            return _Pull(objects, place, parallel, progress).run(files)
        with _staging(place, manifest.contents) as work:
            copied = _Pull(objects, work, parallel, progress).run(files)
            write_atomically(work / FILE_NAME, text)
            sync_everything()  # a rename may reach the disk before what was written earlier
            if place.exists():
                place.rmdir()  # it is empty
            work.rename(place)
            sync_folder(place.parent)
        return copied
    except OSError as error:
        name = error.filename2 or error.filename or place
        raise MmloadError(
            f"cannot write {name} ({error.strerror or error}); what has arrived is kept: run the same again"
        ) from error


class _Pull:
    """One copy into a folder."""

    def __init__(self, objects: Objects, folder: Path, parallel: int, progress: Progress | None) -> None:
        self._objects, self._folder = objects, folder
        self._parallel, self._progress = parallel, progress

    def run(self, files: list[DatasetFile]) -> Copied:
        """Copy the files that are missing."""
        missing = [file for file in files if not self._is_there(file)]
        total, wanted = (sum(file.record.bytes for file in some) for some in (files, missing))
        done = total - wanted
        for folder in {(self._folder / file.name).parent for file in missing}:
            folder.mkdir(parents=True, exist_ok=True)
        parts = (part for file in missing for part in self._parts(file))
        for arrived in in_parallel(lambda part: part[0].fetch(part[1]), parts, self._parallel):
            done += arrived
            if self._progress is not None:
                self._progress(done, total)
        return Copied(files=len(missing), bytes=wanted, present=len(files) - len(missing))

    def _is_there(self, file: DatasetFile) -> bool:
        try:
            return os.stat(self._folder / file.name).st_size == file.record.bytes
        except FileNotFoundError:
            return False

    def _parts(self, file: DatasetFile) -> Iterator[tuple[_Arriving, int]]:
        arriving = _Arriving(self._objects, self._folder, file)
        return ((arriving, index) for index in range(arriving.count))


class _Arriving:
    """A file that comes in parts, and a table of those that are there: a checksum each, and a bit that says so.

    The file is opened with its first part and closed with its last, so few are open at once.
    """

    def __init__(self, objects: Objects, folder: Path, file: DatasetFile) -> None:
        self._objects, self._file, self._path = objects, file, folder / file.name
        self._partial = self._path.with_name(f"{self._path.name}.partial")
        self._table = self._path.with_name(f"{self._path.name}.parts")
        self.count = max(1, -(-file.record.bytes // PART_BYTES))
        self._lock = threading.Lock()
        self._left = self.count
        self._handles: tuple[int, int] | None = None
        self._parts = np.zeros(self.count, np.uint64)
        self._resumed = False

    def fetch(self, index: int) -> int:
        """Have one part here, and with the last one the file; returns the part's bytes."""
        if self._file.content is not None:
            write_atomically(self._path, self._file.content)
            return self._file.record.bytes
        file, table = self._opened()
        if not self._parts[index]:
            self._read(index, file, table)
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._finish(file, table)
        return self._length(index)

    def _opened(self) -> tuple[int, int]:
        """Descriptors of the file and the table."""
        with self._lock:
            if self._handles is None:
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
                file, table = open_regular(self._partial, flags), open_regular(self._table, flags)
                self._handles = file, table
                if os.fstat(file).st_size == self._file.record.bytes:
                    read_at(table, self._parts.view(np.uint8).data, 0)
                    self._resumed = bool(self._parts.any())
                os.ftruncate(file, self._file.record.bytes)
            return self._handles

    def _read(self, index: int, file: int, table: int) -> None:
        start = index * PART_BYTES
        data = self._objects.get_range(self._file.name, start, self._length(index))
        write_at(file, data, start)
        begin_sync(file, start, len(data))
        self._parts[index] = _THERE | crc32(data)
        write_at(table, self._parts[index : index + 1].view(np.uint8).data, index * 8)

    def _finish(self, file: int, table: int) -> None:
        """Check the file, and give it its name; it is fetched once more if an earlier pull had left parts of it."""
        for attempt in range(_TRIES):
            got = self._checksum(file)
            if got == self._file.record.crc32:
                break
            if not self._resumed or attempt + 1 == _TRIES:
                remove(self._table)
                raise DamagedError(
                    f"{self._objects.url_of(self._file.name)} has the checksum {got}, the manifest says "
                    f"{self._file.record.crc32}: its bytes have changed; remove that object, and push the dataset again"
                )
            for index in range(self.count):
                self._read(index, file, table)
            self._resumed = False
        os.close(file)
        os.close(table)
        self._handles = None
        self._table.unlink()
        self._partial.replace(self._path)

    def _checksum(self, file: int) -> str:
        """That of what has arrived; of what an earlier pull has left, the bytes are read again."""
        lengths = map(self._length, range(self.count))
        if not self._resumed:
            known = (int(part) & (_THERE - 1) for part in self._parts)
        else:
            known = (crc32(self._stored(file, index)) for index in range(self.count))
        return f"{joined_checksum(zip(known, lengths, strict=True)):08x}"

    def _stored(self, file: int, index: int) -> memoryview:
        out = memoryview(bytearray(self._length(index)))
        got = 0
        while got < len(out) and (more := read_at(file, out[got:], index * PART_BYTES + got)):
            got += more
        return out[:got]

    def _length(self, index: int) -> int:
        return min(PART_BYTES, self._file.record.bytes - index * PART_BYTES)

    def __del__(self) -> None:
        for handle in self.__dict__.get("_handles") or ():
            os.close(handle)


def _check_same(place: Path, contents: str) -> None:
    """Refuse a folder that is not this dataset."""
    if not (place / FILE_NAME).is_file() or read(place).contents != contents:
        raise UsageError(f"{place} exists and is not this dataset; choose another place")


@contextmanager
def _staging(place: Path, contents: str) -> Iterator[Path]:
    """The folder to work in, locked, without what came of another dataset; removed once the dataset has left it."""
    work = place.with_name(f".{place.name}.pulling")
    work.mkdir(parents=True, exist_ok=True)
    if work.is_symlink() or any(entry.name not in (_LOCK, _CONTENTS, _DATASET) for entry in work.iterdir()):
        raise UsageError(f"{work} was not made by a pull; rename it, or remove it")
    with open_lock(work / _LOCK) as held:
        if not lock(held):
            raise MmloadError(f"another pull is writing {place}; wait for it to end")
        mark = work / _CONTENTS
        if not mark.is_file() or mark.read_text(encoding="ascii") != contents:
            remove(work / _DATASET)
            write_atomically(mark, contents)
        (work / _DATASET).mkdir(exist_ok=True)
        yield work / _DATASET
        remove(mark)
        remove(work / _LOCK)
        work.rmdir()
