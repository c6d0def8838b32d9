"""Contenders that do one thing right or wrong, for the tests of ``mmload bench``, and whether a process still runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from mmload.bench.contender_server import LoadSample
from mmload.bench.contenders import ContenderEntry
from mmload.bench.options import BenchOptions
from mmload.bench.record import Row
from mmload.bench.task import Task, task_of
from mmload.errors import SourceError

SETTINGS = {"dataset": "D", "layout": "rows", "output": "crop", "cache": "warm", "device": "cpu", "batch_size": 64}
"""Settings of a record that texts and charts name."""


class Fake:
    """Batches of zeros; what else happens is the test's."""

    def __init__(self, task: Task, scratch: Path, *, does: str = "") -> None:
        self._task, self._does, self._epochs = task, does, 0
        if does == "semaphores":
            self._held = [multiprocessing.get_context("spawn").Semaphore() for _ in range(3)]
        if does == "cannot":
            raise SourceError("its folder is gone")
        if does == "printer":
            os.write(2, b"the library says so\n")
            os._exit(3)

    def __call__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of the task, or trouble."""
        self._epochs += 1
        if self._epochs == 2:
            self._fail()
        if self._does == "empty":
            return
        size = 3 if self._does == "small" else self._task.crop
        if self._does == "parent":
            self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        for number in range(100 if self._does in ("slow", "bursts") else 3):
            bursts = 0.0 if number % 4 else 0.4  # four batches at once, as four workers give them
            time.sleep({"slow": 0.4, "slower": 0.8, "bursts": bursts}.get(self._does, 0.001))
            yield torch.zeros(4, 3, size, size), torch.zeros(4, dtype=torch.int64)

    def _fail(self) -> None:
        """The trouble of a second epoch."""
        if self._does == "hangs":
            time.sleep(600)
        if self._does == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._does == "raises":
            raise RuntimeError("out of ideas")


def tiny_task(dataset: Path) -> Task:
    """Crops of 24 from 18 rows, in batches of 4."""
    return replace(task_of(BenchOptions(size=24, batch_size=4, threads=1), dataset, None), images=18, device="cpu")


def fake(name: str, does: str = "", group: str = "mmload", **more: Any) -> ContenderEntry:
    """An entry whose contender does one thing."""
    return ContenderEntry(name=name, group=group, make=partial(Fake, does=does), **more)


def measured(name: str, rate: float, group: str = "mmload") -> Row:
    """A row of one sample at that rate."""
    sample = LoadSample(images=int(rate), seconds=1.0, cpu=1.0, complete=True)
    return Row(name=name, group=group, warmed=True, samples=[sample])


def alive(number: int) -> bool:
    """Whether a process runs: it is there and is no zombie."""
    return psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE


def tree(root: int) -> list[int]:
    """A process and all beneath it."""
    return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
