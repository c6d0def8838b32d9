"""torchvision under ``torch.utils.data.DataLoader``: the common way to train, and well tuned.

Images are the original ones, as torchvision's own datasets read them: item ``i`` is the source of row ``i``. They are
PIL images as in torchvision's examples, or uint8 tensors as its documentation recommends for speed. The steps are the
equivalents of the recipe's and the task's. Worker processes persist; with CUDA, batches are pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import datasets
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from mmload.augment import AlternatingHorizontalFlip, RandomHorizontalFlip
from mmload.augment.collate import Collate, collates_of
from mmload.bench.contenders.entry import Contender, ContenderEntry, moved
from mmload.bench.task import EPOCH, Task
from mmload.errors import SourceError, UsageError, counted
from mmload.interop.torchvision import torchvision_equivalent
from mmload.runtime.files import open_regular, read_regular
from mmload.sources.cifar import read_plain_pickle

PREFETCH = 2
"""Prefetched batches per worker, DataLoader's default. Measured on 2 cores with 2 workers, 4 and 8 are no faster."""

FROM_PHOTOGRAPHS = "crops the photographs before they are resized"
"""Deviation of contenders that crop the images of the source, where the stored variable-size images are smaller."""


def stock_entries(task: Task) -> list[ContenderEntry]:
    """Returns each variant with every number of workers; none where torchvision cannot read the source."""
    if no_source(task):
        return []
    likely = min(task.workers, key=lambda workers: abs(workers - task.threads))  # rarely much slower than the best
    flips = "flips are random, not alternating" if task.augment == "airbench" else ""
    ways = {"v2 tensors": True} if task.is_preset else {"torchvision": False, "v2 tensors": True}
    return [
        ContenderEntry(
            name=f"DataLoader + {name}, {counted(workers, 'worker')}",
            group="stock",
            differs="; ".join(filter(None, [shrinks(task), flips])),
            need=0 if workers == likely else 3,
            ahead=max(1, PREFETCH * workers),
            make=partial(stock_loader, workers=workers, on_tensors=on_tensors),
        )
        for name, on_tensors in ways.items()
        for workers in task.workers
    ]


def stock_loader(task: Task, scratch: Path, *, workers: int, on_tensors: bool) -> Contender:
    """Makes a tuned DataLoader that shuffles the task's repeats of torchvision's dataset of the source."""
    views, mix = task_steps(task)
    if on_tensors:
        dataset: Any = DecodedTensors(source_dataset(task), OneByOne(stored_steps(task), views))
    else:
        (steps,) = views
        at = next((place for place, step in enumerate(steps) if isinstance(step, v2.ToDtype)), len(steps))
        dataset = source_dataset(task, composed([*stored_steps(task), *steps[:at], v2.PILToTensor(), *steps[at:]]))
    loader: DataLoader[Any] = DataLoader(
        ConcatDataset([dataset] * task.repeats),
        batch_size=task.batch_size,
        shuffle=True,
        collate_fn=None if mix is None else partial(collated, mix),
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH if workers else None,
        pin_memory=task.device == "cuda",
    )
    return partial(moved, loader, task.device)


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


# The steps, as torchvision's.


def stored_specs(task: Task) -> list[dict[str, Any]]:
    """Returns the recipe's deterministic transforms; none before resized crops of variable-size photographs."""
    if task.variable_size and task.augment == "resized-crop":
        return []
    specs: list[dict[str, Any]] = task.recipe["transforms"]
    return specs


def shrinks(task: Task) -> str:
    """Returns how crops of the source's images deviate from those of the rows, "" if they do not."""
    return FROM_PHOTOGRAPHS if task.variable_size and not stored_specs(task) and task.recipe["transforms"] else ""


def stored_steps(task: Task) -> list[Any]:
    """Returns torchvision's equivalents of the recipe's transforms, for PIL images and for tensors.

    Raises:
        UsageError: if one has none.
    """
    steps: list[Any] = torchvision_equivalent({**task.recipe, "transforms": stored_specs(task)}).transforms[1:]
    return steps


def task_steps(task: Task) -> tuple[list[list[Any]], Any]:
    """Returns torchvision's steps for each view of an image, and the one for a batch that ends them, None if none does.

    An alternating flip, which torchvision does not have, is a random one.
    """
    views, mix = list[list[Any]](), list[Any]()
    for collate in collates_of(task.collate):
        steps = [RandomHorizontalFlip() if isinstance(one, AlternatingHorizontalFlip) else one for one in collate.steps]
        twin = Collate(*steps, dtype=collate.dtype)
        twin.set_epoch(EPOCH)
        _, *made = torchvision_equivalent(twin).transforms
        views.append([step for step in made if not _mixes(step)])
        mix = [step for step in made if _mixes(step)]
    return views or [[]], v2.Compose(mix) if mix else None


def _mixes(step: Any) -> bool:
    inner = step.transforms if isinstance(step, v2.RandomChoice) else [step]
    return any(isinstance(one, v2.MixUp | v2.CutMix) for one in inner)


def composed(steps: list[Any]) -> Any:
    """Returns the steps as one transform; the identity for no steps, which torchvision's ``Compose`` rejects."""
    return v2.Compose(steps) if steps else v2.Identity()


class OneByOne:
    """An image's views by torchvision, after steps that are applied once. Picklable."""

    def __init__(self, before: list[Any], views: list[list[Any]]) -> None:
        self._before, self._views = composed(before), list(map(composed, views))

    def __call__(self, image: Any) -> Any:
        """Returns a tuple of the views, or the only view."""
        whole = self._before(image)
        made = tuple(view(whole) for view in self._views)
        return made if len(made) > 1 else made[0]


def collated(mix: Any, items: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
    """Returns the batch of some samples by torch's default collate, mixed."""
    mixed: tuple[Any, Tensor] = mix(*torch.utils.data.default_collate(items))
    return mixed


# The original images.


def no_source(task: Task) -> str:
    """Returns why torchvision cannot read the task's source, "" if it can."""
    recipe = task.recipe
    kind = recipe["source"]["kind"]
    if kind == "voc":
        return "torchvision's VOCDetection and VOCSegmentation give annotations and masks, not one class for each image"
    if kind not in ("imagefolder", "cifar10", "cifar100"):
        return f"the bench does not read a source of kind {kind} by torchvision"
    if recipe["source"].get("labels", "fine") != "fine":
        return "torchvision's CIFAR100 has fine labels only"
    if recipe["decode"]["mode"] != "RGB" or recipe["decode"]["exif_orient"]:
        return "torchvision's ImageFolder reads RGB and does not turn images"
    if task.source is None:
        return "it reads the photographs themselves: give --source ROOT"
    try:
        stored_steps(task)
    except UsageError as error:
        return str(error)
    return "" if task.labeled else f"split {task.split!r} does not have one class for each image"


def check_source(task: Task) -> None:
    """Compares the source with the dataset if torchvision can read it, and checks that its images are regular files.

    The contenders open images by name, which blocks on a FIFO, and never ends on a device.

    Raises:
        SourceError: if it does not exist, or is not what the dataset was built from, or an image is not a regular file.
    """
    if no_source(task):
        return
    for path, _ in getattr(source_dataset(task), "samples", ()):  # CIFAR has no such list: its files are read as is
        try:
            open(path, "rb", opener=open_regular).close()
        except OSError as error:
            raise SourceError(
                f"cannot read {path} ({error.strerror}); remove it from the source, or restore it"
            ) from error


def source_dataset(task: Task, transform: Callable[[Any], Any] | None = None) -> Any:
    """Returns torchvision's dataset of the source; item ``i`` is (image, class index) of row ``i``.

    Raises:
        SourceError: if the source does not exist, or is not what the dataset was built from.
    """
    if task.source is None or not task.source.is_dir():
        raise SourceError(f"no such folder: {task.source}; give the folder that the dataset was built from")
    official = _CIFAR.get(task.recipe["source"]["kind"])
    return _cifar(task, task.source, official, transform) if official else _folder(task, task.source, transform)


class _AnyPickles:
    """torchvision's CIFAR without its checksums: any files in its format are accepted."""

    def _check_integrity(self) -> bool:
        return True


class _Cifar10(_AnyPickles, datasets.CIFAR10):  # type: ignore[misc]  # torchvision is untyped here
    meta: ClassVar[Any] = {**datasets.CIFAR10.meta, "md5": None}


class _Cifar100(_AnyPickles, datasets.CIFAR100):  # type: ignore[misc]  # torchvision is untyped here
    meta: ClassVar[Any] = {**datasets.CIFAR100.meta, "md5": None}


_CIFAR = {"cifar10": _Cifar10, "cifar100": _Cifar100}


def _cifar(task: Task, root: Path, official: Any, transform: Callable[[Any], Any] | None) -> Any:
    _check_plain_data(root, official)
    try:
        made = official(str(root), train=task.split == "train", transform=transform)
    except (OSError, RuntimeError, KeyError) as error:
        kind = task.recipe["source"]["kind"]
        raise SourceError(f"torchvision cannot read {root} as {kind} ({error}); give the original files") from error
    if len(made) != len(task.rows):
        raise _another(task, len(made))
    return made


def _check_plain_data(root: Path, official: Any) -> None:
    """Raises SourceError if a pickle that torchvision is going to load has more than plain data and arrays."""
    checksums = dict([*official.train_list, *official.test_list])  # by the names of the files
    for name in (*checksums, official.meta["filename"]):
        path = root / official.base_folder / name
        try:
            read_plain_pickle(read_regular(path))
        except OSError as error:
            raise SourceError(f"cannot read {path} ({error.strerror}); give the original files") from error
        except ValueError as error:
            raise SourceError(f"{path} is not a CIFAR batch: {error}") from error


def _folder(task: Task, root: Path, transform: Callable[[Any], Any] | None) -> Any:
    """Returns an ImageFolder restricted to the stored samples, in the rows' order."""
    inner = root / task.split
    try:
        made = datasets.ImageFolder(str(inner if inner.is_dir() else root), transform, allow_empty=True)
    except OSError as error:
        raise SourceError(
            f"torchvision cannot read {root} as an ImageFolder ({error}); give the folder that the dataset was built "
            "from"
        ) from error
    target_of = {str(Path(path)): target for path, target in made.samples}
    wanted = [str(root / sample.id) for sample in task.rows.source(slice(None))]
    if not target_of.keys() >= set(wanted):
        raise _another(task, len(target_of))
    made.targets = [target_of[path] for path in wanted]
    made.samples = made.imgs = list(zip(wanted, made.targets, strict=True))
    return made


def _another(task: Task, images: int) -> SourceError:
    return SourceError(
        f"{task.source} has {counted(images, 'image')}, split {task.split!r} of {task.dataset} has "
        f"{counted(len(task.rows), 'row')} that are not all among them; give the folder that the dataset was built from"
    )
