"""mmload itself: its Loader from each tier."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.utils.data import SubsetRandomSampler

from mmload.bench.contenders.entry import Contender, ContenderEntry, moved
from mmload.bench.task import Task
from mmload.errors import counted
from mmload.loader import Loader
from mmload.runtime.resources import free_memory


def loader_of_tier(task: Task, scratch: Path, *, tier: str) -> Contender:
    """Makes this package's loader; rows without labels have their numbers as labels."""
    rows = torch.arange(len(task.rows)).repeat(task.repeats).tolist()
    loader = Loader(
        task.rows,
        batch_size=task.batch_size,
        shuffle=task.repeats == 1,
        order=None if task.repeats == 1 else SubsetRandomSampler(rows),
        collate=task.collate,
        device=task.device,
        tier=tier,
        threads=task.threads,
        returns=("images", "targets" if "targets" in task.rows.fields else "ids"),
    )
    return partial(moved, loader, task.device)


def own_entries(task: Task) -> list[ContenderEntry]:
    """Returns the loader for every tier that the device has and that has room."""
    tiers = {
        "disk": True,
        "memory": task.row_bytes * len(task.rows) <= free_memory(),
        "device": task.device == "cuda",
    }
    return [
        ContenderEntry(
            name=f"mmload.Loader, {tier}, {counted(task.threads, 'thread')}",
            group="mmload",
            on_device=tier == "device",
            ahead=task.threads + 2,  # one in each thread, and the Loader's default
            make=partial(loader_of_tier, tier=tier),
        )
        for tier, fits in tiers.items()
        if fits
    ]
