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
from mmload.bench.training_recipes import views_of_recipe
from mmload.builder.trust import checked_recipe
from mmload.errors import UsageError, bytes_text
from mmload.runtime.resources import available_cores, free_memory
from mmload.store.dataset import Dataset, Split

_PADDED_BELOW = 64
_BATCHES = 8  # batches in memory at the same time, in all the contenders' processes


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of every contender: the rows to load, and the required output.

    Attributes:
        dataset: the store.
        split: the name of the split.
        source: the folder that it was built from; None: contenders that need it are missing.
        augment: "crop" (random crop), "resized-crop" (RandomResizedCrop), each with flip + normalize to float32; or
            "none": the stored uint8 rows.
        crop: pixels of a side of the output square.
        padding: pixels around the image before a random crop, as usual for CIFAR.
        training_recipe: the function of :mod:`mmload.presets`, or MODULE:FUNCTION, that makes the output; "":
            crop, flip and normalize do.
        views: (height, width) of each view that the training recipe makes.
        batch_size: images per batch.
        images: lower bound of the images per epoch; all contenders repeat a smaller split equally often.
        threads: threads of multi-threaded contenders; worker processes of peers with workers.
        workers: numbers of worker processes that the stock DataLoader is tuned over, one contender for each.
        device: "cpu" or "cuda": the device of the delivered batches.

    Raises:
        UsageError: if crop or batches do not fit.
    """

    dataset: Path
    split: str
    source: Path | None = None
    augment: str = "crop"
    crop: int = 224
    padding: int = 0
    training_recipe: str = ""
    views: tuple[tuple[int, int], ...] = ()
    batch_size: int = 64
    images: int = 2000
    threads: int = available_cores()
    workers: tuple[int, ...] = (2, 4)
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Checks that the crop fits the images."""
        height, width = self.least_size
        side = min(height, width)
        stored = (
            f"the smallest photograph is {height} x {width}"
            if self.variable_size
            else f"the stored images are {height} x {width}"
        )
        if self.variable_size and self.augment == "none":
            raise UsageError("--steps is none, and the images are variable-size; use crop or resized-crop")
        least = 1 if self.variable_size and self.augment == "resized-crop" else self.crop  # any window is resized
        if self.augment != "none" and not self.views and not (self.crop >= 1 and least <= side):
            other = ", or --steps resized-crop" if self.variable_size else ""
            raise UsageError(f"--size is {self.crop}, {stored}; use 1 to {side}{other}")
        self._check_memory()

    def _check_memory(self) -> None:
        """Checks that several batches fit into memory."""
        image, free = self.image_values * self.dtype.itemsize, free_memory()
        if free and self.batch_size * image * _BATCHES > free:
            most = max(1, free // (image * _BATCHES))
            raise UsageError(
                f"--batch-size is {self.batch_size}: {_BATCHES} batches of {bytes_text(self.batch_size * image)} "
                f"do not fit into the {bytes_text(free)} of memory that are free; use at most {most}"
            )

    @property
    def opened(self) -> Dataset:
        """The store, opened again at each use, which takes milliseconds."""
        return Dataset(self.dataset)

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
        sizes = self._sizes
        height, width = sizes[sizes.min(1).argmin()].tolist()
        return height, width

    @property
    def longest_side(self) -> int:
        """Pixels of the longest side of a row."""
        return int(self._sizes.max())

    @property
    def row_bytes(self) -> float:
        """Bytes of a stored image; of variable-size images, on average."""
        if not self.variable_size:
            return self.rows.fields["images"].row_bytes
        rows = self.rows.reader.field("images")
        return float(rows.located(np.arange(len(rows)))["bytes"].mean())

    @property
    def pixel_bytes(self) -> float:
        """Bytes of the pixels of a stored image; of variable-size images, on average."""
        return float(self._sizes.prod(1).mean()) * self.rows.fields["images"].channels

    @property
    def _sizes(self) -> npt.NDArray[np.int64]:
        """Height and width of each row, or once, where all rows have the same."""
        if not self.variable_size:
            return np.array([self.rows.fields["images"].shape[1:]])
        return self.rows.reader.image_sizes()

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
    def image_values(self) -> int:
        """Values of an image in the output, in all of its views."""
        return sum(math.prod(shape[1:]) for shape in self.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of output images: float32, or uint8 without augmentation."""
        return torch.uint8 if self.augment == "none" else torch.float32

    @property
    def mean(self) -> list[float]:
        """The mean of each channel in [0, 1] for normalization."""
        return list(self.rows.mean)

    @property
    def std(self) -> list[float]:
        """The standard deviation of each channel in [0, 1] for normalization, never 0."""
        return [value or 1.0 for value in self.rows.std]

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
        gathered = self.rows.reader.array("targets", np.arange(len(self.rows)))
        indices: list[int] = gathered.tolist()
        return indices


def task_of(options: BenchOptions, dataset: Path, source: Path | None) -> Task:
    """Returns the task of the contenders for the first split of a dataset.

    The plain crop of rows below 64 pixels is as large as they are, from rows padded by an eighth, as usual for CIFAR.

    Raises:
        UsageError: if the split has no images, or the crop does not fit them.
        StoreError: if there is no dataset.
    """
    name, split = next(iter(Dataset(dataset).items()))
    spec = split.fields.get("images")
    if spec is None or not len(split):
        raise UsageError(f"split {name!r} of {dataset} has no images; there is nothing to measure")
    if spec.variable_size:
        height = width = sorted(split.reader.image_sizes().min(1).tolist())[len(split) // 2]
    else:
        height, width = spec.shape[1:]
    side = min(height, width)
    made: dict[str, Any] = {"augment": options.steps, "crop": options.size or max(1, side * 7 // 8)}
    if options.steps == "crop" and options.size is None and side < _PADDED_BELOW and not spec.variable_size:
        made |= {"crop": side, "padding": side // 8}
    if options.recipe is not None:
        views = views_of_recipe(options.recipe, options.size, (spec.shape[0], height, width))
        made = {"training_recipe": options.recipe, "views": views, "crop": views[0][0]}
    threads = options.threads or available_cores()
    return Task(
        dataset=dataset,
        split=name,
        source=source,
        **made,
        batch_size=options.batch_size,
        threads=threads,
        workers=(threads, 2 * threads),
        device="cuda" if torch.cuda.is_available() and not spec.variable_size else "cpu",
    )
