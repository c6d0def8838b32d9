"""Files of the chunks of a field in a cache: opened there, or fetched, checked and stored first."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.remote.cache_folder import CHUNKS, INCOMING, PASSING, CacheFolder
from mmload.remote.chunks import SUFFIX, Chunks, ChunkSpan, Sums, parse_checksums
from mmload.remote.object_store import Objects
from mmload.runtime.files import lock, open_lock, open_regular, sync
from mmload.store.checksum import crc32

_DOWNLOADS = 2  # of bytes with a checksum mismatch, which may have been spoiled on their way
_LOOKS = 3  # for a chunk that other processes fetch, and remove before this one has looked
_WAIT_S, _POLL_S = 20.0, 0.005  # a process that was stopped in the middle of a fetch must not stop the others


class ChunkFiles:
    """Files of the chunks of a field, which all processes of a machine share. Thread-safe.

    Checksums lie in ``lists``, chunks in ``root``, as later versions of the dataset share them.

    Attributes:
        fetched_bytes: bytes fetched from object storage.
    """

    def __init__(self, objects: Objects, folder: CacheFolder, lists: Path, root: Path, chunks: Chunks) -> None:
        self.chunks, self.folder, self.fetched_bytes = chunks, folder, 0
        self._objects, self._lists, self._root = objects, lists, root / CHUNKS
        self._sums: dict[int, Sums] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Replaces the lock in a forked process, as threads of the parent may hold it."""
        self._lock = threading.Lock()

    def open(self, chunk: ChunkSpan) -> int:
        """Returns the descriptor of a chunk's file.

        Raises:
            RemoteError, DamagedError: if it cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored, such as on a full disk.
        """
        path = self._path(chunk)
        try:
            for _ in range(_LOOKS):
                with suppress(FileNotFoundError):  # something removes the folder at this moment
                    handle = self._opened(path, chunk)
                    handle = self._fetched(path, chunk) if handle is None else handle
                    if handle is not None:
                        return handle
            return self._fetched_alone(chunk)
        except OSError as error:
            raise StoreError(
                f"cannot write to the cache {self.folder.path} ({error.strerror}); free space there, or give another "
                "folder"
            ) from error

    def end_use(self, chunk: ChunkSpan) -> None:
        """Removes the file of a chunk that is not kept."""
        with suppress(OSError):
            os.unlink(self._path(chunk) + PASSING)

    def touch(self, chunk: ChunkSpan) -> None:
        """Records that a chunk is in use."""
        with suppress(OSError):
            os.utime(self._path(chunk))

    def _path(self, chunk: ChunkSpan) -> str:
        record, file = self.chunks.record, self.chunks.file
        name = f"{file}-{record.shards[chunk.shard].files[file].crc32}"
        return str(self._root / record.shard_folder(self.chunks.split, chunk.shard) / name / f"{chunk.number}.chunk")

    def _opened(self, path: str, chunk: ChunkSpan) -> int | None:
        """Returns the descriptor of a file of the chunk's size, if there is one."""
        for each in (path, path + PASSING):
            with suppress(FileNotFoundError):
                handle = open_regular(each, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                if os.fstat(handle).st_size == chunk.stored_bytes:
                    with suppress(OSError):  # another user's
                        os.utime(each)
                    return handle
                os.close(handle)  # something has truncated it
        return None

    def _fetched(self, path: str, chunk: ChunkSpan) -> int | None:
        """Fetches a chunk and returns the descriptor of its file; None if another process has ended its fetch."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        incoming, until = path + INCOMING, time.monotonic() + _WAIT_S
        with open_lock(Path(incoming)) as file:
            while not lock(file) and _is_named(file, incoming):
                if time.monotonic() > until:
                    return self._fetched_alone(chunk)
                time.sleep(_POLL_S)
            if not _is_named(file, incoming):
                return None
            try:
                if (handle := self._opened(path, chunk)) is not None:
                    os.unlink(incoming)
                    return handle
                file.truncate(0)
                file.write(bytes(chunk.padding))
                file.write(self._download(chunk))
                sync(file)
                self.folder.admit(incoming, path)
                return os.dup(file.fileno())
            except BaseException:
                with suppress(OSError):
                    os.unlink(incoming)
                raise

    def _fetched_alone(self, chunk: ChunkSpan) -> int:
        """Fetches a chunk into a file without a name."""
        with TemporaryFile(dir=self.folder.path) as file:
            file.write(bytes(chunk.padding) + self._download(chunk))
            file.flush()
            return os.dup(file.fileno())

    def _download(self, chunk: ChunkSpan) -> memoryview:
        """Reads a chunk from object storage and compares its checksum."""
        name, expected = self._name(chunk.shard), self._sums_of(chunk.shard)[chunk.number]
        for _ in range(_DOWNLOADS):
            data = self._objects.get_range(name, chunk.start, chunk.length)
            with self._lock:
                self.fetched_bytes += chunk.length
            if crc32(data) == expected:
                return data
        raise DamagedError(
            f"{self._objects.url_of(name)} is damaged after byte {chunk.start:,}: it does not have the checksum that "
            "was pushed; remove that object, and push the dataset again"
        )

    def _name(self, shard: int) -> str:
        return f"{self.chunks.record.shard_folder(self.chunks.split, shard)}/{self.chunks.file}.memmap"

    def _sums_of(self, shard: int) -> Sums:
        """Returns the checksums of a shard's chunks, which are stored in the cache, too."""
        found = self._sums.get(shard)
        return self._sums.setdefault(shard, self._read_sums(shard)) if found is None else found

    def _read_sums(self, shard: int) -> Sums:
        name, record = self._name(shard) + SUFFIX, self.chunks.record.shards[shard].files[self.chunks.file]
        kind, path = (record, self.chunks.counts[shard]), self._lists / name
        with suppress(OSError):
            if (sums := parse_checksums(path.read_bytes(), *kind)) is not None:
                return sums
        try:
            content = bytes(self._objects.get(name))
        except RemoteMissingError as error:
            raise StoreError(
                f"{self._objects.url_of(name)} does not exist, so a part of a file cannot be checked: mmload push "
                "writes it; push the dataset once more, or pull it"
            ) from error
        sums = parse_checksums(content, *kind)
        if sums is None:
            raise DamagedError(f"{self._objects.url_of(name)} does not belong to the manifest; push the dataset again")
        self.folder.write_list(path, content)
        return sums


def _is_named(file: BinaryIO, path: str) -> bool:
    """Returns whether an open file is the one at a path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False
