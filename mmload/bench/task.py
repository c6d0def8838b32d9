"""The task of every contender: a :class:`Task` with the rows, the steps, and the output's shape and dtype.

:func:`task_of` makes it from the options of a bench and a dataset. It is picklable, as each contender runs in its own
process. Never loads an image.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from mmload.bench.options import STEPS, BenchOptions, preset_function
from mmload.builder.trust import checked_recipe
from mmload.errors import UsageError, bytes_text
from mmload.runtime.resources import available_cores, free_memory
from mmload.store.dataset import Dataset, Split

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.augment.views import Views

EPOCH = 0
"""Epoch for all steps that depend on it, so that the epochs of a bench are equal."""

_PADDED_BELOW = 64
_BATCHES = 8  # batches in memory at the same time, in all the contenders' processes


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of every contender: the rows to load, and the required output.

    Attributes:
        dataset: the folder of the dataset.
        split: the name of the split.
        source: the folder that it was built from; None: contenders that need it are missing.
        augment: "crop" (random crop), "resized-crop" (RandomResizedCrop), each with flip + normalize to float32;
            "none": the stored uint8 rows; or a preset: a function of :mod:`mmload.presets`, or MODULE:FUNCTION.
        crop: pixels of a side of the output square.
        padding: pixels around the image before a random crop, as usual for CIFAR.
        views: (height, width) of each view that a preset makes; empty without one.
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
    views: tuple[tuple[int, int], ...] = ()
    batch_size: int = 64
    images: int = 2000
    threads: int = available_cores()
    workers: tuple[int, ...] = (2, 4)
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Checks that the crop fits the images, and several batches the memory."""
        if self.variable_size and self.augment == "none":
            raise UsageError("--steps is none, and the images are variable-size; use crop or resized-crop")
        height, width = self.least_size
        least = 1 if self.variable_size and self.augment == "resized-crop" else self.crop  # any window is resized
        if self.augment in ("crop", "resized-crop") and least > min(height, width):
            smallest, other = ("the stored images are", "")
            if self.variable_size:
                smallest, other = "the smallest photograph is", ", or --steps resized-crop"
            raise UsageError(
                f"--size is {self.crop}, {smallest} {height} x {width}; use 1 to {min(height, width)}{other}"
            )
        image, free = self.image_values * self.dtype.itemsize, free_memory()
        if free and self.batch_size * image * _BATCHES > free:
            most = max(1, free // (image * _BATCHES))
            raise UsageError(
                f"--batch-size is {self.batch_size}: {_BATCHES} batches of {bytes_text(self.batch_size * image)} "
                f"do not fit into the {bytes_text(free)} of memory that are free; use at most {most}"
            )

    @property
    def opened(self) -> Dataset:
        """The dataset, opened again at each use, which takes milliseconds."""
        return Dataset(self.dataset)

    @property
    def rows(self) -> Split:
        """The stored split."""
        return self.opened[self.split]

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the dataset, as in its manifest."""
        return checked_recipe(self.opened.manifest.recipe, self.dataset).resolved()

    @property
    def is_preset(self) -> bool:
        """Whether a preset makes the output."""
        return self.augment not in STEPS

    @property
    def collate(self) -> Collate | Views | None:
        """The steps; None: the rows unchanged."""
        if self.augment == "none":
            return None
        if self.is_preset:
            return collate_of_preset(self.augment, self.crop, self.classes)
        from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
        from mmload.augment.collate import Collate

        resized = self.augment == "resized-crop"
        crop = RandomResizedCrop(self.crop) if resized else RandomCrop(self.crop, self.padding or None)
        return Collate(crop, RandomHorizontalFlip(), Normalize(self.mean, self.std))

    @property
    def variable_size(self) -> bool:
        """Whether rows are variable-size."""
        return self.rows.fields["images"].variable_size

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Height and width of each row, or once, where all rows have the same."""
        if not self.variable_size:
            return np.array([self.rows.fields["images"].shape[1:]])
        return self.rows.reader.image_sizes()

    @property
    def least_size(self) -> tuple[int, int]:
        """Height and width of the rows; of variable-size images, of the one with the shortest side."""
        sizes = self.sizes
        height, width = sizes[sizes.min(1).argmin()].tolist()
        return height, width

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
        return float(self.sizes.prod(1).mean()) * self.rows.fields["images"].channels

    @property
    def layout(self) -> str:
        """The layout of the rows, for the table."""
        spec = self.rows.fields["images"]
        if not self.variable_size:
            return "rows of " + " x ".join(map(str, spec.shape))
        return f"--layout variable, {spec.encoding}, {self.row_bytes / 1000:,.1f} kB per row"

    @property
    def repeats(self) -> int:
        """Passes over the split per epoch."""
        return max(1, -(-self.images // max(1, len(self.rows))))

    @property
    def epoch_images(self) -> int:
        """Images per epoch."""
        return len(self.rows) * self.repeats

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        return -(-self.epoch_images // self.batch_size)

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
        """The mean of each channel in [0, 1] for normalization; 0.5 of a split without statistics."""
        return list(self.rows.mean) or [0.5] * self.shape[1]

    @property
    def std(self) -> list[float]:
        """The standard deviation of each channel in [0, 1] for normalization, never 0; 0.25 of such a split."""
        return [value or 1.0 for value in self.rows.std] or [0.25] * self.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes, at least 1."""
        return max(1, len(self.rows.classes))

    @property
    def labeled(self) -> bool:
        """True if every row has exactly one class index, the only kind of label here."""
        spec = self.rows.fields.get("targets")
        return spec is not None and spec.shape == () and spec.dtype == "int64"


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
    made: dict[str, Any] = {"crop": options.size or max(1, side * 7 // 8)}
    if options.steps == "crop" and options.size is None and side < _PADDED_BELOW and not spec.variable_size:
        made = {"crop": side, "padding": side // 8}
    if options.steps not in STEPS:
        views = _views_of_preset(options.steps, options.size, (spec.shape[0], height, width))
        made = {"views": views, "crop": views[0][0]}
    threads = options.threads or available_cores()
    return Task(
        dataset=dataset,
        split=name,
        source=source,
        augment=options.steps,
        **made,
        batch_size=options.batch_size,
        threads=threads,
        workers=(threads, 2 * threads),
        device="cuda" if torch.cuda.is_available() and not spec.variable_size else "cpu",
    )


# Presets.


def collate_of_preset(name: str, size: int | None, classes: int) -> Collate | Views:
    """Returns the collate of a preset of :mod:`mmload.presets`, or MODULE:FUNCTION, at epoch 0.

    Its (larger) crops are of ``size`` pixels; None: as published.
    """
    make = preset_function(name)
    arguments: dict[str, Any] = {} if size is None else {"size": size}
    if "num_classes" in inspect.signature(make).parameters:
        arguments["num_classes"] = max(2, classes)
    made: Collate | Views = make(**arguments)
    made.set_epoch(EPOCH)
    return made


def _views_of_preset(name: str, size: int | None, stored: tuple[int, int, int]) -> tuple[tuple[int, int], ...]:
    """Returns the height and width of each view that a preset makes of the stored images.

    Raises:
        UsageError: if the preset cannot be done to them.
    """
    from mmload.augment.collate import collates_of
    from mmload.batch import Batch

    row = Batch(images=torch.zeros((2, *stored), dtype=torch.uint8), ids=torch.arange(2), batch_size=[2])
    labeled = row.replace(targets=torch.zeros(2, dtype=torch.int64))
    try:
        made = [collate(labeled).images for collate in collates_of(collate_of_preset(name, size, 2))]
    except (ValueError, TypeError) as error:
        raise UsageError(f"--steps {name} cannot be done to images {list(stored)}: {error}") from error
    return tuple((images.shape[2], images.shape[3]) for images in made)
