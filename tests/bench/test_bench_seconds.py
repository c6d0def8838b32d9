"""How a bench keeps its time, by a clock that only moves when a test says so; and its notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_contenders import fake, measured, tiny_task

from mmload.bench import measure
from mmload.bench.contender_process import ContenderFault
from mmload.bench.contender_server import BesideSample, LoadSample, Turn
from mmload.bench.contenders import ContenderEntry, entries
from mmload.bench.options import SECONDS, BenchOptions
from mmload.bench.record import Row, set_limits
from mmload.bench.run import notes_of, run_on_dataset
from mmload.bench.task import Task, task_of
from mmload.store.dataset import Dataset


class Slow:
    """A contender's process that takes seconds of a test's clock."""

    now: float
    to_make: float
    extra: float  # seconds that an epoch takes beyond what it was told
    killed_below: float  # limit of a request: below, the process is killed at once

    def __init__(self, entry: ContenderEntry, *_: object) -> None:
        self.entry, self.row = entry, Row(name=entry.name, group=entry.group)

    def start(self) -> None:
        """Nothing: what imports take shows when it is made."""

    def ask(self, name: str, limit: float, **more: Any) -> Turn | None:
        """Let the clock go on."""
        if name == "rest":
            return None
        if limit < Slow.killed_below:
            raise ContenderFault(f"no answer within {limit:.0f} s")
        seconds = Slow.to_make if name == "make" else more["most"] + Slow.extra
        Slow.now += min(seconds, limit)
        if seconds > limit:
            raise ContenderFault(f"no answer within {limit:.0f} s")
        if name == "beside":
            return BesideSample(images=10, seconds=seconds, pieces=1, alone=1.0)
        return None if name == "make" else LoadSample(images=10, seconds=seconds, cpu=1.0, complete=False)

    def kill(self) -> None:
        """Nothing."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    """The processes of a bench, and its clock."""
    Slow.now, Slow.to_make, Slow.extra, Slow.killed_below = 1000.0, 0.1, 0.0, 0.0
    monkeypatch.setattr(measure, "Worker", Slow)
    monkeypatch.setattr(measure, "ROUNDS", 2)
    monkeypatch.setattr("mmload.bench.measure.time.monotonic", lambda: Slow.now)
    return Slow


@pytest.fixture(scope="module")
def task(dataset: Dataset) -> Task:
    return tiny_task(dataset.path)


def several(name: str, count: int, **more: Any) -> list[ContenderEntry]:
    return [fake(f"{name} {number}", **more) for number in range(count)]


OPTIONS = BenchOptions()


@pytest.mark.parametrize(("to_make", "left_out"), [(0.1, 0), (4.0, 9), (9.0, 13)])
@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_all_of_a_bench_stays_within_its_time(
    task: Task, slow: type[Slow], to_make: float, left_out: int, extra: float
) -> None:
    slow.to_make, slow.extra = to_make, extra
    asked = several("needed", 3) + several("more", 13, need=1)
    results = measure.measure(task, asked, OPTIONS)
    unmeasured = [result.name for result in results if not result.samples]
    assert len(unmeasured) == left_out
    assert all(name.startswith("more") for name in unmeasured)
    assert slow.now - 1000 <= 60
    notes = " ".join(notes_of(results, OPTIONS, 60))
    assert ("no time for more" in notes) == bool(left_out)


def test_contenders_that_take_long_beyond_their_time_leave_the_needed_their_turn(task: Task, slow: type[Slow]) -> None:
    slow.to_make, slow.extra = 0.5, 6.0
    results = measure.measure(task, several("more", 13, need=1) + several("needed", 2), OPTIONS)
    assert all(result.samples for result in results[-2:])


def test_a_slow_start_is_waited_for_of_mmload_alone(task: Task, slow: type[Slow]) -> None:
    slow.to_make = slow.extra = slow.killed_below = 100.0
    asked = [fake("stock", group="stock"), fake("peer", group="peer", need=2), fake("own", group="mmload")]
    stock, peer, own = measure.measure(task, asked, OPTIONS)
    assert own.samples
    assert not own.failure
    assert not peer.samples
    assert "no answer" in stock.failure


def test_loaders_that_hang_are_given_up_and_their_limits_shrink(task: Task, slow: type[Slow]) -> None:
    slow.extra = 1000.0
    results = measure.measure(task, several("stock", 6, group="stock"), OPTIONS)
    assert all("no answer" in result.failure for result in results)
    assert slow.now - 1000 <= 60 + measure.PATIENCE + 10 * len(results)


def test_the_needed_are_measured_once_even_without_time(
    task: Task, slow: type[Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.to_make = 9.0
    monkeypatch.setitem(SECONDS, False, 1.0)
    results = measure.measure(task, [fake("a", need=2), fake("b"), fake("c")], OPTIONS)
    assert [len(result.samples) for result in results] == [0, 1, 1]
    assert [result.beside for result in results] == [[], [], []]
    notes = notes_of(results, OPTIONS, 30.0)
    assert any(note.startswith("it took 30 s, not 1") for note in notes)
    assert not any(note.startswith("it took") for note in notes_of(results, OPTIONS, 1.05))


def test_the_seconds_that_imports_took_are_part_of_them(task: Task, slow: type[Slow]) -> None:
    measure.measure(task, [fake("a"), fake("b")], OPTIONS, spent=40)
    assert slow.now - 1000 <= 20


def test_what_the_verdict_needs_is_needed(dataset: Dataset, folder: Path) -> None:
    made = entries(task_of(BenchOptions(size=24, threads=2), dataset.path, folder))
    stock = {f"DataLoader + {transforms}, 2 workers" for transforms in ("torchvision", "v2 tensors")}
    own = {f"mmload.Loader, {tier}, 2 threads" for tier in ("disk", "memory")}
    assert {entry.name for entry in made if not entry.need} == stock | own


def test_a_row_that_passes_its_limit_is_disturbed_and_noted() -> None:
    rows = [measured("own", 126), measured("other", 99), measured("limit", 100, "ceiling")]
    set_limits(rows, {"fill": "limit"})
    assert [row.disturbed for row in rows] == [True, False, False]
    assert [note for note in notes_of(rows, OPTIONS, 1.0) if note.startswith("disturbed: own: ")]


@pytest.mark.parametrize(("busy", "said"), [(0.9, True), (0.1, False)])
def test_a_busy_machine_is_part_of_the_verdict(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, busy: float, said: bool
) -> None:
    monkeypatch.setattr("mmload.bench.run.busy_share", lambda: busy)
    monkeypatch.setattr("mmload.bench.run.measure", lambda *_: [measured("own", 5)])
    record = run_on_dataset(dataset.path, None, BenchOptions(size=24))
    assert ("other programs used 90% of the processors" in record.verdict) == said
    assert record.machine["busy_before"] == busy
