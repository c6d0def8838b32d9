"""Contenders of every kind of luck: measured, crashed, hung, wrong, missing; and what becomes of the others."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_contenders import alive, fake, measured, tiny_task, tree
from torch import Tensor
from waiting import until

from mmload.bench import ceilings
from mmload.bench import contender_process as process
from mmload.bench.ceilings import cached_entry, ceiling_entries
from mmload.bench.contender_process import _keep_below, reason
from mmload.bench.contender_server import ContenderServer, TrainSample
from mmload.bench.machine import processor_seconds
from mmload.bench.measure import measure
from mmload.bench.options import BenchOptions
from mmload.bench.record import Row, set_limits
from mmload.bench.task import Task
from mmload.bench.train import SMALL
from mmload.errors import MmloadError
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(dataset: Dataset) -> Task:
    """Crops of 24 from 18 rows."""
    return tiny_task(dataset.path)


@pytest.fixture(scope="module")
def results(task: Task) -> dict[str, Row]:
    """One bench of them all."""
    troubles = ("slow", "cannot", "printer", "hangs", "crashes", "raises", "empty", "small")
    entries = [fake(name, name, "peer", need=1) for name in troubles]  # what is needed may take minutes to answer
    options = BenchOptions(full=True)  # a busy machine has to have room for all
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LONGEST_TURN": 2.0, "ROUNDS": 2, "PATIENCE": 1.0}.items():
            patch.setattr(f"mmload.bench.measure.{name}", value)
        return {result.name: result for result in measure(task, [*entries, fake("good", "", "stock")], options)}


def test_a_contender_in_trouble_is_a_row_that_says_which(results: dict[str, Row]) -> None:
    expected = {
        "cannot": "its folder is gone",
        "printer": "its process died (exit code 3): the library says so",
        "hangs": "no answer within",
        "crashes": "its process died (signal SIGSEGV)",
        "raises": "RuntimeError: out of ideas",
        "empty": "an epoch gave no batch",
        "small": "it gives images [3, 3, 3] float32 on cpu, the task is [3, 24, 24] float32 on cpu",
    }
    for name, failure in expected.items():
        assert failure in results[name].failure
        assert results[name].samples == []


def test_the_others_go_on_and_a_slow_one_is_cut_short(results: dict[str, Row]) -> None:
    good, slow = results["good"], results["slow"]
    assert (good.failure, len(good.samples), good.warmed) == ("", 2, True)
    assert all(sample.complete and sample.images % 12 == 0 for sample in good.samples)
    assert min(good.epochs) <= good.rate <= max(good.epochs)
    assert good.cpu > 0
    assert all(sample.rate > 0 and sample.keeps > 0 for sample in good.beside)
    assert slow.samples
    assert not all(sample.complete for sample in slow.samples)
    assert 1 < slow.rate < 20


def test_seconds_count_children_that_live_and_that_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", burn], check=True)
    ended = processor_seconds()
    with subprocess.Popen([sys.executable, "-c", burn + "print(flush=True); time.sleep(60)"], stdout=-1) as child:
        child.stdout.readline()
        living = processor_seconds()
        child.kill()
    assert min(ended - before, living - ended) > 0.25


def test_nothing_is_left_running_when_a_contender_is_ended(task: Task, tmp_path: Path) -> None:
    worker = process.Worker(fake("parent", "parent"), task, tmp_path, tmp_path / "log")
    worker.start()
    worker.ask("make", 60)
    worker.ask("epoch", 60, least=0.0, most=1.0)
    (pid,) = (child.pid for child in multiprocessing.active_children() if child.name == "parent")
    numbers = tree(pid)
    assert len(numbers) == 2
    worker.kill()
    until(lambda: not any(map(alive, numbers)))


@pytest.mark.parametrize("short", ["fill", "copy", "disk"])
def test_every_ceiling_gives_as_many_images_as_an_epoch(task: Task, tmp_path: Path, short: str) -> None:
    task = replace(task, augment="none")
    sample = ContenderServer(ceiling_entries(task, cold=True)[short], task, tmp_path).epoch(least=0.0, most=60.0)
    assert sample.images == {"fill": 20, "copy": 20, "disk": 18}[short]
    assert sample.rate > 0


def test_the_output_is_filled_as_mmload_writes_it(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ceiling_entries(task, cold=False)["fill"].name.startswith("fill_ of the output, ")
    monkeypatch.setattr(ceilings, "past_caches", lambda count, sample: True)
    entry = ceiling_entries(task, cold=False)["fill"]
    assert entry.name.startswith("uncached fill of output, ")
    images = [images.clone() for images, _ in entry.make(task, tmp_path)()]
    assert len(images) == 5
    assert all(torch.equal(one, torch.ones(4, 3 * 24 * 24)) for one in images)


def test_a_ceiling_is_the_lowest_that_images_have_to_pass() -> None:
    rates = {"fill": 1000.0, "copy": 5000.0, "disk": 100.0}
    names = {"fill": "F", "copy": "C", "disk": "D"}
    top, *_ = ceilings_ = [measured(names[short], rate, "ceiling") for short, rate in rates.items()]
    own, old = measured("own", 50.0), measured("old", 20.0, "stock")
    set_limits([*ceilings_, own, old], {"fill": "F", "copy": "C"})
    assert (own.ceiling, own.of_ceiling) == ("F", pytest.approx(0.05))
    set_limits([*ceilings_, own, old], names)
    assert (own.ceiling, own.of_ceiling) == ("D", pytest.approx(0.5))
    assert (old.ceiling, top.ceiling) == ("F", "")


def test_training_tells_how_long_it_waited(task: Task, tmp_path: Path) -> None:
    waits: list[TrainSample] = []
    for entry in (cached_entry(), fake("slow", "slow")):
        waits.append(ContenderServer(entry, task, tmp_path).train(model="squeezenet1_1", most=0.5))
    cached, slow = waits
    assert 0.4 * slow.steps <= slow.waited < slow.seconds  # it sleeps as long before each batch
    assert slow.share == slow.waited / slow.seconds
    assert cached.waited / cached.steps < 0.4
    assert (slow.images, cached.images) == (4 * slow.steps, 4 * cached.steps)


def test_batches_that_come_at_once_are_measured_as_fast_as_they_are_made(task: Task, tmp_path: Path) -> None:
    server = ContenderServer(fake("bursts", "bursts", ahead=4), task, tmp_path)
    turns = [server.epoch(least=0.0, most=0.1), server.beside(most=0.1), server.train(model=SMALL, most=0.1)]
    assert [turn.images for turn in turns] == [16, 16, 16]  # four batches of four
    assert all(turn.rate <= 16 / 0.4 for turn in turns)


def test_training_is_compared_with_training_without_any_loading(task: Task, tmp_path: Path) -> None:
    server = ContenderServer(cached_entry(), task, tmp_path)
    turns = [server.train(model=SMALL, most=0.2) for _ in range(3)]
    fast = [TrainSample(images=1000, seconds=0.001, waited=0.0, steps=1)]
    unloaded = Row(name="no loading", group="cached", training=turns)
    own = Row(name="own", group="mmload", training=fast)
    set_limits([unloaded, own], {})
    assert unloaded.step_seconds == sorted(turn.seconds / turn.steps for turn in turns)[1]
    assert unloaded.trained == max(turn.rate for turn in turns)
    assert own.of_model == 1e6 / unloaded.trained
    assert (own.training_disturbed, unloaded.training_disturbed) == (True, False)


def test_only_the_fastest_of_each_kind_is_trained(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmload.bench.measure.LONGEST_TURN", 0.5)
    entries = [fake("slower", "slow", "stock"), fake("faster", "", "stock"), fake("own"), cached_entry()]
    monkeypatch.setattr("mmload.bench.measure.ROUNDS", 1)
    results = {result.name: result for result in measure(task, entries, BenchOptions(full=True, train=SMALL))}
    assert {name for name, result in results.items() if result.training} == {"faster", "own", cached_entry().name}


def test_a_contender_is_measured_beside_a_thread_of_python_which_then_ends(task: Task, tmp_path: Path) -> None:
    sample = ContenderServer(fake("good"), task, tmp_path).beside(most=0.2)
    assert sample.images >= 4
    assert sample.images % 4 == 0
    assert sample.rate == sample.images / sample.seconds
    assert sample.keeps == sample.pieces / sample.seconds / sample.alone > 0
    with pytest.raises(MmloadError, match="an epoch gave no batch"):
        ContenderServer(fake("empty", "empty"), task, tmp_path).beside(most=0.2)
    assert "mmload-bench-neighbor" not in [thread.name for thread in threading.enumerate()]


def test_temporary_files_of_a_contender_are_the_benchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", None)
    deep = tmp_path / ("deep" * 30)
    _keep_below(deep)
    assert os.environ["TMPDIR"] == "/elsewhere"  # a socket's name would be too long
    _keep_below(Path("/short"))
    assert (os.environ["TMPDIR"], tempfile.gettempdir()) == ("/short", "/short")


class _Broken(torch.utils.data.Dataset[Tensor]):
    def __getitem__(self, index: int) -> Tensor:
        raise ValueError("row 3:\nis torn")


def test_what_a_worker_of_a_dataloader_raised_is_one_line() -> None:
    loader = torch.utils.data.DataLoader(_Broken(), sampler=[0], num_workers=1)
    with pytest.raises(ValueError, match="Traceback") as raised:
        next(iter(loader))
    for error, line in (
        (raised.value, "ValueError: row 3: is torn"),
        (ValueError("one\n two"), "ValueError: one two"),
        (MmloadError("its folder\nis gone"), "its folder is gone"),
        (MmloadError("Traceback (most recent call last):\n  File\nKeyError: 3"), "KeyError: 3"),
    ):
        assert reason(error) == line


_KILLED = """
import pickle
from pathlib import Path

from mmload.bench.contender_process import ContenderFault, Worker
from fake_contenders import fake, tiny_task

if __name__ == "__main__":
    task = tiny_task(Path("{dataset}"))
    worker = Worker(fake("held", "semaphores"), task, Path("."), Path("log"))
    worker.start()
    worker.ask("make", 120.0)
    worker.kill()
"""


def test_a_killed_contender_leaves_no_warning_of_its_semaphores(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_KILLED.replace("{dataset}", str(dataset.path)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
