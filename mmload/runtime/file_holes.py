"""Gives a part of a file back to the disk: the file keeps its size, and that part reads as zeros."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def punch(handle: int, offset: int, length: int) -> bool:
    """Free the whole pages of a range; False if the system or the file system cannot."""
    function = _fallocate()
    return function is not None and function(handle, _KEEP_SIZE | _PUNCH_HOLE, offset, length) == 0


def can_punch(folder: Path) -> bool:
    """Whether files in a folder can have holes made into them."""
    path = folder / f".holes-{os.getpid()}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(handle, b"x" * 65536)
        return punch(handle, 0, 65536)
    finally:
        os.close(handle)
        path.unlink()


@cache
def _fallocate() -> Any:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    function.restype = ctypes.c_int
    return function
