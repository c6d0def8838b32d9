"""Creates one contender and measures its turns, alone, beside another thread, or in training.

The public methods of :class:`ContenderServer` are the commands that a contender's process handles.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmload.bench.contenders import Contender, ContenderEntry
from mmload.bench.machine import processor_seconds
from mmload.bench.task import Task
from mmload.bench.train import Trainer
from mmload.errors import MmloadError

CEILINGS = ("ceiling", "cached")
"""Groups of entries that measure the machine: their batches are not checked against the task."""

_LOOK = 0.06  # seconds: some ticks of the clock of processor time
_LONGEST_REST = 5.0  # seconds
_LONG_TURN = 10.0  # seconds after which training may end between two multiples of the batches that are made ahead
_NEIGHBOR_ALONE = 1.0  # seconds, at most a quarter of the turn
_ADDITIONS = 1000  # about 50 us, in which Python never releases the interpreter lock


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One measured turn of a contender.

    Attributes:
        images: number of images delivered.
        seconds: the duration.
    """

    images: int
    seconds: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


@dataclass(frozen=True, kw_only=True)
class LoadSample(Turn):
    """One turn that only loads, from the request of the first epoch to the last batch and a synchronized device.

    Attributes:
        cpu: processor seconds of its process tree during that time.
        complete: whether the last epoch was complete, not cut short by the time budget.
    """

    cpu: float
    complete: bool


@dataclass(frozen=True, kw_only=True)
class BesideSample(Turn):
    """One turn beside a neighbor.

    Attributes:
        pieces: pieces of work that the neighbor did in that time.
        alone: pieces per second of the neighbor while the contender did nothing.
    """

    pieces: int
    alone: float

    @property
    def keeps(self) -> float:
        """Speed of the neighbor beside the contender, as a share of its speed alone."""
        return self.pieces / self.seconds / self.alone


@dataclass(frozen=True, kw_only=True)
class TrainSample(Turn):
    """One turn of training.

    Attributes:
        steps: number of steps.
        waited: seconds that these waited for data.
    """

    steps: int
    waited: float

    @property
    def share(self) -> float:
        """Share of the time that training waited for data, in [0, 1]."""
        return self.waited / self.seconds


def add_integers() -> None:
    """Adds integers in pure Python, as a training loop's own code: a piece of work."""
    total = 0
    for number in range(_ADDITIONS):
        total += number


class Neighbor:
    """A thread that repeats a piece of work while the block that it is entered for runs.

    Attributes:
        pieces: pieces of work that it has done.
    """

    def __init__(self, work: Callable[[], None] = add_integers) -> None:
        self.pieces = 0
        self._work, self._stopped = work, False
        self._thread = threading.Thread(target=self._run, name="mmload-bench-neighbor", daemon=True)

    def __enter__(self) -> Neighbor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self._thread.join()

    def speed(self, seconds: float) -> float:
        """Returns its pieces per second while the calling thread sleeps; longer if it did none on a busy machine."""
        began, pieces = time.perf_counter(), self.pieces
        while self.pieces == pieces:
            time.sleep(seconds)
        return (self.pieces - pieces) / (time.perf_counter() - began)

    def _run(self) -> None:
        while not self._stopped:
            self._work()
            self.pieces += 1


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
        """Releases the contender, and with it all references to the rows in this process."""
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
            with closing(contender()) as batches:
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
        """Trains the model for about ``most`` seconds, and measures steps with the wait for the next batch.

        The device is synchronized after each step and each batch, so the time between them is only the wait for data.
        The first step is not measured: it allocates memory and selects kernels. The batches that the contender may have
        made ahead meanwhile are dropped: steps with these measure no loading. Its workers deliver as many at once, so a
        multiple of them is measured, or what :data:`_LONG_TURN` allows.

        Raises:
            MmloadError: if the contender yields no batch.
        """
        last, ahead = time.perf_counter() + most, self._entry.ahead
        if self._trainer is None:
            self._trainer = Trainer(model, self._task)
        with closing(endless(self._ready())) as batches:
            self._trainer.step(*next(batches))
            for _ in range(ahead):
                images, labels = next(batches)
            self._wait_for_device()
            began = now = time.perf_counter()
            trained = steps = 0
            waited = 0.0
            while not steps or now + (now - began) / steps < last or (steps % ahead and now - began < _LONG_TURN):
                self._trainer.step(images, labels)
                self._wait_for_device()
                trained, steps, requested_at = trained + len(images), steps + 1, time.perf_counter()
                images, labels = next(batches)
                self._wait_for_device()
                now = time.perf_counter()
                waited += now - requested_at
        return TrainSample(images=trained, seconds=now - began, waited=waited, steps=steps)

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


def endless(contender: Contender) -> Any:
    """Yields the batches of epoch after epoch.

    Raises:
        MmloadError: if an epoch has no batch.
    """
    while True:
        gave_batch = False
        for batch in contender():
            gave_batch = True
            yield batch
        if not gave_batch:
            raise MmloadError("an epoch gave no batch")


def _seconds_of_others() -> float:
    """Returns the processor seconds without this thread's: to look for processes among thousands takes longer."""
    return processor_seconds() - time.thread_time()


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
