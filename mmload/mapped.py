"""Files as one read-only array: mapped into memory, several of them one behind the other, without a copy.

Comes in: files and their sizes. Goes out: their bytes. A map has whole pages, so all files but the last must end with
one. Touching a file that was truncated since ends the process, as with any map: loaders read by
:mod:`mmload.reader` instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, StoreError

_FIXED = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not have
_FAILED = ctypes.c_void_p(-1).value


def joinable(sizes: Sequence[int]) -> bool:
    """Whether files of these sizes can be mapped one behind the other."""
    whole_pages = os.name == "posix" and all(size % mmap.PAGESIZE == 0 for size in sizes[:-1])
    return len(sizes) == 1 or whole_pages


def mapped(paths: Sequence[str], sizes: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The files' bytes, which are read when they are touched and let go of with the array.

    Args:
        paths: the files, at least one.
        sizes: bytes of each, as :func:`joinable` wants them.

    Returns:
        uint8 [sum of sizes], read-only: writing to its memory ends the process.

    Raises:
        DamagedError: if a file is shorter.
        StoreError: if a file cannot be opened or mapped.
    """
    if len(paths) == 1:
        return np.memmap(paths[0], dtype=np.uint8, mode="r")
    # Addresses for all, of which nothing is touched; the files take their places, and munmap ends them with it.
    room = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    whole = np.frombuffer(room, dtype=np.uint8)
    place = whole.ctypes.data
    for path, size in zip(paths, sizes, strict=True):
        _map_at(place, path, size)
        place += size
    return whole


def _map_at(place: int, path: str, size: int) -> None:
    try:
        with open(path, "rb") as file:
            if (have := os.fstat(file.fileno()).st_size) < size:
                raise DamagedError(f"{path} has {have:,} bytes, expected {size:,}: it was truncated")
            kind = mmap.MAP_SHARED | _FIXED
            if _system_mmap()(place, size, mmap.PROT_READ, kind, file.fileno(), 0) == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise StoreError(f"cannot map {path} ({error.strerror})") from error


@cache
def _system_mmap() -> Callable[[int, int, int, int, int, int], int | None]:
    """``mmap`` of the system's C library: Python's own does not take an address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    made: Callable[[int, int, int, int, int, int], int | None] = function
    return made
