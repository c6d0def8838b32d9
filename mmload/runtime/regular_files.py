"""Opens files with untrusted names: only regular files, never a FIFO, a device or a socket (they may block).

``open(path, opener=open_regular)`` is Python's own ``open`` with that check.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path

_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
"""Non-blocking: opening a FIFO would wait for its other end. It has no effect on a regular file."""

_KINDS = {
    stat.S_IFIFO: "it is a FIFO, not a regular file",
    stat.S_IFSOCK: "it is a socket, not a regular file",
    stat.S_IFCHR: "it is a device, not a regular file",
    stat.S_IFBLK: "it is a device, not a regular file",
}


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file, closed in child processes; also an ``opener`` for Python's ``open``.

    Args:
        path: the file; links are followed.
        flags: as for ``os.open``.
        dir_fd: the descriptor of the folder that a relative path starts from; None: the working directory.

    Raises:
        OSError: as for ``os.open``, and if the path is not a regular file; ``strerror`` contains its actual type.
    """
    try:
        handle = os.open(path, flags | _FLAGS, 0o666, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket; a FIFO without a reader, opened for writing
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a regular file", str(path)) from error
        raise
    try:
        _check_mode(os.fstat(handle).st_mode, path)
    except OSError:
        os.close(handle)
        raise
    return handle


def check_regular(path: str | Path) -> None:
    """Check a file that other code is going to open by name; links are followed.

    Raises:
        OSError: as for :func:`open_regular`, except for permissions, which are not checked.
    """
    _check_mode(os.stat(path).st_mode, path)


def read_regular(path: str | Path, *, dir_fd: int | None = None, most: int | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: as for :func:`open_regular`, and if the file is larger; it is not read in this case.
    """
    with open(path, "rb", opener=partial(open_regular, dir_fd=dir_fd)) as file:
        if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} are read", str(path))
        return file.read()


def read_regular_text(path: str | Path, most: int) -> str | None:
    """The UTF-8 text of a regular file; None if it has more than ``most`` characters, without reading all of them.

    Raises:
        OSError: as for :func:`open_regular`.
        UnicodeDecodeError: if it is not UTF-8.
    """
    with open(path, encoding="utf-8", opener=open_regular) as file:
        text = file.read(most + 1)
    return text if len(text) <= most else None


def _check_mode(mode: int, path: str | Path) -> None:
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, _KINDS.get(kind, "it is not a regular file"), str(path))
