"""Evicts files from the page cache and proves it.

Files are written back and evicted with ``posix_fadvise(DONTNEED)``; then ``mincore`` counts the pages that are still
in memory. The caches of a disk, or of a virtual machine's host, cannot be seen. Never reads a file's bytes.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmload.runtime.byte_sizes import bytes_text
from mmload.runtime.regular_files import open_regular

_TRIES = 3  # pages that are in a processor's own queues go with the second call


@dataclass(frozen=True, kw_only=True)
class Coldness:
    """What eviction came to.

    Attributes:
        files: how many there were.
        bytes: in them.
        resident: bytes that are still in the page cache; None if the system does not report it.
        reason: why it is not proven, "" if it is.
    """

    files: int
    bytes: int
    resident: int | None
    reason: str = ""

    @property
    def proven(self) -> bool:
        """Whether not one page is left."""
        return self.resident == 0 and not self.reason


def make_cold(paths: Iterable[Path]) -> Coldness:
    """Evict files from the page cache and count what is left of them there."""
    files = list(paths)
    size = sum(path.stat().st_size for path in files)
    if not hasattr(os, "posix_fadvise"):
        return Coldness(files=len(files), bytes=size, resident=None, reason="this system has no posix_fadvise")
    left: list[Path] = files
    resident = 0
    for _ in range(_TRIES):
        for path in left:
            evict(path)
        try:
            counts = {path: resident_bytes(path) for path in left}
        except OSError as error:
            return Coldness(files=len(files), bytes=size, resident=None, reason=f"mincore: {error.strerror or error}")
        left = [path for path, count in counts.items() if count]
        resident = sum(counts.values())
        if not left:
            break
    reason = f"{bytes_text(resident)} stay in the page cache, as of {left[0]}" if left else ""
    return Coldness(files=len(files), bytes=size, resident=resident, reason=reason)


def evict(path: Path, length: int = 0) -> None:
    """Write a file's pages back to the disk and ask the system to give up those of its first bytes; 0: of all."""
    handle = open_regular(path)
    try:
        os.fsync(handle)  # a page that was not written back cannot be given up
        os.posix_fadvise(handle, 0, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def resident_bytes(path: Path, length: int = 0) -> int:
    """Of a file's first bytes (0: of all), those that are in the page cache, in whole pages.

    ``mincore(2)`` reports it for a mapping, which by itself loads no page. Of files that this user neither owns nor
    may write, Linux says that every page is there: never less than the truth.

    Raises:
        OSError: if the system does not report it.
    """
    size = min(length or path.stat().st_size, path.stat().st_size)
    if size == 0:
        return 0
    with (
        open(path, "rb", opener=open_regular) as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as pages,
    ):
        memory = np.frombuffer(pages, dtype=np.uint8)
        states = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
        failed = _mincore()(memory.ctypes.data, size, states.ctypes.data)
        del memory  # else the mapping could not be closed
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int((states & 1).sum()) * mmap.PAGESIZE


def files_below(roots: Sequence[Path]) -> list[Path]:
    """The regular files in folders, links followed, each once."""
    found: dict[Path, None] = {}
    for root in roots:
        for folder, _, names in os.walk(root, followlinks=True):
            for name in names:
                path = Path(os.path.realpath(os.path.join(folder, name)))
                if path.is_file():
                    found[path] = None
    return list(found)


@functools.cache
def _mincore() -> Any:
    """The C library's function.

    Raises:
        OSError: if there is none.
    """
    try:
        function = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, TypeError) as error:
        raise OSError(f"this system has no mincore ({error})") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
