"""The options of a bench, their checks, and their conversion into the contenders' task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmload.bench.plan import MeasurementPlan
from mmload.bench.task import AUGMENTS, Task
from mmload.bench.training_recipes import check_name, task_of_recipe
from mmload.errors import UsageError
from mmload.runtime.resources import MOST_THREADS, available_cores, check_threads
from mmload.store.dataset import Split
from mmload.store.dataset import open as open_dataset

DEVICES = ("cpu", "cuda")

MOST = {"--images": 10_000_000, "--epochs": 1000, "--rounds": 1000, "--size": 16_384}
"""Upper bounds that catch typing errors."""


def check_count(name: str, value: int | None, most: int | None = None) -> None:
    """Checks a count; None selects the default.

    Args:
        name: the name of the option.
        value: its value.
        most: the upper bound; None: :data:`MOST` of that option, or no bound.

    Raises:
        UsageError: if it is invalid.
    """
    most = MOST.get(name) if most is None else most
    if value is not None and value < 1:
        raise UsageError(f"{name} is {value}; use at least 1")
    if value is not None and most is not None and value > most:
        raise UsageError(f"{name} is {value}; use at most {most}")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The settings of a bench; None selects the default.

    Attributes:
        split: name of the split; None: the first.
        version: number of a version of the dataset; None: the current one.
        augment: "crop", "resized-crop" or "none"; see :class:`~mmload.bench.task.Task`.
        recipe: a function of :mod:`mmload.presets` or MODULE:FUNCTION, in place of ``augment``; None: ``augment``.
        crop: pixels of a side of the output square; None: as the recipe has it, else 7/8 of the stored side (224 of
            256), all of it with padding.
        padding: pixels around the image before a random crop.
        batch_size: images per batch.
        images: lower bound of the images per epoch; smaller splits are repeated. None: 2,000, quick 500.
        epochs: measured epochs per contender. None: 3, quick 1.
        workers: worker processes of the stock DataLoaders, one contender for each number.
        threads: threads of multi-threaded contenders; None: the cores available.
        device: "cpu" or "cuda"; None: cuda if available.
        cold: evict all files before each measured epoch.
        beside: measure each contender beside a thread of pure Python and one of small torch operations, too; None:
            unless quick or cold.
        train: a model to train with each contender's batches, of torchvision or
            :data:`~mmload.bench.train.SMALL`.
        time_budget: total seconds, including the start of the contenders' processes; None: 300, beside other threads
            600, quick 60.
        quick: fewer images, one epoch, a smaller budget.

    Raises:
        UsageError: if a setting is invalid.
    """

    split: str | None = None
    version: int | None = None
    augment: str = "crop"
    recipe: str | None = None
    crop: int | None = None
    padding: int = 0
    batch_size: int = 64
    images: int | None = None
    epochs: int | None = None
    workers: tuple[int, ...] = (0, 2, 4)
    threads: int | None = None
    device: str | None = None
    cold: bool = False
    beside: bool | None = None
    train: str | None = None
    time_budget: float | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        counts = {"--batch-size": self.batch_size, "--images": self.images, "--epochs": self.epochs}
        for name, value in {**counts, "--crop": self.crop}.items():
            check_count(name, value)
        check_threads(self.threads)
        if self.augment not in AUGMENTS:
            raise UsageError(f"--augment is {self.augment!r}; use one of {', '.join(AUGMENTS)}")
        self._check_recipe()
        self._check_geometry()
        if not self.workers or min(self.workers) < 0 or max(self.workers) > MOST_THREADS:
            given = ",".join(map(str, self.workers))
            raise UsageError(f"--workers is {given}; give integers from 0 to {MOST_THREADS}, as in 0,2,4")
        if self.time_budget is not None and not 0 < self.time_budget < float("inf"):
            raise UsageError(f"--time-budget is {self.time_budget:g}; use seconds above 0")
        if self.beside and self.cold:
            raise UsageError("--beside is measured with a warm page cache, and --cold evicts it; leave one of them out")
        if self.device is not None and self.device not in DEVICES:
            raise UsageError(f"--device is {self.device!r}; use one of {', '.join(DEVICES)}")

    def _check_recipe(self) -> None:
        """Checks that a training recipe exists, and that no other option contradicts it."""
        if self.recipe is None:
            return
        check_name(self.recipe)
        others = {"--augment": self.augment if self.augment != "crop" else None, "--padding": self.padding or None}
        for name, value in {**others, "--train": self.train}.items():
            if value is not None:
                raise UsageError(
                    f"{name} is {value}, and --recipe {self.recipe} does not take it; leave one of them out"
                )

    def _check_geometry(self) -> None:
        """Checks that padding and crop are compatible with the augmentation."""
        if self.padding < 0:
            raise UsageError(f"--padding is {self.padding}; use a number from 0")
        taken = {"--padding": (self.padding, ("crop",)), "--crop": (self.crop, AUGMENTS[:2])}
        for name, (value, where) in taken.items():
            if value and self.augment not in where:
                raise UsageError(
                    f"{name} is {value}, and --augment {self.augment} does not take it; leave one of them out"
                )

    def plan(self) -> MeasurementPlan:
        """Returns the measurement plan."""
        beside = not (self.quick or self.cold) if self.beside is None else self.beside
        return MeasurementPlan(
            epochs=self.epochs or (1 if self.quick else 3),
            budget=self.time_budget or (60.0 if self.quick else 600.0 if beside else 300.0),
            cold=self.cold,
            beside=beside,
            train=self.train,
        )

    def epoch_images(self) -> int:
        """Returns a lower bound of the images per epoch."""
        return self.images or (500 if self.quick else 2000)

    def task(self, dataset: Path, source: Path | None) -> Task:
        """Returns the task of the contenders for this dataset.

        Raises:
            UsageError: if the split is empty or unknown, or the crop does not fit.
            StoreError: if there is no dataset.
        """
        opened = open_dataset(dataset, self.version)
        split = self.split or next(iter(opened))
        spec = opened[split].fields.get("images")
        side = 1 if spec is None else _usual_side(opened[split]) if spec.variable_size else min(spec.shape[1:])
        if not len(opened[split]):
            raise UsageError(f"split {split!r} of {dataset} has no rows; there is nothing to measure")
        made: dict[str, Any] = {
            "augment": self.augment,
            "crop": self.crop or (side if self.padding else max(1, side * 7 // 8)),
            "padding": self.padding,
        }
        if self.recipe is not None and spec is not None:
            stored = (
                (spec.shape[0], side, side) if spec.variable_size else (spec.shape[0], spec.shape[1], spec.shape[2])
            )
            made |= task_of_recipe(self.recipe, self.crop, stored)
        return Task(
            dataset=dataset,
            split=split,
            version=self.version,
            source=source,
            **made,
            batch_size=self.batch_size,
            images=self.epoch_images(),
            threads=self.threads or available_cores(),
            workers=tuple(dict.fromkeys(self.workers)),
            device=self.chosen_device(variable_size=spec is not None and spec.variable_size),
        )

    def chosen_device(self, variable_size: bool = False) -> str:
        """Returns the requested device, else the available one.

        Args:
            variable_size: whether images are variable-size; these are measured on the CPU.

        Raises:
            UsageError: if CUDA is requested and not available.
        """
        import torch

        if variable_size:
            if self.device == "cuda":
                raise UsageError("--device is cuda, and variable-size images are measured on the CPU; leave it out")
            return "cpu"
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise UsageError("--device is cuda, and torch finds no CUDA device here; leave it out for the CPU")
        return self.device or ("cuda" if has_cuda else "cpu")


def _usual_side(split: Split) -> int:
    """Returns the short side of most variable-size photographs of a split."""
    sides = split.files.field("images").sizes.min(1)
    return int(sorted(sides.tolist())[len(sides) // 2]) if len(sides) else 1
