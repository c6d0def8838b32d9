"""What decides on the speed of an installation, for ``mmload doctor``: versions, processor, machine code, memory, disk.

Everything is found without importing what is looked at, but for torch, which knows the graphics processors.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

import mmload
from mmload.errors import bytes_text, counted
from mmload.runtime import machine_code
from mmload.runtime.files import open_regular
from mmload.runtime.resident_pages import can_populate, needs_reads
from mmload.runtime.resources import (
    allowed_memory,
    available_cores,
    binding,
    core_share,
    cpu_quota,
    free_memory,
    installed_version,
    local_ranks,
    processor_name,
)
from mmload.runtime.turbojpeg import turbojpeg_library
from mmload.store.dataset_folder import open_folder

PACKAGES = ("torch", "torchvision", "tensordict", "numpy", "numba", "llvmlite", "pillow", "simplejpeg", "msgspec")

EXTRAS = {
    "cloud": "obstore",
    "fiftyone": "fiftyone",
    "huggingface": "datasets",
    "jpeg": "turbojpeg",
    "plot": "matplotlib",
    "ray": "ray",
}
"""Extras for users, and the package that each brings."""

_FEW_CORES = 2
"""Cores per rank below which a loader and a training loop wait for each other."""


def installation_facts(dataset: Path | None = None) -> dict[str, Any]:
    """Returns what a maintainer would ask for, as JSON has it, and a built dataset with its file system.

    Raises:
        StoreError: if there is no finished dataset.
    """
    return {
        "mmload": mmload.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: installed_version(name) for name in PACKAGES},
        "extras": {name: installed_version(package) for name, package in EXTRAS.items()},
        "processor": _processor(),
        "machine_code": _machine_code(),
        "turbojpeg": turbojpeg_library() is not None,
        "memory": _memory(),
        "gpu": _gpus(),
        "dataset": None if dataset is None else _dataset(dataset),
    }


def installation_warnings(facts: Mapping[str, Any]) -> list[str]:
    """Returns what slows this installation down, and what to do, a line each."""
    processor, code, memory, dataset = (facts[name] for name in ("processor", "machine_code", "memory", "dataset"))
    lines = []
    if code["cache"] is None:
        lines.append(
            "kernels that the package does not bring are compiled by each process, as no cache folder is writable; "
            "set NUMBA_CACHE_DIR to one that is"
        )
    if not code["level"]:
        lines.append(
            "the package has no machine code for this processor: a kernel is compiled by its first call on a machine"
            + ("" if facts["packages"]["numba"] else ", which needs pip install 'mmload[compile]'")
        )
    if not facts["turbojpeg"]:
        lines.append(
            "TurboJPEG's library is not found: stored JPEGs are decoded by a call for each, which waits for the "
            "interpreter lock beside a training loop (a tenth of the images/s there, as many alone); "
            "pip install 'mmload[jpeg]' or install libturbojpeg"
        )
    if processor["quota"] is not None and processor["quota"] < processor["cores"]:
        lines.append(
            f"a cgroup limits this process to {processor['quota']:g} of {counted(processor['cores'], 'core')}; "
            "give the container more"
        )
    if (bound := binding()) is not None:
        lines.append(bound)
    if processor["threads"] < _FEW_CORES:
        lines.append(
            f"a rank has {counted(processor['threads'], 'core')} ({processor['threads_reason']}); "
            "start fewer ranks, or give them more"
        )
    if memory["limit_bytes"] is not None:
        lines.append(
            f"a cgroup leaves {bytes_text(memory['limit_bytes'])} of memory, and the page cache counts; "
            "rows that do not fit come from the disk"
        )
    return lines if dataset is None else [*lines, *_dataset_warnings(dataset, memory["free_bytes"])]


def _dataset_warnings(dataset: Mapping[str, Any], free: int) -> Iterator[str]:
    if dataset["needs_reads"]:
        yield (
            f"{dataset['path']} is on a network or FUSE file system ({dataset['file_system']}); copy it to a local disk"
        )
    if not dataset["can_populate"]:
        yield "this system cannot fault in mapped rows safely (Linux 5.14 can): they are read one by one"
    if dataset["bytes"] > free:
        yield (
            f"{dataset['path']} has {bytes_text(dataset['bytes'])}, more than the {bytes_text(free)} of memory that "
            "are free; each epoch reads from the disk what does not fit (docs/loading.md)"
        )


def _processor() -> dict[str, Any]:
    share = core_share()
    return {
        "name": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "available_cores": available_cores(),
        "quota": cpu_quota(),
        "ranks": local_ranks(),
        "threads": share.threads,
        "threads_reason": share.reason,
    }


def _machine_code() -> dict[str, Any]:
    """Returns the kind of processor whose kernels are used, those that the package has, and the cache of others."""
    shipped = [level for level in machine_code.LEVELS if machine_code.library_path(level).exists()]
    cache = machine_code.cache_folder()
    found = (
        {"cache": None, "cached": 0} if cache is None else {"cache": str(cache), "cached": len([*cache.glob("*.o")])}
    )
    level = next((level for level in machine_code.levels() if level in shipped), None)
    return {"level": level, "shipped": shipped, **found}


def _memory() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "total_bytes": memory.total,
        "free_bytes": free_memory(),
        "page_cache_bytes": getattr(memory, "cached", None),  # where the system tells it
        "limit_bytes": allowed_memory(),
    }


def _gpus() -> list[str]:
    try:
        import torch

        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    except (ImportError, OSError, RuntimeError):  # a broken installation is what one asks the doctor about
        return []


def _dataset(path: Path) -> dict[str, Any]:
    folder, manifest = open_folder(path)
    with open(folder.path / "dataset.json", "rb", opener=open_regular) as file:
        reads = needs_reads(file.fileno())
    where = folder.path.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if where.is_relative_to(one.mountpoint)]
    return {
        "path": str(path),
        "rows": sum(split.rows for split in manifest.built_splits.values()),
        "bytes": sum(file.stat().st_size for file in where.rglob("*") if file.is_file()),
        "file_system": max(mounts, key=lambda one: len(one.mountpoint)).fstype if mounts else "unknown",
        "needs_reads": reads,
        "can_populate": can_populate(),
    }
