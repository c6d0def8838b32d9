"""Fills memory with ranges of open files, in turn; the disk is told of all that come later (``posix_fadvise``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from mmload.errors import DamagedError
from mmload.store.held_file import HeldFile


class Request(NamedTuple):
    """Bytes of a shard's file from ``offset``, as many as fit into ``out``.

    Attributes:
        damaged: the error of what is read there, by a reason; None: the reason is enough.
    """

    file: HeldFile
    offset: int
    out: memoryview
    damaged: Callable[[str], DamagedError] | None = None

    def fill(self, done: int = 0) -> None:
        """Read what ``out`` lacks, of which ``done`` bytes are there.

        Raises:
            DamagedError, StoreError: as :meth:`HeldFile.fill`.
        """
        with self.named():
            self.file.fill(self.out, self.offset, done)

    @contextmanager
    def named(self) -> Iterator[None]:
        """An error within names what is read."""
        try:
            yield
        except DamagedError as error:
            if self.damaged is None:
                raise
            raise self.damaged(str(error)) from error


def served(requests: Sequence[Request]) -> Iterator[None]:
    """Fill the requests in turn; the first that has to wait for the disk announces all later ones."""
    announced = False
    for number, request in enumerate(requests):
        done = 0 if announced else _read_cached(request.file.handle, request.out, request.offset)
        if done < len(request.out):
            if not announced:
                announced = True
                _announce(requests[number:])
            request.fill(done)
        yield


def served_in_groups(requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
    """Fill the requests in turn.

    Args:
        requests: where bytes are, and where they go.
        groups: after which requests the bytes so far must be right; the last is their number.

    Yields:
        After each group, which was checked to belong to the dataset that was opened.
    """
    reading, first = served(requests), 0
    for last in groups:
        for _ in range(first, last):
            next(reading)
        check_files({request.file for request in requests[first:last]})
        first = last
        yield


def check_files(files: Iterable[HeldFile]) -> None:
    """Check that what was read of them belongs to the dataset that was opened: one ``fstat`` each.

    Raises:
        DamagedError, StoreError: if a file was written to.
    """
    for file in files:
        file.check()


def _announce(requests: Sequence[Request]) -> None:
    """Ask the system to read ahead; only a hint."""
    if not hasattr(os, "posix_fadvise"):
        return
    for request in requests:
        with suppress(OSError):
            os.posix_fadvise(request.file.handle, request.offset, len(request.out), os.POSIX_FADV_WILLNEED)


def _read_cached(handle: int, out: memoryview, offset: int) -> int:
    """Read what is in the page cache, without waiting for the disk; 0 where the system cannot do that."""
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        return os.preadv(handle, [out], offset, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: nothing is cached; the blocking read reports any other error
        return 0
