"""torchvision under ``torch.utils.data.DataLoader``: the common way to train, and well tuned.

Images are PIL images as in torchvision's examples, or uint8 tensors as its documentation recommends for speed. Worker
processes persist; with CUDA, batches are pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from mmload.bench.contenders.entry import Batches, ContenderEntry
from mmload.bench.contenders.source import (
    composed,
    float_steps,
    no_source,
    random_steps,
    recipe_steps,
    shrinks,
    source_dataset,
)
from mmload.bench.task import Task
from mmload.bench.training_recipes import Collated, OneByOne, collate_of_recipe, published_steps
from mmload.errors import counted

PREFETCH = 2
"""Prefetched batches per worker, DataLoader's default. Measured on 2 cores with 2 workers, 4 and 8 are no faster."""


class Stock(Batches):
    """torchvision's ImageFolder or CIFAR and its transforms on PIL images."""

    def __init__(self, task: Task, scratch: Path, *, workers: int) -> None:
        steps = [*recipe_steps(task), *random_steps(task), v2.PILToTensor(), *float_steps(task)]
        super().__init__(data_loader(task, source_dataset(task, composed(steps)), workers), task.device)


class OnTensors(Batches):
    """The same files decoded to uint8 tensors by torchvision, and its v2 transforms, or a training recipe's."""

    def __init__(self, task: Task, scratch: Path, *, workers: int, views: list[list[Any]], mix: Any = None) -> None:
        dataset = DecodedTensors(source_dataset(task), OneByOne(recipe_steps(task), views))
        super().__init__(data_loader(task, dataset, workers, Collated(mix)), task.device)


def stock_entries(task: Task) -> list[ContenderEntry]:
    """Returns both variants, each with every number of workers; none where torchvision cannot read the source."""
    if no_source(task):
        return []
    likely = min(task.workers, key=lambda workers: abs(workers - task.threads))  # rarely much slower than the best
    ways: dict[str, Callable[..., Any]]
    if task.training_recipe:
        ways = {"v2 tensors": _of_recipe(task)}
    else:
        on_tensors = partial(OnTensors, views=[[*random_steps(task), *float_steps(task)]])
        ways = {"torchvision": Stock, "v2 tensors": on_tensors}
    return [
        ContenderEntry(
            name=f"DataLoader + {name}, {counted(workers, 'worker')}",
            group="stock",
            differs=_differs(task),
            need=0 if workers == likely else 3,
            ahead=max(1, PREFETCH * workers),
            make=partial(make, workers=workers),
        )
        for name, make in ways.items()
        for workers in task.workers
    ]


def _of_recipe(task: Task) -> Callable[..., OnTensors]:
    """Returns the contender with torchvision's steps of the task's training recipe."""
    from mmload.augment.views import collates_of  # in the bench's process alone, as it imports numba

    collates = collates_of(collate_of_recipe(task.training_recipe, task.crop, task.classes))
    steps = [published_steps(collate) for collate in collates]
    return partial(OnTensors, views=[view for view, _ in steps], mix=steps[0][1])


def _differs(task: Task) -> str:
    """Returns how torchvision's steps deviate from the task."""
    flips = "flips are random, not alternating" if task.training_recipe == "airbench" else ""
    return "; ".join(filter(None, [shrinks(task), flips]))


def data_loader(
    task: Task,
    dataset: Dataset[tuple[Tensor, int]],
    workers: int,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """Returns a tuned DataLoader that shuffles the task's repeats of a dataset."""
    return DataLoader(
        ConcatDataset([dataset] * task.repeats),
        batch_size=task.batch_size,
        shuffle=True,
        collate_fn=collate_fn,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH if workers else None,
        pin_memory=task.device == "cuda",
    )


class DecodedTensors(Dataset[tuple[Tensor, int]]):
    """A torchvision dataset's images as uint8 tensors [C, H, W], decoded without PIL."""

    def __init__(self, source: Any, transform: Any) -> None:
        self._source, self._transform = source, transform
        self._pixels = torch.from_numpy(source.data).permute(0, 3, 1, 2) if hasattr(source, "data") else None

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._pixels is not None:
            return self._transform(self._pixels[index].contiguous()), self._source.targets[index]
        path, target = self._source.samples[index]
        return self._transform(decode_image(read_file(path), ImageReadMode.RGB)), target
