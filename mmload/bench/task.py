"""The task of every contender: a :class:`Task` with the rows, output shape, dtype and statistics.

:func:`task_of` makes it from the options of a bench and a dataset. It is picklable, as each contender runs in its own
process. Never loads an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmload.bench.options import BenchOptions
from mmload.bench.training_recipes import task_of_recipe
from mmload.builder.trust import checked_recipe
from mmload.errors import UsageError, bytes_text
from mmload.runtime.resources import available_cores, free_memory
from mmload.store.dataset import Dataset, Split

_BATCHES = 8  # batches in memory at the same time, in all the contenders' processes


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of every contender: the rows to load, and the required output.

    Attributes:
        dataset: the store.
        split: the name of the split.
        version: version of the store; None: the current one.
        source: the folder that it was built from; None: contenders that need it are missing.
        augment: "crop" (random crop), "resized-crop" (RandomResizedCrop), each with flip + normalize to float32; or
            "none": the stored uint8 rows.
        crop: pixels of a side of the output square.
        padding: pixels around the image before a random crop, as usual for CIFAR.
        scale: shares of the area that a resized crop is drawn from.
        interpolation: interpolation of a resized crop, "bilinear" or "bicubic".
        training_recipe: the function of :mod:`mmload.presets`, or MODULE:FUNCTION, that makes the output; "":
            crop, flip and normalize do.
        statistics: the mean and standard deviation of each channel that the training recipe normalizes with; None: the
            split's own.
        views: (height, width) of each view that the training recipe makes.
        left_out: the training recipe's steps besides crop, flip and normalize, which not every contender has.
        batch_size: images per batch.
        images: lower bound of the images per epoch; all contenders repeat a smaller split equally often.
        threads: threads of multi-threaded contenders; worker processes of peers with workers.
        workers: worker processes of the stock DataLoaders, one contender for each number.
        device: "cpu" or "cuda": the device of the delivered batches.
        seed: for contenders that accept one.

    Raises:
        UsageError: if there are no images, or crop, padding or batches do not fit.
    """

    dataset: Path
    split: str
    version: int | None = None
    source: Path | None = None
    augment: str = "crop"
    crop: int = 224
    padding: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    interpolation: str = "bilinear"
    training_recipe: str = ""
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    views: tuple[tuple[int, int], ...] = ()
    left_out: str = ""
    batch_size: int = 64
    images: int = 2000
    threads: int = available_cores()
    workers: tuple[int, ...] = (0, 2, 4)
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks that the split has images, and that the crop fits them."""
        spec = self.rows.fields.get("images")
        if spec is None:
            raise UsageError(f"split {self.split!r} of {self.dataset} stores no images; there is nothing to measure")
        height, width = self.least_size
        side = min(height, width)
        stored = (
            f"the smallest photograph is {height} x {width}"
            if self.variable_size
            else f"the stored images are {height} x {width}"
        )
        if self.variable_size and self.augment == "none":
            raise UsageError("--augment is none, and the images are variable-size; use crop or resized-crop")
        least = 1 if self.variable_size and self.augment == "resized-crop" else self.crop  # any window is resized
        if self.augment != "none" and not self.views and not (self.crop >= 1 and least <= side):
            other = ", or --augment resized-crop" if self.variable_size else ""
            raise UsageError(f"--crop is {self.crop}, {stored}; use 1 to {side}{other}")
        if self.padding > side:
            raise UsageError(
                f"--padding is {self.padding}, {stored}; use 0 to {side}, as beyond most crops would be all padding"
            )
        self._check_memory()

    def _check_memory(self) -> None:
        """Checks that several batches fit into memory."""
        image, free = math.prod(self.filled[1:]) * self.dtype.itemsize, free_memory()
        if free and self.batch_size * image * _BATCHES > free:
            most = max(1, free // (image * _BATCHES))
            raise UsageError(
                f"--batch-size is {self.batch_size}: {_BATCHES} batches of {bytes_text(self.batch_size * image)} "
                f"do not fit into the {bytes_text(free)} of memory that are free; use at most {most}"
            )

    @property
    def opened(self) -> Dataset:
        """The store, opened again at each use, which takes milliseconds."""
        return Dataset(self.dataset, self.version)

    @property
    def rows(self) -> Split:
        """The stored split."""
        return self.opened[self.split]

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the store, as in its manifest."""
        return checked_recipe(self.opened.manifest.recipe, self.dataset).resolved()

    @property
    def variable_size(self) -> bool:
        """Whether rows are variable-size."""
        return self.rows.fields["images"].variable_size

    @property
    def least_size(self) -> tuple[int, int]:
        """Height and width of the rows; of variable-size images, of the one with the shortest side."""
        if not self.variable_size:
            height, width = self.rows.fields["images"].shape[1:]
            return height, width
        sizes = self._sizes
        height, width = sizes[sizes.min(1).argmin()].tolist() if len(sizes) else (1, 1)
        return height, width

    @property
    def longest_side(self) -> int:
        """Pixels of the longest side of a row."""
        return int(self._sizes.max()) if self.variable_size else max(self.rows.fields["images"].shape[1:])

    @property
    def row_bytes(self) -> float:
        """Bytes of a stored image; of variable-size images, on average."""
        if not self.variable_size:
            return self.rows.fields["images"].row_bytes
        rows = self.rows.files.field("images")
        return float(rows.located(np.arange(len(rows)))["bytes"].mean()) if len(rows) else 0.0

    @property
    def pixel_bytes(self) -> float:
        """Bytes of the pixels of a stored image; of variable-size images, on average."""
        if not self.variable_size:
            return self.rows.fields["images"].row_bytes
        return float(self._sizes.prod(1).mean()) * self.rows.fields["images"].channels

    @property
    def _sizes(self) -> npt.NDArray[np.int64]:
        """Height and width of each row."""
        return self.rows.files.field("images").sizes.astype(np.int64)

    @property
    def layout(self) -> str:
        """The layout of the rows, for the table."""
        spec = self.rows.fields["images"]
        if not self.variable_size:
            return "rows of " + " x ".join(map(str, spec.shape))
        return f"--layout variable, {spec.encoding}, {self.row_bytes / 1000:,.1f} kB a row"

    @property
    def repeats(self) -> int:
        """Passes over the split per epoch."""
        return max(1, -(-self.images // max(1, len(self.rows))))

    @property
    def epoch_images(self) -> int:
        """Images per epoch."""
        return len(self.rows) * self.repeats

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, C, H, W) of a full output batch; with several views, of the first."""
        return self.shapes[0]

    @property
    def shapes(self) -> list[tuple[int, int, int, int]]:
        """(B, C, H, W) of each view of a full output batch."""
        channels, *stored = self.rows.fields["images"].shape
        sizes = self.views or (tuple(stored) if self.augment == "none" else (self.crop, self.crop),)
        return [(self.batch_size, channels, height, width) for height, width in sizes]

    @property
    def filled(self) -> tuple[int, ...]:
        """A shape of as many values as all views of a full output batch have."""
        if len(self.views) < 2:
            return self.shape
        return self.batch_size, sum(math.prod(shape[1:]) for shape in self.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of output images: float32, or uint8 without augmentation."""
        return torch.uint8 if self.augment == "none" else torch.float32

    @property
    def mean(self) -> list[float]:
        """The mean of each channel in [0, 1] for normalization."""
        return list(self.statistics[0] if self.statistics else self.rows.mean)

    @property
    def std(self) -> list[float]:
        """The standard deviation of each channel in [0, 1] for normalization, never 0."""
        return [value or 1.0 for value in (self.statistics[1] if self.statistics else self.rows.std)]

    @property
    def classes(self) -> int:
        """The number of classes, at least 1."""
        return max(1, len(self.rows.classes))

    @property
    def labeled(self) -> bool:
        """True if every row has exactly one class index, the only kind of label here."""
        spec = self.rows.fields.get("targets")
        return spec is not None and spec.shape == () and spec.dtype == "int64"

    @property
    def targets(self) -> list[int]:
        """The class index of each row; requires that the split is :attr:`labeled`."""
        gathered = self.rows.reader.gather("targets", torch.arange(len(self.rows)))
        indices: list[int] = gathered.tolist()
        return indices


def task_of(options: BenchOptions, dataset: Path, source: Path | None) -> Task:
    """Returns the task of the contenders for a dataset.

    Raises:
        UsageError: if the split is empty or unknown, the crop does not fit, or CUDA is requested and not available.
        StoreError: if there is no dataset.
    """
    opened = Dataset(dataset, options.version)
    split = options.split or next(iter(opened))
    spec = opened[split].fields.get("images")
    variable_size = spec is not None and spec.variable_size
    side = 1 if spec is None else _usual_side(opened[split]) if variable_size else min(spec.shape[1:])
    if not len(opened[split]):
        raise UsageError(f"split {split!r} of {dataset} has no rows; there is nothing to measure")
    made: dict[str, Any] = {
        "augment": options.augment,
        "crop": options.crop or (side if options.padding else max(1, side * 7 // 8)),
        "padding": options.padding,
    }
    if options.recipe is not None and spec is not None:
        height, width = (side, side) if variable_size else spec.shape[1:]
        made |= task_of_recipe(options.recipe, options.crop, (spec.shape[0], height, width))
    return Task(
        dataset=dataset,
        split=split,
        version=options.version,
        source=source,
        **made,
        batch_size=options.batch_size,
        images=options.epoch_images(),
        threads=options.threads or available_cores(),
        workers=options.worker_counts,
        device=_device_of(options, variable_size),
    )


def _device_of(options: BenchOptions, variable_size: bool) -> str:
    """Returns the requested device, else the available one; variable-size images are measured on the CPU."""
    if variable_size:
        if options.device == "cuda":
            raise UsageError("--device is cuda, and variable-size images are measured on the CPU; leave it out")
        return "cpu"
    has_cuda = torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        raise UsageError("--device is cuda, and torch finds no CUDA device here; leave it out for the CPU")
    return options.device or ("cuda" if has_cuda else "cpu")


def _usual_side(split: Split) -> int:
    """Returns the short side of most variable-size photographs of a split."""
    sides = split.files.field("images").sizes.min(1)
    return int(sorted(sides.tolist())[len(sides) // 2]) if len(sides) else 1
