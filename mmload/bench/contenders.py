"""The loaders that a bench compares, each giving the same batches its own way.

Comes in: a :class:`Task`. Goes out: contenders, each of which can run epochs over and over. Never measures anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from mmload.collate import Collate
from mmload.dataset import Dataset, Split
from mmload.errors import SourceError, UsageError
from mmload.loader import Loader
from mmload.records import Batch
from mmload.threads import available_cores, single_op_pool


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every contender has to deliver.

    Attributes:
        dataset: the store.
        split: which of its splits.
        source: the folder that it was built from.
        augment: "crop" (random crop), "resized-crop" (RandomResizedCrop), each with flip + normalise to float32; or
            "none": the stored uint8 rows.
        crop: pixels of the square that comes out.
        padding: pixels around the image before a random crop, as CIFAR is trained with.
        batch_size: images a batch.
        images: images an epoch, at least; a smaller split is gone through several times, by all contenders alike.
        threads: mmload's threads; None: the cores available.
    """

    dataset: Dataset
    split: str
    source: Path
    augment: str = "crop"
    crop: int = 224
    padding: int = 0
    batch_size: int = 64
    images: int = 2000
    threads: int | None = None

    @property
    def rows(self) -> Split:
        """The stored split."""
        return self.dataset[self.split]

    @property
    def repeats(self) -> int:
        """How often the split is gone through in an epoch."""
        return max(1, -(-self.images // max(1, len(self.rows))))


class Contender(Protocol):
    """One way to load."""

    name: str

    def epoch(self) -> Iterator[Tensor]:
        """The images of each batch, as the task has them, of one epoch in a new random order."""

    def close(self) -> None:
        """End its threads and processes."""


class Stock:
    """torchvision's ImageFolder under ``torch.utils.data.DataLoader``, as its documentation has it; workers persist.

    Raises:
        UsageError: if the dataset's recipe has no torchvision equivalent.
        SourceError: if the source is not there.
    """

    def __init__(self, task: Task, workers: int) -> None:
        from torch.utils.data import ConcatDataset, DataLoader
        from torchvision.transforms import v2

        self.name = f"DataLoader + torchvision, {workers} worker{'s' * (workers != 1)}"
        root = task.source / task.split if (task.source / task.split).is_dir() else task.source
        if not root.is_dir():
            raise SourceError(f"no such folder: {root}; give the folder that the dataset was built from")
        steps = [
            *recipe_as_torchvision(task.dataset.manifest.recipe),
            *_stock_augmentation(task),
        ]
        folder = _stock_dataset(task, root, v2.Compose(steps))
        if len(folder) != len(task.rows):
            raise SourceError(
                f"{root} has {len(folder):,} images, split {task.split!r} of {task.dataset.path} has "
                f"{len(task.rows):,} rows; give the folder that the dataset was built from"
            )
        self._loader: Any = DataLoader(
            ConcatDataset([folder] * task.repeats),
            batch_size=task.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def epoch(self) -> Iterator[Tensor]:
        """See :class:`Contender`."""
        for images, _ in self._loader:
            yield images

    def close(self) -> None:
        """See :class:`Contender`."""
        self._loader = None


class Mmload:
    """The loader of this package."""

    def __init__(self, task: Task) -> None:
        threads = task.threads or available_cores()
        self.name = f"mmload.Loader, {threads} thread{'s' * (threads != 1)}"
        repeated = torch.arange(len(task.rows)).repeat(task.repeats).tolist()
        self._loader = Loader(
            task.rows,
            batch_size=task.batch_size,
            shuffle=task.repeats == 1,
            sampler=None if task.repeats == 1 else torch.utils.data.SubsetRandomSampler(repeated),
            collate=_collate(task),
            threads=threads,
        )

    def epoch(self) -> Iterator[Tensor]:
        """See :class:`Contender`."""
        for batch in self._loader:
            yield batch.images

    def close(self) -> None:
        """See :class:`Contender`."""
        self._loader.close()


class MapStyle:
    """The stored dataset under an ordinary ``torch.utils.data.DataLoader``."""

    def __init__(self, task: Task, workers: int) -> None:
        from torch.utils.data import DataLoader

        self.name = f"DataLoader + mmload dataset, {workers} worker{'s' * (workers != 1)}"
        self._loader: Any = DataLoader(
            _Repeated(task.rows, task.repeats),
            batch_size=task.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_collate(task) or _as_it_is,  # type: ignore[arg-type]  # __getitems__ gives it a Batch
        )

    def epoch(self) -> Iterator[Tensor]:
        """See :class:`Contender`."""
        for batch in self._loader:
            yield batch.images

    def close(self) -> None:
        """See :class:`Contender`."""
        self._loader = None


class Fill:
    """The ceiling: ``fill_`` on the same output, as fast as these threads write memory that is there already."""

    def __init__(self, task: Task) -> None:
        self._threads = task.threads or available_cores()
        self.name = f"fill_ of the output, {self._threads} thread{'s' * (self._threads != 1)}"
        self._pool: ThreadPoolExecutor = single_op_pool(self._threads, "mmload-bench")
        self._local = threading.local()
        channels = task.rows.fields["images"].shape[0]
        size = (task.crop, task.crop) if task.augment != "none" else task.rows.fields["images"].shape[1:]
        self._shape = (task.batch_size, channels, *size)
        self._dtype = torch.float32 if task.augment != "none" else torch.uint8
        self._batches = -(-len(task.rows) * task.repeats // task.batch_size)

    def epoch(self) -> Iterator[Tensor]:
        """See :class:`Contender`; the images are all zero."""
        return self._pool.map(self._fill, range(self._batches))

    def _fill(self, number: int) -> Tensor:
        # Three buffers a thread, in turn: what a loader with a batch or two ahead has in hand.
        if not hasattr(self._local, "buffers"):
            self._local.buffers = [torch.empty(self._shape, dtype=self._dtype) for _ in range(3)]
        buffers: list[Tensor] = self._local.buffers
        buffers.append(buffers.pop(0))
        return buffers[0].fill_(1)

    def close(self) -> None:
        """See :class:`Contender`."""
        self._pool.shutdown()


def _as_it_is(batch: Batch) -> Batch:
    """Collates what is a batch already."""
    return batch


class _Repeated(torch.utils.data.Dataset[Batch]):
    """A split gone through several times, for DataLoader."""

    def __init__(self, split: Split, repeats: int) -> None:
        self._split, self._repeats = split, repeats

    def __len__(self) -> int:
        return len(self._split) * self._repeats

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._split.__getitems__([index % len(self._split) for index in indices])


def recipe_as_torchvision(recipe: dict[str, Any]) -> list[Any]:
    """A recipe's deterministic transforms as torchvision v2's, for PIL images.

    Raises:
        UsageError: if a step has no equivalent there.
    """
    from torchvision.transforms import InterpolationMode, v2

    made: list[Any] = []
    for spec in recipe["transforms"]:
        arguments = {key: value for key, value in spec.items() if key != "step"}
        if "interpolation" in arguments:
            arguments["interpolation"] = InterpolationMode(arguments["interpolation"])
        if spec["step"] not in ("Resize", "CenterCrop", "Pad"):
            raise UsageError(f"the recipe's step {spec['step']} has no torchvision equivalent to measure against")
        if spec["step"] == "CenterCrop":
            arguments.pop("fill", None)
        made.append(getattr(v2, spec["step"])(**arguments))
    return made


def _stock_augmentation(task: Task) -> list[Any]:
    """The task's augmentation as torchvision's own, for PIL images."""
    from torchvision.transforms import v2

    if task.augment == "none":
        return [v2.PILToTensor()]
    crop = v2.RandomResizedCrop(task.crop) if task.augment == "resized-crop" else v2.RandomCrop(task.crop, task.padding)
    to_float = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    return [crop, v2.RandomHorizontalFlip(), *to_float, v2.Normalize(*_statistics(task.rows))]


def _stock_dataset(task: Task, root: Path, transform: Any) -> Any:
    """The torchvision dataset of the kind that the store was built from.

    Raises:
        UsageError: if torchvision has none to measure against.
    """
    from torchvision import datasets

    kind = task.dataset.manifest.recipe["source"]["kind"]
    if kind == "imagefolder":
        return datasets.ImageFolder(str(root), transform)
    if kind not in ("cifar10", "cifar100"):
        raise UsageError(
            f"a dataset of kind {kind} cannot be measured against torchvision; build an imagefolder or cifar"
        )
    official = datasets.CIFAR10 if kind == "cifar10" else datasets.CIFAR100

    class AnyLength(official):  # type: ignore[misc, valid-type]  # the published checksums are not what is measured
        meta: ClassVar[Any] = {**official.meta, "md5": None}

        def _check_integrity(self) -> bool:
            return True

    return AnyLength(str(task.source), train=task.split == "train", transform=transform)


def _collate(task: Task) -> Collate | None:
    if task.augment == "none":
        return None
    crop = (
        RandomResizedCrop(task.crop) if task.augment == "resized-crop" else RandomCrop(task.crop, task.padding or None)
    )
    return Collate(crop, RandomHorizontalFlip(), Normalize(*_statistics(task.rows)))


def _statistics(rows: Split) -> tuple[list[float], list[float]]:
    return list(rows.mean), [value or 1.0 for value in rows.std]
