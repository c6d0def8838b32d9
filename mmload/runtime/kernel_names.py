"""Names by which processes of this machine find each other, and which the kernel withdraws when they die.

A name is an abstract Unix socket (Linux): it has no file, so nothing of it can be left over, however a process ends. No
socket is ever connected: the name is the message. Any user can announce any name, so a name is only a hint.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS_TO_WAIT = 20.0
"""How long :func:`exclusively` waits: its blocks take milliseconds, but a process can be stopped inside of one."""

_LISTED = Path("/proc/net/unix")
_SECONDS_BETWEEN_TRIES = 0.002

_LOCKS: set[socket.socket] = set()
"""What :func:`exclusively` holds now, which a forked process must not go on holding."""


def announce(name: str) -> int:
    """Announce a name until the descriptor is closed, in this process and in all that were forked since.

    Raises:
        OSError: if it is announced already, or the system has no such names.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{name}")
        return made.detach()


def announced(prefix: str) -> list[str]:
    """The names now announced that begin so, by processes of this network namespace, in ascending order.

    Raises:
        OSError: if the system does not list them.
    """
    start = f"@{prefix}"
    words = (line.rsplit(" ", 1)[-1] for line in _LISTED.read_text(encoding="ascii", errors="replace").splitlines())
    return sorted(word[1:] for word in words if word.startswith(start))


@contextmanager
def exclusively(name: str) -> Iterator[None]:
    """Hold a name that only one process has at a time; one that dies inside the block gives it up.

    Raises:
        OSError: if another holds it for :data:`SECONDS_TO_WAIT`.
    """
    last_try = time.monotonic() + SECONDS_TO_WAIT
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        _LOCKS.add(lock)  # before it is one, as another thread may fork at any time
        try:
            while not _bound(lock, name):
                if time.monotonic() > last_try:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), name)
                time.sleep(_SECONDS_BETWEEN_TRIES)
            yield
        finally:
            _LOCKS.discard(lock)


def _bound(lock: socket.socket, name: str) -> bool:
    """Whether the name is this socket's now; False if it is another's."""
    try:
        lock.bind(f"\0{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _after_fork() -> None:
    """Another thread of the parent may hold a lock; this process must not hold it longer than that one."""
    while _LOCKS:
        _LOCKS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
