"""The environment of a bench: the machine, and the versions of all packages involved."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmload
from mmload.errors import bytes_text
from mmload.runtime.regular_files import open_regular
from mmload.runtime.resources import available_cores, processor_name

PACKAGES = (
    "torchvision",
    "tensordict",
    "numpy",
    "pillow",
    "ffcv",
    "turboloader",
    "kornia",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "litdata",
    "webdataset",
)
"""Packages whose versions a record contains, if they are installed."""


def machine() -> dict[str, Any]:
    """Returns processor, cores, memory, graphics processor, system, and the versions of Python, torch and mmload."""
    import psutil

    return {
        "processor": processor_name(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mmload": mmload.__version__,
    }


def versions() -> dict[str, str]:
    """Returns package -> version, for those of :data:`PACKAGES` that are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "mmload": mmload.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


_PROC = Path("/proc")
_KIB = 1024


def process_tree(root: int) -> list[int]:
    """Returns ``root`` and all its live descendants, each after its parent."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    return [root]


def processor_seconds() -> float:
    """Returns the processor seconds used so far by this process, its threads, and its children, ended or running."""
    import psutil

    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            used = child.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def tree_memory(root: int) -> int | None:
    """Returns the bytes of memory of ``root`` and its descendants; None if the system does not report it.

    A page that several of them share counts once: their proportional shares of anonymous and shared memory are added
    up. Of mapped files, only the largest resident set counts, as all map the same libraries.
    """
    private = files = 0
    for process in process_tree(root):
        shares = _fields(process, "smaps_rollup")
        resident = _fields(process, "status")
        private += shares.get("Pss_Anon", 0) + shares.get("Pss_Shmem", 0)
        files = max(files, resident.get("RssFile", 0))
    return (private + files) * _KIB if private else None


def _fields(process: int, file: str) -> dict[str, int]:
    """Reads ``Name:  123 kB`` lines as numbers; empty if the process has ended or the file is not readable."""
    try:
        lines = (_PROC / str(process) / file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if rest.endswith(" kB")}


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
        """True if no page is left in the cache."""
        return self.resident == 0 and not self.reason


def make_cold(paths: Iterable[Path]) -> Coldness:
    """Evicts files from the page cache and counts the bytes that are still resident."""
    files = list(paths)
    size = sum(path.stat().st_size for path in files)
    if not hasattr(os, "posix_fadvise"):
        return Coldness(files=len(files), bytes=size, resident=None, reason="this system has no posix_fadvise")
    remaining: list[Path] = files
    resident = 0
    for _ in range(_TRIES):
        for path in remaining:
            evict(path)
        try:
            counts = {path: resident_bytes(path) for path in remaining}
        except OSError as error:
            return Coldness(files=len(files), bytes=size, resident=None, reason=f"mincore: {error.strerror or error}")
        remaining = [path for path, count in counts.items() if count]
        resident = sum(counts.values())
        if not remaining:
            break
    reason = f"{bytes_text(resident)} stay in the page cache, as of {remaining[0]}" if remaining else ""
    return Coldness(files=len(files), bytes=size, resident=resident, reason=reason)


def evict(path: Path, length: int = 0) -> None:
    """Writes a file's dirty pages back and asks the system to evict those of its first ``length`` bytes; 0: all."""
    handle = open_regular(path)
    try:
        os.fsync(handle)  # a dirty page cannot be evicted
        os.posix_fadvise(handle, 0, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def resident_bytes(path: Path, length: int = 0) -> int:
    """Returns the resident bytes among a file's first ``length`` bytes (0: all), in whole pages.

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
    """Returns the regular files in folders, each once; links are followed."""
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
    """Returns the C library's ``mincore``; raises OSError if it is not available."""
    try:
        function = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, TypeError) as error:
        raise OSError(f"this system has no mincore ({error})") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
