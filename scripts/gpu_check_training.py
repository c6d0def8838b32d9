"""Part "training": does a ResNet-50 step in bfloat16, channels_last, at batch 256, ever wait for its data?

Two kinds of turns. Free ones train as people do and give images a second, held against the same training on one cached
batch: the headroom. Watched ones wait for the device before a batch is asked for and once it is there, so that what
lies between is the time that the step waits, its rendering on the device included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from gpu_check_measure import Settings, median, row, share, wait
from gpu_check_transfer import loader_of
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import datasets
from torchvision.transforms import v2

from mmload.bench.train import make_model
from mmload.loader import Loader
from mmload.runtime.resources import available_cores

Pairs = Iterator[tuple[Tensor, Tensor]]
CLASSES, THREADS, SECONDS, ROUNDS = 1000, 4, 2.0, 2
CACHED = "one cached batch"


def run(settings: Settings) -> list[dict[str, Any]]:
    """The part's rows."""
    torch.backends.cudnn.benchmark = True
    trainer = Trainer(settings)
    loaders = {tier: loader_of(settings, tier=tier, threads=THREADS, dtype=torch.bfloat16) for tier in tiers(settings)}
    workers = 0 if settings.quick else available_cores()
    sources: dict[str, Callable[[], Pairs]] = {  # the first one forks its workers before there are threads
        f"stock DataLoader, {workers} workers": partial(on_device, stock(settings, workers), settings),
        CACHED: partial(cached, settings),
    }
    for tier, loader in loaders.items():
        sources[f"mmload.Loader, {tier}, {THREADS} threads"] = partial(pairs_of, loader)
    feeds = {name: endless(source) for name, source in sources.items()}
    rates: dict[str, list[float]] = {name: [] for name in feeds}
    waits: dict[str, list[float]] = {name: [] for name in feeds}
    for number in range(1 if settings.quick else ROUNDS + 1):
        for name, feed in feeds.items():
            rate, waited = trainer.free(feed), trainer.watched(feed)
            if number or settings.quick:  # the first round warms up
                rates[name].append(rate)
                waits[name].append(waited)
    for loader in loaders.values():
        loader.close()
    rows = []
    for name, values in rates.items():
        rows.append(row(f"{name}: trained", median(values), "images/s"))
        if name != CACHED:
            aims = ("0.01", "0.99") if name.startswith("mmload") else ("", "")
            rows.append(row(f"{name}: share of a step waited", statistics.median(waits[name]), "", aims[0]))
            rows.append(row(f"{name}: headroom", share(values, rates[CACHED]), "", aims[1]))
    return rows


def tiers(settings: Settings) -> tuple[str, ...]:
    """Those that are trained from."""
    return ("disk", "device") if settings.device == "cuda" else ("disk",)


class Trainer:
    """The network and its optimizer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        model = make_model("resnet50", CLASSES) if not settings.quick else small()
        self._model = model.to(settings.device, memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)

    def step(self, images: Tensor, targets: Tensor) -> None:
        """Forward, backward, update."""
        with torch.autocast(self._settings.device, torch.bfloat16):
            loss = nn.functional.cross_entropy(self._model(images), targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()

    def free(self, feed: Pairs) -> float:
        """Images a second, without waiting for the device before the end."""
        self.step(*next(feed))
        wait(self._settings.device)
        began, images = time.perf_counter(), 0
        while not images or time.perf_counter() - began < self._seconds:
            batch, targets = next(feed)
            self.step(batch, targets)
            images += len(batch)
            if images % (16 * len(batch)) == 0:  # the device must not fall behind the clock without end
                wait(self._settings.device)
        wait(self._settings.device)
        return images / (time.perf_counter() - began)

    def watched(self, feed: Pairs) -> float:
        """The share of the time that steps wait for their batch."""
        began, waited, steps = time.perf_counter(), 0.0, 0
        while not steps or time.perf_counter() - began < self._seconds:
            asked = time.perf_counter()
            batch, targets = next(feed)
            wait(self._settings.device)
            waited += time.perf_counter() - asked
            self.step(batch, targets)
            wait(self._settings.device)
            steps += 1
        return waited / (time.perf_counter() - began)

    @property
    def _seconds(self) -> float:
        return 0.02 if self._settings.quick else SECONDS


def small() -> nn.Module:
    """A network for a run that only shows that all of it works."""
    return nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def endless(source: Callable[[], Pairs]) -> Pairs:
    """Epoch after epoch."""
    while True:
        yield from source()


def cached(settings: Settings) -> Pairs:
    """The same batch again and again."""
    shape = settings.batch, 3, 224, 224
    images = torch.rand(shape, device=settings.device).bfloat16().to(memory_format=torch.channels_last)
    targets = torch.arange(settings.batch, device=settings.device) % CLASSES
    while True:
        yield images, targets


def pairs_of(loader: Loader) -> Pairs:
    """An epoch of this package's loader."""
    for batch in loader:
        yield batch.images, batch.targets


def stock(settings: Settings, workers: int) -> DataLoader[Any]:
    """The photographs by torchvision, as its own training scripts have them."""
    steps = v2.Compose(
        [
            v2.Resize(256),
            v2.RandomCrop(224),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    folder = datasets.ImageFolder(str(settings.work / "photos"), steps)
    return DataLoader(
        ConcatDataset([folder] * -(-16 * settings.batch // len(folder))),
        batch_size=settings.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=settings.device == "cuda",
    )


def on_device(loader: DataLoader[Any], settings: Settings) -> Pairs:
    """An epoch of a DataLoader, moved as its documentation says."""
    for images, targets in loader:
        moved = images.to(settings.device, non_blocking=True, memory_format=torch.channels_last)
        yield moved, targets.to(settings.device, non_blocking=True)
