"""Measures building beside torchvision's pass over the same files, which decodes them and stores nothing.

Takes the task of a bench and returns images per second of each round. Removes all files that it creates.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader, Subset
from torchvision.transforms import v2

from mmload.bench.advice import build_sample
from mmload.bench.contenders.stock import composed, no_source, source_dataset, stored_steps
from mmload.bench.task import Task
from mmload.builder.planned_build import probes, splits_of
from mmload.builder.trust import checked_recipe
from mmload.errors import UsageError, counted
from mmload.sources.exclusion import only

IMAGES = 400
"""Photographs of each round, evenly spread over the rows; of CIFAR, whose images are small, all."""

_ROUNDS = 3


def measure_building(task: Task, progress: Callable[[str], None] | None = None) -> dict[str, list[float]]:
    """Returns way -> images per second of each of three rounds that alternate, after one to warm up.

    Raises:
        UsageError: if torchvision cannot read the task's source.
    """
    if reason := no_source(task):
        raise UsageError(f"--build compares with torchvision's pass over the source: {reason}")
    recipe = replace(checked_recipe(task.opened.manifest.recipe, task.dataset), root=task.source)
    rows = probes(len(task.rows), IMAGES if recipe.kind == "imagefolder" else len(task.rows))
    files = Subset(source_dataset(task, composed([*stored_steps(task), v2.PILToTensor()])), rows)
    split, names = splits_of(recipe)[task.split], {source.id for source in task.rows.source(rows)}
    sample = only(split, np.array([index for index in range(len(split)) if split.id(index) in names]))

    def stock() -> None:
        for _ in DataLoader(files, batch_size=task.batch_size, num_workers=task.threads, collate_fn=len):
            pass

    def ours() -> None:
        with tempfile.TemporaryDirectory(prefix="mmload-bench-") as folder:
            build_sample(Path(folder), recipe, sample, task.threads)

    ways = {
        f"torchvision's pass, {counted(task.threads, 'worker')}": stock,
        f"mmload build, {counted(task.threads, 'thread')}": ours,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_ROUNDS + 1):
        for name, way in ways.items():
            if progress is not None:
                progress(f"{name}: {f'round {turn} of {_ROUNDS}' if turn else 'warm-up'}")
            began = time.perf_counter()
            way()
            rates[name] += [len(rows) / (time.perf_counter() - began)] if turn else []
    return rates
