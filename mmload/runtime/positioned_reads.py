"""Positioned reads and writes of open files: several threads can use one descriptor concurrently."""

from __future__ import annotations

import os
import threading

if hasattr(os, "preadv"):

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Read a file's bytes from ``offset`` on into ``out``; returns their number, 0 at the end of the file."""
        return os.preadv(handle, [out], offset)

    def write_at(handle: int, data: memoryview, offset: int) -> None:
        """Write all of ``data`` into a file from ``offset`` on."""
        while len(data):
            written = os.pwrite(handle, data, offset)
            data, offset = data[written:], offset + written

else:  # Windows has no positioned reads: seek and read must be atomic
    _SEEK_LOCK = threading.Lock()

    def read_at(handle: int, out: memoryview, offset: int) -> int:
        """Read a file's bytes from ``offset`` on into ``out``; returns their number, 0 at the end of the file."""
        with _SEEK_LOCK:
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, len(out))
        out[: len(data)] = data
        return len(data)

    def write_at(handle: int, data: memoryview, offset: int) -> None:
        """Write all of ``data`` into a file from ``offset`` on."""
        with _SEEK_LOCK:
            os.lseek(handle, offset, os.SEEK_SET)
            while len(data):
                data = data[os.write(handle, data) :]
