"""Evicts files from the page cache and verifies the eviction.

Files are written back and evicted with ``posix_fadvise(DONTNEED)``; then ``mincore`` counts the pages that are still
in memory. The caches of a disk, or of a virtual machine's host, are not visible. Never reads the content of a file.
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

_TRIES = 3  # pages in a processor's own queues are evicted by the second call


@dataclass(frozen=True, kw_only=True)
class Coldness:
    """The result of an eviction.

    Attributes:
        files: number of files.
        bytes: their total size.
        resident: bytes that are still in the page cache; None if the system does not report it.
        reason: why the eviction is not verified, "" if it is.
    """

    files: int
    bytes: int
    resident: int | None
    reason: str = ""

    @property
    def proven(self) -> bool:
        """Whether no page is left in the cache."""
        return self.resident == 0 and not self.reason


def make_cold(paths: Iterable[Path]) -> Coldness:
    """Evict files from the page cache and count the bytes that are still resident."""
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
    """Write a file's dirty pages back and ask the system to evict those of its first ``length`` bytes; 0: all."""
    handle = open_regular(path)
    try:
        os.fsync(handle)  # a dirty page cannot be evicted
        os.posix_fadvise(handle, 0, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def resident_bytes(path: Path, length: int = 0) -> int:
    """The resident bytes among a file's first ``length`` bytes (0: all), in whole pages.

    ``mincore(2)`` reports them for a mapping; mapping alone loads no page. For files that this user neither owns nor
    may write, Linux reports every page as resident, so the result is an upper bound.

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
        del memory  # otherwise the mapping could not be closed
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int((states & 1).sum()) * mmap.PAGESIZE


def files_below(roots: Sequence[Path]) -> list[Path]:
    """The regular files in folders, each once; links are followed."""
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
    """The C library's ``mincore``.

    Raises:
        OSError: if it is not available.
    """
    try:
        function = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, TypeError) as error:
        raise OSError(f"this system has no mincore ({error})") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
