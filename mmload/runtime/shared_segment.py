"""Memory that the processes of a user share on one machine, by a key, and that is freed with the last of them.

A segment is a memfd: a file of memory without a name in any folder. The size of /dev/shm does not limit it, and nothing
of it is left over, not even after ``kill -9`` of all its holders. Each holder announces its process and descriptor by
:mod:`mmload.runtime.kernel_names`; the next one opens ``/proc/PROCESS/fd/DESCRIPTOR``, which the kernel allows to
processes of the same user. The kernel counts the holders: there is no server, and no file to clean up.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mmload.runtime import kernel_names

_NAME = "mmload"
"""What all announced names begin with."""

_FORMAT = 1
"""Part of each key: to be increased if what is stored in segments changes."""

_NO_EXECUTION = 0x0008  # MFD_NOEXEC_SEAL of Linux 6.3, which some systems require


class NotSharedError(Exception):
    """Memory cannot be shared here; the text says why."""


class _Holder(NamedTuple):
    """Who announces a segment, and as which of its descriptors; only a hint, until :meth:`status` has checked it."""

    digest: str
    process: int
    handle: int

    @property
    def path(self) -> str:
        return f"/proc/{self.process}/fd/{self.handle}"

    def status(self) -> os.stat_result | None:
        """The status of the segment; None if there is none, or it is another user's.

        The descriptor is looked at without opening it, as it could be anything: any user can announce any name, and
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
                f"process {self.process} keeps a copy, but may not be asked for it ({error.strerror})"
            ) from error
        except OSError:  # it has ended
            return None
        return status if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() else None


def _user_of(process: int) -> int | None:
    """The effective user of a process; None if it has ended. The owner of its folder in /proc may be root instead."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return None


class Segment:
    """Shared memory, zero where nothing was written yet; :func:`opened` makes it.

    Args:
        digest: of its key.
        handle: the memfd, closed with this object.
        size: in bytes.

    Attributes:
        memory: the bytes, readable and writable; valid as long as anything refers to it.

    Raises:
        OSError: if it cannot be mapped or announced.
    """

    def __init__(self, digest: str, handle: int, size: int) -> None:
        self._handles = [handle]
        self._digest = digest
        self.memory = mmap.mmap(handle, size)
        self._announced_by = 0
        self.announce()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        for handle in self._handles:
            close(handle)

    def announce(self) -> None:
        """Let others find this process's descriptor; a forked process has to call it again, before its parent ends.

        Raises:
            OSError: if the system refuses it.
        """
        process = os.getpid()
        if process != self._announced_by:
            # Unique, as a forked process may still hold the name of an earlier segment with the same numbers.
            own = os.urandom(4).hex()
            name = kernel_names.announce(f"{_prefix(self._digest)}{process}.{self._handles[0]}.{own}")
            for parents in self._handles[1:]:
                os.close(parents)
            self._handles[1:] = [name]
            self._announced_by = process

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes.

        Raises:
            OSError: if there is no memory left, where writing through :attr:`memory` would end the process.
        """
        done = 0
        while done < len(data):
            done += os.pwrite(self._handles[0], data[done:] if done else data, offset + done)

    def others(self) -> list[int]:
        """The numbers of the other processes that hold this segment now, in ascending order."""
        own, found = os.fstat(self._handles[0]), set()
        with suppress(OSError, NotSharedError):
            for one in _announced(self._digest):
                status = one.status()
                if status is not None and os.path.samestat(status, own):
                    found.add(one.process)
        return sorted(found - {os.getpid()})


def opened(key: str, size: int) -> Segment:
    """The segment of this key that processes of this user hold; a new one, if none does.

    Args:
        key: what is stored in it, and how. Equal keys must mean equal bytes wherever any are written.
        size: in bytes.

    Raises:
        NotSharedError: if memory cannot be shared here.
    """
    refuse_unshared()
    digest = _digest(key, size)
    try:
        with kernel_names.exclusively(f"{_prefix(digest)}lock"):
            handle = _held_already(digest, size)
            return Segment(digest, _created(digest, size) if handle is None else handle, size)
    except (OSError, ValueError, OverflowError) as error:  # mmap raises all three
        raise NotSharedError(f"{size:,} bytes of shared memory cannot be had ({error})") from error


def holders(key: str, size: int) -> list[int]:
    """The numbers of the processes that hold the segment of this key now, in ascending order.

    Raises:
        NotSharedError: if memory cannot be shared here.
    """
    refuse_unshared()
    try:
        return sorted({one.process for one in _announced(_digest(key, size)) if one.status() is not None})
    except OSError as error:
        raise NotSharedError(f"the system refuses it ({error.strerror})") from error


def unfilled_bytes() -> int:
    """Bytes that this user's segments will still take of the free memory when they are full; 0 if they are unknown."""
    left: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for one in _announced():
            with suppress(NotSharedError):
                status = one.status()
                if status is not None:
                    left[status.st_dev, status.st_ino] = max(0, status.st_size - status.st_blocks * 512)
    return sum(left.values())


def refuse_unshared() -> None:
    """Check that this system can share memory.

    Raises:
        NotSharedError: if it cannot.
    """
    problem = _problem()
    if problem:
        raise NotSharedError(problem)


@cache
def _problem() -> str:
    """Why memory cannot be shared on this system; "" if it can. Containers may forbid any part, so each is tried."""
    if not hasattr(os, "memfd_create"):
        return "this system cannot share memory without files"
    try:
        name = f"{_prefix('trial')}{os.getpid()}"
        with kernel_names.exclusively(name):
            if name not in kernel_names.announced(name):
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
    """The beginning of the names of a segment, or of all."""
    return f"{_NAME}.{os.geteuid()}.{digest}." if digest else f"{_NAME}.{os.geteuid()}."


def _memfd_name(digest: str) -> str:
    return f"{_NAME}.{digest}"


def _announced(digest: str = "") -> Iterator[_Holder]:
    """All who say that they hold the segment, or any."""
    for name in kernel_names.announced(_prefix(digest)):
        words = name.removeprefix(_prefix()).split(".")
        if len(words) == 4 and words[1].isdecimal() and words[2].isdecimal():
            yield _Holder(words[0], int(words[1]), int(words[2]))


def _created(digest: str, size: int) -> int:
    """The descriptor of a new memfd, sealed: nobody can truncate it, which would end by a signal all who read it."""
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
    """A descriptor of the segment that somebody holds; None if nobody does.

    Raises:
        NotSharedError: if somebody does, but this process may not open it.
    """
    import fcntl

    for one in _announced(digest):
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
