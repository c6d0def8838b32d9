"""Brings ranges of mapped files into memory before compiled code reads them, without the interpreter lock.

A page fault reads 4 KiB at a time, and one on a page that cannot be read ends the process (SIGBUS). So ranges that are
not in the page cache are announced, all of a batch at once (``MADV_WILLNEED``), and then faulted in by
``MADV_POPULATE_READ`` of Linux 5.14, which returns an error instead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from mmload.runtime.numba_compile import numba_compiled

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]

RANDOM, WILLNEED, POPULATE_READ = 1, 3, 22
"""Advice of ``madvise`` on Linux; Python 3.11 does not know the last."""

SEGMENT_BYTES = 2**20
"""Rows of less than :data:`SMALL_RANGE` are brought in with their neighbors, once in the life of a map."""

SMALL_RANGE = 16 * 2**10
"""Bytes from which on ranges are looked at each time, which takes 1.1 us: a third of the time of a row of 3 kB."""

_PAGE = mmap.PAGESIZE
_types: Any = types  # numba is only partially typed
_MADVISE = _types.ExternalFunction("madvise", _types.int32(_types.uintp, _types.uintp, _types.int32))
_MINCORE = _types.ExternalFunction("mincore", _types.int32(_types.uintp, _types.uintp, _types.uintp))
_TRIES = 3


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
    for _ in range(_TRIES):
        if _madvise()(start, address + length - start, advice) == 0:
            return 0
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    return ctypes.get_errno()


class FileRanges(NamedTuple):
    """Where files lie in a map.

    Attributes:
        firsts: int64 [F], the byte at which each file begins.
        ends: int64 [F], the byte after its last; nothing is mapped from there to the next file.
        known: uint8 [n], which segments of :data:`SEGMENT_BYTES` of all files were brought in; empty: ranges are looked
            at each time.
        segments: int64 [F], the first segment of each file.
        looks: whether ``mincore`` tells the truth, which it does to those who may write the files.
    """

    firsts: Numbers
    ends: Numbers
    known: Flags
    segments: Numbers
    looks: bool


def make_resident(
    memory: Flags, ranges: FileRanges, files: Numbers, starts: Numbers, lengths: Numbers, absent: Flags
) -> tuple[int, int] | None:
    """Brings parts of files into memory.

    Args:
        memory: uint8 [n], the map.
        ranges: where the files are in it.
        files: int64 [B], the file that each part is of.
        starts: int64 [B], the first byte of each part in the map.
        lengths: int64 [B], bytes of each part.
        absent: uint8 [B], where 1 is written for each part that was not in memory.

    Returns:
        None; or the first part that cannot be read, and the number of the error.
    """
    base, first = memory.ctypes.data, 0
    while first < len(starts):
        some = slice(first, None)
        failed = int(_make_resident(base, *ranges, files[some], starts[some], lengths[some], absent[some]))
        if failed < 0:
            break
        first += failed
        error = advise(base + int(starts[first]), int(lengths[first]), POPULATE_READ)
        if error:
            return first, error
        first += 1  # another part of its segment cannot be read
    return None


@numba_compiled(
    "int64(uintp, int64[::1], int64[::1], uint8[::1], int64[::1], boolean, "
    "int64[::1], int64[::1], int64[::1], uint8[::1])"
)
def _make_resident(
    base: int,
    firsts: Numbers,
    ends: Numbers,
    known: Flags,
    segments: Numbers,
    looks: bool,
    files: Numbers,
    starts: Numbers,
    lengths: Numbers,
    absent: Flags,
) -> int:
    """:func:`make_resident`; returns the first part that cannot be read, or -1.

    With ``known`` it brings in whole segments. All parts are announced before the first one is waited for.
    """
    count = len(starts)
    begins, stops = np.empty(count, np.int64), np.empty(count, np.int64)
    most = 0
    for k in range(count):
        begins[k], stops[k] = starts[k] // _PAGE * _PAGE, starts[k] + lengths[k]
        most = max(most, lengths[k])
    pages = np.empty(most // _PAGE + 2, np.uint8)
    for k in range(count):
        absent[k] = 0
        if len(known):
            first, end = firsts[files[k]], ends[files[k]]
            at, last = (starts[k] - first) // SEGMENT_BYTES, (stops[k] - 1 - first) // SEGMENT_BYTES
            for segment in range(at, last + 1):
                absent[k] |= known[segments[files[k]] + segment] == 0
            begins[k] = first + at * SEGMENT_BYTES
            stops[k] = min(end, first + (last + 1) * SEGMENT_BYTES)
        elif looks and _MINCORE(base + begins[k], stops[k] - begins[k], pages.ctypes.data) == 0:
            for page in range((stops[k] - begins[k] + _PAGE - 1) // _PAGE):
                absent[k] |= (pages[page] & 1) == 0
        else:
            absent[k] = 1
        if absent[k]:
            _MADVISE(base + begins[k], stops[k] - begins[k], WILLNEED)
    for k in range(count):
        if absent[k]:
            if _MADVISE(base + begins[k], stops[k] - begins[k], POPULATE_READ) != 0:
                return k
            if len(known):
                at = (begins[k] - firsts[files[k]]) // SEGMENT_BYTES
                for segment in range((stops[k] - begins[k] + SEGMENT_BYTES - 1) // SEGMENT_BYTES):
                    known[segments[files[k]] + at + segment] = 1
    return -1


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
