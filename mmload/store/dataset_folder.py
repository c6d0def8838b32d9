"""The folder of an open dataset, held by a descriptor: what takes its place meanwhile is not read by mistake.

Files are opened relative to the descriptor, many of them late. Renaming the folder, replacing it and changing the
working directory do not matter then; what is written into the folder itself is noticed by its ``dataset.json``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmload.errors import StoreError
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.regular_files import open_regular
from mmload.store.manifest import FILE_NAME, Manifest, read

_RELATIVE = {os.open, os.stat} <= os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_TRIES = 5

_UNSIGNED = 2**64 - 1

Stamp = tuple[int, int, int]
"""What a write to a file changes: inode, size and time of modification."""


class Folder:
    """A dataset's folder. Thread-safe; picklable: a copy opens the folder again by its path, and compares.

    Where the system has no such descriptors (Windows), files are opened by their absolute paths.

    Attributes:
        path: absolute, as it was when the dataset was opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._stamp: tuple[int, ...] | None = None
        self._seen_in: tuple[int, int] | None = None
        self._seen: dict[tuple[str, str], NDArray[np.uint64]] = {}
        self._manifest: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = {"path": self.path, "_stamp": self._stamp, "_manifest": None, "identity": self.identity}
        return {**own, "_seen": self._seen, "_seen_in": self._seen_in or self.place}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit the module may be gone already
        handle = self.__dict__.get("_descriptor")
        if handle is not None:
            close(handle)

    def read(self) -> Manifest:
        """The manifest, which from now on is what the folder must hold.

        Raises:
            StoreError, VersionError, DamagedError: as :func:`mmload.store.manifest.read`.
        """
        self._stamp = self._now()
        self._manifest = read(self.path, self._handle())
        return self._manifest

    @lazy_property
    def identity(self) -> str:
        """A digest of all that decides what the rows are; equal for copies of a dataset."""
        if self._manifest is None:
            raise RuntimeError("no manifest was read")
        return self._manifest.contents

    def remember(self, split: str, name: str, stamps: list[Stamp]) -> None:
        """Keep what files were when the dataset was opened: 24 bytes for each."""
        self._seen[split, name] = np.array(stamps, dtype=np.uint64).reshape(-1, 3)

    def seen(self, split: str, name: str, index: int) -> Stamp | None:
        """What a file was when the dataset was opened; None in a copy that found another folder at the path."""
        if self._seen_in is not None and self._seen_in != self.place:
            return None
        stamps = self._seen.get((split, name))
        if stamps is None:
            return None
        inode, size, modified = stamps[index].tolist()
        return inode, size, modified

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the folder."""
        handle = self._handle()
        try:
            status = os.stat(self.path) if handle is None else os.fstat(handle)
        except OSError as error:
            raise self._replaced() from error
        return status.st_dev, status.st_ino

    def is_current(self) -> bool:
        """Whether the dataset at the path is still the very one that was read."""
        try:
            status = os.stat(self.path)
            return (status.st_dev, status.st_ino) == self.place and self._now() == self._stamp
        except (OSError, StoreError):
            return False

    def name(self, file: str) -> str:
        """A file's absolute path, for messages; text, as a Path each would double the time to open many."""
        return os.path.join(self.path, file)

    def stat(self, file: str) -> os.stat_result:
        """The status of a file, given by its path inside the folder."""
        handle = self._handle()
        return os.stat(self.name(file)) if handle is None else os.stat(file, dir_fd=handle)

    def open(self, file: str) -> int:
        """A descriptor of a file, given by its path inside the folder, that is the dataset's own.

        Raises:
            StoreError: if it cannot be opened, is no regular file, or the dataset was replaced since it was read.
        """
        try:
            opened = self._open(file)
        except OSError as error:
            self.check()
            raise StoreError(f"cannot open {self.name(file)} ({error.strerror})") from error
        try:
            self.check()  # only now: a file that was there before the check could be another by now
        except BaseException:
            os.close(opened)
            raise
        return opened

    def check_changed(self) -> None:
        """As :meth:`check`, at the cost of one ``stat`` where nothing changed; for every batch.

        A folder that is gone is no error here: files that are open already can be read to the end.

        Raises:
            StoreError: if the folder holds another dataset.
        """
        if self._now() not in (None, self._stamp):
            self.check()

    def check(self) -> None:
        """Whether the folder still holds what was read; its card may be another: ``parity --record`` writes it.

        Raises:
            StoreError: if it does not.
        """
        for _ in range(_TRIES):
            now = self._now()
            if now is not None and now == self._stamp:
                return
            try:
                manifest = read(self.path, self._handle())
            except StoreError as error:
                raise self._replaced() from error
            if manifest.contents != self.identity:
                break
            self._stamp = now  # of before it was read: the next turn sees whether it was read from this one
        raise self._replaced()

    def _replaced(self) -> StoreError:
        return StoreError(f"the dataset {self.path} was replaced or removed while it was open; open it again")

    def _now(self) -> tuple[int, ...] | None:
        """What tells one ``dataset.json`` from the next, without reading it; None where there is none."""
        try:
            status = self.stat(FILE_NAME)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _open(self, file: str) -> int:
        handle = self._handle()
        try:
            return open_regular(self.name(file)) if handle is None else open_regular(file, dir_fd=handle)
        except OSError as error:
            if error.errno != errno.EMFILE or not _allow_more_files():
                raise
        return self._open(file)

    def _handle(self) -> int | None:
        """The descriptor; no lock, so that a fork at any moment leaves none held."""
        if "_descriptor" not in self.__dict__:
            opened = _open_folder(self.path)
            if self.__dict__.setdefault("_descriptor", opened) != opened and opened is not None:
                os.close(opened)  # another thread was first
        handle: int | None = self.__dict__["_descriptor"]
        return handle


def revision_of(status: os.stat_result) -> Stamp:
    """What a write changes. Without the device: the same one may have another number in another container."""
    return status.st_ino & _UNSIGNED, status.st_size, status.st_mtime_ns & _UNSIGNED


def _open_folder(path: Path) -> int | None:
    """A descriptor; None where there are none, or where it cannot be had: reading the manifest then says why."""
    if not _RELATIVE:
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EMFILE and _allow_more_files():
            return _open_folder(path)
        return None


def _allow_more_files() -> bool:
    """Raise this process's limit of open files, often 1,024, to what it may be; whether that changed anything.

    Each field of each shard is a file: 2 TB in shards of 1 GiB are 4,000 with their targets.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS names a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return soft != hard
    return False
