"""The tasks of benchmarks/accuracy, and two pipelines for each: mmload's, and torchvision's under DataLoader.

:func:`forced` is an epoch of torchvision's pipeline with mmload's draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import mmload
from mmload.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, sample_seeds
from mmload.augment.draws import Draws
from mmload.loader.order import Order, shuffled_order
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows
from mmload.store.dataset import Dataset as Store
from parts import accuracy_data

Batches = Iterable[tuple[Tensor, Tensor]]
"""Images and targets of each step."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained on.

    Attributes:
        name: as the tables show it.
        data: the built dataset and where torchvision finds the same images.
        augment: "crop" or "resized-crop".
        crop: pixels of the square that the network sees.
        padding: pixels around the image before a random crop.
        batch: images of a step.
    """

    name: str
    data: accuracy_data.Built
    augment: str
    crop: int
    padding: int = 0
    batch: int = 64

    @property
    def store(self) -> Store:
        """The dataset as mmload opens it."""
        return mmload.open(self.data.store)

    def collate(self, *, draws: bool = True) -> mmload.Collate:
        """The augmentation on mmload's side, or the middle crop."""
        train = self.store["train"]
        normalize = Normalize(train.mean, train.std)
        if not draws:
            return mmload.Collate(CenterCrop(self.crop), normalize)
        resized = self.augment == "resized-crop"
        crop = RandomResizedCrop(self.crop) if resized else RandomCrop(self.crop, self.padding or None)
        return mmload.Collate(crop, RandomHorizontalFlip(), normalize)

    def stock(self, *, draws: bool) -> v2.Compose:
        """The same on torchvision's side, all of it on Pillow images, as its datasets give them."""
        train = self.store["train"]
        resized = self.augment == "resized-crop"
        crop = v2.RandomResizedCrop(self.crop) if resized else v2.RandomCrop(self.crop, self.padding or None)
        steps = [crop, v2.RandomHorizontalFlip()] if draws else [v2.CenterCrop(self.crop)]
        to_float = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(train.mean, train.std)]
        return v2.Compose([*self.data.transforms(), *steps, *to_float])


class Forced(Dataset[tuple[Tensor, int]]):
    """torchvision's dataset with the windows and flips of one epoch given, carried out by torchvision's functions."""

    def __init__(self, task: Task, chosen: list[Window]) -> None:
        self._images = task.data.torchvision("train", v2.Compose([v2.PILToTensor(), *task.data.transforms()]))
        self._task, self._chosen = task, chosen
        train = task.store["train"]
        self._mean, self._std = list(train.mean), list(train.std)

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = self._images[index]
        window, pad, crop = self._chosen[index], self._task.padding, self._task.crop
        place = [window.top + pad, window.left + pad, window.rows, window.cols]
        if self._task.augment == "resized-crop":
            image = F.resized_crop(image, *place, [crop, crop], antialias=True)
        else:
            image = F.crop(F.pad(image, [pad] * 4) if pad else image, *place)
        image = F.horizontal_flip(image) if window.flips else image
        return F.normalize(F.to_dtype(image, torch.float32, scale=True), self._mean, self._std), target


def drawn(task: Task, seed: int, epoch: int) -> list[Window]:
    """What mmload draws for every row in an epoch: pure functions of (seed, epoch, row)."""
    train = task.store["train"]
    channels, height, width = train.fields["images"].shape
    seeds = sample_seeds(seed, epoch, torch.arange(len(train))).numpy()
    plan = Plan.unchanged(len(train), (channels, height, width), 255.0)
    for place, step in enumerate(task.collate().steps):
        plan = step.describe(plan, Draws(seeds, place))  # type: ignore[operator]  # all are Steps
    return windows(plan)


def forced(task: Task, seed: int, epoch: int, *, shifted: bool) -> Batches:
    """An epoch of the stock pipeline in mmload's order and with mmload's draws; or with one crop a pixel off."""
    rows = len(task.store["train"])
    order = Order(epoch_order=shuffled_order(rows, seed)).take(epoch, 0, rows).rows.tolist()
    chosen = drawn(task, seed, epoch)
    if shifted and epoch == 0:
        one = chosen[order[0]]
        room = task.store["train"].fields["images"].shape[2] + task.padding - one.cols
        chosen[order[0]] = one._replace(left=one.left + (1 if one.left < room else -1))
    batches = [order[start : start + task.batch] for start in range(0, rows, task.batch)]
    return DataLoader(Forced(task, chosen), batch_sampler=batches)
