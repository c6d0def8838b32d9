"""Regular files: opened, read and written; then crash-safe operations: atomic writes, renames, exchanges, locks.

A name never opens a FIFO, a device or a socket, which may block: ``open(path, opener=open_regular)`` is Python's own
``open`` with that check. Other processes may run the same operations concurrently: temporary names are unique.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
TOKEN_BYTES = 8
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system without locks

LOCK_WAIT_S = 60.0
"""Time limit of :func:`file_lock`, in seconds."""

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Non-blocking: opening a FIFO would wait for its other end. It has no effect on a regular file."""

_KINDS = {
    stat.S_IFIFO: "it is a FIFO, not a regular file",
    stat.S_IFSOCK: "it is a socket, not a regular file",
    stat.S_IFCHR: "it is a device, not a regular file",
    stat.S_IFBLK: "it is a device, not a regular file",
}


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file; returns its descriptor. Also an ``opener`` for Python's ``open``.

    Args:
        path: the file; links are followed.
        flags: as for ``os.open``.

    Raises:
        OSError: as for ``os.open``, and if the path is not a regular file; ``strerror`` contains its actual type.
    """
    try:
        handle = os.open(path, flags | _FLAGS, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket; a FIFO without a reader, opened for writing
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a regular file", str(path)) from error
        raise
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind == stat.S_IFREG:
        return handle
    os.close(handle)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, _KINDS.get(kind, "it is not a regular file"), str(path))


def read_regular(path: str | Path, *, most: float = math.inf) -> bytes:
    """Reads a regular file of at most ``most`` bytes.

    Raises:
        OSError: as for :func:`open_regular`, and if the file is larger; it is not read in this case.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} are read", str(path))
        return file.readall()


def is_within(inner: Path, outer: Path) -> bool:
    """Returns whether a resolved path is a folder or is inside it; compares inodes, so that links resolve."""
    return any(is_same(folder, outer) for folder in (inner, *inner.parents))


def is_same(first: Path, second: Path) -> bool:
    """Returns whether two resolved paths are one file or folder."""
    try:
        return first == second or first.samefile(second)
    except OSError:
        return False


def write_atomically(path: Path, content: str | bytes | memoryview, beside: Path | None = None) -> None:
    """Writes a small file, text as UTF-8, atomically and durably. Only a kill can leave a temporary file.

    That lies beside the file, or ``beside`` another one, and is named for it.

    Raises:
        OSError: if a file system operation fails.
    """
    of = beside or path
    partial = of.with_name(f"{of.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")
    try:
        with open(partial, "xb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            sync(file)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def is_partial(name: str, of: str) -> bool:
    """Returns whether the name is that of a temporary file that a killed :func:`write_atomically` of ``of`` left."""
    return re.fullmatch(rf"{re.escape(of)}(\.[0-9a-f]{{{2 * TOKEN_BYTES}}})?\.partial", name) is not None


def remove_partials(path: Path) -> None:
    """Removes temporary files of killed writers of this file; the caller holds the lock that all writers hold."""
    for entry in path.parent.iterdir():
        if is_partial(entry.name, path.name) and entry.is_file() and not entry.is_symlink():
            entry.unlink(missing_ok=True)


def sync(file: BinaryIO) -> None:
    """Makes the content of a file durable."""
    file.flush()
    os.fsync(file.fileno())


def begin_sync(handle: int, start: int, length: int) -> None:
    """Starts writing these bytes of a file to the disk, without waiting, so that a later sync finds them there."""
    if sys.platform == "linux":  # there this advice writes what is not on the disk yet, which it cannot drop
        os.posix_fadvise(handle, start, length, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Makes a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Deletes a file or a complete folder if it exists; for a link, never its target.

    Only for entries created by this program, in a folder of its own.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchanges two files or folders atomically, by ``renameat2`` of Linux: both names exist at all times.

    Returns:
        Whether they were exchanged; False, with no change, if the system or the file system does not support it.
    """
    library, names = ctypes.CDLL(None), (os.fsencode(first), os.fsencode(second))
    if not hasattr(library, "renameat2"):
        return False
    return bool(library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def lock(file: BinaryIO, *, shared: bool = False) -> bool:
    """Locks an open file until it is closed, or returns False; the system releases the lock with the process.

    A shared lock is always had where the file system has none: it only keeps away those that need the lock alone.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return shared and error.errno in _NO_LOCKS
    return True


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Waits for the lock of a folder and holds it: nobody else exchanges the folder or writes its manifest.

    If folders cannot be locked (some network file systems), no lock is held.

    Raises:
        OSError: if the folder does not exist.
    """
    while True:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.stat(folder)):  # not exchanged while waiting
                yield
                return
        finally:
            os.close(handle)


def open_lock(path: Path) -> BinaryIO:
    """Opens a lock file, and creates it if it does not exist. It is never truncated, and links are not followed.

    Raises:
        OSError: if it cannot be created, or is not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(open_regular(path, flags), "ab+")


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Waits for a lock file, which is created if it does not exist, and holds its lock.

    The file stays: if it were removed, two processes could hold locks of two files with its name.

    Raises:
        OSError: if it cannot be opened, or not be locked within :data:`LOCK_WAIT_S`.
    """
    until = time.monotonic() + LOCK_WAIT_S
    try:
        file = open_lock(path)
    except PermissionError:
        if not os.path.lexists(path):
            raise
        # Another user's. A lock needs no right to write, except on network file systems.
        file = os.fdopen(open_regular(path), "rb")
    with file:
        while not lock(file):
            if time.monotonic() > until:
                why = f"another process holds {path}, or its file system has no locks"
                raise TimeoutError(errno.ETIMEDOUT, why, str(path))
            time.sleep(0.002)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
