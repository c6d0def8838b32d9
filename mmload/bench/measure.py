"""Measures contenders in interleaved rounds, so that drift of the machine affects all of them equally.

Takes entries and options, and returns a :class:`Measurement` for each. A contender that fails, crashes or hangs is left
out, and the others continue. Never prints.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from mmload.bench.ceilings import CACHED
from mmload.bench.contender_process import ContenderFault, Worker
from mmload.bench.contender_server import CEILINGS, BesideSample, LoadSample, TrainSample
from mmload.bench.contenders import ContenderEntry
from mmload.bench.machine import files_below, make_cold
from mmload.bench.options import BenchOptions
from mmload.bench.task import Task
from mmload.runtime.resources import available_cores

ROUNDS = 3
"""Measured turns of each contender, after one to warm up."""

PATIENCE = 30.0
"""Seconds that another loader may overrun before it is given up."""

START_SHARE = 0.5
"""Share of the time for starting processes."""

SPARE_SHARE = 0.03
"""Share of the time for turns that take a little longer, and for the end."""

TRAIN_SHARE = 0.25
"""Share of the time for training, if there is any."""

OWN_PATIENCE = 300.0
"""Seconds that mmload, the limits and training may overrun: the first run on a machine compiles, and a step of a large
model takes a minute. A limit of half a minute once lost mmload's rows on a busy machine."""

_LEAST_TURN = 0.5  # seconds, however little time is left: a shorter turn measures nothing
_LONGEST_TURN = 20.0  # seconds after which a turn does not need another batch
_LONG_ENOUGH = 1.0  # seconds after which a turn does not need another epoch
_LEAST_PATIENCE = 10.0  # seconds


@dataclass(kw_only=True)
class Measurement:
    """The result of one contender or ceiling.

    Attributes:
        entry: the contender or ceiling.
        failure: why samples are missing; "" if nothing failed.
        warmed: whether the warm-up turn read every image; None before it.
        samples: the measured turns.
        beside: the measured turns beside a thread of pure Python.
        training: the measured turns of training.
        warm: why the files may not have been cold before each sample, "" where it was verified that they were.
    """

    entry: ContenderEntry
    failure: str = ""
    warmed: bool | None = None
    samples: list[LoadSample] = field(default_factory=list)
    beside: list[BesideSample] = field(default_factory=list)
    training: list[TrainSample] = field(default_factory=list)
    warm: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The row's name."""
        return self.entry.name

    @property
    def contends(self) -> bool:
        """True for a loader, False for a limit of the machine."""
        return self.entry.group not in CEILINGS

    @property
    def rates(self) -> list[float]:
        """Images per second of each sample."""
        return [sample.rate for sample in self.samples]

    @property
    def rate(self) -> float:
        """Images per second: the median over the samples; for a ceiling, the highest; 0 without samples."""
        summary = median if self.contends else max
        return summary(self.rates) if self.samples else 0.0

    @property
    def cpu(self) -> float | None:
        """Processor seconds per 1,000 images, over all samples; None without samples."""
        images = sum(sample.images for sample in self.samples)
        return 1000 * sum(sample.cpu for sample in self.samples) / images if images else None


class _Turn(NamedTuple):
    """One turn of one entry: what it is called, the entry's number, and what is done."""

    name: str
    number: int
    run: Callable[[Worker, Measurement, float], None]


def measure(
    task: Task,
    entries: Sequence[ContenderEntry],
    options: BenchOptions,
    progress: Callable[[str], None] | None = None,
    began: float | None = None,
) -> list[Measurement]:
    """Measures all entries, each in its own process, in their order.

    Cold, all files are evicted before each measured turn, for which the contender is created again while no other
    exists, because memory-mapped pages cannot be evicted. Else each is measured as often beside a thread of Python.
    ``began`` is the ``time.monotonic()`` at which the bench's seconds began; None: now.
    """
    began = time.monotonic() if began is None else began
    with tempfile.TemporaryDirectory(prefix="mmload-bench-", ignore_cleanup_errors=True) as work:
        rounds = _Rounds(task, entries, options, Path(work), progress or (lambda text: None), began)
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
        options: BenchOptions,
        work: Path,
        progress: Callable[[str], None],
        began: float,
    ) -> None:
        self._task, self._options, self._progress, self._began = task, options, progress, began
        self.measurements = [Measurement(entry=entry) for entry in entries]
        self._files: list[Path] = []
        self._scratch = work / "scratch"
        self._scratch.mkdir()
        self._workers = {
            number: Worker(entry, task, self._scratch, work / f"{number}.log") for number, entry in enumerate(entries)
        }

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._began

    @property
    def _left(self) -> float:
        """Seconds left for turns; negative if the time is over."""
        return (1 - SPARE_SHARE) * self._options.seconds - self._spent

    def measure_all(self) -> None:
        """Runs all turns; training last, so that a model's memory affects no other measurement."""
        self._make()
        if self._options.cold:
            roots = [self._task.dataset / self._task.split, self._scratch]
            self._files = files_below(roots + ([self._task.source] if self._task.source else []))
        loading = [n for n in self._workers if self._entry(n).group != CACHED]
        loading.sort(key=lambda n: self._entry(n).group != "mmload")  # first in each round: a bench is of them
        beside = [n for n in loading if self.measurements[n].contends] if not self._options.cold else []
        rounds = range(1, ROUNDS + 1)
        own = "warm-up, which compiles for this machine if nothing has"
        turns = [_Turn(own if self._entry(n).group == "mmload" else "warm-up", n, self._warm_up) for n in loading]
        for turn in rounds:
            turns += [_Turn(f"round {turn} of {len(rounds)}", number, self._alone) for number in loading]
            turns += [_Turn("beside a Python thread", number, self._beside) for number in beside]
        self._run(turns, later=TRAIN_SHARE * self._options.seconds if self._options.train else 0.0)
        if self._options.train:
            best = self._fastest_of_each_kind()
            self._run([_Turn(f"training {turn} of {len(rounds)}", n, self._train) for turn in rounds for n in best])

    def _entry(self, number: int) -> ContenderEntry:
        return self.measurements[number].entry

    def _fastest_of_each_kind(self) -> list[int]:
        """Returns the entries to train with: no loading at all, and the fastest loader of each group."""
        best: dict[str, int] = {}
        for number in sorted(self._workers, key=lambda n: self.measurements[n].rate):
            best[self._entry(number).group] = number
        return [number for group, number in best.items() if group != "ceiling"]

    def _make(self) -> None:
        """Starts what the time allows, what the verdict needs first: imports overlap, conversions are serial."""
        waiting = sorted(self._workers, key=lambda n: (self._entry(n).need, self._entry(n).group != "mmload"))
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
            self._progress(f"{self._entry(number).name}: getting ready")
            with self._fault_of(number):
                limit = max(self._patience(self._entry(number)), START_SHARE * self._options.seconds - self._spent)
                self._workers[number].ask("make", limit)
            made += 1
        for number in waiting:
            del self._workers[number]

    def _may_start(self, number: int, made: int, starting: int) -> bool:
        """Returns whether one more process is needed, or can be ready within the share of the time for starting."""
        if not self._entry(number).need:
            return True
        return made > 0 and self._spent * (made + starting + 1) / made <= START_SHARE * self._options.seconds

    def _run(self, turns: Sequence[_Turn], later: float = 0.0) -> None:
        """Runs turns, each for a fair share of the time left before the ``later`` seconds.

        When the time is over, only the first turn of a kind is run, for those that the verdict needs.
        """
        done: set[tuple[object, int]] = set()
        for place, (name, number, run) in enumerate(turns):
            left = self._left - later
            first = (run, number) not in done and (run == self._train or self._entry(number).need == 0)
            if number not in self._workers or (left <= 0 and (not first or run == self._beside)):
                continue
            remaining = sum(turn.number in self._workers for turn in turns[place:])
            self._progress(f"{self.measurements[number].name}: {name}, {max(0.0, left):.0f} s left")
            with self._fault_of(number):
                most = min(_LONGEST_TURN, max(_LEAST_TURN, left / remaining))
                run(self._workers[number], self.measurements[number], most)
                self._workers[number].ask("rest", PATIENCE)
            done.add((run, number))

    def _warm_up(self, worker: Worker, result: Measurement, most: float) -> None:
        limit = most + self._patience(result.entry)
        result.warmed = worker.ask("epoch", limit, least=0.0, most=most, check=True).complete
        if self._options.cold:
            worker.ask("close", PATIENCE)

    def _alone(self, worker: Worker, result: Measurement, most: float) -> None:
        limit = most + self._patience(result.entry)
        if not self._options.cold:
            result.samples.append(worker.ask("epoch", limit, least=min(_LONG_ENOUGH, most / 2), most=most))
            return
        worker.ask("make", self._patience(result.entry))
        result.warm.append(make_cold(self._files))  # after the creation, which reads files, too
        result.samples.append(worker.ask("epoch", limit, least=0.0, most=most))
        worker.ask("close", PATIENCE)

    def _beside(self, worker: Worker, result: Measurement, most: float) -> None:
        result.beside.append(worker.ask("beside", most + self._patience(result.entry), most=most))

    def _train(self, worker: Worker, result: Measurement, most: float) -> None:
        limit = most + OWN_PATIENCE
        result.training.append(worker.ask("train", limit, model=self._options.train, most=most))

    def _patience(self, entry: ContenderEntry) -> float:
        """Returns the seconds by which a turn may overrun: fewer, the longer the bench overruns."""
        if entry.group in ("mmload", *CEILINGS):
            return OWN_PATIENCE
        return max(_LEAST_PATIENCE, PATIENCE + min(0.0, self._left))

    def end(self) -> None:
        """Kills the processes: nothing of theirs is needed, and loaders take seconds to close."""
        for worker in self._workers.values():
            worker.kill()

    @contextmanager
    def _fault_of(self, number: int) -> Iterator[None]:
        """Records a failure inside the block for the contender, and kills its process."""
        try:
            yield
        except ContenderFault as fault:
            self.measurements[number].failure = str(fault)
            self._workers.pop(number).kill()
