"""Positioned reads of open files: several threads can read from one descriptor concurrently."""

from __future__ import annotations

import os
import threading

if hasattr(os, "preadv"):

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Read a file's bytes from ``offset`` on into ``out``; returns their number, 0 at the end of the file."""
        return os.preadv(handle, [out], offset)

else:  # Windows has no positioned read: seek and read must be atomic
    _SEEK_LOCK = threading.Lock()

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Read a file's bytes from ``offset`` on into ``out``; returns their number, 0 at the end of the file."""
        with _SEEK_LOCK:
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, len(out))
        out[: len(data)] = data
        return len(data)
