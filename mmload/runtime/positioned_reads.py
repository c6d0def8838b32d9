"""Positioned reads of open files: several threads can read one descriptor at once."""

from __future__ import annotations

import os
import threading

if hasattr(os, "preadv"):

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Bytes of a file from ``offset`` into ``out``; how many, 0 at its end."""
        return os.preadv(handle, [out], offset)

else:  # Windows has no positioned read: seek and read have to go together
    _SEEK_LOCK = threading.Lock()

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Bytes of a file from ``offset`` into ``out``; how many, 0 at its end."""
        with _SEEK_LOCK:
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, len(out))
        out[: len(data)] = data
        return len(data)
