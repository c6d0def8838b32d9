"""Measures contenders in interleaved rounds, so that drift of the machine affects all of them equally.

Takes entries and a plan, and returns a :class:`Measurement` for each. A contender that fails, crashes or hangs is left
out, and the others continue. Never prints.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median

from mmload.bench.ceilings import CACHED
from mmload.bench.contender_process import ContenderFault, Worker
from mmload.bench.contender_server import CEILINGS, LoadSample
from mmload.bench.contenders import ContenderEntry
from mmload.bench.machine import Coldness, files_below, make_cold, tree_memory
from mmload.bench.options import MeasurementPlan
from mmload.bench.plan import Budget, is_own, no_room, start_order
from mmload.bench.task import Task
from mmload.bench.train import NEIGHBORS, BesideSample, TrainSample
from mmload.runtime.resources import available_cores

_LONG_ENOUGH = 1.0  # seconds after which a turn does not need another epoch
_BESIDE_LONG_ENOUGH = 4.0  # seconds after which a turn beside another thread does not need another batch
_TRAINED_LONG_ENOUGH = 20.0  # seconds after which a turn of training does not need another step
_TO_MAKE_AGAIN = 60.0  # timeout in seconds for creating a contender again, with its files evicted
_LEAVE = 5.0  # seconds that all processes together have to exit


@dataclass(kw_only=True)
class Measurement:
    """The result of one contender or ceiling.

    Attributes:
        entry: the contender or ceiling.
        failure: why samples are missing; "" if nothing failed.
        warmed: whether the warm-up epoch was complete; None before it.
        samples: the measured turns.
        memory: peak bytes of its process tree, sampled during the warm-up epoch; None if unknown.
        beside: the measured turns beside another thread.
        training: the measured turns of training.
        untrained: lower bound of the seconds of its training, if the budget did not allow it; else 0.
        coldness: the result of evicting the files before each sample.
    """

    entry: ContenderEntry
    failure: str = ""
    warmed: bool | None = None
    samples: list[LoadSample] = field(default_factory=list)
    memory: int | None = None
    beside: list[BesideSample] = field(default_factory=list)
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
    def rate(self) -> float:
        """Images per second: the median over the samples; for a ceiling, the highest; 0 without samples."""
        summary = max if self.entry.group == "ceiling" else median
        return summary(self.rates) if self.samples else 0.0

    @property
    def cpu(self) -> float | None:
        """Processor seconds per 1,000 images, over all samples; None without samples."""
        images = sum(sample.images for sample in self.samples)
        return 1000 * sum(sample.cpu for sample in self.samples) / images if images else None

    @property
    def train_rate(self) -> float | None:
        """Images per second in training, the median."""
        return median(sample.rate for sample in self.training) if self.training else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds per training step, with its wait for data; the median."""
        return median(sample.seconds / sample.steps for sample in self.training) if self.training else None

    @property
    def waited(self) -> float | None:
        """The share of training time spent waiting for data, the median."""
        return median(sample.share for sample in self.training) if self.training else None

    def note_memory(self, process: int) -> None:
        """Samples the current memory of the process tree, and keeps the maximum."""
        self.memory = max(filter(None, (self.memory, tree_memory(process))), default=None)


def measure(
    task: Task,
    entries: Sequence[ContenderEntry],
    plan: MeasurementPlan,
    progress: Callable[[str], None] | None = None,
    budget: Budget | None = None,
) -> list[Measurement]:
    """Measures all entries, each in its own process, in their order; the plan's budget may be spent in part."""
    with tempfile.TemporaryDirectory(prefix="mmload-bench-", ignore_cleanup_errors=True) as work:
        rounds = _Rounds(
            task, entries, plan, Path(work), progress or (lambda text: None), budget or Budget(seconds=plan.budget)
        )
        try:
            rounds.measure_all()
        finally:
            rounds.end()
    return rounds.measurements


class _Rounds:
    """The processes, their measurements, and the clock."""

    def __init__(
        self,
        task: Task,
        entries: Sequence[ContenderEntry],
        plan: MeasurementPlan,
        work: Path,
        progress: Callable[[str], None],
        budget: Budget,
    ) -> None:
        self._task, self._plan, self._work, self._progress = task, plan, work, progress
        self.measurements = [Measurement(entry=entry, failure=entry.missing) for entry in entries]
        self._workers: dict[int, Worker] = {}
        self._budget = budget
        self._least = self._two_steps = 0.0
        self._turns: list[float] = []  # seconds of each turn
        self._beyond: list[float] = []  # seconds by which each turn overran
        self._files: list[Path] = []
        scratch = work / "scratch"
        scratch.mkdir()
        for number, entry in enumerate(entries):
            if not entry.missing:
                self._workers[number] = Worker(entry, task, scratch, work / f"{number}.log")

    def measure_all(self) -> None:
        """Runs all phases; training last, so that a model's memory affects no other measurement."""
        self._make()
        loading = [n for n in self._workers if self.measurements[n].entry.group != CACHED]
        loading.sort(key=lambda n: not is_own(self.measurements[n].entry))  # first in each round: a bench is of them
        training = [n for n in self._workers if self.measurements[n].entry.group != "ceiling"]
        if self._plan.cold:
            roots = [self._task.dataset / self._task.split, self._work / "scratch"]
            self._files = files_below(roots + ([self._task.source] if self._task.source else []))
        contending = (
            [n for n in loading if self.measurements[n].entry.group not in CEILINGS] if self._plan.beside else []
        )
        later = self._plan.epochs * len(training) if self._plan.train else 0
        later += self._plan.epochs * len(NEIGHBORS) * len(contending)
        turns = later + (self._plan.epochs + 1) * len(loading)
        self._least = self._budget.least_turn(turns)
        self._round(loading, "warm-up", self._warm_up, self._plan.epochs * len(loading) + later)
        for turn in range(1, self._plan.epochs + 1):
            if turn == 1 or self._budget.left > 0:
                turns_left = (self._plan.epochs - turn) * len(loading) + later
                self._round(loading, f"epoch {turn} of {self._plan.epochs}", self._epoch, turns_left)
        passed = self._passed_limits()
        if self._budget.left > 0:
            self._round(passed, "once more, as it was passed", self._epoch, later)
        self._beside_rounds(contending, len(training) if self._plan.train else 0)
        if self._plan.train:
            self._train_rounds(training)
        self._close()

    def _passed_limits(self) -> list[int]:
        """Returns the limits that are slower than the fastest contender: something disturbed their measurement."""
        fastest = max((result.rate for result in self.measurements if result.entry.group not in CEILINGS), default=0.0)
        limits = [n for n in self._workers if self.measurements[n].entry.group == "ceiling"]
        return [n for n in limits if not self.measurements[n].entry.need and self.measurements[n].rate < fastest]

    def _beside_rounds(self, numbers: list[int], trained: int) -> None:
        """Runs rounds beside each neighbor within the budget; ``trained`` entries are to be trained later."""
        rounds = [(turn, name) for turn in range(1, self._plan.epochs + 1) for name in NEIGHBORS]
        for done, (turn, name) in enumerate(rounds, 1):
            if numbers and self._budget.left > 0:
                turns_left = (len(rounds) - done) * len(numbers) + self._plan.epochs * trained
                what = f"beside a {name} thread, {turn} of {self._plan.epochs}"
                self._round(numbers, what, partial(self._beside, name), turns_left)

    def _train_rounds(self, numbers: list[int]) -> None:
        """Runs rounds of training within the budget; the fastest of each group come first: the verdict needs them."""
        started = [n for n in numbers if n in self._workers]
        best: dict[str, int] = {}
        for number in sorted(started, key=lambda n: self.measurements[n].rate):
            best[self.measurements[number].entry.group] = number
        numbers = sorted(started, key=lambda n: n not in best.values())
        self._two_steps = self._try_steps(best.get(CACHED, numbers[0])) if numbers else 0.0
        for turn in range(1, self._plan.epochs + 1):
            if turn == 1 or self._budget.left > 0:
                turns_left = (self._plan.epochs - turn) * len(numbers)
                self._round(numbers, f"training, {turn} of {self._plan.epochs}", self._train, turns_left)

    def _close(self) -> None:
        """Stops all processes concurrently, and kills those that take too long."""
        self._progress("closing")
        for worker in self._workers.values():
            worker.leave()
        last = time.monotonic() + _LEAVE
        for worker in self._workers.values():
            worker.wait(last - time.monotonic())

    def _try_steps(self, number: int) -> float:
        """Returns a lower bound of a training turn in seconds, from steps that are not measured otherwise."""
        began = time.monotonic()
        self._progress("the first steps of training")
        limit = max(self._least, self._budget.left) + self._plan.patience
        seconds: float | None = None
        with self._fault_of(number):
            seconds = self._workers[number].ask("try_steps", limit, model=self._plan.train)
        return time.monotonic() - began if seconds is None else seconds

    def end(self) -> None:
        """Kills the remaining processes, for example after an interrupt."""
        for worker in self._workers.values():
            worker.kill()

    def _make(self) -> None:
        """Starts and creates what the budget allows, needed entries first: imports overlap, conversions are serial."""
        waiting = start_order([result.entry for result in self.measurements])
        starting: list[int] = []
        made = 0
        while waiting or starting:
            while waiting and len(starting) <= available_cores() and self._may_start(waiting[0], made, len(starting)):
                number = waiting.pop(0)
                with self._fault_of(number):
                    self._workers[number].start()
                    starting.append(number)
            if not starting:
                break
            number = starting.pop(0)
            entry = self.measurements[number].entry
            self._progress(f"{entry.name}: getting ready")
            with self._fault_of(number):
                self._workers[number].ask("make", self._budget.to_make(entry))
            made += 1
        for number in waiting:
            self.measurements[number].failure = no_room(self._plan.budget)
            del self._workers[number]

    def _may_start(self, number: int, made: int, starting: int) -> bool:
        return not self.measurements[number].entry.need or self._budget.room_to_start(made, starting)

    def _round(
        self, numbers: list[int], name: str, turn: Callable[[Worker, Measurement, float], None], turns_left: int
    ) -> None:
        """Runs one turn of each entry; ``turns_left`` turns of other entries follow in later rounds."""
        for place, number in enumerate(numbers):
            if number not in self._workers:
                continue
            turns = turns_left + len([n for n in numbers[place:] if n in self._workers])
            most = self._budget.turn(turns, self._least, mean(self._beyond or [0.0]))
            self._progress(f"{self.measurements[number].name}: {name}")
            began = self._budget.spent
            with self._fault_of(number):
                if turn != self._train and self._is_over(self.measurements[number]):
                    continue
                turn(self._workers[number], self.measurements[number], most)
                self._turns.append(self._budget.spent - began)
                self._beyond.append(max(0.0, self._turns[-1] - most))

    def _is_over(self, result: Measurement) -> bool:
        """Returns whether needed entries take all the time left; raises ContenderFault if never measured."""
        needed = [self.measurements[n] for n in self._workers if not self.measurements[n].entry.need]
        turns = sum(1 if each.warmed is not None else 2 for each in needed if not each.samples)
        if not result.entry.need or self._budget.left > turns * mean(self._turns or [0.0]):
            return False
        if not result.samples:
            raise ContenderFault(no_room(self._plan.budget))
        return True

    def _warm_up(self, worker: Worker, result: Measurement, most: float) -> None:
        patience = 2 * self._plan.patience  # some compile their loops in the first epoch
        limit = most + self._budget.patience(patience, result.entry)
        result.warmed = worker.ask("epoch", limit, result.note_memory, least=0.0, most=most, check=True).complete
        if worker.pid is not None:
            result.note_memory(worker.pid)
        if self._plan.cold:
            worker.ask("close", self._plan.patience)

    def _epoch(self, worker: Worker, result: Measurement, most: float) -> None:
        limit = most + self._budget.patience(self._plan.patience, result.entry)
        if not self._plan.cold:
            least = min(_LONG_ENOUGH, most / 2)
            result.samples.append(worker.ask("epoch", limit, least=least, most=most))
            return
        worker.ask("make", _TO_MAKE_AGAIN)
        if result.entry.group != "ceiling":  # after the creation, which reads files, too
            result.coldness.append(make_cold(self._files))
        result.samples.append(worker.ask("epoch", limit, least=0.0, most=most))
        worker.ask("close", self._plan.patience)

    def _beside(self, neighbor: str, worker: Worker, result: Measurement, most: float) -> None:
        if self._budget.left <= 0:
            return
        most = min(most, _BESIDE_LONG_ENOUGH)
        limit = most + 2 * self._plan.patience  # a batch may take seconds there
        result.beside.append(worker.ask("beside", limit, neighbor=neighbor, most=most))

    def _train(self, worker: Worker, result: Measurement, most: float) -> None:
        if self._two_steps > max(1.0, self._budget.left):
            result.untrained = 0.0 if result.training else self._two_steps
            return
        most = min(most, _TRAINED_LONG_ENOUGH)
        limit = max(most, self._two_steps) + 2 * self._plan.patience
        result.training.append(worker.ask("train", limit, model=self._plan.train, most=most))

    @contextmanager
    def _fault_of(self, number: int) -> Iterator[None]:
        """Records a failure inside the block for the contender, and kills its process."""
        try:
            yield
        except ContenderFault as fault:
            self.measurements[number].failure = str(fault)
            self._workers.pop(number).kill()
