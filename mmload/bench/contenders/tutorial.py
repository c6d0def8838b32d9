"""The loader of tensordict's tutorial "Batched data loading with tensorclasses", including its mistakes.

A DataLoader without workers indexes batches of a memory-mapped tensorclass; its collate function normalizes, crops
and flips whole batches. The modules compute the same as the tutorial's, in the same order:
https://docs.pytorch.org/tensordict/stable/tutorials/tensorclass_imagenet.html
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, tensorclass
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler

from mmload.bench.contenders.entry import Batches, ContenderEntry, converted, has_room
from mmload.bench.task import Task

_AT_ONCE = 256
_FAULTS = "shuffled (it does not); its crop never draws the last offset"


@tensorclass
class ImageNetData:
    """Images uint8 [N, C, H, W] and targets int64 [N]."""

    images: Tensor
    targets: Tensor


class InvAffine(nn.Module):
    """(x - loc) / scale; its constants stay on the device where they were created."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.loc, self.scale = loc, scale

    def forward(self, x: Tensor) -> Tensor:
        """Converts uint8 images to floats, before the crop."""
        return (x - self.loc) / self.scale


class TutorialCrop(nn.Module):
    """A window for each image, gathered along the rows and then along the columns; the last offset is never drawn."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Crops [B, C, H, W] to [B, C, size, size]."""
        count, channels, height, width = x.shape
        span = torch.arange(self.size, device=x.device)
        rows = torch.randint(height - self.size, (count, 1), device=x.device) + span
        columns = torch.randint(width - self.size, (count, 1), device=x.device) + span
        tall = x.gather(-2, rows[:, None, :, None].expand(count, channels, self.size, width))
        return tall.gather(-1, columns[:, None, None, :].expand(count, channels, self.size, self.size))


class TutorialFlip(nn.Module):
    """Two masked copies, one of them flipped, and their sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Mirrors about half of the images [B, C, H, W]."""
        flip = torch.zeros(len(x), 1, 1, 1, device=x.device, dtype=torch.bool).bernoulli_().expand_as(x)
        return x.masked_fill(flip, 0.0) + x.masked_fill(~flip, 0.0).flip(-1)


class TutorialCollate(nn.Module):
    """Pins and moves a batch on the training thread, then transforms its images."""

    def __init__(self, transform: nn.Module | None, device: str) -> None:
        super().__init__()
        self.transform, self.device = transform, torch.device(device)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Returns (images, targets) of an :class:`ImageNetData`."""
        out = (batch.pin_memory() if self.device.type == "cuda" else batch).to(self.device)
        if self.transform is not None:
            out.images = self.transform(out.images)
        return out.images, out.targets


class Tutorial(Batches):
    """The tutorial's DataLoader over its tensorclass."""

    def __init__(self, task: Task, scratch: Path) -> None:
        folder = converted(scratch, "tensorclass", partial(write_maps, task))
        rows = torch.arange(len(task.rows)).repeat(task.repeats).tolist()
        loader: DataLoader[Any] = DataLoader(
            _opened(task, folder),
            batch_size=task.batch_size,
            sampler=SubsetRandomSampler(rows),
            collate_fn=TutorialCollate(_transform(task), task.device),
        )
        super().__init__(loader, task.device)


def tutorial_entries(task: Task) -> list[ContenderEntry]:
    """Returns the single tutorial entry, if its modules support all of the task."""
    if task.training_recipe or task.variable_size or not task.labeled or not has_room(task) or not _does(task):
        return []
    differs = "shuffled (it does not)" if task.augment == "none" else _FAULTS
    return [ContenderEntry(name="tensordict tutorial", group="peer", differs=differs, need=1, make=Tutorial)]


def _does(task: Task) -> bool:
    """Returns whether the tutorial's modules make the task's crop, which fails where it is as large as the image."""
    smaller = task.crop < min(task.rows.fields["images"].shape[1:])
    return task.augment == "none" or (task.augment == "crop" and not task.padding and smaller)


def write_maps(task: Task, folder: Path) -> None:
    """Writes the stored rows as files to map (the tutorial sets no path, so its maps are in /dev/shm, at any size)."""
    split = task.rows
    images, _ = _maps(task, folder, create=True)
    for rows in torch.arange(len(split)).split(_AT_ONCE):  # type: ignore[no-untyped-call]  # torch has none
        images[int(rows[0]) : int(rows[-1]) + 1] = split.reader.gather("images", rows)


def _maps(task: Task, folder: Path, *, create: bool = False) -> tuple[Any, Any]:
    """Returns images and targets as memory-mapped tensors; writes the targets when the files are created."""
    shape = (len(task.rows), *task.rows.fields["images"].shape)
    images, targets = str(folder / "images.memmap"), str(folder / "targets.memmap")
    if create:
        empty = MemoryMappedTensor.empty(shape, dtype=torch.uint8, filename=images)
        return empty, MemoryMappedTensor.from_tensor(torch.tensor(task.targets), filename=targets)
    return (
        MemoryMappedTensor.from_filename(images, torch.uint8, torch.Size(shape)),
        MemoryMappedTensor.from_filename(targets, torch.int64, torch.Size(shape[:1])),
    )


def _opened(task: Task, folder: Path) -> Any:
    images, targets = _maps(task, folder)
    made: Any = ImageNetData
    return made(images=images, targets=targets, batch_size=[len(images)])


def _transform(task: Task) -> nn.Module | None:
    """Returns the tutorial's three modules in its order: it converts complete images to floats before the crop."""
    if task.augment == "none":
        return None
    loc, scale = (torch.tensor(values, device=task.device).view(-1, 1, 1) * 255 for values in (task.mean, task.std))
    return nn.Sequential(InvAffine(loc, scale), TutorialCrop(task.crop), TutorialFlip())
