"""mmload itself: its Loader from each tier, and its dataset under an ordinary DataLoader.

The processes of other contenders import this module, too, so modules that import numba are imported inside functions:
numba would increase their memory, and add seconds of compilation if machine code cannot be cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SubsetRandomSampler

from mmload.batch import Batch
from mmload.bench.contenders.entry import Batches, ContenderEntry
from mmload.bench.task import Task
from mmload.bench.training_recipes import collate_of_recipe
from mmload.errors import bytes_text, counted
from mmload.runtime.memory_pool import can_share
from mmload.runtime.resources import free_memory
from mmload.store.dataset import Split

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.augment.views import Views


class Mmload:
    """This package's loader, reading from one tier."""

    def __init__(self, task: Task, scratch: Path, *, tier: str, **options: Any) -> None:
        from mmload.loader import Loader

        self._loader = Loader(
            task.rows,
            batch_size=task.batch_size,
            shuffle=task.repeats == 1,
            sampler=None if task.repeats == 1 else SubsetRandomSampler(_repeated(task)),
            seed=task.seed,
            collate=collate_of(task),
            device=task.device,
            tier=tier,
            threads=task.threads,
            **options,
        )

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        made: Batch | tuple[Batch, ...]
        for made in self._loader:
            yield pair_of(made)

    def close(self) -> None:
        self._loader.close()


class MapStyle(Batches):
    """The stored dataset under ``torch.utils.data.DataLoader``, a batch at a time, in the training process."""

    def __init__(self, task: Task, scratch: Path) -> None:
        super().__init__(stored_batches(task, partial(_collated, collate_of(task))), task.device)


def own_entries(task: Task) -> list[ContenderEntry]:
    """Returns the loader for every tier that the device has, the loader in a subprocess, and the DataLoader."""
    tiers = ("disk", "memory", "device") if task.device == "cuda" else ("disk", "memory")
    threads = counted(task.threads, "thread")
    loaders = [
        ContenderEntry(
            name=f"mmload.Loader, {tier}, {threads}",
            group="mmload",
            missing=_too_large(task) if tier == "memory" else "",
            ceiling="device" if tier == "device" else "",
            make=partial(Mmload, tier=tier),
        )
        for tier in tiers
    ]
    if task.device == "cpu" and can_share():
        in_subprocess = partial(Mmload, tier="disk", subprocess=True)
        loaders.append(ContenderEntry(name=f"mmload.Loader, subprocess, {threads}", group="mmload", make=in_subprocess))
    under = ContenderEntry(
        name="DataLoader + mmload dataset, 0 workers", group="mmload", need=2, missing=_no_batch(task), make=MapStyle
    )
    return [under, *loaders]


def stored_batches(task: Task, collate: Callable[[Any], Any]) -> DataLoader[Any]:
    """Returns a DataLoader that shuffles the task's repeats of the stored rows, read a batch at a time."""
    return DataLoader(
        _Rows(task.rows),
        batch_size=task.batch_size,
        sampler=SubsetRandomSampler(_repeated(task)),
        collate_fn=collate,
    )


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


def _no_batch(task: Task) -> str:
    """Returns why a DataLoader cannot make a batch of rows, "" if it can."""
    return "images are variable-size, and a batch has one size; the Loader crops them" if task.variable_size else ""


def _too_large(task: Task) -> str:
    """Returns why the rows cannot be held in memory, "" if they can."""
    need, free = round(task.row_bytes * len(task.rows)), free_memory()
    return f"needs {bytes_text(need)} of memory, {bytes_text(free)} are free" if need > free else ""


def _repeated(task: Task) -> list[int]:
    rows: list[int] = torch.arange(len(task.rows)).repeat(task.repeats).tolist()
    return rows


class _Rows(torch.utils.data.Dataset[Batch]):
    """A split as a dataset for DataLoader: whole batches by ``__getitems__``."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, index: int) -> Batch:
        return self._split[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._split.__getitems__(indices)


def _collated(collate: Collate | Views | None, batch: Batch) -> tuple[Any, Tensor]:
    return pair_of(batch if collate is None else collate(batch))
