"""The file that marks a folder as a cache: it counts the cache's bytes, and is locked while a block comes or goes.

It is created once and never replaced, so that all processes lock the same file. Where something deletes or truncates
it, it is created or begun again, and the bytes are counted anew.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmload.errors import UsageError
from mmload.runtime.positioned_reads import write_at
from mmload.runtime.regular_files import open_regular

NAME = "mmload-cache"

_TEXT = b"mmload cache 1: copies of what is in object storage; delete the folder when nothing reads it. Bytes:\n"
_DIGITS = 20
_PATIENCE_S = 2.0  # a process that was stopped while it held the lock must not stop the others
_POLL_S = 0.0005


class CacheMark:
    """The mark of a cache. Thread-safe.

    Args:
        folder: of the cache; created if it does not exist.

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
        """Number of bytes in the cache; None if the file tells none, as it is new or was truncated."""
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
        """Locks the file, which somebody may have deleted and another process created again."""
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
    """Returns the number of bytes that the content of a mark tells."""
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
