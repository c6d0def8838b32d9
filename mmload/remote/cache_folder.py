"""A cache on a local disk: one folder and one limit for several datasets and all processes of a machine.

    CACHE/mmload-cache          marks the folder, counts the bytes of its chunks, and is the lock of the count
    CACHE/CONTENTS/             a dataset, by what its manifest identifies: its lists, indexes and checksums
    CACHE/CONTENTS/open         locked by each process that has the dataset open
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk.passing     is removed after its use
    CACHE/CONTENTS/chunks/SPLIT/SHARD/FILE-CRC32/NUMBER.chunk.incoming    locked by the process that fetches it

A chunk is an immutable file: it is renamed in when it is complete and durable. The system keeps an unlinked file for
whoever has it mapped, so a reader sees a whole chunk or none.

An epoch reads each chunk once. So the chunks that fit stay, and every other one is removed after its use: to evict the
one that was used longest ago would evict what the next epoch needs first. A chunk that stays is removed for another one
only if no process has its dataset open, or none has used it since the epoch before this one began. The count is raised
before a chunk comes and lowered after one has gone, so a process that is killed leaves it too high, never too low; the
next opening counts anew. Only files with such names are ever removed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

from mmload.errors import StoreError, UsageError, bytes_text
from mmload.runtime.files import file_lock, lock, open_lock, open_regular, write_at, write_atomically

NAME, OPEN, CHUNKS = "mmload-cache", "open", "chunks"
PASSING, INCOMING = ".passing", ".incoming"

_TEXT = b"mmload cache 2: copies of what is in object storage; delete the folder when nothing reads it. Bytes:\n"
_DATASET, _SHARD = re.compile(r"[0-9a-f]{32}"), re.compile(r"\d{6,9}")
_CHUNK = re.compile(rf"(0|[1-9]\d{{0,17}})\.chunk({PASSING}|{INCOMING})?")
_SURVEY_S = 60.0  # a survey takes about a second for 10 TB
_LEFT_S = 600.0  # seconds after which a file that is neither complete nor kept belongs to a process that has ended


class CacheFolder:
    """Folder of a cache, created if it does not exist, with a limit in bytes or without. Thread-safe.

    Use :func:`cache_folder`.

    Raises:
        UsageError: if the folder holds something else.
        StoreError: if it cannot be written.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path, self.limit, self._mark = path, limit, path / NAME
        self._unused: list[tuple[float, str]] = []
        self._surveyed = 0.0
        self._epochs: dict[Hashable, tuple[float, float]] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            is_strange = any(name != NAME for name in os.listdir(path))
            if is_strange and not self._mark.exists():  # in this order: another process may create it at this moment
                raise UsageError(f"{path} is not empty and not a cache of mmload; give another folder as the cache")
            with file_lock(self._mark):
                self._used()
                self._survey()
        except OSError as error:
            raise StoreError(f"cannot use {path} as a cache ({error.strerror})") from error

    @property
    def used(self) -> int:
        """Bytes of all chunks that are kept, or more if a process was killed since the last survey."""
        with file_lock(self._mark):
            return self._used()

    def open_dataset(self, root: Path) -> BinaryIO:
        """Marks a dataset's folder as in use until the result is closed."""
        root.mkdir(parents=True, exist_ok=True)
        with file_lock(self._mark):  # a survey holds the other lock for a moment
            file = open_lock(root / OPEN)
            lock(file, shared=True)
        return file

    def write_list(self, path: Path, content: bytes) -> None:
        """Writes a list, an index or checksums into a dataset's folder.

        Raises:
            StoreError: if it cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(self._mark):
                self._used()  # if the cache was deleted, its mark has to prove again that it is one
            write_atomically(path, content)
        except OSError as error:
            raise StoreError(
                f"cannot write {path} ({error.strerror}); free space there, or give another cache"
            ) from error

    def begin_epoch(self, field: Hashable) -> None:
        """Records that a field begins an epoch: what nobody used since its previous one may leave."""
        self._epochs[field] = self._epochs.get(field, (0.0, 0.0))[1], time.time()

    def admit(self, incoming: str, path: str) -> None:
        """Renames a complete file to its path, or beyond the limit to one that ends with its use.

        Raises:
            OSError: if the folder cannot be written.
        """
        size = os.stat(incoming).st_size
        with file_lock(self._mark):
            more = size - size_of(path)
            if self._has_room(more):
                self._count(self._used() + max(0, more))
                os.rename(incoming, path)
                self._count(self._used() + min(0, more))
            else:
                os.rename(incoming, path + PASSING)

    def _has_room(self, more: int) -> bool:
        """Returns whether so many bytes fit, after chunks left that nobody uses; the caller holds the lock."""
        if self.limit is None:
            return True
        if self._used() + more > self.limit and time.monotonic() > self._surveyed + _SURVEY_S:
            self._survey()
        while self._used() + more > self.limit and self._unused:
            used_at, path = self._unused.pop()
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                if status.st_mtime == used_at:
                    os.unlink(path)
                    self._count(self._used() - status.st_size)
        return self._used() + more <= self.limit

    def _survey(self) -> None:
        """Counts all chunks, finds those that nobody uses, and removes what killed processes left; under the lock."""
        now, total, unused = time.time(), 0, []
        since = min((earlier for earlier, _ in self._epochs.values()), default=0.0)
        for root, paths in _chunk_paths(self.path):
            is_closed = bool(paths) and self._is_closed(root)
            for path in paths:
                try:
                    status = os.lstat(path)
                    if path.endswith((PASSING, INCOMING)):
                        if is_closed or status.st_mtime < now - _LEFT_S:
                            os.unlink(path)
                        continue
                except FileNotFoundError:
                    continue
                total += status.st_size
                if is_closed or status.st_mtime < since:
                    unused.append((status.st_mtime, path))
        self._unused = sorted(unused, reverse=True)
        self._surveyed = time.monotonic()
        self._count(total)

    @staticmethod
    def _is_closed(root: str) -> bool:
        """Returns whether no process has a dataset open."""
        with suppress(OSError), open_lock(Path(root, OPEN)) as file:
            return lock(file)
        return False

    def _used(self) -> int:
        """Returns the count; the caller holds the lock.

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
        self._count(0)  # it is new, or something has truncated it
        self._survey()
        return self._used()

    def _count(self, size: int) -> None:
        """Writes the count; the caller holds the lock."""
        with open(self._mark, "r+b", buffering=0, opener=open_regular) as file:
            write_at(file.fileno(), memoryview(_TEXT + f"{max(0, size):020d}".encode()), 0)


def _chunk_paths(cache: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the folder of each dataset in a cache, and the files of its chunks; links are not followed."""
    for name in os.listdir(cache):
        dataset, found = os.path.join(cache, name), []
        top = os.path.join(dataset, CHUNKS)
        if not _DATASET.fullmatch(name) or os.path.islink(dataset) or os.path.islink(top):
            continue
        for folder, inner, names in os.walk(top):
            level = folder[len(top) :].count(os.sep)
            inner[:] = [name for name in inner if level != 1 or _SHARD.fullmatch(name)] if level < 3 else []
            if level == 3:
                found += [os.path.join(folder, name) for name in names if _CHUNK.fullmatch(name)]
        yield dataset, found


def size_of(path: str) -> int:
    """Returns the bytes of a file; 0 if it does not exist."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


_FOLDERS: WeakValueDictionary[Path, CacheFolder] = WeakValueDictionary()


def cache_folder(path: Path, limit: int | None) -> CacheFolder:
    """Returns the cache at a path: one object for all datasets of this process; raises what it does."""
    folder = _FOLDERS.get(path)
    if folder is None:
        folder = _FOLDERS[path] = CacheFolder(path, limit)
    if folder.limit != limit:
        raise UsageError(
            f"the cache {path} is open in this process with cache_limit={_limit_text(folder.limit)}, not "
            f"{_limit_text(limit)}; give the same limit to all datasets that share a cache"
        )
    return folder


def _limit_text(limit: int | None) -> str:
    return "None" if limit is None else bytes_text(limit)
