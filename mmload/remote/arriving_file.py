"""File that is copied from object storage in parts, and continues where an earlier copy was interrupted."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from struct import pack

import numpy as np

from mmload.errors import DamagedError
from mmload.remote.object_store import PART_BYTES, Objects
from mmload.runtime.durable_files import begin_sync, remove, write_atomically
from mmload.runtime.regular_files import open_regular, write_at
from mmload.store.checksum import file_crc32
from mmload.store.dataset_folder import DatasetFile

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class ArrivingFile:
    """File that arrives in parts. A list beside it has the numbers of those that are there, little-endian uint32."""

    def __init__(self, objects: Objects, folder: Path, file: DatasetFile) -> None:
        self._objects, self._file, self._path = objects, file, folder / file.name
        self._partial = self._path.with_name(f"{self._path.name}.partial")
        self._list = self._path.with_name(f"{self._path.name}.parts")
        self.count = max(1, -(-file.record.bytes // PART_BYTES))
        self._lock = threading.Lock()
        self._remaining = self.count
        self._arrived: set[int] = set()
        if self._partial.exists() and self._list.exists():
            self._arrived.update(np.fromfile(self._list, "<u4").tolist())

    def fetch(self, index: int) -> int:
        """Fetches one part and completes the file with the last one; returns the bytes of the part."""
        if self._file.content is not None:
            write_atomically(self._path, self._file.content)
            return self._file.record.bytes
        if index not in self._arrived:
            self._read(index)
        with self._lock:
            self._remaining -= 1
            is_last = self._remaining == 0
        if is_last:
            self._finish()
        return self._length(index)

    def _read(self, index: int) -> None:
        start, length = index * PART_BYTES, self._length(index)
        data = self._objects.get_range(self._file.name, start, length)
        with open(open_regular(self._partial, os.O_WRONLY | os.O_CREAT | _NO_LINK), "wb", buffering=0) as file:
            write_at(file.fileno(), data, start)
            begin_sync(file.fileno(), start, length)
        with open(open_regular(self._list, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK), "ab") as parts:
            parts.write(pack("<I", index))

    def _finish(self) -> None:
        """Checks the file and renames it; fetches it again if parts of an earlier pull spoil its checksum."""
        got = file_crc32(self._partial)
        if got != self._file.record.crc32 and self._arrived:
            remove(self._partial)
            for index in range(self.count):
                self._read(index)
            got = file_crc32(self._partial)
        remove(self._list)
        if got != self._file.record.crc32:
            raise DamagedError(
                f"{self._objects.url_of(self._file.name)} has the checksum {got}, the manifest says "
                f"{self._file.record.crc32}: its bytes have changed; remove that object, and push the dataset again"
            )
        self._partial.replace(self._path)

    def _length(self, index: int) -> int:
        return min(PART_BYTES, self._file.record.bytes - index * PART_BYTES)
