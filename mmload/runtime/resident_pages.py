"""Brings ranges of mapped files into memory before compiled code reads them, without the interpreter lock.

A page fault reads 4 KiB at a time, and one on a page that cannot be read ends the process (SIGBUS). So ranges that are
not in the page cache are prefetched, all of a batch at once (``MADV_WILLNEED``), and then faulted in by
``MADV_POPULATE_READ`` of Linux 5.14, which returns an error instead. Rows that the page cache
cannot hold are evicted after their use, as :class:`~mmload.store.dataset_folder.EvictionPolicy` chooses.

A FUSE file system forgets what is prefetched while it is busy. There, and on file systems that are not known to heed
it, ranges are read by their descriptor once before they are faulted in, which has them in the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.runtime.host_memory import zeros
from mmload.runtime.intrinsics import Arena, carve
from mmload.runtime.kernels import ARENA, USED, External, called, numba_compiled

Numbers = Annotated[npt.NDArray[np.int64], "int64[::1]"]
Flags = Annotated[npt.NDArray[np.uint8], "uint8[::1]"]

RANDOM, WILLNEED, DONTNEED, POPULATE_READ = 1, 3, 4, 22
"""Advice of ``madvise`` on Linux; Python 3.11 does not know the last."""

SEGMENT_BYTES = 2**20
"""Rows of less than :data:`SMALL_RANGE`, if all fit into memory, are brought in with their neighbors, once in the life
of a map."""

RESIDENT, PREFETCHED = 1, 2
"""States of a segment; 0: nothing is known of it."""

SMALL_RANGE = 16 * 2**10
"""Bytes from which on ranges are looked at each time, which takes 1.1 us: a third of the time of a row of 3 kB."""

_LOCAL = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x73717368, 0xE0F5E1E2)
)
"""Types of file systems that heed what is prefetched, as ``statfs`` has them: ext2 to ext4, XFS, Btrfs, tmpfs,
overlayfs, F2FS, ZFS, bcachefs, SquashFS, EROFS."""

_PAGE = mmap.PAGESIZE
_PREFETCHED_BYTES = 128 * 2**10
"""Bytes that are prefetched at a time: of more, Linux reads only as much as a device takes in one request, or as its
``read_ahead_kb``, which is 128 by default. The rest came by faults: 17 to 139 requests a row from a FUSE file
system."""

_READ_BYTES = 2**20
_CHUNK_BYTES = 16 * 2**20
_MADVISE = External("madvise", "int32(uintp, uintp, int32)")
_MINCORE = External("mincore", "int32(uintp, uintp, uintp)")
_READ = External("pread", "int64(int32, uintp, uintp, int64)")
_FADVISE = External("posix_fadvise", "int32(int32, int64, int64, int32)")
_FADVISE_DONTNEED = getattr(os, "POSIX_FADV_DONTNEED", -1)  # -1: macOS, where the call does not exist
_LOOKED_AT = 512
"""Most parts that are looked at while the interpreter lock is kept: 1.5 ms of large rows."""


@cache
def can_populate() -> bool:
    """Returns whether the system has ``MADV_POPULATE_READ``."""
    if sys.platform != "linux":
        return False
    page = mmap.mmap(-1, _PAGE)
    address = np.frombuffer(page, np.uint8).ctypes.data
    return advise(address, _PAGE, POPULATE_READ) == 0


def advise(address: int, length: int, advice: int) -> int:
    """Calls ``madvise`` for whole pages; returns 0, or the number of the error."""
    start = address // _PAGE * _PAGE
    failed = _c_library().madvise(ctypes.c_size_t(start), ctypes.c_size_t(address + length - start), advice)
    return ctypes.get_errno() if failed else 0


def needs_reads(handle: int) -> bool:
    """Returns whether ranges of an open file must be read through its descriptor before they are faulted in.

    That is so on file systems that are reached by a network or FUSE, or are unknown.
    """
    answer = (ctypes.c_long * 64)()  # struct statfs has 15 of them, and begins with the type
    return _c_library().fstatfs(handle, answer) != 0 or answer[0] & 0xFFFFFFFF not in _LOCAL


def populate(address: int, length: int, handle: int | None = None) -> int:
    """Reads mapped pages into memory, a chunk while the disk reads the next; returns 0, or the number of the error.

    Args:
        address: address of the first byte of a file.
        length: bytes.
        handle: the file, if :func:`needs_reads`.
    """
    spare = np.empty(_READ_BYTES if handle is not None else 0, np.uint8)
    for at in range(0, length, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, length - at)
        _will_need(address + at, min(2 * _CHUNK_BYTES, length - at))
        if handle is not None:
            _read(handle, at, size, spare)
        if error := advise(address + at, size, POPULATE_READ):
            return error
    return 0


class FileRanges(NamedTuple):
    """Byte ranges of files in a map.

    Attributes:
        firsts: int64 [F], the byte at which each file begins.
        ends: int64 [F], the byte after its last; nothing is mapped from there to the next file.
        known: uint8 [n], which segments of :data:`SEGMENT_BYTES` of all files are :data:`PREFETCHED` or were brought in
            (:data:`RESIDENT`); empty: ranges are looked at each time.
        segments: int64 [F], the first segment of each file.
        looks: whether ``mincore`` is asked: it tells the truth to those who may write the files.
        reads: whether one of the files :func:`needs_reads`.
        handles: int64 [F], the descriptors of the files.
    """

    firsts: Numbers
    ends: Numbers
    known: Flags
    segments: Numbers
    looks: bool
    reads: bool
    handles: Numbers


NO_FILES = FileRanges(
    firsts=np.empty(0, np.int64),
    ends=np.empty(0, np.int64),
    known=np.empty(0, np.uint8),
    segments=np.empty(0, np.int64),
    looks=False,
    reads=False,
    handles=np.empty(0, np.int64),
)

_NUMBERS = "int64[::1]"


def prefetch(memory: Flags, ranges: FileRanges, files: Numbers, starts: Numbers, lengths: Numbers) -> Numbers:
    """Asks the system to read parts of files that are not in memory, all of them at once.

    Args:
        memory: uint8 [n], the map.
        ranges: ranges of the files in it.
        files: int64 [B], the file that each part is of.
        starts: int64 [B], the first byte of each part in the map.
        lengths: int64 [B], bytes of each part.

    Returns:
        int64 [B], the bytes of the pages of each part that are not in memory, and that :func:`bring_in` waits for.
    """
    absent: Numbers = zeros(len(starts), np.int64)
    parts = memory.ctypes.data, ranges, files, starts, lengths, absent
    # A look does not give the lock away, as it waits for nothing: 64 rows take 70 us, of the first that is absent it
    # knows enough. To await the lock afterwards cost crops of 224, two threads, a twelfth of their rate.
    if len(starts) > _LOOKED_AT or not _look(*parts, True):
        _request(*parts, False)
    return absent


@numba_compiled("int64", "int64")
def _will_need(address: int, length: int) -> None:
    """Asks the system to read mapped pages, as many at a time as it takes."""
    first = address // _PAGE * _PAGE
    for at in range(first, address + length, _PREFETCHED_BYTES):
        _MADVISE(at, min(_PREFETCHED_BYTES, address + length - at), WILLNEED)


@numba_compiled("int64, int64, int64, uint8[::1]")
def _read(handle: int, offset: int, length: int, spare: Flags) -> None:
    """Reads a range of a file so that it is in the page cache; its bytes and errors are dropped."""
    done = 0
    while done < length:
        more = _READ(handle, spare.ctypes.data, min(len(spare), length - done), offset + done)
        if more <= 0:
            break
        done += more


@called
def _extent(ranges: FileRanges, file: int, start: int, length: int) -> tuple[int, int, int, int]:
    """Returns where the complete pages of a part begin and its last byte ends; with ``known``, its segments.

    Then come the numbers of its first segment and of the one after its last; the same without ``known``.
    """
    if not len(ranges.known):
        return start // _PAGE * _PAGE, start + length, 0, 0
    first, segment = ranges.firsts[file], ranges.segments[file]
    at, last = (start - first) // SEGMENT_BYTES, (start + length - 1 - first) // SEGMENT_BYTES + 1
    return (
        first + at * SEGMENT_BYTES,
        min(ranges.ends[file], first + last * SEGMENT_BYTES),
        segment + at,
        segment + last,
    )


def _prefetch_absent(
    base: int,
    ranges: FileRanges,
    files: Numbers,
    starts: Numbers,
    lengths: Numbers,
    absent: Numbers,
    only_looks: bool,
    arena: Arena,
) -> bool:
    """Prefetches absent parts for :func:`prefetch`, or returns whether there are none."""
    known, most = ranges.known, 0
    for k in range(len(starts)):
        most = max(most, lengths[k])
    pages = carve(arena, most // _PAGE + 2, np.uint8)
    for k in range(len(starts)):
        begin, stop, at, last = _extent(ranges, files[k], starts[k], lengths[k])
        absent[k] = 0
        if len(known):
            for segment in range(at, last):
                absent[k] = max(absent[k], lengths[k] * (known[segment] != RESIDENT))
        elif ranges.looks and _MINCORE(base + begin, stop - begin, pages.ctypes.data) == 0:
            for page in range((stop - begin + _PAGE - 1) // _PAGE):
                absent[k] += _PAGE * ((pages[page] & 1) == 0)
        else:
            absent[k] = lengths[k]
        if only_looks and absent[k]:
            return False
        is_new = absent[k] != 0 and not len(known)
        for segment in range(at, last):
            if known[segment] == 0:
                known[segment], is_new = PREFETCHED, True
        if is_new:
            _will_need(base + begin, stop - begin)
    return True


_ASK = "uintp", FileRanges, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, "boolean", ARENA
_look = numba_compiled(*_ASK, returns="boolean", nogil=False)(_prefetch_absent)
_request = numba_compiled(*_ASK, returns="boolean")(_prefetch_absent)


@called
def bring_in(base: int, ranges: FileRanges, file: int, start: int, length: int, arena: Arena) -> bool:
    """Waits until a part of a file that was prefetched is in memory; returns False if it cannot be read."""
    begin, stop, at, last = _extent(ranges, file, start, length)
    is_resident = last > at
    for segment in range(at, last):
        is_resident &= ranges.known[segment] == RESIDENT
    if is_resident:  # another row of the batch has brought them in
        return True
    if ranges.reads:
        spare = carve(arena, _READ_BYTES, np.uint8)
        _read(ranges.handles[file], begin - ranges.firsts[file], stop - begin, spare)
    if _MADVISE(base + begin, stop - begin, POPULATE_READ) == 0:
        ranges.known[at:last] = RESIDENT
        return True
    first = start // _PAGE * _PAGE  # another part of its segment cannot be read
    return bool(_MADVISE(base + first, start + length - first, POPULATE_READ) == 0)


@numba_compiled("uintp", FileRanges, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, ARENA, returns="int64")
def make_resident(
    base: int, ranges: FileRanges, files: Numbers, starts: Numbers, lengths: Numbers, absent: Numbers, arena: Arena
) -> int:
    """Waits for absent parts, as of :func:`prefetch`; returns the first one that cannot be read, or -1.

    ``base`` is the address of the map.
    """
    begun = arena[USED]
    for k in range(len(starts)):
        arena[USED] = begun
        if absent[k] and not bring_in(base, ranges, files[k], starts[k], lengths[k], arena):
            return k
    return -1


@numba_compiled("uintp", FileRanges, _NUMBERS, _NUMBERS, _NUMBERS)
def evict(base: int, ranges: FileRanges, files: Numbers, starts: Numbers, lengths: Numbers) -> None:
    """Evicts the complete pages of parts of files that no other process has mapped.

    ``base`` is the address of the map; the other arguments are those of :func:`prefetch`.
    """
    for k in range(len(starts)):
        begin = (starts[k] + _PAGE - 1) // _PAGE * _PAGE
        length = (starts[k] + lengths[k]) // _PAGE * _PAGE - begin
        if length > 0:
            _MADVISE(base + begin, length, DONTNEED)  # first: pages that are mapped stay
            _FADVISE(ranges.handles[files[k]], begin - ranges.firsts[files[k]], length, _FADVISE_DONTNEED)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
