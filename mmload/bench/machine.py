"""The environment of a bench: the machine, and the versions of all packages involved."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import mmload
from mmload.runtime.thread_pools import available_cores

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
    """Processor, cores, memory, graphics processor and system, with Python's, torch's and mmload's versions."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "memory_bytes": _memory(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mmload": mmload.__version__,
    }


def versions() -> dict[str, str]:
    """Package -> version, for those of :data:`PACKAGES` that are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "mmload": mmload.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    """Bytes of physical memory, None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
