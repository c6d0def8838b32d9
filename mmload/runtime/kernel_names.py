"""Names by which processes of this machine find each other, and which the kernel withdraws when they die.

A name is an abstract Unix socket (Linux): it has no file, so nothing of it can be left over, however a process ends. No
socket is ever connected: the name is the message. Any user can announce any name, so a name is only a hint.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS_TO_WAIT = 20.0
"""How long :func:`exclusively` waits: its blocks take milliseconds, but a process can be stopped inside of one."""

_LISTED = Path("/proc/net/unix")
_SECONDS_BETWEEN_TRIES = 0.002

_LOCKS: set[socket.socket] = set()
"""The sockets of :func:`exclusively` now, which a forked process must not go on holding."""


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
    return sorted(_inodes(prefix))


@contextmanager
def exclusively(name: str) -> Iterator[None]:
    """Hold a name that only one process of this user has at a time; one that dies inside the block gives it up.

    If another user holds the name, the block runs at once without it: whoever waits for another user can be stopped by
    that user.

    Raises:
        OSError: if another process of this user holds it for :data:`SECONDS_TO_WAIT`.
    """
    last_try = time.monotonic() + SECONDS_TO_WAIT
    kind = socket.AF_UNIX, socket.SOCK_DGRAM
    with socket.socket(*kind) as contender, socket.socket(*kind) as lock:  # closed in reverse order
        sockets = {contender, lock}
        _LOCKS.update(sockets)  # before they have names, as another thread may fork at any time
        try:
            # Says where others find the lock's socket, to see that it is of this user; unique as in Segment.announce.
            contender.bind(f"\0{name}.{os.getpid()}.{lock.fileno()}.{os.urandom(4).hex()}")
            while not _bound(lock, name) and not _is_foreign(name):
                if time.monotonic() > last_try:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), name)
                time.sleep(_SECONDS_BETWEEN_TRIES)
            yield
        finally:
            _LOCKS.difference_update(sockets)


def _inodes(prefix: str) -> dict[str, int]:
    """The names now announced that begin so, each with the inode of its socket."""
    lines = _LISTED.read_text(encoding="ascii", errors="replace").splitlines()
    found = (line.split(maxsplit=7)[-2:] for line in lines if f"@{prefix}" in line)
    return {name[1:]: int(inode) for inode, name in found if name.startswith(f"@{prefix}") and inode.isdecimal()}


def _is_foreign(name: str) -> bool:
    """Whether another user holds the name of :func:`exclusively`; False if nobody does any longer."""
    inode = _inodes(name).get(name)
    if inode is None:
        return False
    for contender in announced(f"{name}."):
        with suppress(OSError, ValueError):  # it has ended, or is another user's, who can announce any text
            process, handle, _ = contender.removeprefix(f"{name}.").split(".")
            found = os.stat(f"/proc/{int(process)}/fd/{int(handle)}")
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode and found.st_uid == os.geteuid():
                return False
    # A holder of this user withdraws the name before the other one, by which it would have been found above.
    return _inodes(name).get(name) == inode


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
