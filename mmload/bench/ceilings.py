"""The limits of the machine: upper bounds on the rate of any loader of these batches.

Ceilings are entries like the contenders and run in the same rounds, each in its own process: filling the task's output,
copying its stored rows, sending them to the device, reading them from a cold disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor

from mmload.bench.contenders import Contender, ContenderEntry
from mmload.bench.task import Task
from mmload.errors import counted
from mmload.runtime.host_memory import past_caches
from mmload.runtime.regular_files import open_regular
from mmload.runtime.resources import in_threads
from mmload.store.manifest import BYTES

FILL, COPY, PINNED, DISK, CACHED = "fill", "copy", "pinned", "disk", "cached"

_DISK_BYTES = 256 * 2**20  # upper bound on the bytes of stored rows that the disk's rate is measured on
_DISK_BLOCK = 2 * 2**20
_DISK_REQUESTS = 8  # concurrent requests: more than most disks need to be busy


def ceiling_entries(task: Task, *, cold: bool) -> dict[str, ContenderEntry]:
    """Returns the ceilings of a task, keyed by their short names; ``cold``: files are evicted before each epoch."""
    threads = counted(task.threads, "thread")
    filled = "uncached fill of output" if _past_caches(task) else "fill_ of the output"
    made: dict[str, tuple[str, Callable[[Task, Path], Contender]]] = {
        FILL: (f"{filled}, {threads}" if task.device == "cpu" else f"{filled} on cuda", fill)
    }
    if task.augment == "none":
        made[COPY] = (f"memory copy of the rows, {threads}", copy)
    if cold:
        made[DISK] = ("disk read of the rows, cold", Disk)
    if task.device == "cuda":
        made[PINNED] = ("pinned copy of the rows to cuda", Pinned)
    return {short: ContenderEntry(name=name, group="ceiling", make=make) for short, (name, make) in made.items()}


def cached_entry() -> ContenderEntry:
    """Returns the entry that repeats one batch: the rate of training if loading took no time."""
    return ContenderEntry(name="one cached batch: no loading at all", group="cached", make=Cached)


def fill(task: Task, scratch: Path) -> Threads:
    """Fills an output of the same size: the rate at which these threads, or the device, write allocated memory."""
    buffers = partial(torch.empty, (task.batch_size, task.image_values), dtype=task.dtype, device=task.device)
    return Threads(task, buffers, _filled if _past_caches(task) else lambda buffer: buffer.fill_(1))


def copy(task: Task, scratch: Path) -> Threads:
    """Copies a batch of stored rows in memory, with the same number of threads."""
    rows = task.batch_size, max(1, round(task.row_bytes))
    source = torch.ones(rows, dtype=torch.uint8)
    return Threads(task, partial(torch.empty, rows, dtype=torch.uint8), lambda buffer: buffer.copy_(source))


class Pinned:
    """Stored rows in pinned memory, copied to the device batch by batch."""

    def __init__(self, task: Task, scratch: Path) -> None:
        self._batches = _batches(task)
        rows = task.batch_size, *task.rows.fields["images"].shape
        self._host = [torch.ones(rows, dtype=torch.uint8).pin_memory() for _ in range(2)]
        self._device = [torch.empty(rows, dtype=torch.uint8, device=task.device) for _ in range(2)]
        self._labels = torch.zeros(rows[0], dtype=torch.int64, device=task.device)

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches on the device; the bench synchronizes the device at the end."""
        for number in range(self._batches):
            place = self._device[number % 2]
            place.copy_(self._host[number % 2], non_blocking=True)
            yield place, self._labels

    def close(self) -> None:
        self._host, self._device = [], []


class Disk:
    """Files of the stored images, read in large blocks with several concurrent requests."""

    def __init__(self, task: Task, scratch: Path) -> None:
        name = f"images.{BYTES}" if task.variable_size else "images"
        rows = task.rows
        self._row_bytes = task.row_bytes
        self._blocks: list[tuple[Path, int]] = []
        for number, shard in enumerate(rows.record.shards):
            if len(self._blocks) * _DISK_BLOCK < _DISK_BYTES:
                path = Path(rows.files.opened(name, number).path)
                self._blocks += [(path, at) for at in range(0, shard.files[name].bytes, _DISK_BLOCK)]
        self._pool = ThreadPoolExecutor(_DISK_REQUESTS, thread_name_prefix="mmload-bench")

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields, for each block, as many elements as rows were read."""
        for size in self._pool.map(_read, self._blocks):
            rows = torch.empty(-(-size // max(1, round(self._row_bytes))))
            yield rows, rows

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _read(block: tuple[Path, int]) -> int:
    """Reads a block of a file past Python's buffers; returns its bytes."""
    path, offset = block
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        return len(os.pread(file.fileno(), _DISK_BLOCK, offset))


class Cached:
    """One batch of noise on the device, returned repeatedly, with the labels of the first rows."""

    def __init__(self, task: Task, scratch: Path) -> None:
        self._batches = _batches(task)
        levels = torch.randint(0, 256, task.shape, dtype=torch.uint8)
        images = torch.rand(task.shape) if task.dtype.is_floating_point else levels
        labels = torch.arange(task.shape[0]) % task.classes
        self._batch = images.to(task.device), labels.to(task.device)

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the same batch, once for each batch of an epoch."""
        for _ in range(self._batches):
            yield self._batch

    def close(self) -> None:
        pass


class Threads:
    """Threads with buffers: three for each thread, as many as a loader with two batches ahead holds."""

    def __init__(self, task: Task, empty: partial[Tensor], work: Callable[[Tensor], Tensor]) -> None:
        self._work, self._threads, self._batches = work, task.threads, _batches(task)
        self._buffers = [empty() for _ in range(3 * task.threads)]
        self._labels = torch.zeros(task.shape[0], dtype=torch.int64)

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the buffers, with placeholder labels."""
        in_turn = islice(cycle(self._buffers), self._batches)
        return ((buffer, self._labels) for buffer in in_threads(in_turn, self._work, self._threads))

    def close(self) -> None:
        pass


def _past_caches(task: Task) -> bool:
    """Returns whether mmload writes the output with streaming stores, which are faster than ``fill_``."""
    image = 4 * task.image_values
    plain = task.device == "cpu" and task.dtype == torch.float32 and task.batch_size * image % 64 == 0
    return plain and past_caches(task.batch_size, image)


def _filled(buffer: Tensor) -> Tensor:
    from mmload.render import cpu_kernels as kernels

    kernels.fill(buffer.view(-1).numpy(), 1.0)
    return buffer


def _batches(task: Task) -> int:
    return -(-task.epoch_images // task.batch_size)
