"""A cache on a local disk: one folder and one limit for several datasets and all processes of a machine.

    CACHE/mmload-cache          marks the folder, counts the bytes of its chunks, and is the lock of the count
    CACHE/CONTENTS/             a dataset, by what its manifest identifies: its lists, indexes and checksums
    CACHE/CONTENTS/open         locked by each process that has the dataset open
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk.passing     is removed after its use
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk.fetching    locked by the process that fetches it

A chunk is an immutable file: it is renamed in when it is complete and durable. The system keeps an unlinked file for
whoever has it mapped, so a reader sees a whole chunk or none.

An epoch reads each chunk once. So the chunks that fit stay, and every other one is removed after its use: to evict the
one that was used longest ago would evict what the next epoch needs first. A chunk that stays is removed for another one
only if no process had its dataset open when the chunks were counted, or two epochs of its field have ended without it,
and none has used it since. The count is raised before a chunk comes and lowered after one has gone, so a process that
is killed leaves it too high, never too low; the next opening counts anew. Only files with such names are ever removed.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, RemoteMissingError, StoreError, UsageError
from mmload.remote.chunks import SUFFIX, Chunks, ChunkSpan, file_checksum
from mmload.remote.object_store import Objects
from mmload.runtime.files import file_lock, lock, open_lock, open_regular, write_atomically
from mmload.store.checksum import crc32
from mmload.store.manifest import Manifest

NAME, OPEN, CHUNKS = "mmload-cache", "open", "chunks"
PASSING, FETCHING = ".passing", ".fetching"

_TEXT = b"mmload cache 2: copies of what is in object storage; delete the folder when nothing reads it. Bytes:\n"
_DATASET = re.compile(r"[0-9a-f]{32}")
_CHUNK = re.compile(
    rf"/[^/]+/\d{{6,9}}/[^/]+/(0|[1-9]\d{{0,17}})\.chunk({FETCHING}|({PASSING})?(\.[0-9a-f]+\.partial)?)"
)
_SURVEY_S = 60.0  # a survey takes about a second for 10 TB
_CLOCK_S = 1.0  # by which times of files may be earlier than the clock
_NO_EPOCHS = 0.0, 0.0
_LEFT_S = 600.0  # seconds after which a file that is neither complete nor kept belongs to a process that has ended
_DOWNLOADS = 2  # of bytes with a checksum mismatch, which may have been spoiled on their way
_WAIT_S, _POLL_S = 20.0, 0.005  # a process that was stopped in the middle of a fetch must not stop the others


class CacheFolder:
    """Cache of a dataset, in a folder that is created if it does not exist. Thread-safe.

    Attributes:
        path: the folder.
        objects: the dataset at its URL.
        lists: folder of the dataset's lists, indexes and checksums.
        chunks: folder of its chunks, which later versions of the dataset share.
        epochs: folder of the chunks of a shard's file -> when the last two epochs of the field that have ended began:
            two, as epochs of two subsets may alternate, which have the folders of their split.
        close: ends the use of the dataset, as collecting this does; nothing may read afterwards.

    Raises:
        UsageError: if the folder holds something else.
        StoreError: if it cannot be written.
    """

    def __init__(self, path: Path, limit: int | None, objects: Objects, manifest: Manifest) -> None:
        first = manifest.versions[0] if manifest.versions else manifest
        root = path / first.contents[:32]
        self.path, self.objects, self.lists, self.chunks = path, objects, path / manifest.contents[:32], root / CHUNKS
        self._limit, self._mark = math.inf if limit is None else limit, path / NAME
        self.epochs: dict[str, tuple[float, float]] = {}
        with self.errors():
            path.mkdir(parents=True, exist_ok=True)
            is_strange = any(name != NAME for name in os.listdir(path))
            if is_strange and not self._mark.exists():  # in this order: another process may create it at this moment
                raise UsageError(f"{path} is not empty and not a cache of mmload; give another folder as the cache")
            with file_lock(self._mark):  # a survey holds the other lock for a moment
                self._used()
                self._survey()
                root.mkdir(exist_ok=True)
                file = open_lock(root / OPEN)
                lock(file, shared=True)
        self.close = weakref.finalize(self, file.close)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Converts an error of the system to one that names the cache."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"cannot use the cache {self.path} ({error.strerror}); free space there, or give another folder"
            ) from error

    def fetched(self, name: str, size: int, is_right: Callable[[bytes], bool]) -> Path:
        """Returns the file of a list, an index or checksums, which is fetched and checked unless it is there.

        Raises:
            DamagedError: if the object has another size, or is not right; RemoteError: if it cannot be read.
            StoreError: if it cannot be written.
        """
        path = self.lists / name
        with suppress(OSError):
            if path.stat().st_size == size:
                return path
        content = bytes(self.objects.get(name))
        if len(content) != size or not is_right(content):
            raise DamagedError(f"{self.objects.url_of(name)} is not the file that the manifest names; push it again")
        with self.errors():
            self.write(path, content)
        return path

    def write(self, path: Path, content: bytes | memoryview) -> None:
        """Writes a file.

        Raises:
            OSError: if it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        with file_lock(self._mark):
            self._used()  # if the cache was deleted, its mark has to prove again that it is one

    def write_chunk(self, path: Path, content: bytes | memoryview) -> None:
        """Writes a chunk. Beyond the limit, it has a name by which it is removed after its use.

        Raises:
            OSError: if it cannot be written.
        """
        arrived = Path(f"{path}{PASSING}")
        self.write(arrived, content)
        with file_lock(self._mark):
            if self._has_room(len(content)):
                arrived.rename(path)

    def _has_room(self, size: int) -> bool:
        """Counts a chunk that is to stay, after unused ones left; returns False if it does not fit; under the lock."""
        if self._used() + size > self._limit and time.monotonic() > self._surveyed + _SURVEY_S:
            self._survey()
        while self._used() + size > self._limit:
            if not self._unused:
                return False
            used_at, path = self._unused.pop()
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                if status.st_mtime == used_at:
                    os.unlink(path)
                    self._count(self._used() - status.st_size)
        self._count(self._used() + size)
        return True

    def _survey(self) -> int:
        """Counts all chunks, finds those that nobody uses, and removes what killed processes left; under the lock."""
        now, total, unused = time.time(), 0, []
        for root, paths in _chunk_paths(self.path):
            is_closed = bool(paths) and _is_closed(root)
            for path in paths:
                with suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if path.endswith(".chunk"):
                        total += status.st_size
                        before, _ = self.epochs.get(os.path.dirname(path), _NO_EPOCHS)
                        is_unused = is_closed or status.st_mtime < before
                        unused += [(status.st_mtime, path)] if is_unused else []
                    elif is_closed or status.st_mtime < now - _LEFT_S:
                        os.unlink(path)
        self._unused = sorted(unused, reverse=True)
        self._surveyed = time.monotonic()
        self._count(total)
        return total

    def _used(self) -> int:
        """Returns the bytes of all chunks that are kept, or more if a process was killed; the caller holds the lock.

        Raises:
            UsageError: if the file was not written here.
        """
        with open(self._mark, "rb", opener=open_regular) as file:
            content = file.read(len(_TEXT) + 21)
        digits = content[len(_TEXT) :]
        if content.startswith(_TEXT) and digits.isdigit():
            return int(digits)
        if not _TEXT.startswith(content[: len(_TEXT)]):
            raise UsageError(
                f"{self._mark} was not written by this version of mmload; give another folder as the cache"
            )
        return self._survey()  # it is new, or something has truncated it

    def _count(self, size: int) -> None:
        """Writes the count; the caller holds the lock."""
        with open(self._mark, "r+b", opener=open_regular) as file:
            file.write(_TEXT + f"{max(0, size):020d}".encode())


def _chunk_paths(cache: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the folder of each dataset in a cache, and the files of its chunks; links are not followed."""
    for name in os.listdir(cache):
        root = os.path.join(cache, name)
        top = os.path.join(root, CHUNKS)
        if _DATASET.fullmatch(name) and not os.path.islink(root) and not os.path.islink(top):
            paths = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
            yield root, [path for path in paths if _CHUNK.fullmatch(path, len(top))]


def _is_closed(root: str) -> bool:
    """Returns whether no process has a dataset open."""
    with suppress(OSError), open_lock(Path(root, OPEN)) as file:
        return lock(file)
    return False


class ChunkFiles:
    """Files of the chunks of a field: opened in the cache, or fetched, checked and stored first. Thread-safe.

    Attributes:
        fetched_bytes: bytes fetched from object storage.
    """

    def __init__(self, cache: CacheFolder, chunks: Chunks) -> None:
        self.cache, self.chunks, self.fetched_bytes = cache, chunks, 0
        self._sums: dict[int, npt.NDArray[np.uint32]] = {}
        self._lock = threading.Lock()

    def open(self, chunk: ChunkSpan) -> int:
        """Returns the descriptor of a chunk's file.

        Raises:
            RemoteError, DamagedError: if it cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored, such as on a full disk.
        """
        path = self._path(chunk)
        with self.cache.errors():
            handle = self._opened(path, chunk)
            while handle is None:
                with suppress(FileNotFoundError), _turn(path):  # something may remove the folder at this moment
                    handle = self._opened(path, chunk)
                    if handle is None:
                        data = self._download(chunk)
                        self.cache.write_chunk(path, bytes(chunk.padding) + data if chunk.padding else data)
                        handle = self._opened(path, chunk)
        return handle

    def end_use(self, chunk: ChunkSpan) -> None:
        """Removes the file of a chunk that is not kept."""
        with suppress(OSError):
            os.unlink(f"{self._path(chunk)}{PASSING}")

    def touch(self, chunk: ChunkSpan) -> None:
        """Notes that the file of a chunk is in use, if it is kept."""
        with suppress(OSError):  # it is not, or another user's
            os.utime(self._path(chunk))

    def end_epoch(self, begun: float) -> None:
        """Notes that an epoch has ended: a chunk that is not used in two of them may leave for another one."""
        for folder in map(str, map(self._folder, range(len(self.chunks.counts)))):
            _, last = self.cache.epochs.get(folder, _NO_EPOCHS)
            self.cache.epochs[folder] = last, begun - _CLOCK_S

    def _folder(self, shard: int) -> Path:
        record, file = self.chunks.record, self.chunks.file
        name = f"{file}-{record.shards[shard].files[file].crc32}"
        return self.cache.chunks / record.shard_folder(self.chunks.split, shard) / name

    def _path(self, chunk: ChunkSpan) -> Path:
        return self._folder(chunk.shard) / f"{chunk.number}.chunk"

    def _opened(self, path: Path, chunk: ChunkSpan) -> int | None:
        """Returns the descriptor of a file of the chunk's size, if there is one."""
        for each in (str(path), f"{path}{PASSING}"):
            with suppress(FileNotFoundError):
                handle = open_regular(each, os.O_RDONLY | os.O_NOFOLLOW)
                if os.fstat(handle).st_size == chunk.stored_bytes:
                    with suppress(OSError):  # another user's
                        os.utime(each)
                    return handle
                os.close(handle)  # something has truncated it
        return None

    def _download(self, chunk: ChunkSpan) -> memoryview:
        """Reads a chunk from object storage and compares its checksum."""
        objects, name = self.cache.objects, self._name(chunk.shard)
        expected = self._sums_of(chunk.shard)[chunk.number]
        for _ in range(_DOWNLOADS):
            data = objects.get_range(name, chunk.start, chunk.length)
            with self._lock:
                self.fetched_bytes += chunk.length
            if crc32(data) == expected:
                return data
        raise DamagedError(
            f"{objects.url_of(name)} is damaged after byte {chunk.start:,}: it does not have the checksum that "
            "was pushed; remove that object, and push the dataset again"
        )

    def _name(self, shard: int) -> str:
        return f"{self.chunks.record.shard_folder(self.chunks.split, shard)}/{self.chunks.file}.memmap"

    def _sums_of(self, shard: int) -> npt.NDArray[np.uint32]:
        """Returns the checksums of a shard's chunks, which are stored in the cache, too."""
        if shard not in self._sums:
            name = self._name(shard) + SUFFIX
            of_file = file_checksum(self.chunks.record.shards[shard].files[self.chunks.file])
            size = 4 * (self.chunks.counts[shard] + 1)
            try:
                path = self.cache.fetched(name, size, lambda content: content.startswith(of_file))
            except RemoteMissingError as error:
                raise StoreError(
                    f"{self.cache.objects.url_of(name)} does not exist, so a part of a file cannot be checked: mmload "
                    "push writes it; push the dataset once more, or pull it"
                ) from error
            self._sums[shard] = np.fromfile(path, "<u4")[1:]
        return self._sums[shard]


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Waits while another process fetches a chunk, unless it seems to have been stopped in the middle."""
    mark, until = Path(f"{path}{FETCHING}"), time.monotonic() + _WAIT_S
    mark.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(mark) as file:
        while not lock(file) and time.monotonic() < until:
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)
