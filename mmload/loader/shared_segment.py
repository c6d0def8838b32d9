"""Memory that the processes of a user share on one machine, by a key, and that is freed with the last of them.

A segment is a memfd: a file of memory without a name in any folder. The size of /dev/shm does not limit it, and nothing
of it remains, not even after ``kill -9`` of all its holders. Each holder publishes its process and descriptor as an
abstract Unix socket, which the kernel withdraws with the process; the next one opens ``/proc/PROCESS/fd/DESCRIPTOR``,
which the kernel allows to processes of the same user. No socket is ever connected: the name is the message. Any user
can publish any name, so a name is only a hint. The kernel counts the holders: there is no server, and no file to
clean up.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

SECONDS_TO_WAIT = 20.0
"""Limit of :func:`exclusive_name`: its blocks take milliseconds, but a process can be stopped inside of one."""

_LISTED = Path("/proc/net/unix")
_SECONDS_BETWEEN_TRIES = 0.002

_LOCKS: set[socket.socket] = set()
"""Sockets of running :func:`exclusive_name` blocks, which a forked process must not keep."""


def publish_name(name: str) -> int:
    """Publishes a name until the descriptor is closed, in this process and in all that were forked since.

    Raises:
        OSError: if it is published already, or the system has no such names.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{name}")
        return made.detach()


def published_names(prefix: str) -> list[str]:
    """Returns the published names with this prefix of the network namespace, in ascending order.

    Raises:
        OSError: if the system does not list them.
    """
    return sorted(_inodes(prefix))


@contextmanager
def exclusive_name(name: str) -> Iterator[None]:
    """Holds a name that only one process of this user has at a time; a process that dies inside the block gives it up.

    If another user holds the name, the block runs at once without it: otherwise that user could stop this process.

    Raises:
        OSError: if another process of this user holds it for :data:`SECONDS_TO_WAIT`.
    """
    last_try = time.monotonic() + SECONDS_TO_WAIT
    kind = socket.AF_UNIX, socket.SOCK_DGRAM
    with socket.socket(*kind) as contender, socket.socket(*kind) as lock:  # closed in reverse order
        sockets = {contender, lock}
        _LOCKS.update(sockets)  # before they have names, as another thread may fork at any time
        try:
            # Says where others find the lock's socket, to see that it is of this user; unique as in Segment.publish.
            contender.bind(f"\0{name}.{os.getpid()}.{lock.fileno()}.{os.urandom(4).hex()}")
            while not _bound(lock, name) and not _is_foreign(name):
                if time.monotonic() > last_try:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), name)
                time.sleep(_SECONDS_BETWEEN_TRIES)
            yield
        finally:
            _LOCKS.difference_update(sockets)


def _inodes(prefix: str) -> dict[str, int]:
    """Returns the published names with this prefix and the inodes of their sockets."""
    lines = _LISTED.read_text(encoding="ascii", errors="replace").splitlines()
    found = (line.split(maxsplit=7)[-2:] for line in lines if f"@{prefix}" in line)
    return {name[1:]: int(inode) for inode, name in found if name.startswith(f"@{prefix}") and inode.isdecimal()}


def _is_foreign(name: str) -> bool:
    """Returns whether another user holds the name of :func:`exclusive_name`; False if nobody holds it any longer."""
    inode = _inodes(name).get(name)
    if inode is None:
        return False
    for contender in published_names(f"{name}."):
        with suppress(OSError, ValueError):  # it has ended, or is another user's, who can publish any text
            process, handle, _ = contender.removeprefix(f"{name}.").split(".")
            found = os.stat(f"/proc/{int(process)}/fd/{int(handle)}")
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode and found.st_uid == os.geteuid():
                return False
    # A holder of this user withdraws the name before the other one, by which it would have been found above.
    return _inodes(name).get(name) == inode


def _bound(lock: socket.socket, name: str) -> bool:
    """Binds the socket to the name; returns False if another socket has it."""
    try:
        lock.bind(f"\0{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _after_fork() -> None:
    """Closes locks of other threads of the parent, which this process must not hold longer than they do."""
    while _LOCKS:
        _LOCKS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_NAME = "mmload"
"""Prefix of all published names."""

_FORMAT = 1
"""Part of each key; increase it when the content of segments changes."""

_NO_EXECUTION = 0x0008  # MFD_NOEXEC_SEAL of Linux 6.3, which some systems require


class NotSharedError(Exception):
    """Error of memory that cannot be shared; the text says why."""


class _Holder(NamedTuple):
    """Process that publishes a segment and its descriptor; only a hint, until :meth:`status` has checked it."""

    digest: str
    process: int
    handle: int

    @property
    def path(self) -> str:
        return f"/proc/{self.process}/fd/{self.handle}"

    def status(self) -> os.stat_result | None:
        """Returns the status of the segment; None if it does not exist or belongs to another user.

        The descriptor is examined without opening it, as it could be anything: any user can publish any name, and
        process and descriptor may have been reused.

        Raises:
            NotSharedError: if this process may not look at it, though the other may be of this user.
        """
        try:
            if not os.readlink(self.path).startswith(f"/memfd:{_memfd_name(self.digest)}"):
                return None
            status = os.stat(self.path)
        except PermissionError as error:
            if _user_of(self.process) != os.geteuid():
                return None
            raise NotSharedError(
                f"process {self.process} keeps a copy that this process may not open ({error.strerror})"
            ) from error
        except OSError:  # it has ended
            return None
        return status if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() else None


def _user_of(process: int) -> int | None:
    """Returns the effective user of a process; None if it has ended. Its folder in /proc may belong to root."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return None


class Segment:
    """Shared memory, zero where nothing was written yet; :func:`opened` makes it.

    The memfd is closed with this object.

    Attributes:
        memory: the bytes, readable and writable; valid as long as anything refers to it.

    Raises:
        OSError: if it cannot be mapped or published.
    """

    def __init__(self, digest: str, handle: int, size: int) -> None:
        self._handles = [handle]
        self._digest = digest
        self.memory = mmap.mmap(handle, size)
        self._published_by = 0
        self.publish()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        for handle in self._handles:
            close(handle)

    def publish(self) -> None:
        """Publishes this process's descriptor; a forked process has to call it again, before its parent ends.

        Raises:
            OSError: if the system refuses it.
        """
        process = os.getpid()
        if process != self._published_by:
            # Unique, as a forked process may still hold the name of an earlier segment with the same numbers.
            own = os.urandom(4).hex()
            name = publish_name(f"{_prefix(self._digest)}{process}.{self._handles[0]}.{own}")
            for parents in self._handles[1:]:
                os.close(parents)
            self._handles[1:] = [name]
            self._published_by = process

    def write(self, data: memoryview, offset: int) -> None:
        """Writes bytes at an offset.

        Raises:
            OSError: if there is no memory left, where writing through :attr:`memory` would end the process.
        """
        done = 0
        while done < len(data):
            done += os.pwrite(self._handles[0], data[done:] if done else data, offset + done)

    def others(self) -> list[int]:
        """Returns the numbers of the other processes that hold this segment, in ascending order."""
        own, found = os.fstat(self._handles[0]), set()
        with suppress(OSError, NotSharedError):
            for one in _published_holders(self._digest):
                status = one.status()
                if status is not None and os.path.samestat(status, own):
                    found.add(one.process)
        return sorted(found - {os.getpid()})


def open_segment(key: str, size: int) -> Segment:
    """Opens the segment of this key that processes of this user hold, or creates one.

    The key identifies what is stored, and how: equal keys must mean equal bytes wherever any are written.

    Raises:
        NotSharedError: if memory cannot be shared here.
    """
    check_shareable()
    digest = _digest(key, size)
    try:
        with exclusive_name(f"{_prefix(digest)}lock"):
            handle = _held_already(digest, size)
            return Segment(digest, _created(digest, size) if handle is None else handle, size)
    except (OSError, ValueError, OverflowError) as error:  # mmap raises all three
        raise NotSharedError(f"{size:,} bytes of shared memory cannot be had ({error})") from error


def holders(key: str, size: int) -> list[int]:
    """Returns the numbers of the processes that hold the segment of this key, in ascending order.

    Raises:
        NotSharedError: if memory cannot be shared here.
    """
    check_shareable()
    try:
        return sorted({one.process for one in _published_holders(_digest(key, size)) if one.status() is not None})
    except OSError as error:
        raise NotSharedError(f"the system refuses it ({error.strerror})") from error


def unfilled_bytes() -> int:
    """Returns the free memory that this user's segments will still take when they are full; 0 if unknown."""
    missing: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for one in _published_holders():
            with suppress(NotSharedError):
                status = one.status()
                if status is not None:
                    missing[status.st_dev, status.st_ino] = max(0, status.st_size - status.st_blocks * 512)
    return sum(missing.values())


def check_shareable() -> None:
    """Checks that this system can share memory.

    Raises:
        NotSharedError: if it cannot.
    """
    problem = _problem()
    if problem:
        raise NotSharedError(problem)


@cache
def _problem() -> str:
    """Returns why memory cannot be shared here; "" if it can. Containers may forbid any part, so each is tried."""
    if not hasattr(os, "memfd_create"):
        return "this system cannot share memory without files"
    try:
        name = f"{_prefix('trial')}{os.getpid()}"
        with exclusive_name(name):
            if name not in published_names(name):
                return "this system does not list the names of sockets"
        handle = _created("0" * 32, mmap.PAGESIZE)
        try:
            os.close(os.open(f"/proc/{os.getpid()}/fd/{handle}", os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(handle)
    except OSError as error:
        return f"this system refuses shared memory ({error})"
    return ""


def _digest(key: str, size: int) -> str:
    return hashlib.sha256(f"{_FORMAT} {size} {key}".encode()).hexdigest()[:32]


def _prefix(digest: str = "") -> str:
    """Returns the prefix of the names of a segment, or of all."""
    return f"{_NAME}.{os.geteuid()}.{digest}." if digest else f"{_NAME}.{os.geteuid()}."


def _memfd_name(digest: str) -> str:
    return f"{_NAME}.{digest}"


def _published_holders(digest: str = "") -> Iterator[_Holder]:
    """Yields all processes that publish the segment, or any segment."""
    for name in published_names(_prefix(digest)):
        words = name.removeprefix(_prefix()).split(".")
        if len(words) == 4 and words[1].isdecimal() and words[2].isdecimal():
            yield _Holder(words[0], int(words[1]), int(words[2]))


def _created(digest: str, size: int) -> int:
    """Creates a memfd, sealed so that nobody can truncate it, which would kill its readers; returns the descriptor."""
    import fcntl

    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        handle = os.memfd_create(_memfd_name(digest), flags | _NO_EXECUTION)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        handle = os.memfd_create(_memfd_name(digest), flags)
    try:
        os.ftruncate(handle, size)
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _held_already(digest: str, size: int) -> int | None:
    """Opens the segment that another process holds; returns None if nobody does.

    Raises:
        NotSharedError: if somebody does, but this process may not open it.
    """
    import fcntl

    for one in _published_holders(digest):
        expected = one.status()
        if expected is None:
            continue
        try:
            handle = os.open(one.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # it has ended
            continue
        try:
            found = os.fstat(handle)  # the descriptor may have been reused between the check and the opening
            same = os.path.samestat(found, expected) and found.st_size == size
            if same and fcntl.fcntl(handle, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    return None
