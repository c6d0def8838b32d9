"""The time budget of a bench, by a clock that only moves when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fake_contenders import fake

from mmload.bench import measure
from mmload.bench.contender_process import ContenderFault
from mmload.bench.contender_server import LoadSample
from mmload.bench.contenders import ContenderEntry, entries
from mmload.bench.measure import Measurement
from mmload.bench.options import BenchOptions, MeasurementPlan
from mmload.bench.plan import CLOSE_SHARE, OWN_PATIENCE, START_SHARE, Budget, overrun, start_order
from mmload.bench.record import rows_of
from mmload.bench.run import above_limit
from mmload.bench.task import task_of
from mmload.store.dataset import Dataset


@dataclass
class Clock:
    """Seconds that pass when they are told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_and_spent_follows_the_clock() -> None:
    clock = Clock()
    budget = Budget(seconds=60, clock=clock)
    assert (budget.spent, budget.left) == (0, pytest.approx(60 * (1 - CLOSE_SHARE)))
    clock.now += 58
    assert budget.spent == 58
    assert budget.left < 0


def test_a_process_is_started_only_if_all_like_it_fit_the_share_for_starting() -> None:
    clock = Clock()
    budget = Budget(seconds=60, clock=clock)
    assert not budget.room_to_start(0, 0)  # nobody knows yet what one takes
    clock.now += 10
    assert budget.room_to_start(2, 3)  # 5 s each: six are ready after 30
    assert not budget.room_to_start(2, 4)
    clock.now += 60 * START_SHARE
    assert not budget.room_to_start(20, 0)


def test_a_needed_contender_may_take_long_to_be_made_and_another_not() -> None:
    clock = Clock()
    budget = Budget(seconds=30, clock=clock)
    clock.now += 14
    stock, peer = fake("stock", group="stock"), fake("peer", group="peer", need=2)
    assert budget.to_make(stock) == 60  # whatever the others took: the verdict would lose its row
    assert budget.to_make(peer) == 10
    assert Budget(seconds=300, clock=clock).to_make(peer) == 150
    assert budget.to_make(fake("own", group="mmload")) == OWN_PATIENCE


@pytest.mark.parametrize(("seconds", "turns", "least"), [(300, 10, 1.0), (19, 38, 0.25), (20, 0, 1.0)])
def test_a_turn_gets_its_share_and_never_less_than_the_least(seconds: float, turns: int, least: float) -> None:
    clock = Clock()
    budget = Budget(seconds=seconds, clock=clock)
    assert budget.least_turn(turns) == pytest.approx(least)
    assert budget.turn(10, 0.5) == pytest.approx(budget.left / 10)
    clock.now += seconds
    assert budget.turn(10, 0.5) == 0.5
    assert budget.least_turn(turns) == pytest.approx(least)


def test_what_the_verdict_needs_is_started_first(dataset: Dataset, folder: Path) -> None:
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=2, device="cpu"), dataset.path, folder)
    made = entries(task)
    needed = {made[number].name for number in start_order(made) if not made[number].need}
    assert needed == {
        "DataLoader + torchvision, 2 workers",
        "DataLoader + v2 on tensors, 2 workers",
        "mmload.Loader, disk, 2 threads",
        "mmload.Loader, memory, 2 threads",
        "mmload.Loader, subprocess, 2 threads",
    }
    asked = [fake("a", need=3), fake("b", group="stock"), fake("gone", missing="no"), fake("c", need=1)]
    assert start_order([*asked, fake("own", group="mmload")]) == [4, 1, 3, 0]


class Slow:
    """A contender's process that takes seconds of a test's clock."""

    clock: Clock
    to_make: float
    extra: float  # seconds that an epoch takes beyond what it was told

    def __init__(self, entry: ContenderEntry, *_: object) -> None:
        self.entry, self.pid = entry, None

    def start(self) -> None:
        """Nothing: what imports take shows when it is made."""

    def ask(self, name: str, limit: float, tick: Callable[[int], None] | None = None, **more: Any) -> Any:
        """Let the clock go on."""
        if name == "make":
            self.clock.now += self.to_make
            return None
        seconds = more["most"] + self.extra
        self.clock.now += seconds
        return LoadSample(images=10, seconds=seconds, first=0.1, cpu=1.0, epochs=0, complete=False)

    def leave(self) -> None:
        """Nothing."""

    def wait(self, seconds: float) -> None:
        """Nothing."""

    kill = leave


@pytest.mark.parametrize("to_make", [0.1, 4.0, 9.0])
@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_all_of_a_bench_stays_within_its_budget(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, to_make: float, extra: float
) -> None:
    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = to_make, extra
    monkeypatch.setattr(measure, "Worker", Slow)
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    asked = [fake(f"needed {number}") for number in range(3)] + [fake(f"more {number}", need=1) for number in range(13)]
    results = measure.measure(
        task, asked, MeasurementPlan(epochs=1, budget=60.0), None, Budget(seconds=60, clock=clock)
    )
    left_out = [result.name for result in results if result.failure]
    assert all(result.samples for result in results if not result.failure)
    assert clock.now - 1000 <= 60
    assert all(name.startswith("more") for name in left_out)
    assert len(left_out) == {0.1: 0, 4.0: 9, 9.0: 13}[to_make]
    assert all(result.failure == told for result in results if result.failure)


told = "the time budget of 60 s has no room for it; raise --time-budget"


def test_contenders_that_take_long_beyond_their_time_leave_room_for_the_needed(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = 0.5, 6.0
    monkeypatch.setattr(measure, "Worker", Slow)
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    asked = [fake(f"more {number}", need=1) for number in range(13)] + [fake(f"needed {number}") for number in range(2)]
    results = measure.measure(
        task, asked, MeasurementPlan(epochs=1, budget=60.0), None, Budget(seconds=60, clock=clock)
    )
    assert all(result.samples for result in results[-2:])
    assert all(result.failure == told for result in results if not result.samples)
    assert clock.now - 1000 <= 60


def test_the_time_that_imports_took_is_part_of_it() -> None:
    clock = Clock()
    assert Budget(seconds=60, clock=clock, began=990.0).spent == 10
    peer, stock, own = fake("a", group="peer", need=1), fake("b", group="stock"), fake("c", group="mmload")
    assert Budget(seconds=60, clock=clock).patience(30, peer) == 30
    late = Budget(seconds=60, clock=clock, began=943.0)
    assert [late.patience(30, entry) for entry in (peer, stock, own)] == [5, 30, OWN_PATIENCE]


def test_own_rows_are_measured_on_a_machine_that_is_too_slow_for_the_budget(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Limited(Slow):
        """A process that is killed where the limit of a request is shorter than the answer takes."""

        def ask(self, name: str, limit: float, tick: Callable[[int], None] | None = None, **more: Any) -> Any:
            if limit < 100:
                raise ContenderFault(f"no answer within {limit:.0f} s")
            return super().ask(name, limit, tick, **more)

    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = 100.0, 100.0
    monkeypatch.setattr(measure, "Worker", Limited)
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    asked = [fake("stock", group="stock"), fake("peer", group="peer", need=2), fake("own", group="mmload")]
    plan = MeasurementPlan(epochs=1, budget=60.0)
    stock, peer, own = measure.measure(task, asked, plan, None, Budget(seconds=60, clock=clock))
    assert own.samples
    assert not own.failure
    assert not stock.samples
    assert not peer.samples


class Busy(Slow):
    """A contender's process on a machine that is busy until the second turn of the ceiling."""

    def ask(self, name: str, limit: float, tick: Callable[[int], None] | None = None, **more: Any) -> Any:
        """Half the rate for the ceiling's warm-up and first turn."""
        sample = super().ask(name, limit, tick, **more)
        if sample is None or self.entry.group != "ceiling":
            return sample
        self.turns = getattr(self, "turns", 0) + 1
        return replace(sample, images=20 if self.turns > 2 else 5)


def test_a_limit_that_was_passed_is_measured_again(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = 0.1, -0.1
    monkeypatch.setattr(measure, "Worker", Busy)
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    asked = [fake("own"), fake("limit", group="ceiling"), fake("other limit", group="ceiling", need=2)]
    results = measure.measure(
        task, asked, MeasurementPlan(epochs=1, budget=60.0), None, Budget(seconds=60, clock=clock)
    )
    assert [len(result.samples) for result in results] == [1, 2, 1]
    limit = results[1]
    assert limit.rate == max(limit.rates) > min(limit.rates)
    rows = rows_of(task, results, {"fill": "limit"}, cold=False)
    assert rows[0].of_ceiling == pytest.approx(results[0].rate / limit.rate)
    assert above_limit(rows) == ""
    assert above_limit([replace(rows[0], of_ceiling=1.25)]).startswith("own is faster than its limit, limit: ")


def test_the_needed_are_measured_even_without_time(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = 9.0, 0.0
    monkeypatch.setattr(measure, "Worker", Slow)
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    results: list[Measurement] = measure.measure(
        task,
        [fake("a", need=2), fake("b"), fake("c")],
        MeasurementPlan(epochs=3, budget=1.0),
        None,
        Budget(seconds=1, clock=clock),
    )
    assert [len(result.samples) for result in results] == [0, 1, 1]


def test_a_bench_that_took_longer_says_so() -> None:
    clock = Clock()
    budget = Budget(seconds=60, clock=clock)
    clock.now += 60.4  # "60 s and not the 60 s"
    assert overrun(budget) == ""
    clock.now += 24.6
    assert overrun(budget).startswith("it took 85 s and not the 60 s of its time budget")
    assert overrun(budget).endswith("give --time-budget 90 for the others")
