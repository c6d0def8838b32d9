"""Batches with every kind of field, and lists of steps that a device renders without being waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from batches import NOT_BOXED, detections
from torch import nn

from mmload.augment import (
    BoxRule,
    CenterCrop,
    CutMix,
    MixUp,
    Normalize,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.loader import Loader
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Split

COUNT, SIDE = 24, 40


STEPS: dict[str, Callable[[], list[nn.Module]]] = {
    "nothing": list,
    "crop": lambda: [RandomCrop(32), RandomHorizontalFlip(), Normalize.imagenet()],
    "both flips": lambda: [RandomVerticalFlip(), RandomHorizontalFlip()],
    "cifar": lambda: [RandomCrop(SIDE, padding=4, fill=(9, 8, 7)), RandomHorizontalFlip(), Normalize.cifar10()],
    "reflect": lambda: [RandomCrop(SIDE, padding=6, padding_mode="reflect"), Normalize.imagenet()],
    "edge": lambda: [RandomCrop(SIDE, padding=(3, 5), padding_mode="edge"), RandomHorizontalFlip()],
    "symmetric": lambda: [RandomCrop(SIDE, padding=7, padding_mode="symmetric")],
    "center": lambda: [CenterCrop(24), Normalize.imagenet()],
    "padded center": lambda: [CenterCrop(48)],
    "resized crop": lambda: [RandomResizedCrop(28), RandomHorizontalFlip(), Normalize.imagenet()],
    "resize": lambda: [Resize((30, 26)), RandomCrop(24), Normalize.imagenet()],
    "gray": lambda: [RandomCrop(32), RandomGrayscale(0.5), Normalize.imagenet()],
    "erasing": lambda: [RandomCrop(32), Normalize.imagenet(), RandomErasing(0.7, value=(0.1, 0.2, 0.3))],
    "noise": lambda: [Normalize.imagenet(), RandomErasing(0.7, value="random")],
    "two passes": lambda: [RandomResizedCrop(32), RandomCrop(32, padding=4), Normalize.imagenet()],
    "foreign": lambda: [RandomCrop(32), nn.AvgPool2d(2), Normalize.imagenet()],
    "mixup": lambda: [RandomCrop(32), Normalize.imagenet(), MixUp(num_classes=3)],
    "cutmix": lambda: [RandomCrop(32), Normalize.imagenet(), CutMix(alpha=0.4, num_classes=3)],
    "either": lambda: [RandomCrop(32), RandomChoice([MixUp(num_classes=3), CutMix(num_classes=3, per="batch")])],
    "mixed twice": lambda: [CutMix(num_classes=3, per="batch"), MixUp(), RandomErasing(0.7, value="random")],
}
"""Lists of steps that a device renders without being waited for, on images of SIDE x SIDE."""


def batch_of(count: int, device: str = "cpu") -> Batch:
    """Images, classes, boxes and masks of noise, the same for every device."""
    made: Batch = detections(count, (3, SIDE, SIDE)).to(device)
    return made


def batch_for(name: str, count: int, device: str = "cpu") -> Batch:
    """:func:`batch_of` for a list of steps: without boxes and masks where one of them cannot take these along."""
    batch = batch_of(count, device)
    if name not in ("foreign", "mixup", "cutmix", "either", "mixed twice"):
        return batch
    plain: Batch = batch.replace(**NOT_BOXED)
    return plain


class Detections(torch.utils.data.Dataset[dict[str, Any]]):
    """The rows of :func:`batch_of` as samples."""

    def __init__(self) -> None:
        self._batch = batch_of(COUNT)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = {name: getattr(self._batch, name)[index] for name in ("images", "targets", "masks")}
        count = int(self._batch.counts[index])
        objects = {name: getattr(self._batch, name)[index, :count] for name in ("boxes", "labels", "difficult")}
        return {"features": torch.arange(4, dtype=torch.bfloat16) * index, **sample, **objects}


def stored_at(out: Path) -> Split:
    """A stored split with every kind of field."""
    options = {"dataset": f"{__name__}:Detections"}
    recipe = BuildRecipe(kind="python", root=Path(__file__).parent, options=options, out=out, shard_bytes=60_000)
    build(recipe, threads=1)
    return open_dataset(out)["train"]


def batches_of(split: Split, **options: Any) -> list[Batch]:
    """Two epochs."""
    collate = Collate(RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize.imagenet(), box_rule=BoxRule())
    with Loader(split, batch_size=5, shuffle=True, seed=3, collate=collate, **options) as loader:
        return [batch for _ in range(2) for batch in loader]
