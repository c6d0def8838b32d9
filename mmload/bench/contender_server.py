"""Creates one contender and measures its epochs or its training: the commands that a contender's process handles."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmload.bench.contenders import Contender, ContenderEntry
from mmload.bench.machine import processor_seconds
from mmload.bench.neighbor import Neighbor
from mmload.bench.samples import BesideSample, LoadSample, TrainSample
from mmload.bench.task import Task
from mmload.bench.train import Trainer, endless
from mmload.errors import MmloadError


def check_batch(task: Task, images: Tensor | Sequence[Tensor], labels: Tensor) -> None:
    """Checks a batch, or its views, against the output that the task requires.

    Raises:
        MmloadError: if the output differs; the message describes the actual output.
    """
    views = [images] if isinstance(images, Tensor) else list(images)
    got = [_described(view.shape, view.dtype, view.device.type) for view in views]
    wanted = [_described(shape, task.dtype, task.device) for shape in task.shapes]
    if got != wanted:
        raise MmloadError(f"it gives images {', '.join(got)}, the task is {', '.join(wanted)}")
    counts = {len(view) for view in views}
    if counts != {len(labels)} or labels.device.type != task.device:
        raise MmloadError(
            f"it gives labels {list(labels.shape)} on {labels.device.type} for {max(counts)} images on {task.device}"
        )


def _described(shape: Sequence[int], dtype: torch.dtype, device: str) -> str:
    return f"{list(shape[1:])} {str(dtype).removeprefix('torch.')} on {device}"


CEILINGS = ("ceiling", "cached")
"""Groups of entries that measure the machine: their batches are not checked against the task."""

_LOOK = 0.06  # seconds: some ticks of the clock of processor time
_LONGEST_REST = 5.0  # seconds
_NEIGHBOR_ALONE = 1.0  # seconds, at most a quarter of the turn


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
        """Runs complete epochs for ``least`` seconds, but cuts them short after ``most``, and measures them.

        ``check`` compares every batch with the task; this takes time, so only in an epoch that is not measured.
        """
        contender = self._ready()
        check = check and self._entry.group not in CEILINGS
        cpu = processor_seconds()
        self._wait_for_device()
        began = time.perf_counter()
        images, taken, seconds, complete = 0, 0, 0.0, True
        while complete and (not images or seconds < least):
            with closing(_closable(contender.epoch())) as batches:
                for pixels, labels in batches:
                    if check:
                        check_batch(self._task, pixels, labels)
                    images, taken = images + len(labels), taken + 1
                    del pixels, labels
                    complete = time.perf_counter() - began < most or taken % self._entry.ahead > 0
                    if not complete:
                        break
                self._wait_for_device()
                seconds = time.perf_counter() - began  # closing an epoch that was cut short is not measured
            if not images:
                raise MmloadError("an epoch gave no batch")
        return LoadSample(images=images, seconds=seconds, cpu=processor_seconds() - cpu, complete=complete)

    def beside(self, *, most: float) -> BesideSample:
        """Measures the contender for ``most`` seconds beside a thread of pure Python in the same process.

        The thread is measured alone first. The batches of epoch after epoch are then taken as fast as they come.

        Raises:
            MmloadError: if an epoch has no batch.
        """
        last = time.perf_counter() + most
        with closing(endless(self._ready())) as batches, Neighbor() as other:
            alone = other.speed(min(_NEIGHBOR_ALONE, most / 4))
            began, pieces, images, taken = time.perf_counter(), other.pieces, 0, 0
            while not taken or taken % self._entry.ahead or time.perf_counter() < last:
                images, taken = images + len(next(batches)[1]), taken + 1
            self._wait_for_device()
            seconds, pieces = time.perf_counter() - began, other.pieces - pieces
        return BesideSample(images=images, seconds=seconds, pieces=pieces, alone=alone)

    def train(self, *, model: str, most: float) -> TrainSample:
        """Trains the model with the contender's batches for about ``most`` seconds."""
        if self._trainer is None:
            self._trainer = Trainer(model, self._task)
        return self._trainer.train(self._ready(), most, self._entry.ahead)

    def rest(self) -> None:
        """Waits until this process and its workers rest: what they make ahead would slow the next contender's turn."""
        last, used = time.perf_counter() + _LONGEST_REST, _seconds_of_others()
        while time.perf_counter() < last:
            time.sleep(_LOOK)
            before, used = used, _seconds_of_others()
            if used - before < _LOOK / 2:
                break

    def _ready(self) -> Contender:
        if self._contender is None:
            self._contender = self._entry.make(self._task, self._scratch)
        return self._contender

    def _wait_for_device(self) -> None:
        if self._task.device == "cuda":
            torch.cuda.synchronize()


def _seconds_of_others() -> float:
    """Returns the processor seconds without this thread's: to look for processes among thousands takes longer."""
    return processor_seconds() - time.thread_time()


def _closable(batches: Iterator[tuple[Tensor, Tensor]]) -> Any:
    """Returns a generator over the batches: closing it ends them, whatever the type of the iterator."""
    yield from batches
