"""Measures building beside torchvision's pass over the same files, which decodes them and stores nothing.

Takes the task of a bench and returns images per second of each round. Removes all files that it creates.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from mmload.bench.contenders.stock import composed, no_source, source_dataset, stored_steps
from mmload.bench.task import Task
from mmload.builder.pipeline import build
from mmload.builder.planned_build import probes, splits_of
from mmload.builder.trust import checked_recipe
from mmload.errors import UsageError, counted
from mmload.sources.imagefolder import ImageFolderSplit

IMAGES = 400
"""Photographs of each round, evenly spread over the source; CIFAR's rows are all built."""

_ROUNDS = 3


def measure_building(task: Task, progress: Callable[[str], None] = lambda text: None) -> dict[str, list[float]]:
    """Returns way -> images per second of each of three rounds that alternate, after one to warm up.

    Raises:
        UsageError: if torchvision cannot read the task's source.
    """
    if reason := no_source(task):
        raise UsageError(f"--build compares with torchvision's pass over the source: {reason}")
    with tempfile.TemporaryDirectory(prefix="mmload-bench-") as work:
        source = task.source or Path()
        steps = composed([*stored_steps(task), v2.PILToTensor()])
        recipe = checked_recipe(task.opened.manifest.recipe, task.dataset)
        if recipe.kind == "imagefolder":
            recipe = replace(recipe, root=source, options={"allow_outside": True}, exclude={})
            name, split = next(iter(splits_of(recipe).items()))
            source = linked(cast("ImageFolderSplit", split), name, IMAGES, Path(work) / "photos")
            files = ImageFolder(str(source / name), steps)
        else:
            files = source_dataset(task, steps)
        recipe = replace(recipe, root=source, out=Path(work) / "dataset")

        def stock() -> int:
            for _ in DataLoader(files, batch_size=task.batch_size, num_workers=task.threads, collate_fn=len):
                pass
            return len(files)

        def ours() -> int:
            shutil.rmtree(Path(work) / "dataset", ignore_errors=True)
            return build(recipe, threads=task.threads).built

        ways = {
            f"torchvision's pass, {counted(task.threads, 'worker')}": stock,
            f"mmload build, {counted(task.threads, 'thread')}": ours,
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(_ROUNDS + 1):
            for name, way in ways.items():
                progress(f"{name}: {f'round {turn} of {_ROUNDS}' if turn else 'warm-up'}")
                began = time.perf_counter()
                images = way()
                rates[name] += [images / (time.perf_counter() - began)] if turn else []
    return rates


def linked(split: ImageFolderSplit, name: str, images: int, root: Path) -> Path:
    """Creates an ImageFolder of links to evenly spread images of a split, ``root/name/class/000012_file.jpg``."""
    place = cast("Path", split.place)  # a source of a task is a folder
    for index in probes(len(split), images):
        file, folder = split.id(index), root / name / split.classes[split.items[index].own]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:08d}_{Path(file).name}").symlink_to((place / file).resolve())
    return root
