"""Files of a cache folder: its mark, which counts the bytes and carries the lock, and operations on single files.

The mark is created once and never replaced, so that all processes lock the same file. Where something deletes or
truncates it, it is created or begun again, and the bytes are counted anew.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmload.errors import StoreError, UsageError
from mmload.runtime.durable_files import write_atomically
from mmload.runtime.regular_files import open_regular, write_at

NAME, BLOCKS = "mmload-cache", "blocks-"

_TEXT = b"mmload cache 1: copies of what is in object storage; delete the folder when nothing reads it. Bytes:\n"
_DIGITS = 20
_PATIENCE_S = 2.0  # a process that was stopped while it held the lock must not stop the others
_POLL_S = 0.0005
_DATASET = re.compile(r"[0-9a-f]{32}")
_SHARD, _BLOCK = re.compile(r"\d{6,9}"), re.compile(r"(0|[1-9]\d{0,17})\.block")


class CacheMark:
    """Mark file of a cache, whose folder is created if it does not exist. Thread-safe.

    Raises:
        UsageError: if the folder holds something else.
        OSError: if it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._lock, self._patience = threading.Lock(), _PATIENCE_S
        folder.mkdir(parents=True, exist_ok=True)
        is_strange = any(entry.name != NAME for entry in folder.iterdir())
        if is_strange and not self.path.exists():  # in this order: another process may create it at this moment
            raise UsageError(f"{folder} is not empty and not a cache of mmload; give another folder as the cache")
        self._handle = self._opened()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        if "_handle" in self.__dict__:
            close(self._handle)

    @property
    def count(self) -> int | None:
        """Number of bytes in the cache; None if the file is new or was truncated."""
        return _number(self._content())

    def add(self, change: int) -> None:
        """Adds to the number of bytes, under the lock.

        Raises:
            UsageError: if the file was not written here.
        """
        content = self._content()
        count = _number(content)
        if count is None:
            if not _TEXT.startswith(content[: len(_TEXT)]):
                raise UsageError(
                    f"{self.path} was not written by this version of mmload; give another folder as the cache"
                )
            write_at(self._handle, memoryview(_TEXT), 0)
        write_at(self._handle, memoryview(f"{max(0, (count or 0) + change):0{_DIGITS}d}".encode()), len(_TEXT))

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Holds the lock of all threads and processes; yields False if another process does not give it up in time."""
        with self._lock:
            is_locked = self._acquire()
            try:
                yield is_locked
            finally:
                if is_locked:
                    _flock(self._handle, "LOCK_UN")

    def _acquire(self) -> bool:
        """Locks the file at the path, even if it was deleted and created again meanwhile."""
        deadline = time.monotonic() + self._patience
        while True:
            if _flock(self._handle, "LOCK_EX"):
                if self._is_current():
                    self._patience = _PATIENCE_S
                    return True
                _flock(self._handle, "LOCK_UN")
                handle, self._handle = self._handle, self._opened()
                os.close(handle)
            if time.monotonic() >= deadline:
                self._patience = 0.0  # until the lock is had again
                return False
            time.sleep(_POLL_S)

    def _content(self) -> bytes:
        return os.pread(self._handle, len(_TEXT) + _DIGITS, 0)

    def _opened(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return open_regular(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))

    def _is_current(self) -> bool:
        """Returns whether the open file is still the one at the path."""
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self.path))
        except FileNotFoundError:
            return False


def _number(content: bytes) -> int | None:
    """Returns the number of bytes in the content of a mark."""
    digits = content[len(_TEXT) :]
    return int(digits) if content.startswith(_TEXT) and len(digits) == _DIGITS and digits.isdigit() else None


def _flock(handle: int, operation: str) -> bool:
    """Locks without waiting, or unlocks; returns False if another process holds the lock."""
    import fcntl  # not on Windows, which refuses to open URLs

    try:
        fcntl.flock(handle, getattr(fcntl, operation) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_renamed(incoming: str, data: memoryview, path: str) -> None:
    """Writes a file under the name ``incoming`` and renames it."""
    handle = open_regular(incoming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
    try:
        write_at(handle, data, 0)
    finally:
        os.close(handle)
    try:
        os.rename(incoming, path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.rename(incoming, path)


def unlink(path: str) -> int:
    """Unlinks a file; returns the bytes that this frees: 0 if it does not exist, or has another name."""
    try:
        status = os.stat(path)
        os.unlink(path)
    except OSError:
        return 0
    return status.st_size if status.st_nlink == 1 else 0


def write_beside_blocks(path: Path, content: bytes) -> None:
    """Writes a list, an index or checksums into a dataset's folder.

    Raises:
        StoreError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error.strerror}); free space there, or give another cache") from error


def block_folders(cache: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder of blocks below a cache, and the names of the blocks in it; links are not followed."""
    for dataset in os.scandir(cache):
        if not (_DATASET.fullmatch(dataset.name) and dataset.is_dir(follow_symlinks=False)):
            continue
        depth = dataset.path.count(os.sep)
        for folder, inner, names in os.walk(dataset.path):
            level = folder.count(os.sep) - depth
            if level == 0:
                inner[:] = [name for name in inner if name.startswith(BLOCKS)]
            if level == 2:
                inner[:] = [name for name in inner if _SHARD.fullmatch(name)]
            if level == 4:
                inner.clear()
                yield folder, [name for name in names if _BLOCK.fullmatch(name)]


def size_of(path: str) -> int:
    """Returns the bytes of a file; 0 if it does not exist."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
