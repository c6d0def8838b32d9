"""The options of a bench, declared once, and their checks. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from mmload.builder.options import option
from mmload.errors import UsageError
from mmload.runtime.resources import MOST_THREADS, check_threads

AUGMENTS = ("crop", "resized-crop", "none")
DEVICES = ("cpu", "cuda")

MOST = {"--images": 10_000_000, "--epochs": 1000, "--rounds": 1000, "--size": 16_384}
"""Upper bounds that catch typing errors."""


def check_count(name: str, value: int | None, most: int | None = None) -> None:
    """Checks a count of an option; None selects the default. The upper bound is ``most``, :data:`MOST`, or none.

    Raises:
        UsageError: if it is invalid.
    """
    most = MOST.get(name) if most is None else most
    if value is not None and value < 1:
        raise UsageError(f"{name} is {value}; use at least 1")
    if value is not None and most is not None and value > most:
        raise UsageError(f"{name} is {value}; use at most {most}")


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """Number and length of each contender's turns.

    Attributes:
        epochs: measured turns of each contender, after one warm-up turn.
        budget: total seconds, including starting and ending the processes; to stay within it, turns are cut short, and
            rounds and contenders left out.
        cold: evict all files before each measured epoch. The contender is created again for it while no other exists,
            because memory-mapped pages cannot be evicted.
        beside: measure each contender as often beside each of the :data:`~mmload.bench.train.NEIGHBORS`.
        train: a model to train with each contender's batches, at least two steps; None: no training.
            Contenders for which the budget does not allow two steps are not trained.
        patience: seconds that a contender may overrun its time without a response before it is killed.
    """

    epochs: int = 3
    budget: float = 300.0
    cold: bool = False
    beside: bool = False
    train: str | None = None
    patience: float = 30.0


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The settings of ``mmload bench``, as they are written; None selects the default.

    Raises:
        UsageError: if a setting is invalid.
    """

    # The task.
    split: str | None = option("Split to measure; the first by default.")
    version: int | None = option("A version of the dataset, as mmload log lists them; the current one.", metavar="N")
    augment: str = option("crop, resized-crop, or none (the stored rows).", "crop")
    recipe: str | None = option(
        "A training recipe of mmload.presets in place of --augment, such as simclr; or your own MODULE:FUNCTION.",
        metavar="NAME",
    )
    crop: int | None = option("Pixels of the square crop; 7/8 of the stored side.")
    padding: int = option("Pixels around the image before a random crop, as for CIFAR.", 0)
    batch_size: int = option("Images per batch.", 64)
    epochs: int | None = option("Measured epochs of each loader, after a warm-up epoch; 3, or 1 with --quick.")
    images: int | None = option(
        "Least number of images per epoch; a smaller split is repeated. 2000, or 500 with --quick."
    )

    # The loaders.
    workers: str = option("Worker processes of the stock DataLoader, as a list.", "0,2,4")
    threads: int | None = option("Loader threads; the cores available by default.")
    device: str | None = option("Device of the batches: cpu or cuda; cuda if available.")

    # What else is measured, and for how long.
    cold: bool = option("Evict all files from the page cache before every epoch, and prove it.", False)
    beside: bool | None = option(
        "Measure also beside a thread of Python and one of small torch operations; not with --quick or --cold.",
        flag="--beside/--no-beside",
    )
    train: str | None = option(
        "Train this torchvision model, or small, with each loader; measure its steps and their wait for data.",
        metavar="MODEL",
    )
    time_budget: float | None = option(
        "Seconds for all measurements and starts; 600, 300 with --no-beside, 60 with --quick."
    )
    quick: bool = option("Fewer images, one epoch: a first look.", False)

    def __post_init__(self) -> None:
        counts = {"--batch-size": self.batch_size, "--images": self.images, "--epochs": self.epochs}
        for name, value in {**counts, "--crop": self.crop}.items():
            check_count(name, value)
        check_threads(self.threads)
        if self.augment not in AUGMENTS:
            raise UsageError(f"--augment is {self.augment!r}; use one of {', '.join(AUGMENTS)}")
        self._check_recipe()
        self._check_geometry()
        if not all(0 <= count <= MOST_THREADS for count in self.worker_counts):
            raise UsageError(f"--workers is {self.workers!r}; give integers from 0 to {MOST_THREADS}, as in 0,2,4")
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
        from mmload.bench.training_recipes import check_name  # imports torch

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

    @property
    def worker_counts(self) -> tuple[int, ...]:
        """The numbers of worker processes, each once; (-1,) if they are no integers."""
        try:
            return tuple(dict.fromkeys(int(count) for count in self.workers.split(",")))
        except ValueError:
            return (-1,)

    def epoch_images(self) -> int:
        """Returns a lower bound of the images per epoch."""
        return self.images or (500 if self.quick else 2000)
