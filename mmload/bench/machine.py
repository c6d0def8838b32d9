"""The environment of a bench: the machine, and the versions of all packages involved."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmload
from mmload.errors import bytes_text
from mmload.runtime.files import open_regular
from mmload.runtime.resources import available_cores, installed_version, processor_name

PACKAGES = (
    "torchvision",
    "tensordict",
    "numpy",
    "pillow",
    "ffcv",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
)
"""Packages whose versions a record contains, if they are installed."""

_TRIES = 3  # pages in a processor's own queues are evicted by the second call


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
    """Returns the versions of Python, torch, mmload, and those of :data:`PACKAGES` that are installed."""
    own = {"python": platform.python_version(), "torch": torch.__version__, "mmload": mmload.__version__}
    return own | {name: found for name in PACKAGES if (found := installed_version(name))}


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


def busy_share() -> float:
    """Returns the share of the machine's processor time, in [0, 1], that all programs use, over one second."""
    import psutil

    return float(psutil.cpu_percent(interval=1.0)) / 100


def make_cold(paths: Iterable[Path]) -> str:
    """Evicts files from the page cache; returns why they may not be cold, "" if no page of them is left in it."""
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise"
    remaining = list(paths)
    for _ in range(_TRIES):
        for path in remaining:
            evict_file(path)
        try:
            counts = {path: resident_bytes(path) for path in remaining}
        except OSError as error:
            return f"mincore: {error.strerror or error}"
        remaining = [path for path, count in counts.items() if count]
        if not remaining:
            return ""
    return f"{bytes_text(sum(counts.values()))} stay in the page cache, as of {remaining[0]}"


def evict_file(path: Path) -> None:
    """Writes a file's dirty pages back and asks the system to evict its pages."""
    handle = open_regular(path)
    try:
        os.fsync(handle)  # a dirty page cannot be evicted
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def resident_bytes(path: Path) -> int:
    """Returns the resident bytes of a file, in whole pages.

    ``mincore(2)`` reports them for a mapping; mapping alone loads no page. For files that this user neither owns nor
    may write, Linux reports every page as resident, so the result is an upper bound.

    Raises:
        OSError: if the system does not report it.
    """
    size = path.stat().st_size
    if size == 0:
        return 0
    with (
        open(path, "rb", opener=open_regular) as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as pages,
    ):
        memory = np.frombuffer(pages, dtype=np.uint8)
        states = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(states.ctypes.data)
        )
        del memory  # otherwise the mapping could not be closed
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int((states & 1).sum()) * mmap.PAGESIZE


def files_below(roots: Iterable[Path]) -> list[Path]:
    """Returns the regular files in folders, each once; links are followed."""
    walked = chain.from_iterable(os.walk(root, followlinks=True) for root in roots)
    found = {Path(folder, name).resolve() for folder, _, names in walked for name in names}
    return [path for path in found if path.is_file()]
