"""The loader of tensordict's tutorial "Batched data loading with tensorclasses", including its mistakes.

A DataLoader without workers indexes batches of a memory-mapped tensorclass; its collate function normalizes, crops
and flips whole batches. The functions compute the same as the tutorial's modules, in the same order:
https://docs.pytorch.org/tensordict/stable/tutorials/tensorclass_imagenet.html
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, tensorclass
from torch import Tensor
from torch.utils.data import DataLoader, SubsetRandomSampler

from mmload.bench.contenders.entry import Contender, ContenderEntry, converted, has_room, moved
from mmload.bench.task import Task

_AT_ONCE = 256
_FAULTS = "shuffled (it does not); its crop never draws the last offset"


@tensorclass
class ImageNetData:
    """Images uint8 [N, C, H, W] and targets int64 [N]."""

    images: Tensor
    targets: Tensor


def tutorial_crop(x: Tensor, size: int) -> Tensor:
    """Crops [B, C, H, W] to [B, C, size, size]: gathers a window for each along the rows, then along the columns.

    The last offset is never drawn.
    """
    count, channels, height, width = x.shape
    span = torch.arange(size, device=x.device)
    rows = torch.randint(height - size, (count, 1), device=x.device) + span
    columns = torch.randint(width - size, (count, 1), device=x.device) + span
    tall = x.gather(-2, rows[:, None, :, None].expand(count, channels, size, width))
    return tall.gather(-1, columns[:, None, None, :].expand(count, channels, size, size))


def tutorial_flip(x: Tensor) -> Tensor:
    """Mirrors about half of the images [B, C, H, W], as the sum of two masked copies, one of them flipped."""
    flip = torch.zeros(len(x), 1, 1, 1, device=x.device, dtype=torch.bool).bernoulli_().expand_as(x)
    return x.masked_fill(flip, 0.0) + x.masked_fill(~flip, 0.0).flip(-1)


def tutorial_loader(task: Task, scratch: Path) -> Contender:
    """Makes the tutorial's DataLoader over its tensorclass, transformed on the training thread."""
    folder = converted(scratch, "tensorclass", partial(write_maps, task))
    loc, scale = (torch.tensor(each, device=task.device).view(-1, 1, 1) * 255 for each in (task.mean, task.std))

    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Pins and moves a batch, then transforms its images: it converts complete images to floats before the crop."""
        out = (batch.pin_memory() if task.device == "cuda" else batch).to(task.device)
        if task.augment != "none":
            out.images = tutorial_flip(tutorial_crop((out.images - loc) / scale, task.crop))
        return out.images, out.targets

    data: Any = ImageNetData
    loader: DataLoader[Any] = DataLoader(
        data.from_tensordict(TensorDict.load_memmap(folder)),
        batch_size=task.batch_size,
        sampler=SubsetRandomSampler(torch.arange(len(task.rows)).repeat(task.repeats).tolist()),
        collate_fn=collate,
    )
    return partial(moved, loader, task.device)


def tutorial_entries(task: Task) -> list[ContenderEntry]:
    """Returns the single tutorial entry, if its crop, which fails where it is as large as the image, does the task."""
    smaller = not task.variable_size and task.crop < min(task.rows.fields["images"].shape[1:])
    does = task.augment == "none" or (task.augment == "crop" and not task.padding and smaller)
    if not does or task.variable_size or not task.labeled or not has_room(task):
        return []
    differs = "shuffled (it does not)" if task.augment == "none" else _FAULTS
    return [ContenderEntry(name="tensordict tutorial", group="peer", differs=differs, need=1, make=tutorial_loader)]


def write_maps(task: Task, folder: Path) -> None:
    """Writes the stored rows as files to map (the tutorial sets no path, so its maps are in /dev/shm, at any size)."""
    split = task.rows
    stored = TensorDict({"targets": torch.tensor(split.targets)}, [len(split)]).memmap_(str(folder))
    shape = torch.Size((len(split), *split.fields["images"].shape))
    images = stored.make_memmap("images", shape, dtype=torch.uint8)
    for first in range(0, len(split), _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, len(split)))
        images[first : first + len(rows)] = split.reader.gather("images", rows)
