"""The original images as torchvision's own datasets read them, and the task's steps as torchvision's transforms.

Item ``i`` of a dataset is the source of row ``i``. Never reads the stored pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torchvision import datasets
from torchvision.transforms import InterpolationMode, v2

from mmload.bench.task import Task
from mmload.errors import SourceError, counted
from mmload.interop.shrink import ShortestMaxSize
from mmload.runtime.regular_files import check_regular, read_regular
from mmload.sources.cifar import read_plain_pickle

_STEPS = ("Resize", "CenterCrop", "Pad", "Shrink")

FROM_PHOTOGRAPHS = "crops the photographs before they are resized"
"""Deviation of contenders that crop the images of the source, where the stored variable-size images are smaller."""


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
    for spec in recipe_specs(task):
        if spec["step"] not in _STEPS:
            return f"torchvision has no equivalent of the recipe's step {spec['step']}"
    if task.source is None:
        return "it reads the photographs themselves: give --source ROOT"
    return "" if task.labeled else f"split {task.split!r} does not have one class for each image"


def check_source(task: Task) -> None:
    """Compares the source with the store if torchvision can read it, and checks that its images are regular files.

    The contenders open images by name, which blocks on a FIFO, and never ends on a device.

    Raises:
        SourceError: if it does not exist, or is not what the store was built from, or an image is not a regular file.
    """
    if no_source(task):
        return
    for path, _ in getattr(source_dataset(task), "samples", ()):  # CIFAR has no such list: its files are read as is
        check_image(path)


def check_image(path: str | Path) -> None:
    """Rejects an image that is not a regular file, before other loaders open it.

    Raises:
        SourceError: naming the file.
    """
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"cannot read {path} ({error.strerror}); remove it from the source, or restore it") from error


def source_dataset(task: Task, transform: Callable[[Any], Any] | None = None) -> Any:
    """Returns torchvision's dataset of the source; item ``i`` is (image, class index) of row ``i``.

    Raises:
        SourceError: if the source does not exist, or is not what the store was built from.
    """
    if task.source is None or not task.source.is_dir():
        raise SourceError(f"no such folder: {task.source}; give the folder that the dataset was built from")
    kind = task.recipe["source"]["kind"]
    return _folder(task, task.source, transform) if kind == "imagefolder" else _cifar(task, kind, transform)


def recipe_specs(task: Task) -> list[dict[str, Any]]:
    """Returns the recipe's deterministic transforms; none before resized crops of variable-size photographs."""
    if task.variable_size and task.augment == "resized-crop":
        return []
    specs: list[dict[str, Any]] = task.recipe["transforms"]
    return specs


def shrinks(task: Task) -> str:
    """Returns how crops of the source's images deviate from those of the rows, "" if they do not."""
    return FROM_PHOTOGRAPHS if task.variable_size and not recipe_specs(task) and task.recipe["transforms"] else ""


def recipe_steps(task: Task) -> list[Any]:
    """Returns the recipe's deterministic transforms as torchvision v2's, for PIL images and for tensors."""
    made: list[Any] = []
    for spec in recipe_specs(task):
        arguments = {key: value for key, value in spec.items() if key != "step"}
        if spec["step"] == "Shrink":
            made.append(ShortestMaxSize(**arguments))
            continue
        if "interpolation" in arguments:
            arguments["interpolation"] = InterpolationMode(arguments["interpolation"])
        if spec["step"] == "CenterCrop":
            arguments.pop("fill", None)
        made.append(getattr(v2, spec["step"])(**arguments))
    return made


def random_steps(task: Task) -> list[Any]:
    """Returns the task's crop and flip as torchvision v2's; empty for augment "none"."""
    if task.augment == "none":
        return []
    crop = v2.RandomResizedCrop(task.crop) if task.augment == "resized-crop" else v2.RandomCrop(task.crop, task.padding)
    return [crop, v2.RandomHorizontalFlip()]


def float_steps(task: Task) -> list[Any]:
    """Returns torchvision's steps from uint8 tensors to the task's normalized floats; empty for augment "none"."""
    if task.augment == "none":
        return []
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(task.mean, task.std)]


def composed(steps: list[Any]) -> Any:
    """Returns the steps as one transform; the identity for no steps, which torchvision's ``Compose`` rejects."""
    return v2.Compose(steps) if steps else v2.Identity()


class _AnyPickles:
    """torchvision's CIFAR without its checksums: any files in its format are accepted."""

    def _check_integrity(self) -> bool:
        return True


class _Cifar10(_AnyPickles, datasets.CIFAR10):  # type: ignore[misc]  # torchvision is untyped here
    meta: ClassVar[Any] = {**datasets.CIFAR10.meta, "md5": None}


class _Cifar100(_AnyPickles, datasets.CIFAR100):  # type: ignore[misc]  # torchvision is untyped here
    meta: ClassVar[Any] = {**datasets.CIFAR100.meta, "md5": None}


def _cifar(task: Task, kind: str, transform: Callable[[Any], Any] | None) -> Any:
    official = _Cifar10 if kind == "cifar10" else _Cifar100
    _check_plain_data(task.source, official)
    try:
        made = official(str(task.source), train=task.split == "train", transform=transform)
    except (OSError, RuntimeError, KeyError) as error:
        raise SourceError(
            f"torchvision cannot read {task.source} as {kind} ({error}); give the original files"
        ) from error
    if len(made) != len(task.rows):
        raise _another(task, len(made))
    return made


def _check_plain_data(source: Path | None, official: Any) -> None:
    """Raises SourceError if a pickle that torchvision is going to load has more than plain data and arrays."""
    folder = Path(source or ".") / official.base_folder
    names = [name for name, _ in (*official.train_list, *official.test_list)]
    for path in (folder / name for name in (*names, official.meta["filename"])):
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
    if any(path not in target_of for path in wanted):
        raise _another(task, len(target_of))
    made.samples = made.imgs = [(path, target_of[path]) for path in wanted]
    made.targets = [target for _, target in made.samples]
    return made


def _another(task: Task, images: int) -> SourceError:
    return SourceError(
        f"{task.source} has {counted(images, 'image')}, split {task.split!r} of {task.dataset} has "
        f"{counted(len(task.rows), 'row')} that are not all among them; give the folder that the dataset was built from"
    )
