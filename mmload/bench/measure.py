"""Measures contenders in interleaved rounds, so that drift of the machine affects all of them equally.

Takes entries and options, and returns a :class:`~mmload.bench.record.Row` for each. A contender that fails, crashes or
hangs is left out, and the others continue. Never prints.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mmload.bench.ceilings import CACHED
from mmload.bench.contender_process import ContenderFault, Worker
from mmload.bench.contender_server import CEILINGS
from mmload.bench.contenders import ContenderEntry
from mmload.bench.machine import files_below, make_cold
from mmload.bench.options import BenchOptions
from mmload.bench.record import Row
from mmload.bench.task import Task
from mmload.runtime.resources import available_cores

ROUNDS = 3
"""Measured turns of each contender, after one to warm up."""

LONGEST_TURN = 20.0  # seconds after which a turn does not need another batch

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
_LONG_ENOUGH = 1.0  # seconds after which a turn does not need another epoch
_LEAST_PATIENCE = 10.0  # seconds


class _Turn(NamedTuple):
    """One turn of one contender: what it is called, what is done, and whether it is even when the time is over."""

    name: str
    worker: Worker
    run: Callable[[Worker, float], None]
    is_needed: bool = False


def measure(
    task: Task,
    entries: Sequence[ContenderEntry],
    options: BenchOptions,
    progress: Callable[[str], None] = lambda text: None,
    spent: float = 0.0,
) -> list[Row]:
    """Measures all entries, each in its own process, in their order.

    Cold, all files are evicted before each measured turn, for which the contender is created again while no other
    exists, because memory-mapped pages cannot be evicted. Else each is measured as often beside a thread of Python.
    ``spent`` seconds of the bench are over already.
    """
    began = time.monotonic() - spent
    with tempfile.TemporaryDirectory(prefix="mmload-bench-", ignore_cleanup_errors=True) as work:
        rounds = _Rounds(task, entries, options, Path(work), progress, began)
        try:
            rounds.measure_all()
        finally:
            rounds.end()
    return rounds.rows


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
        self._files: list[Path] = []
        self._scratch = work / "scratch"
        self._scratch.mkdir()
        self._workers = [
            Worker(entry, task, self._scratch, work / f"{number}.log") for number, entry in enumerate(entries)
        ]
        self.rows = [worker.row for worker in self._workers]

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
            roots = (self._task.dataset / self._task.split, self._scratch, self._task.source)
            self._files = files_below(filter(None, roots))
        loading = [worker for worker in self._workers if worker.row.group != CACHED]
        loading.sort(key=lambda worker: worker.row.group != "mmload")  # first in each round: a bench is of them
        beside = [worker for worker in loading if worker.row.contends and not self._options.cold]
        compiles = "warm-up, which compiles for this machine if nothing has"
        turns = [
            _Turn(compiles if each.row.group == "mmload" else "warm-up", each, self._warm_up, not each.entry.need)
            for each in loading
        ]
        for turn in range(1, ROUNDS + 1):
            name = f"round {turn} of {ROUNDS}"
            turns += [_Turn(name, each, self._alone, turn == 1 and not each.entry.need) for each in loading]
            turns += [_Turn("beside a Python thread", each, self._beside) for each in beside]
        self._run(turns, later=TRAIN_SHARE * self._options.seconds if self._options.train else 0.0)
        if self._options.train:
            best = self._fastest_of_each_kind()
            rounds = range(1, ROUNDS + 1)
            self._run(
                [_Turn(f"training {turn} of {ROUNDS}", w, self._train, turn == 1) for turn in rounds for w in best]
            )

    def _fastest_of_each_kind(self) -> list[Worker]:
        """Returns those to train with: no loading at all, and the fastest loader of each group."""
        best = {worker.row.group: worker for worker in sorted(self._workers, key=lambda worker: worker.row.rate)}
        return [worker for group, worker in best.items() if group != "ceiling"]

    def _make(self) -> None:
        """Starts what the time allows, what the verdict needs first: imports overlap, conversions are serial."""
        waiting = sorted(self._workers, key=lambda worker: (worker.entry.need, worker.row.group != "mmload"))
        starting: list[Worker] = []
        made = 0
        while waiting or starting:
            while waiting and len(starting) <= available_cores() and self._may_start(waiting[0], made, len(starting)):
                worker = waiting.pop(0)
                with self._fault_of(worker):
                    worker.start()
                    starting.append(worker)
            if not starting:
                break
            worker = starting.pop(0)
            self._progress(f"{worker.row.name}: getting ready")
            with self._fault_of(worker):
                worker.ask("make", max(self._patience(worker), START_SHARE * self._options.seconds - self._spent))
            made += 1
        self._workers = [worker for worker in self._workers if worker not in waiting]

    def _may_start(self, worker: Worker, made: int, starting: int) -> bool:
        """Returns whether one more process is needed, or can be ready within the share of the time for starting."""
        if not worker.entry.need:
            return True
        return made > 0 and self._spent * (made + starting + 1) / made <= START_SHARE * self._options.seconds

    def _run(self, turns: Sequence[_Turn], later: float = 0.0) -> None:
        """Runs turns, each for a fair share of the time left before the ``later`` seconds; then only what is needed."""
        for place, (name, worker, run, is_needed) in enumerate(turns):
            left = self._left - later
            if worker not in self._workers or (left <= 0 and not is_needed):
                continue
            remaining = sum(turn.worker in self._workers for turn in turns[place:])
            self._progress(f"{worker.row.name}: {name}, {max(0.0, left):.0f} s left")
            with self._fault_of(worker):
                run(worker, min(LONGEST_TURN, max(_LEAST_TURN, left / remaining)))
                worker.ask("rest", PATIENCE)

    def _warm_up(self, worker: Worker, most: float) -> None:
        limit = most + self._patience(worker)
        worker.row.warmed = worker.ask("epoch", limit, least=0.0, most=most, check=True).complete
        if self._options.cold:
            worker.ask("close", PATIENCE)

    def _alone(self, worker: Worker, most: float) -> None:
        limit, samples = most + self._patience(worker), worker.row.samples
        if not self._options.cold:
            samples.append(worker.ask("epoch", limit, least=min(_LONG_ENOUGH, most / 2), most=most))
            return
        worker.ask("make", self._patience(worker))
        worker.row.warm.append(make_cold(self._files))  # after the creation, which reads files, too
        samples.append(worker.ask("epoch", limit, least=0.0, most=most))
        worker.ask("close", PATIENCE)

    def _beside(self, worker: Worker, most: float) -> None:
        worker.row.beside.append(worker.ask("beside", most + self._patience(worker), most=most))

    def _train(self, worker: Worker, most: float) -> None:
        limit = most + OWN_PATIENCE
        worker.row.training.append(worker.ask("train", limit, model=self._options.train, most=most))

    def _patience(self, worker: Worker) -> float:
        """Returns the seconds by which a turn may overrun: fewer, the longer the bench overruns."""
        if worker.row.group in ("mmload", *CEILINGS):
            return OWN_PATIENCE
        return max(_LEAST_PATIENCE, PATIENCE + min(0.0, self._left))

    def end(self) -> None:
        """Kills the processes: nothing of theirs is needed, and loaders take seconds to close."""
        for worker in self._workers:
            worker.kill()

    @contextmanager
    def _fault_of(self, worker: Worker) -> Iterator[None]:
        """Records a failure inside the block for the contender, and kills its process."""
        try:
            yield
        except ContenderFault as fault:
            worker.row.failure = str(fault)
            self._workers.remove(worker)
            worker.kill()
