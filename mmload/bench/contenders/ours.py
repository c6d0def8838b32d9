"""mmload itself: its Loader from each tier.

The processes of other contenders import this module, too, so modules that import numba are imported inside functions:
numba would increase their memory, and add seconds of compilation if machine code cannot be cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import SubsetRandomSampler

from mmload.batch import Batch
from mmload.bench.contenders.entry import ContenderEntry
from mmload.bench.task import Task
from mmload.bench.training_recipes import collate_of_recipe
from mmload.errors import counted
from mmload.runtime.resources import free_memory

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.augment.views import Views


class Mmload:
    """This package's loader, reading from one tier."""

    def __init__(self, task: Task, scratch: Path, *, tier: str) -> None:
        from mmload.loader import Loader

        self._loader = Loader(
            task.rows,
            batch_size=task.batch_size,
            shuffle=task.repeats == 1,
            order=None if task.repeats == 1 else SubsetRandomSampler(_repeated(task)),
            collate=collate_of(task),
            device=task.device,
            tier=tier,
            threads=task.threads,
        )

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        made: Batch | tuple[Batch, ...]
        for made in self._loader:
            yield pair_of(made)

    def close(self) -> None:
        self._loader.close()


def own_entries(task: Task) -> list[ContenderEntry]:
    """Returns the loader for every tier that the device has and that has room."""
    tiers = ["disk", *(["memory"] if task.row_bytes * len(task.rows) <= free_memory() else [])]
    return [
        ContenderEntry(
            name=f"mmload.Loader, {tier}, {counted(task.threads, 'thread')}",
            group="mmload",
            ceiling="device" if tier == "device" else "",
            ahead=task.threads + 2,  # one in each thread, and the Loader's default
            make=partial(Mmload, tier=tier),
        )
        for tier in [*tiers, *(["device"] if task.device == "cuda" else [])]
    ]


def collate_of(task: Task) -> Collate | Views | None:
    """Returns the task's augmentation as mmload steps; None: the rows unchanged."""
    if task.training_recipe:
        return collate_of_recipe(task.training_recipe, task.crop, task.classes)
    if task.augment == "none":
        return None
    from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
    from mmload.augment.collate import Collate

    resized = task.augment == "resized-crop"
    crop = RandomResizedCrop(task.crop) if resized else RandomCrop(task.crop, task.padding or None)
    return Collate(crop, RandomHorizontalFlip(), Normalize(task.mean, task.std))


def pair_of(made: Batch | tuple[Batch, ...]) -> tuple[Any, Tensor]:
    """Returns the images, of each view if there are several, and the labels."""
    if isinstance(made, tuple):
        return tuple(view.images for view in made), labels_of(made[0])
    return made.images, labels_of(made)


def labels_of(batch: Batch) -> Tensor:
    """Returns the batch's labels; the row indices if the store has no labels."""
    return batch.targets if batch.targets is not None else torch.as_tensor(batch.ids)


def _repeated(task: Task) -> list[int]:
    rows: list[int] = torch.arange(len(task.rows)).repeat(task.repeats).tolist()
    return rows
