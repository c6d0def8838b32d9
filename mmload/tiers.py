"""Where a split's images are read from: the files, this process's memory, or the device. The same batches from each.

Comes in: a split and what the user asked for. Goes out: a :class:`Tier` that gives rows, and a sentence saying why it
is this one. ``auto`` takes memory when the images fit into half of what is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mmload import cgroup
from mmload.dataset import Split

TIERS = ("auto", "disk", "memory", "device")

MEMORY_SHARE = 0.5
"""The most of the free memory (the host's, or the device's) that ``auto`` takes for a split's images."""

_CHUNK_BYTES = 64 * 2**20


class Tier(Protocol):
    """A source of image rows. Thread-safe.

    Attributes:
        name: "disk", "memory" or "device".
        hits: rows that were in memory already.
        misses: rows that had to be read from files.
    """

    name: str
    hits: int
    misses: int

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows in turn, some at a time: images [N, C, H, W], and int64 [b], which of them the next rows are.

        The images are valid until the next part; ``scratch`` [n, C, H, W] may be used for them.
        """

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """All rows into ``out`` [B, C, H, W] at once."""


class Disk:
    """Rows from the files, through the system's page cache."""

    name = "disk"

    def __init__(self, split: Split) -> None:
        self._reader = split.reader
        self.hits = self.misses = 0

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self.misses += len(rows)
        places = torch.arange(len(scratch))
        return ((scratch, places[:count]) for count in self._reader.parts("images", rows, scratch))

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self.misses += len(rows)
        self._reader.gather_into("images", rows, out)


class Memory:
    """Rows kept in memory from when they are first asked for: no wait at the start, no file from the second epoch on.

    Two threads that miss the same row at once write the same bytes twice, which does no harm.
    """

    name = "memory"

    def __init__(self, split: Split) -> None:
        spec = split.fields["images"]
        self._reader = split.reader
        self._rows = torch.empty((len(split), *spec.shape), dtype=spec.torch_dtype)
        self._present = np.zeros(len(split), dtype=np.bool_)
        self.hits = self.misses = 0

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self._fetch(rows)
        yield self._rows, rows

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self._fetch(rows)
        torch.index_select(self._rows, 0, rows, out=out)

    def _fetch(self, rows: Tensor) -> None:
        """Read those of the rows that are not here yet, each to its own place."""
        wanted = rows.numpy()
        missing = wanted[~self._present[wanted]]
        self.hits += len(wanted) - len(missing)
        self.misses += len(missing)
        if len(missing):
            places = torch.from_numpy(missing)
            self._reader.gather_into("images", places, self._rows, places=places)
            self._present[missing] = True


class OnDevice:
    """The whole split on a device, copied there in chunks when it is first asked for."""

    name = "device"

    def __init__(self, split: Split, device: torch.device) -> None:
        spec = split.fields["images"]
        self.rows = torch.empty((len(split), *spec.shape), dtype=spec.torch_dtype, device=device)
        step = max(1, _CHUNK_BYTES // spec.row_bytes)
        for start in range(0, len(split), step):
            some = torch.arange(start, min(start + step, len(split)))
            self.rows[start : start + len(some)].copy_(split.reader.gather("images", some))
        self.hits = 0
        self.misses = len(split)

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self.hits += len(rows)
        yield self.rows, rows

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self.hits += len(rows)
        torch.index_select(self.rows, 0, rows, out=out)


def choose(asked: str, size: int, device: torch.device) -> tuple[str, str]:
    """The tier for a split whose images take ``size`` bytes, and why.

    Args:
        asked: one of :data:`TIERS`.
        size: bytes of all images.
        device: where batches are to arrive.

    Returns:
        "disk", "memory" or "device", and a sentence for people.

    Raises:
        ValueError: if ``asked`` is none of :data:`TIERS`.
    """
    if asked not in TIERS:
        raise ValueError(f"tier is {asked!r}; use one of {', '.join(TIERS)}")
    if asked != "auto":
        return asked, f"{asked}: as asked"
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if size <= MEMORY_SHARE * free:
            return "device", f"device: {_mib(size)} of images, {_mib(free)} free on {device}"
    free = free_memory()
    if size <= MEMORY_SHARE * free:
        return "memory", f"memory: {_mib(size)} of images, {_mib(free)} of memory free"
    return "disk", f"disk: {_mib(size)} of images are more than {MEMORY_SHARE:.0%} of {_mib(free)} of free memory"


def make(tier: str, split: Split, device: torch.device) -> Tier:
    """The tier of this name over a split."""
    if tier == "device":
        return OnDevice(split, device)
    return Memory(split) if tier == "memory" else Disk(split)


def free_memory() -> int:
    """Bytes that this process can still take: what the system has available, or its cgroup's limit, if that is less.

    0 where neither is known, so that nothing is taken.
    """
    left = [size for size in (_system_memory(), cgroup.free_memory()) if size is not None]
    return max(0, min(left)) if left else 0


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _mib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
