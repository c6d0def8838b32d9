"""Rounds of turns, contenders interleaved, so that a drifting machine drifts for all of them alike.

Comes in: entries and a :class:`Plan`. Goes out: a :class:`Measurement` of each, of those that failed as well. A
contender that fails, crashes or hangs is taken out, and the others go on. Never prints.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from mmload.bench import usage
from mmload.bench.ceilings import CACHED
from mmload.bench.child import Sample
from mmload.bench.cold import Coldness, files_below, make_cold
from mmload.bench.contenders import Entry
from mmload.bench.process import Fault, Worker
from mmload.bench.task import Task
from mmload.bench.train import TrainSample
from mmload.threads import available_cores

_LEAST_TURN = 1.0  # seconds that a turn gets in any case, or half its fair share of a budget that is smaller
_LONG_ENOUGH = 1.0  # seconds after which a turn need not go through a further epoch
_TO_MAKE = 60.0  # seconds that a contender may take to be made, at least


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to measure.

    Attributes:
        epochs: measured turns of each contender, after one to warm up.
        budget: seconds for all turns; they are cut short, and rounds left out, to keep it. Starting the processes comes
            on top.
        cold: evict all files before each measured epoch. The contender is made anew for it and no other is there
            meanwhile: what a process has mapped cannot be evicted.
        train: a torchvision model to train with each contender's batches, two steps at least; None: no training. For
            whom the budget has no room for two steps is not trained with.
        patience: seconds that a contender may be silent beyond its time before it is ended.
    """

    epochs: int = 3
    budget: float = 300.0
    cold: bool = False
    train: str | None = None
    patience: float = 30.0


@dataclass(kw_only=True)
class Measurement:
    """What was seen of one contender or ceiling.

    Attributes:
        entry: which.
        failure: why there are no samples, or not all; "" if nothing went wrong.
        warmed: whether the epoch that warms up was gone through to its end.
        samples: the measured turns.
        memory: bytes of its process tree at most, sampled in the epoch that warms up; None where it is not known.
        training: the measured turns of training.
        untrained: seconds that its training would have taken at least, where the budget had no room for them; else 0.
        coldness: what evicting the files came to before each sample.
    """

    entry: Entry
    failure: str = ""
    warmed: bool = True
    samples: list[Sample] = field(default_factory=list)
    memory: int | None = None
    training: list[TrainSample] = field(default_factory=list)
    untrained: float = 0.0
    coldness: list[Coldness] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The row's name."""
        return self.entry.name

    @property
    def rates(self) -> list[float]:
        """Images per second of each sample."""
        return [sample.rate for sample in self.samples]

    @property
    def median(self) -> float:
        """Images per second, the median over the samples; 0 without any."""
        return median(self.rates) if self.samples else 0.0

    @property
    def cpu(self) -> float | None:
        """Processor seconds for 1,000 images, over all samples; None without any."""
        images = sum(sample.images for sample in self.samples)
        return 1000 * sum(sample.cpu for sample in self.samples) / images if images else None

    @property
    def train_rate(self) -> float | None:
        """Images per second in training, the median."""
        return median(sample.rate for sample in self.training) if self.training else None

    @property
    def waited(self) -> float | None:
        """The share of training that was waited for data, the median."""
        return median(sample.share for sample in self.training) if self.training else None

    def note_memory(self, process: int) -> None:
        """Sample what the process tree takes now."""
        self.memory = max(filter(None, (self.memory, usage.memory(process))), default=None)


def measure(
    task: Task, entries: Sequence[Entry], plan: Plan, progress: Callable[[str], None] | None = None
) -> list[Measurement]:
    """Measure all entries, each in its own process.

    Args:
        task: what they have to deliver.
        entries: contenders and ceilings, in the order of the table.
        plan: how.
        progress: told what runs next.

    Returns:
        One measurement an entry, in their order.
    """
    with tempfile.TemporaryDirectory(prefix="mmload-bench-", ignore_cleanup_errors=True) as work:
        rounds = _Rounds(task, entries, plan, Path(work), progress or (lambda text: None))
        try:
            rounds.run()
        finally:
            rounds.end()
    return rounds.measurements


class _Rounds:
    """The processes, what was seen of them, and the clock."""

    def __init__(
        self, task: Task, entries: Sequence[Entry], plan: Plan, work: Path, progress: Callable[[str], None]
    ) -> None:
        self._task, self._plan, self._work, self._progress = task, plan, work, progress
        self.measurements = [Measurement(entry=entry, failure=entry.missing) for entry in entries]
        self._workers: dict[int, Worker] = {}
        self._deadline = self._least = self._two_steps = 0.0
        self._files: list[Path] = []
        scratch = work / "scratch"
        scratch.mkdir()
        for number, entry in enumerate(entries):
            if not entry.missing:
                self._workers[number] = Worker(entry, task, scratch, work / f"{number}.log")

    def run(self) -> None:
        """All phases; the train phase last, so that a model's memory is in no other number."""
        loading = [n for n in self._workers if self.measurements[n].entry.group != CACHED]
        training = [n for n in self._workers if self.measurements[n].entry.group != "ceiling"]
        self._make()
        self._deadline = time.monotonic() + self._plan.budget
        if self._plan.cold:
            roots = [self._task.dataset / self._task.split, self._work / "scratch"]
            self._files = files_below(roots + ([self._task.source] if self._task.source else []))
        later = self._plan.epochs * len(training) if self._plan.train else 0
        turns = later + (self._plan.epochs + 1) * len(loading)
        self._least = min(_LEAST_TURN, self._plan.budget / 2 / max(1, turns))
        self._round(loading, "warm-up", self._warm_up, self._plan.epochs * len(loading) + later)
        for turn in range(1, self._plan.epochs + 1):
            if turn == 1 or time.monotonic() < self._deadline:
                left = (self._plan.epochs - turn) * len(loading) + later
                self._round(loading, f"epoch {turn} of {self._plan.epochs}", self._epoch, left)
        if self._plan.train:
            self._train_rounds(training)
        self._progress("closing")
        for worker in self._workers.values():
            worker.leave()
        for worker in self._workers.values():
            worker.wait()

    def _train_rounds(self, numbers: list[int]) -> None:
        """Rounds of training, as far as the budget goes; the fastest of each group first, which the verdict is of."""
        there = [n for n in numbers if n in self._workers]
        best: dict[str, int] = {}
        for number in sorted(there, key=lambda n: self.measurements[n].median):
            best[self.measurements[number].entry.group] = number
        numbers = sorted(there, key=lambda n: n not in best.values())
        self._two_steps = self._try_steps(best.get(CACHED, numbers[0])) if numbers else 0.0
        for turn in range(1, self._plan.epochs + 1):
            if turn == 1 or time.monotonic() < self._deadline:
                left = (self._plan.epochs - turn) * len(numbers)
                self._round(numbers, f"training, {turn} of {self._plan.epochs}", self._train, left)

    def _try_steps(self, number: int) -> float:
        """Seconds that a turn of training takes at least, by steps that count for nothing else."""
        began = time.monotonic()
        self._progress("the first steps of training")
        limit = max(self._least, self._deadline - began) + self._plan.patience
        seconds: float | None = None
        with self._fault_of(number):
            seconds = self._workers[number].ask("try_steps", limit, model=self._plan.train)
        return time.monotonic() - began if seconds is None else seconds

    def end(self) -> None:
        """Kill what is left, as after an interrupt."""
        for worker in self._workers.values():
            worker.kill()

    def _make(self) -> None:
        """Start and make all, their imports overlapping, their conversions one after the other."""
        numbers = list(self._workers)
        ahead = max(1, available_cores())
        for place, number in enumerate(numbers):
            for later in numbers[place : place + ahead + 1]:
                if later in self._workers and self._workers[later].pid is None:
                    with self._fault_of(later):
                        self._workers[later].start()
            if number in self._workers:
                self._progress(f"{self.measurements[number].name}: getting ready")
                with self._fault_of(number):
                    self._workers[number].ask("make", max(_TO_MAKE, self._plan.budget))

    def _round(
        self, numbers: list[int], name: str, turn: Callable[[Worker, Measurement, float], None], left: int
    ) -> None:
        """One turn of each; ``left`` turns of others follow in later rounds."""
        for place, number in enumerate(numbers):
            if number not in self._workers:
                continue
            turns = left + len([n for n in numbers[place:] if n in self._workers])
            most = max(self._least, (self._deadline - time.monotonic()) / turns)
            self._progress(f"{self.measurements[number].name}: {name}")
            with self._fault_of(number):
                turn(self._workers[number], self.measurements[number], most)

    def _warm_up(self, worker: Worker, result: Measurement, most: float) -> None:
        limit = most + 2 * self._plan.patience  # some compile their loops in the first epoch
        result.warmed = worker.ask("epoch", limit, result.note_memory, least=0.0, most=most, check=True).whole
        if worker.pid is not None:
            result.note_memory(worker.pid)
        if self._plan.cold:
            worker.ask("close", self._plan.patience)

    def _epoch(self, worker: Worker, result: Measurement, most: float) -> None:
        if not self._plan.cold:
            limit, least = most + self._plan.patience, min(_LONG_ENOUGH, most / 2)
            result.samples.append(worker.ask("epoch", limit, least=least, most=most))
            return
        worker.ask("make", _TO_MAKE)
        if result.entry.group != "ceiling":  # made already, as what that has read is not to be in memory either
            result.coldness.append(make_cold(self._files))
        result.samples.append(worker.ask("epoch", most + self._plan.patience, least=0.0, most=most))
        worker.ask("close", self._plan.patience)

    def _train(self, worker: Worker, result: Measurement, most: float) -> None:
        if self._two_steps > max(_LEAST_TURN, self._deadline - time.monotonic()):
            result.untrained = 0.0 if result.training else self._two_steps
            return
        limit = max(most, self._two_steps) + 2 * self._plan.patience
        result.training.append(worker.ask("train", limit, model=self._plan.train, most=most))

    @contextmanager
    def _fault_of(self, number: int) -> Iterator[None]:
        """What goes wrong inside is the contender's failure, and its process ends."""
        try:
            yield
        except Fault as fault:
            self.measurements[number].failure = str(fault)
            self._workers.pop(number).kill()
