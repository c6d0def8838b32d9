"""The limits of the machine: upper bounds on the rate of any loader of these batches.

Ceilings are entries like the contenders and run in the same rounds, each in its own process: filling the task's output,
copying its stored rows, sending them to the device, reading them from a cold disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor

from mmload.bench.contenders import Contender, ContenderEntry
from mmload.bench.contenders.entry import moved
from mmload.bench.task import Task
from mmload.errors import counted
from mmload.render import cpu_kernels
from mmload.runtime.files import open_regular
from mmload.runtime.host_memory import past_caches
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
    on_cpu = task.device == "cpu"
    made = {
        FILL: (f"{filled}, {threads}" if on_cpu else f"{filled} on cuda", fill, True),
        COPY: (f"memory copy of the rows, {threads}", copy, on_cpu and task.augment == "none"),
        DISK: ("disk read of the rows, cold", disk, cold),
        PINNED: ("pinned copy of the rows to cuda", pinned, not on_cpu),
    }
    return {
        short: ContenderEntry(name=name, group="ceiling", make=make)
        for short, (name, make, limits) in made.items()
        if limits
    }


def cached_entry() -> ContenderEntry:
    """Returns the entry that repeats one batch: the rate of training if loading took no time."""
    return ContenderEntry(name="one cached batch: no loading at all", group="cached", make=cached)


def fill(task: Task, scratch: Path) -> Contender:
    """Fills an output of the same size: the rate at which these threads, or the device, write allocated memory."""
    buffers = partial(torch.empty, (task.batch_size, task.image_values), dtype=task.dtype, device=task.device)
    return _in_buffers(task, buffers, _filled if _past_caches(task) else lambda buffer: buffer.fill_(1))


def copy(task: Task, scratch: Path) -> Contender:
    """Copies a batch of stored rows in memory, with the same number of threads."""
    rows = task.batch_size, max(1, round(task.row_bytes))
    source = torch.ones(rows, dtype=torch.uint8)
    return _in_buffers(task, partial(torch.empty, rows, dtype=torch.uint8), lambda buffer: buffer.copy_(source))


def _in_buffers(task: Task, empty: partial[Tensor], work: Callable[[Tensor], Tensor]) -> Contender:
    """Works in threads, on three buffers for each, as many as a loader with two batches ahead holds."""
    buffers = [empty() for _ in range(3 * task.threads)]
    labels = torch.zeros(task.batch_size, dtype=torch.int64)

    def epoch() -> Generator[tuple[Tensor, Tensor]]:
        for buffer in in_threads(islice(cycle(buffers), task.batches), work, task.threads):
            yield buffer, labels

    return epoch


def pinned(task: Task, scratch: Path) -> Contender:
    """Copies stored rows from pinned memory to the device, batch by batch; the bench synchronizes it at the end."""
    rows = torch.ones((task.batch_size, *task.rows.fields["images"].shape), dtype=torch.uint8).pin_memory()
    labels = torch.zeros(task.batch_size, dtype=torch.int64).pin_memory()
    return partial(moved, [(rows, labels)] * task.batches, task.device)


def disk(task: Task, scratch: Path) -> Contender:
    """Reads files of the stored images in large blocks with several concurrent requests.

    It gives, for each block, as many elements as rows were read.
    """
    name, rows = f"images.{BYTES}" if task.variable_size else "images", task.rows
    row_bytes = max(1, round(task.row_bytes))
    blocks: list[tuple[Path, int]] = []
    for number, shard in enumerate(rows.record.shards):
        if len(blocks) * _DISK_BLOCK < _DISK_BYTES:
            path = Path(rows.files.opened(name, number).path)
            blocks += [(path, at) for at in range(0, shard.files[name].bytes, _DISK_BLOCK)]

    def epoch() -> Generator[tuple[Tensor, Tensor]]:
        for size in in_threads(blocks, _read, _DISK_REQUESTS):
            read = torch.empty(-(-size // row_bytes))
            yield read, read

    return epoch


def _read(block: tuple[Path, int]) -> int:
    """Reads a block of a file past Python's buffers; returns its bytes."""
    path, offset = block
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        return len(os.pread(file.fileno(), _DISK_BLOCK, offset))


def cached(task: Task, scratch: Path) -> Contender:
    """Gives one batch of noise on the device again and again, with the labels of the first rows."""
    levels = torch.randint(0, 256, task.shape, dtype=torch.uint8)
    images = torch.rand(task.shape) if task.dtype.is_floating_point else levels
    labels = torch.arange(task.batch_size) % task.classes
    return partial(moved, [(images.to(task.device), labels.to(task.device))] * task.batches, task.device)


def _past_caches(task: Task) -> bool:
    """Returns whether mmload writes the output with streaming stores, which are faster than ``fill_``."""
    image = 4 * task.image_values
    plain = task.device == "cpu" and task.dtype == torch.float32 and task.batch_size * image % 64 == 0
    return plain and past_caches(task.batch_size, image)


def _filled(buffer: Tensor) -> Tensor:
    cpu_kernels.fill(buffer.view(-1).numpy(), 1.0)
    return buffer
