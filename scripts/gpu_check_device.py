"""Part "device": the split lies on the device. How near do crop, flip and normalize come to what its memory gives?

The floor of an image is the bytes of its crop read once and of its output written once, at the bandwidth of a copy from
the device's memory to itself, measured in the same rounds. The Collate's kernel stands beside its torch operations, and
beside the same arithmetic as one expression, plain and compiled by torch; with the draws, and the kernel without. For
CIFAR, cifar10-airbench's way of doing it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import gpu_check_data as data
import torch
import torch.nn.functional as F
from gpu_check_measure import Settings, device_copy, epochs_of, in_turns, median, repeated, row, same_half, share
from gpu_check_transfer import CROP, collate_of, described, images_of, loader_of
from torch import Tensor

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, sample_seeds
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.loader import Loader
from mmload.render import rendering as render
from mmload.render.rendering import gpu_crop

AIM, BATCH, PAD = 0.7, 1024, 4
FLOOR = "limit: copies in the device's memory"


def run(settings: Settings) -> list[dict[str, Any]]:
    """The part's rows."""
    return [*photographs(settings), *cifar(settings)]


def photographs(settings: Settings) -> list[dict[str, Any]]:
    """Crops of 224 out of 256 x 256."""
    split, device = data.squares(settings.work), torch.device(settings.device)
    count = min(len(split), 2048)
    store = split.rows(torch.arange(count)).images.to(device)
    ids = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: settings.batch].to(device)
    batch = Batch(images=store[ids], ids=ids, seeds=sample_seeds(0, 0, ids), batch_size=[len(ids)])
    plan = described(batch.seeds, tuple(store.shape[1:]))
    words = (store, ids, plan.top, plan.left, plan.flip_x, plan.shift, plan.scale)
    collate = collate_of(settings.device)
    plain = rendered(*words)
    rows = [
        same_half("expression against Collate", plain, collate(batch).images),
        same_half("expression against Collate, by torch operations", plain, by_operations(collate, batch, store)),
    ]
    images = float(len(ids))
    turns = {
        FLOOR: device_copy(settings),
        "Collate from the split, draws included": repeated(
            lambda: collate.render(batch, store, ids), images, settings.device
        ),
        "the same by torch operations": repeated(lambda: by_operations(collate, batch, store), images, settings.device),
        "one expression from the split, plain": repeated(lambda: rendered(*words), images, settings.device),
    }
    loader = loader_of(settings, tier="device", threads=2)
    turns["Loader, device tier"] = epochs_of(partial(images_of, loader), settings)
    crop = gpu_crop(device)
    if crop is not None:
        out = torch.empty_like(plain, memory_format=torch.channels_last)
        turns["the kernel, drawn before"] = repeated(
            lambda: crop(store, ids, plan, plan.shift, plan.scale, out), images, settings.device
        )
    elif settings.device == "cuda":
        rows.append(row("there is no Triton kernel here", 0.0, "", "", False))
    if compiles(settings):
        compiled = torch.compile(rendered, dynamic=False, fullgraph=True)
        rows.append(same_half("compiled expression against plain", compiled(*words), plain))
        turns["one expression from the split, compiled"] = repeated(lambda: compiled(*words), images, settings.device)
    rates = in_turns(turns, settings)
    loader.close()
    moved = 3 * CROP * CROP * (1 + 2)  # bytes read as uint8 and written as float16
    floor = [rate / moved for rate in rates.pop(FLOOR)]
    rows.append(row("floor: crop read, float16 written", median(floor), "images/s"))
    for name, values in rates.items():
        rows.append(row(name, median(values), "images/s"))
        rows.append(row(f"{name}: share of the floor", share(values, floor), "", f"{AIM}"))
    return rows


def by_operations(collate: Collate, batch: Batch, store: Tensor) -> Tensor:
    """The Collate's images as a machine without Triton makes them."""
    with patch.object(render, "gpu_crop", lambda device: None):
        return collate.render(batch, store, batch.ids).images


def rendered(
    store: Tensor, ids: Tensor, top: Tensor, left: Tensor, flip: Tensor, shift: Tensor, scale: Tensor
) -> Tensor:
    """The pass over the pixels as one expression: float16 [B, C, h, w] in channels_last, from rows of the split."""
    place = torch.arange(CROP, device=store.device)
    y = top[:, None] + place
    x = left[:, None] + torch.where(flip[:, None], CROP - 1 - place, place)
    picked = store[ids[:, None, None], :, y[:, :, None], x[:, None, :]]  # [B, h, w, C]
    return ((picked.float() - shift) * scale).half().permute(0, 3, 1, 2)


def compiles(settings: Settings) -> bool:
    """Whether torch.compile is tried: on a CPU it needs a compiler and takes longer than a quick run."""
    return settings.device == "cuda" or (not settings.quick and shutil.which("g++") is not None)


def cifar(settings: Settings) -> list[dict[str, Any]]:
    """50,000 of 32 x 32: pad by reflection, crop, flip, normalize to float16 channels_last, in batches of 1,024."""
    split, device = data.icons(settings.work), torch.device(settings.device)
    size = min(BATCH, len(split) // 4)
    steps = RandomCrop(32, padding=PAD, padding_mode="reflect"), RandomHorizontalFlip(), Normalize.cifar10()
    collate = Collate(*steps, device=device, dtype=torch.float16, memory_format=torch.channels_last)
    rows = split.rows(torch.arange(len(split)))
    store = rows.images.to(device)
    peer = Airbench(store, rows.targets.to(device), size)
    loader = Loader(split, batch_size=size, shuffle=True, drop_last=True, collate=collate, tier="device", threads=2)
    turns = {
        "cifar10-airbench's loader": epochs_of(peer.epoch, settings),
        "Loader, device tier": epochs_of(partial(images_of, loader), settings),
        "Collate on a whole epoch at once": epochs_of(lambda: whole_epoch(collate, store, size), settings),
    }
    rates = in_turns(turns, settings)
    loader.close()
    theirs = rates["cifar10-airbench's loader"]
    told = []
    for name, values in rates.items():
        told.append(row(f"CIFAR: {name}", median(values), "images/s"))
        if values is not theirs:
            told.append(row(f"CIFAR: {name}, times airbench's", share(values, theirs), "x", "2"))
    return told


def whole_epoch(collate: Collate, store: Tensor, size: int) -> Iterator[Tensor]:
    """All images drawn and rendered at once in a new order, then given in batches."""
    ids = torch.randperm(len(store), device=store.device)
    batch = Batch(images=store[ids], seeds=sample_seeds(0, 0, ids), batch_size=[len(ids)])
    return iter(collate(batch).images[: len(ids) // size * size].split(size))


class Airbench:
    """How ``CifarLoader`` of cifar10-airbench makes its batches, with flips and translations of PAD pixels.

    Its steps in their order, from https://github.com/KellerJordan/cifar10-airbench (airbench/utils.py; Copyright (c)
    2024 Keller Jordan, MIT license): float16 channels_last on the device, normalized, flipped and padded by
    reflection once; each epoch all images are translated, by one mask for each vertical and each horizontal shift, and
    flipped by one ``where``; then batches are picked by a permutation.
    """

    def __init__(self, images: Tensor, labels: Tensor, size: int) -> None:
        mean, std = (values.to(images.device).half().view(-1, 1, 1) for values in _cifar_constants())
        pixels = (images.half() / 255).to(memory_format=torch.channels_last)
        self._padded = F.pad(_flipped((pixels - mean) / std), (PAD,) * 4, "reflect")
        self._labels, self._size = labels, size

    def epoch(self) -> Iterator[Tensor]:
        """Batches of one epoch; their labels are picked as well, as they would be in training."""
        images = _flipped(self._translated())
        order = torch.randperm(len(images), device=images.device)
        for number in range(len(images) // self._size):
            some = order[number * self._size : (number + 1) * self._size]
            batch, _ = images[some], self._labels[some]
            yield batch

    def _translated(self) -> Tensor:
        padded, side = self._padded, self._padded.shape[-1] - 2 * PAD
        shifts = torch.randint(-PAD, PAD + 1, (len(padded), 2), device=padded.device)
        lines = padded.new_empty((len(padded), 3, side, side + 2 * PAD))
        for shift in range(-PAD, PAD + 1):
            mine = shifts[:, 0] == shift
            lines[mine] = padded[mine, :, PAD + shift : PAD + shift + side, :]
        moved = padded.new_empty((len(padded), 3, side, side))
        for shift in range(-PAD, PAD + 1):
            mine = shifts[:, 1] == shift
            moved[mine] = lines[mine, :, :, PAD + shift : PAD + shift + side]
        return moved


def _flipped(images: Tensor) -> Tensor:
    mask = (torch.rand(len(images), device=images.device) < 0.5).view(-1, 1, 1, 1)
    return torch.where(mask, images.flip(-1), images)


def _cifar_constants() -> tuple[Tensor, Tensor]:
    constants = Normalize.cifar10()
    return constants.mean, constants.std
