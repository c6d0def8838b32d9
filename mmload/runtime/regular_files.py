"""Opens, reads and writes regular files; a name never opens a FIFO, a device or a socket, which may block.

``open(path, opener=open_regular)`` is Python's own ``open`` with that check. Positioned reads and writes let several
threads use one descriptor concurrently.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from contextlib import suppress
from pathlib import Path

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


def read_regular(path: str | Path, *, most: int | None = None) -> bytes:
    """Reads a regular file of at most ``most`` bytes.

    Raises:
        OSError: as for :func:`open_regular`, and if the file is larger; it is not read in this case.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} are read", str(path))
        return file.readall()


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Writes all of ``data`` into a file from ``offset`` on."""
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


def allow_more_files() -> bool:
    """Raises the soft limit of open files (often 1,024) to the hard limit; returns whether that changed anything.

    Each field of each shard is a file: 2 TB in shards of 1 GiB with targets are 4,000 files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return soft != hard
    return False


def is_within(inner: Path, outer: Path) -> bool:
    """Returns whether a resolved path is a folder or is inside it; compares inodes, so that links resolve."""
    return any(is_same(folder, outer) for folder in (inner, *inner.parents))


def is_same(first: Path, second: Path) -> bool:
    """Returns whether two resolved paths are one file or folder."""
    try:
        return first == second or first.samefile(second)
    except OSError:
        return False
