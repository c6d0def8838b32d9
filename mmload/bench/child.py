"""The life of one contender: a process that makes it, and runs an epoch or trains a while whenever it is told to.

Comes in: commands through a pipe. Goes out: a :class:`Sample` or :class:`TrainSample` for each, or why there is none.
It keeps its own output in a log file, never sees Ctrl-C, and ends with the bench that started it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmload.bench import usage
from mmload.bench.contenders import Contender, Entry
from mmload.bench.task import Task
from mmload.bench.train import Trainer, TrainSample
from mmload.errors import MmloadError

CEILINGS = ("ceiling", "cached")
"""Groups of entries that measure the machine: what they give is not held against the task."""


_TRACEBACK = "Traceback (most recent call last):"
_SOCKET = len("/pymp-12345678/listener-12345678")  # as multiprocessing calls them
_LONGEST = 103  # bytes of a socket's name on macOS; Linux takes 107


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured turn of a contender.

    Attributes:
        images: how many came out.
        seconds: from asking for the first epoch to the last batch, with the device's clock waited for.
        first: seconds to the first batch.
        cpu: processor seconds of its whole process tree meanwhile.
        epochs: whole epochs that were gone through.
        whole: whether the last of them was not cut short by the time budget.
    """

    images: int
    seconds: float
    first: float
    cpu: float
    epochs: int
    whole: bool

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


class Desk:
    """What the process does when it is told to; each method is a command."""

    def __init__(self, entry: Entry, task: Task, scratch: Path) -> None:
        self._entry, self._task, self._scratch = entry, task, scratch
        self._contender: Contender | None = None
        self._trainer: Trainer | None = None

    def make(self) -> None:
        """Make the contender, and what it converts first."""
        self._contender = self._entry.make(self._task, self._scratch)

    def close(self) -> None:
        """End the contender, so that nothing of the rows is left in this process."""
        if self._contender is not None:
            self._contender.close()
            self._contender = None
            gc.collect()  # maps that hang in cycles would keep their pages

    def epoch(self, *, least: float, most: float, check: bool = False) -> Sample:
        """Run epochs and measure them.

        Args:
            least: seconds; whole epochs are gone through until this has passed, so that fast ones are not a blink.
            most: seconds after which no further batch is asked for.
            check: hold every batch against the task; it takes time, so only where that does not matter.
        """
        contender = self._ready()
        prepare = getattr(contender, "prepare", None)
        if prepare is not None:  # what it prepares holds for one epoch
            prepare()
            least = 0.0
        wanted = output_of(self._task) if check and self._entry.group not in CEILINGS else None
        images = epochs = 0
        first, whole = 0.0, True
        cpu = usage.own_seconds()
        self._wait_for_device()
        began = time.perf_counter()
        while whole and (not epochs or time.perf_counter() - began < least):
            with closing(_closable(contender.epoch())) as batches:
                for pixels, labels in batches:
                    if not images:
                        self._wait_for_device()
                        first = time.perf_counter() - began
                    if wanted is not None:
                        check_batch(wanted, pixels, labels)
                    images += len(pixels)
                    del pixels, labels
                    whole = time.perf_counter() - began < most
                    if not whole:
                        break
                else:
                    epochs += 1
                self._wait_for_device()
                seconds = time.perf_counter() - began
        if not images:
            raise MmloadError("an epoch gave no batch")
        used = usage.own_seconds() - cpu
        return Sample(images=images, seconds=seconds, first=first, cpu=used, epochs=epochs, whole=whole)

    def try_steps(self, *, model: str) -> float:
        """Seconds that two steps of training take. See :class:`~mmload.bench.train.Trainer`."""
        return self._trained(model).try_steps(self._ready())

    def train(self, *, model: str, most: float) -> TrainSample:
        """Train the model with the contender's batches for a while. See :class:`~mmload.bench.train.Trainer`."""
        return self._trained(model).run(self._ready(), most)

    def _trained(self, model: str) -> Trainer:
        if self._trainer is None:
            self._trainer = Trainer(model, self._task)
        return self._trainer

    def _ready(self) -> Contender:
        if self._contender is None:
            self.make()
        if self._contender is None:
            raise MmloadError("it was not made")
        return self._contender

    def _wait_for_device(self) -> None:
        if self._task.device == "cuda":
            torch.cuda.synchronize()


Output = tuple[tuple[int, ...], str, str]
"""The shape of one image, its dtype's name, and the kind of device."""


def output_of(task: Task) -> Output:
    """What each image has to be."""
    return tuple(task.shape[1:]), str(task.dtype), task.device


def check_batch(wanted: Output, images: Tensor, labels: Tensor) -> None:
    """Hold a batch against what it has to be.

    Raises:
        MmloadError: naming what came instead.
    """
    device = wanted[2]
    got = tuple(images.shape[1:]), str(images.dtype), images.device.type
    if got != wanted:
        raise MmloadError(f"it gives images {_told(got)}, the task is {_told(wanted)}")
    if labels.shape[:1] != images.shape[:1] or labels.device.type != device:
        raise MmloadError(
            f"it gives labels {list(labels.shape)} on {labels.device.type} for {len(images)} images on {device}"
        )


def _told(output: Output) -> str:
    shape, dtype, device = output
    return f"{list(shape)} {dtype.removeprefix('torch.')} on {device}"


def _closable(batches: Iterator[tuple[Tensor, Tensor]]) -> Any:
    """A generator over the batches: to close it ends them, whatever kind of iterator they are."""
    yield from batches


def serve(payload: bytes, method: str, log: str, pipe: Connection) -> None:
    """The main function of the process.

    Args:
        payload: (entry, task, scratch folder), pickled.
        method: how contenders start processes if they do not say: as this system's Python does by itself.
        log: the file that takes all that is printed here.
        pipe: commands come in as (name, arguments), None at the end; ("done", value) or ("failed", why) go out.
    """
    _detach(log)
    _keep_below(Path(log).parent)
    multiprocessing.set_start_method(method, force=True)  # a spawned process would spawn, and DataLoader's workers fork
    try:
        desk = Desk(*pickle.loads(payload))
        while (command := pipe.recv()) is not None:
            pipe.send(_answer(desk, *command))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _keep_below(folder: Path) -> None:
    """Make temporary files in the bench's own folder: of a worker process that is killed, some would be left.

    Not where that would be too deep for the names of sockets, which DataLoader's workers make there.
    """
    if len(os.fsencode(folder)) + _SOCKET <= _LONGEST:
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _answer(desk: Desk, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "done", getattr(desk, name)(**arguments)
    except MmloadError as error:
        return "failed", reason(error)
    except (Exception, SystemExit) as error:  # other people's loaders raise whatever they like
        traceback.print_exc()
        return "failed", reason(error)


def reason(error: BaseException) -> str:
    """Why, in one line. A text with a traceback in it, as DataLoader has of its workers, ends with what was raised."""
    text = str(error)
    _, found, shown = text.rpartition(_TRACEBACK)
    lines = [line.strip() for line in shown.splitlines() if line.strip() and not (found and line.startswith(" "))]
    told = " ".join(lines)
    return told if isinstance(error, MmloadError) or (found and told) else f"{type(error).__name__}: {told or text}"


def _detach(log: str) -> None:
    """Own session, own output, no Ctrl-C, and an end when the bench ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process and all below it the moment the bench is gone, however that was."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
    kill_tree(os.getpid())


def kill_tree(root: int) -> None:
    """SIGKILL a process and all its descendants, itself last."""
    for process in reversed(usage.tree(root)):
        try:
            os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        except (ProcessLookupError, PermissionError):
            continue
