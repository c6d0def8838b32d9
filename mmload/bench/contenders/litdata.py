"""LitData over the stored rows as uint8 tensors: https://github.com/Lightning-AI/litData.

The rows are first converted to chunks, which LitData maps in place from the local disk. torchvision transforms the
images in worker processes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmload.bench.contenders.entry import (
    Batches,
    Entry,
    converted,
    no_recipe,
    no_room,
    not_installed,
    one_size,
    unlabeled,
)
from mmload.bench.contenders.source import composed, float_steps, random_steps
from mmload.bench.task import Task
from mmload.errors import counted

CHUNK_BYTES = 64 * 2**20


class LitData(Batches):
    """LitData's StreamingDataset, shuffled, under its own loader."""

    def __init__(self, task: Task, scratch: Path) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        folder = converted(task, scratch, "litdata", partial(write_chunks, task))
        dataset: Any = StreamingDataset(
            str(folder),
            shuffle=True,
            drop_last=False,
            seed=task.seed,
            item_shuffle_window="full",
            transform=partial(_transformed, composed([*random_steps(task), *float_steps(task)])),
        )
        loader = StreamingDataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=task.threads,
            persistent_workers=True,
            pin_memory=task.device == "cuda",
        )
        super().__init__(loader, task.device)


def litdata_entries(task: Task) -> list[Entry]:
    """The single LitData entry, with one worker for each thread of other contenders."""
    return [
        Entry(
            name=f"LitData, uint8 rows, {counted(task.threads, 'worker')}",
            group="peer",
            differs="shuffled by chunks and within them; each worker's last batch is smaller",
            need=2,
            missing=no_recipe(task)
            or one_size(task)
            or not_installed("litdata", "pip install litdata")
            or unlabeled(task)
            or no_room(task),
            make=LitData,
        )
    ]


def write_chunks(task: Task, folder: Path) -> None:
    """Write the task's repeats of the stored rows as LitData chunks, with its writer in this process."""
    from litdata.streaming.cache import Cache

    rows, targets = task.rows, task.targets
    cache: Any = Cache(str(folder), chunk_bytes=CHUNK_BYTES)
    for number in range(task.epoch_images):
        index = number % len(rows)
        cache[number] = (rows[index].images, targets[index])
    cache.done()
    cache.merge()


def _transformed(steps: Any, item: tuple[Tensor, int]) -> tuple[Tensor, Tensor]:
    image, target = item
    return steps(image), torch.as_tensor(target)
