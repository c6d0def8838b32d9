"""Creates one contender and measures its epochs or its training: the commands that a contender's process handles."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmload.bench.contenders import Contender, ContenderEntry
from mmload.bench.machine import processor_seconds
from mmload.bench.task import Task
from mmload.bench.train import BesideSample, Trainer, TrainSample, add_integers, endless, running
from mmload.errors import MmloadError

Output = tuple[list[tuple[int, ...]], str, str]
"""The shape of one image, in each view, its dtype's name, and the kind of device."""


def output_of(task: Task) -> Output:
    """Returns the output that a task requires."""
    return [tuple(shape[1:]) for shape in task.shapes], str(task.dtype), task.device


def check_batch(wanted: Output, images: Tensor | Sequence[Tensor], labels: Tensor) -> None:
    """Checks a batch, or its views, against the output that the task requires.

    Raises:
        MmloadError: if the output differs; the message describes the actual output.
    """
    views = [images] if isinstance(images, Tensor) else list(images)
    device = wanted[2]
    kinds = {(str(view.dtype), view.device.type) for view in views}
    got = [tuple(view.shape[1:]) for view in views], *sorted(kinds)[0]
    if got != wanted or len(kinds) > 1:
        raise MmloadError(f"it gives images {_described(got)}, the task is {_described(wanted)}")
    counts = {view.shape[0] for view in views}
    if counts != {len(labels)} or labels.device.type != device:
        raise MmloadError(
            f"it gives labels {list(labels.shape)} on {labels.device.type} for {max(counts)} images on {device}"
        )


def _described(output: Output) -> str:
    shapes, dtype, device = output
    shown = list(shapes[0]) if len(shapes) == 1 else [list(shape) for shape in shapes]
    return f"{shown} {dtype.removeprefix('torch.')} on {device}"


CEILINGS = ("ceiling", "cached")
"""Groups of entries that measure the machine: their batches are not checked against the task."""

_NEIGHBOR_ALONE = 1.0  # seconds, at most a quarter of the turn


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """One measured turn of a contender.

    Attributes:
        images: number of images delivered.
        seconds: from the request of the first epoch to the last batch, including a synchronization of the device.
        cpu: processor seconds of its process tree during that time.
        complete: whether the last epoch was complete, not cut short by the time budget.
    """

    images: int
    seconds: float
    cpu: float
    complete: bool

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


class ContenderServer:
    """The commands of a contender's process: each public method is one command."""

    def __init__(self, entry: ContenderEntry, task: Task, scratch: Path) -> None:
        self._entry, self._task, self._scratch = entry, task, scratch
        self._contender: Contender | None = None
        self._trainer: Trainer | None = None

    def make(self) -> None:
        """Creates the contender; it may convert the dataset first."""
        self._ready()

    def close(self) -> None:
        """Closes the contender and releases all references to the rows in this process."""
        if self._contender is not None:
            self._contender.close()
            self._contender = None
            gc.collect()  # maps in reference cycles would keep their pages

    def epoch(self, *, least: float, most: float, check: bool = False) -> LoadSample:
        """Runs complete epochs for ``least`` seconds, but requests no batch after ``most``, and measures them.

        ``check`` compares every batch with the task; this takes time, so only in an epoch that is not measured.
        """
        contender = self._ready()
        prepare = getattr(contender, "prepare", None)
        if prepare is not None:  # the preparation is valid for one epoch
            prepare()
            least = 0.0
        wanted = output_of(self._task) if check and self._entry.group not in CEILINGS else None
        cpu = processor_seconds()
        self._wait_for_device()
        began = time.perf_counter()
        images, seconds, complete = 0, 0.0, True
        while complete and (not images or seconds < least):
            with closing(_closable(contender.epoch())) as batches:
                for pixels, labels in batches:
                    if wanted is not None:
                        check_batch(wanted, pixels, labels)
                    images += len(labels)
                    del pixels, labels
                    complete = time.perf_counter() - began < most
                    if not complete:
                        break
                self._wait_for_device()
                seconds = time.perf_counter() - began  # closing an epoch that was cut short is not measured
            if not images:
                raise MmloadError("an epoch gave no batch")
        used = processor_seconds() - cpu
        return LoadSample(images=images, seconds=seconds, cpu=used, complete=complete)

    def beside(self, *, most: float) -> BesideSample:
        """Measures the contender for ``most`` seconds beside a thread of pure Python in the same process.

        The thread is measured alone first. The batches of epoch after epoch are then taken as fast as they come; the
        first one is not measured.

        Raises:
            MmloadError: if an epoch has no batch.
        """
        last = time.perf_counter() + most
        with closing(endless(self._ready())) as batches, running(add_integers) as other:
            alone = other.speed(min(_NEIGHBOR_ALONE, most / 4))
            next(batches)
            self._wait_for_device()
            began, pieces, images = time.perf_counter(), other.pieces, 0
            while not images or time.perf_counter() < last:
                images += len(next(batches)[1])
            self._wait_for_device()
            seconds, pieces = time.perf_counter() - began, other.pieces - pieces
        return BesideSample(images=images, seconds=seconds, pieces=pieces, alone=alone)

    def train(self, *, model: str, most: float) -> TrainSample:
        """Trains the model with the contender's batches for about ``most`` seconds."""
        if self._trainer is None:
            self._trainer = Trainer(model, self._task)
        return self._trainer.train(self._ready(), most)

    def _ready(self) -> Contender:
        if self._contender is None:
            self._contender = self._entry.make(self._task, self._scratch)
        return self._contender

    def _wait_for_device(self) -> None:
        if self._task.device == "cuda":
            torch.cuda.synchronize()


def _closable(batches: Iterator[tuple[Tensor, Tensor]]) -> Any:
    """Returns a generator over the batches: closing it ends them, whatever the type of the iterator."""
    yield from batches
