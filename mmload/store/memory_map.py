"""Maps files into memory as one copy-on-write array.

A map has whole pages, so files that are contiguous in it must end with one, all but the last. Touching a file that was
truncated since ends the process, as with any map: :mod:`mmload.store.row_map` looks before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, StoreError

_FIXED = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not have
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE: else a map larger than the memory is refused
_READ_WRITE = getattr(mmap, "PROT_READ", 1) | getattr(mmap, "PROT_WRITE", 2)  # which Windows does not have
_FAILED = ctypes.c_void_p(-1).value


class OpenFile(NamedTuple):
    """A file to map: its path, for messages, its descriptor, and its bytes."""

    path: str
    handle: int
    size: int


def joinable(sizes: Sequence[int]) -> bool:
    """Whether files of these sizes can be mapped contiguously."""
    whole_pages = os.name == "posix" and all(size % mmap.PAGESIZE == 0 for size in sizes[:-1])
    return len(sizes) == 1 or whole_pages


def mapped(files: Sequence[OpenFile], starts: Sequence[int] | None = None) -> npt.NDArray[np.uint8]:
    """Maps files into one array; it is paged in on access, and unmapped with the array.

    Args:
        files: at least one; their descriptors may be closed afterwards.
        starts: the byte at which each file begins, a multiple of the page size, in ascending order; what lies between
            two files must not be touched. None: contiguously, with sizes as :func:`joinable` wants them.

    Returns:
        uint8 [n]; writes stay in this process's memory and never reach the files.

    Raises:
        DamagedError: if a file is shorter.
        StoreError: if a file cannot be mapped.
    """
    for file in files:
        if (have := os.fstat(file.handle).st_size) < file.size:
            raise DamagedError(f"{file.path} has {have:,} bytes, expected {file.size:,}: it was truncated")
    if os.name != "posix":
        return np.frombuffer(mmap.mmap(files[0].handle, files[0].size, access=mmap.ACCESS_COPY), dtype=np.uint8)
    if starts is None:
        starts = list(accumulate((file.size for file in files[:-1]), initial=0))
    # Reserve addresses for all, map the files over them; one munmap releases everything.
    kind = mmap.MAP_PRIVATE | _NO_RESERVE
    reserved = mmap.mmap(-1, starts[-1] + files[-1].size, flags=kind | mmap.MAP_ANONYMOUS, prot=_READ_WRITE)
    array = np.frombuffer(reserved, dtype=np.uint8)
    for file, start in zip(files, starts, strict=True):
        address = array.ctypes.data + start
        if file.size and _system_mmap()(address, file.size, _READ_WRITE, kind | _FIXED, file.handle, 0) == _FAILED:
            raise StoreError(f"cannot map {file.path} ({os.strerror(ctypes.get_errno())})")
    return array


@cache
def _system_mmap() -> Callable[[int, int, int, int, int, int], int | None]:
    """``mmap`` of the C library: Python's own does not take an address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    typed: Callable[[int, int, int, int, int, int], int | None] = function
    return typed
