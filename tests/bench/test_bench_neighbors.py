"""Contenders beside threads that do something else: what is counted, what is shown, and what the budget allows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import complaint, mmload
from fake_contenders import fake
from test_bench_budget import Clock, Slow

from mmload.bench import measure
from mmload.bench.contender_server import ContenderServer
from mmload.bench.measure import Measurement
from mmload.bench.options import BenchOptions, MeasurementPlan
from mmload.bench.plan import Budget
from mmload.bench.record import Record, Row, read_record, rows_of, write_json
from mmload.bench.report import beside, table
from mmload.bench.run import notes_of
from mmload.bench.task import Task, task_of
from mmload.bench.train import NEIGHBORS, BesideSample, Neighbor, running
from mmload.errors import MmloadError, UsageError
from mmload.store.dataset import Dataset


@pytest.fixture(scope="module")
def task(dataset: Dataset) -> Task:
    """Crops of 24 from 18 rows."""
    return task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)


def turn(neighbor: str, images: int, keeps: float) -> BesideSample:
    """A turn of two seconds."""
    return BesideSample(neighbor=neighbor, images=images, seconds=2.0, pieces=round(keeps * 2000), alone=1000.0)


def neighbors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mmload-bench-neighbor"]


@pytest.mark.parametrize("name", NEIGHBORS)
def test_a_neighbor_works_until_its_block_ends(name: str) -> None:
    with running(name) as neighbor:
        assert neighbor.speed(1.0) > 0  # on a busy machine it waits for its first turn
        assert len(neighbors()) == 1
    assert neighbors() == []


def test_a_neighbor_that_does_nothing_is_an_error() -> None:
    enough = threading.Event()
    neighbor = Neighbor(lambda: bool(enough.wait()) and None)
    with pytest.raises(MmloadError, match=r"the other thread did nothing in 0\.01 s"):
        neighbor.speed(0.01)
    enough.set()
    neighbor.stop()


@pytest.mark.parametrize("name", NEIGHBORS)
def test_a_contender_is_measured_beside_a_neighbor(task: Task, tmp_path: Path, name: str) -> None:
    server = ContenderServer(fake("good"), task, tmp_path)
    sample = server.beside(neighbor=name, most=0.2)
    assert neighbors() == []
    assert sample.neighbor == name
    assert sample.images >= 4
    assert sample.images % 4 == 0
    assert sample.rate == sample.images / sample.seconds
    assert sample.alone > 0
    assert sample.keeps == sample.pieces / sample.seconds / sample.alone
    with pytest.raises(MmloadError, match="an epoch gave no batch"):
        ContenderServer(fake("empty", "empty"), task, tmp_path).beside(neighbor=name, most=0.2)
    assert neighbors() == []


@pytest.mark.slow
def test_a_bench_measures_each_contender_beside_each_neighbor_in_every_round(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_BESIDE_LONG_ENOUGH", 0.4)
    entries = [fake("good"), fake("limit", group="ceiling"), fake("raises", "raises", "stock")]
    plan = MeasurementPlan(epochs=2, budget=600.0, beside=True)  # a busy machine has to have room for all
    good, limit, raises = measure.measure(task, entries, plan)
    assert [sample.neighbor for sample in good.beside] == [*NEIGHBORS] * 2
    assert (limit.beside, raises.beside) == ([], [])
    row = rows_of(task, [good], {}, cold=False)[0]
    assert {name: len(rates) for name, rates in row.beside.items()} == dict.fromkeys(NEIGHBORS, 2)
    assert all(share > 0 for shares in row.neighbors_keep.values() for share in shares)
    assert [each["images"] for each in row.beside_turns] == [sample.images for sample in good.beside]


@pytest.mark.parametrize(("to_make", "beside"), [(0.1, True), (19.0, False)])
def test_turns_beside_a_neighbor_stay_within_the_budget(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, to_make: float, beside: bool
) -> None:
    task = task_of(BenchOptions(images=18, crop=24, batch_size=4, threads=1, device="cpu"), dataset.path, None)
    clock = Slow.clock = Clock()
    Slow.to_make, Slow.extra = to_make, 0.0
    monkeypatch.setattr(measure, "Worker", Slow)
    plan = MeasurementPlan(epochs=2, budget=60.0, beside=True)
    budget = Budget(seconds=60, clock=clock)
    results = measure.measure(task, [fake("a"), fake("b"), fake("c")], plan, None, budget)
    assert [bool(result.beside) for result in results] == [beside] * 3
    assert [note for note in notes_of(results, plan) if "beside" in note] == (
        [] if beside else ["3 loaders not measured beside other threads: " + no_room]
    )
    if beside:
        assert clock.now - 1000 <= 60


no_room = "the time budget of 60 s has no room for that; raise --time-budget"


def test_the_table_has_the_rate_beside_each_neighbor_and_what_that_keeps(task: Task, tmp_path: Path) -> None:
    turns = [turn("python", images, 0.9) for images in (180, 200, 240)]
    turns += [turn("torch", 13_000, 0.45)]
    rows = rows_of(task, [Measurement(entry=fake("own", differs="a little"), beside=turns)], {}, cold=False)
    rows = [replace(rows[0], images_per_second=7000.0, epochs=[7000.0]), Row(name="fill", group="ceiling")]
    record = Record(settings={}, machine={}, versions={}, rows=rows, verdict="So it is.")
    assert [line.split() for line in beside(record)] == [
        ["beside", "Python", "beside", "torch", "ops"],
        ["images/s", "(it", "keeps)", "images/s", "(it", "keeps)"],
        ["own*", "100", "±15%", "(90%)", "6,500", "(45%)"],
    ]
    text = table(record)
    assert max(map(len, text.splitlines())) <= 80
    assert "beside: while another thread of the same process runs pure Python" in text
    assert beside(replace(record, rows=[replace(rows[0], beside={"torch": [3.0]})]))[-1].split() == [
        "own*",
        "-",
        "3.0",
        "(45%)",
    ]
    assert "beside" not in table(replace(record, rows=[replace(rows[0], beside={})]))
    write_json(record.as_json(), tmp_path / "a.json")
    assert read_record(tmp_path / "a.json") == record
    for wrong in ({"python": ["many"]}, [1.0]):
        damaged = replace(record, rows=[replace(rows[0], beside=wrong)])  # type: ignore[arg-type]  # on purpose
        write_json(damaged.as_json(), tmp_path / "a.json")
        with pytest.raises(UsageError, match="is a damaged record"):
            read_record(tmp_path / "a.json")


def test_neighbors_are_left_out_of_quick_and_cold_benches_unless_asked_for() -> None:
    assert [BenchOptions(**more).plan().beside for more in ({}, {"quick": True}, {"cold": True})] == [
        True,
        False,
        False,
    ]
    assert (BenchOptions(beside=False).plan().beside, BenchOptions(beside=True, quick=True).plan().beside) == (
        False,
        True,
    )
    assert [BenchOptions(**more).plan().budget for more in ({}, {"beside": False}, {"quick": True})] == [600, 300, 60]
    with pytest.raises(UsageError, match="--beside is measured with a warm page cache, and --cold evicts it"):
        BenchOptions(beside=True, cold=True)
    assert "--cold evicts it" in complaint(mmload("bench", "nowhere", "--beside", "--cold"), 2)
