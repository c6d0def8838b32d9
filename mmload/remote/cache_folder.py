"""A cache's folder: one for several datasets and all processes of a machine, with one limit.

    CACHE/mmload-cache      marks the folder as a cache; locked for a moment whenever bytes are counted
    CACHE/used              bytes that are kept, of all datasets
    CACHE/CONTENTS/         a dataset, by what its manifest identifies: dataset.json, files with holes, states of blocks
    CACHE/CONTENTS/open     locked by each process that reads it

Only what has come from an object store lies here, so nothing that is evicted is lost: a folder that is not empty and
has no mark is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from mmload.errors import StoreError, UsageError
from mmload.runtime.durable_files import is_partial, lock, open_lock, remove, write_atomically

MARK, USED, OPEN = "mmload-cache", "used", "open"
_TEXT = b"mmload cache: copies of what is in object storage; may be removed when nothing reads it\n"


class CacheFolder:
    """The folder of a cache. Thread-safe.

    Args:
        path: of the folder; made if it is not there.
        limit: bytes that may be kept; None: any number.

    Raises:
        UsageError: if the folder holds something else.
        StoreError: if it cannot be written.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path, self.limit = path, limit
        self._lock = threading.Lock()
        try:
            path.mkdir(parents=True, exist_ok=True)
            mark = path / MARK
            strange = any(
                entry.name not in (MARK, USED) and not is_partial(entry.name, MARK) for entry in path.iterdir()
            )
            if strange and not mark.exists():  # in this order: another process may make it at this moment
                raise UsageError(f"{path} is not empty and no cache of mmload; give another folder as the cache")
            if not mark.exists():
                write_atomically(mark, _TEXT)
            if not (path / USED).exists():
                with open(path / USED, "ab") as file:
                    file.truncate(8)
            self._used = np.memmap(path / USED, np.int64, "r+", shape=(1,))
            self._handle = open(mark, "rb")  # noqa: SIM115  # held as long as this object
        except OSError as error:
            raise StoreError(f"cannot use {path} as a cache ({error.strerror})") from error

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Hold the lock of the counts, of all threads and processes."""
        with self._lock:
            try:
                import fcntl
            except ImportError:  # Windows: one process at a time, see the opening
                yield
                return
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file of the lock."""
        self._handle.close()

    @property
    def used(self) -> int:
        """Bytes that are kept or on their way."""
        return int(self._used[0])

    def count(self, change: int) -> None:
        """Add to what is kept; under :meth:`counting`."""
        self._used[0] = max(0, self.used + change)

    def excess(self, more: int) -> int:
        """How many bytes have to go before so many more may come."""
        return 0 if self.limit is None else self.used + more - self.limit

    def remove_unused(self, own: str) -> bool:
        """Remove the dataset that was used longest ago and that no process reads; False if there is none."""
        others = [entry for entry in self.path.iterdir() if entry.is_dir() and entry.name != own]
        for entry in sorted(others, key=lambda entry: entry.stat().st_mtime):
            with suppress(OSError), open_lock(entry / OPEN) as held:
                if lock(held):
                    self.count(-kept_bytes(entry))
                    remove(entry)
                    return True
        return False


def kept_bytes(dataset: Path) -> int:
    """Bytes on disk of the blocks that a dataset's folder keeps; other files are whole, and do not count."""
    states = dataset.glob("*/*.states")
    return sum(os.stat(path).st_blocks * 512 for each in states for path in each.parent.glob(f"*/{each.stem}.memmap"))
