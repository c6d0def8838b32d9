"""File that is copied from object storage in parts, and continues where an earlier copy was interrupted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from mmload.errors import DamagedError
from mmload.remote.object_store import PART_BYTES, Objects
from mmload.runtime.durable_files import begin_sync, remove, write_atomically
from mmload.runtime.regular_files import open_regular, read_at, write_at
from mmload.store.checksum import crc32, joined_crc32
from mmload.store.dataset_folder import DatasetFile

_TRIES = 2  # for a file with a checksum mismatch: parts of an earlier pull may be the cause
_ARRIVED = 1 << 32


class ArrivingFile:
    """File that arrives in parts, with a table of a checksum and a flag per part.

    The file is opened with its first part and closed with its last, so few are open at once.
    """

    def __init__(self, objects: Objects, folder: Path, file: DatasetFile) -> None:
        self._objects, self._file, self._path = objects, file, folder / file.name
        self._partial = self._path.with_name(f"{self._path.name}.partial")
        self._table = self._path.with_name(f"{self._path.name}.parts")
        self.count = max(1, -(-file.record.bytes // PART_BYTES))
        self._lock = threading.Lock()
        self._remaining = self.count
        self._handles: tuple[int, int] | None = None
        self._parts = np.zeros(self.count, np.uint64)
        self._resumed = False

    def fetch(self, index: int) -> int:
        """Fetches one part and completes the file with the last one; returns the bytes of the part."""
        if self._file.content is not None:
            write_atomically(self._path, self._file.content)
            return self._file.record.bytes
        file, table = self._opened()
        if not self._parts[index]:
            self._read(index, file, table)
        with self._lock:
            self._remaining -= 1
            last = self._remaining == 0
        if last:
            self._finish(file, table)
        return self._length(index)

    def _opened(self) -> tuple[int, int]:
        """Returns the descriptors of the file and the table."""
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
        self._parts[index] = _ARRIVED | crc32(data)
        write_at(table, self._parts[index : index + 1].view(np.uint8).data, index * 8)

    def _finish(self, file: int, table: int) -> None:
        """Checks the file and renames it; fetches it again if parts of an earlier pull spoil its checksum."""
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
        """Returns the checksum of the file; bytes of an earlier pull are read again for it."""
        lengths = map(self._length, range(self.count))
        if not self._resumed:
            known = (int(part) & (_ARRIVED - 1) for part in self._parts)
        else:
            known = (crc32(self._stored(file, index)) for index in range(self.count))
        return f"{joined_crc32(zip(known, lengths, strict=True)):08x}"

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
