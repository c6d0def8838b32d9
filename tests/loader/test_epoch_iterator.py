"""One pass over an epoch: threads, forks, errors, interruptions and ends, each right or one clear error."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from conftest import crop_collate
from forked_program import in_a_fork
from loaded import begun, rows_of
from meanwhile import once
from torch.utils.data import DataLoader, IterableDataset
from torchvision.transforms import v2

from mmload.augment import PerSample
from mmload.augment.collate import Collate, PreparedBatch
from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.loader import Loader, epoch_iterator
from mmload.loader import loader as loader_module
from mmload.loader.epoch_iterator import BatchJob, WorkerPool
from mmload.store.dataset import Dataset


def at_once(*tasks: Callable[[], object]) -> list[object]:
    """What the tasks return, each called in a thread of its own at the same moment."""
    barrier = threading.Barrier(len(tasks))

    def call(task: Callable[[], object]) -> object:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(call, tasks, timeout=60))


def position(loader: Loader) -> tuple[int, int]:
    """Epoch and samples of a loader's state."""
    state = loader.state_dict()
    return state["epoch"], state["samples"]


def test_threads_that_begin_at_once_share_one_worker_and_get_epochs_of_their_own(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def slowed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **options: Any) -> Any:
            made.append(name)
            time.sleep(0.05)
            return real(*args, **options)

        return slow

    for where, name in ((loader_module, "BatchWorker"), (epoch_iterator, "single_op_threads")):
        monkeypatch.setattr(where, name, slowed(name, getattr(where, name)))
    with Loader(dataset, batch_size=4, shuffle=True, threads=1) as loader:
        got = at_once(*[lambda: rows_of(loader)] * 4)
        assert sorted(made) == ["BatchWorker", "single_op_threads"]
        assert loader.epoch == 4
    with Loader(dataset, batch_size=4, shuffle=True, threads=1) as plain:
        assert sorted(got) == sorted(rows_of(plain) for _ in range(4))  # type: ignore[type-var]  # lists of int


def test_threads_may_share_an_iterator_and_each_batch_goes_to_one(dataset: Dataset) -> None:
    for _ in range(5):
        with Loader(dataset, batch_size=1, shuffle=True, threads=2) as loader:
            batches = iter(loader)
            got = at_once(*[lambda batches=batches: rows_of(batches)] * 3)
            assert sorted(sum(got, [])) == list(range(18))  # type: ignore[arg-type]
            assert loader.state_dict()["samples"] == 18


def test_the_state_is_that_of_the_iterator_begun_last_until_another_epoch_is_set(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, threads=1) as loader:
        first, second = iter(loader), iter(loader)
        for batches in (second, first, first):
            next(batches)
        assert position(loader) == (1, 4)
        loader.set_epoch(7)
        assert position(loader) == (7, 0)
        next(second)
        assert position(loader) == (1, 8)  # where training is
        assert loader.epoch == 7


def test_a_loader_can_be_pickled_and_the_copy_goes_on_by_itself(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, shuffle=True, seed=3, collate=crop_collate(), threads=1) as loader:
        batches = begun(loader)
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.state_dict() == loader.state_dict()
            rows_of(batches)
            for mine, theirs in zip(loader, again, strict=True):
                assert torch.equal(mine.images, theirs.images)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_forked_process_begins_an_epoch_of_its_own_and_goes_on_with_no_other(dataset: Dataset, tier: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "tier": tier, "threads": 2}
    with Loader(dataset, collate=crop_collate(), **options) as loader, Loader(dataset, **options) as plain:
        rows_of(plain)
        expected = rows_of(plain)
        batches = begun(loader)

        def child() -> None:
            assert rows_of(loader) == expected
            with pytest.raises(UsageError, match="another process"):
                next(batches)

        with cast(WorkerPool, loader._usable_pool()).worker._lock:  # as a thread of this process may, when it forks
            assert in_a_fork(child)
        assert len(rows_of(batches)) == 14


class Stream(IterableDataset[Batch]):
    """A loader inside of a DataLoader."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_dataloaders_worker_may_run_a_loader_that_was_used_before(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, shuffle=True, threads=1) as loader, Loader(dataset, shuffle=True) as plain:
        rows_of(loader)
        rows_of(plain)
        assert rows_of(DataLoader(Stream(loader), batch_size=None, num_workers=1)) == rows_of(plain)


def test_a_closed_loader_ends_its_iterators_with_a_clear_error(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=2, threads=1, prefetch=1)
    batches = begun(loader)
    state = loader.state_dict()
    loader.close()
    for _ in range(2):
        with pytest.raises(UsageError, match="closed in the middle of an epoch; begin another"):
            next(batches)
    assert loader.state_dict() == state
    assert rows_of(loader) == list(range(18))
    with pytest.raises(UsageError, match="closed"):
        next(batches)
    loader.close()


def test_a_loader_that_is_closed_while_another_thread_waits_says_so(dataset: Dataset) -> None:
    begun = threading.Event()

    def slow(batch: Batch) -> Batch:
        begun.set()
        time.sleep(0.3)
        return batch

    loader = Loader(dataset, batch_size=1, threads=1, prefetch=2, collate=slow)  # 18 batches: it is closed before
    batches = iter(loader)

    def consume() -> None:
        with pytest.raises(UsageError, match="closed in the middle"):
            rows_of(batches)

    def close() -> None:
        begun.wait(timeout=60)
        loader.close()

    at_once(consume, close)


def test_closing_again_and_again_keeps_nothing(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=9, threads=1)
    before = len(weakref.finalize._registry)  # type: ignore[attr-defined]
    for _ in range(5):
        rows_of(loader)
        loader.close()
    gc.collect()
    assert len(weakref.finalize._registry) <= before  # type: ignore[attr-defined]


def test_after_an_error_the_same_batch_comes_next(dataset: Dataset) -> None:
    fails = {4}

    def collate(batch: Batch) -> Batch:
        if fails & set(batch.ids.tolist()):
            raise ZeroDivisionError("of my own")
        return batch

    with Loader(dataset, batch_size=4, threads=2, collate=collate) as loader:
        batches = begun(loader)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                next(batches)
            assert position(loader) == (0, 4)
        fails.clear()
        assert rows_of(batches) == list(range(4, 18))


@pytest.mark.parametrize("argument", ["collate", "returns"])
def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch(dataset: Dataset, argument: str) -> None:
    options: Any = {argument: lambda batch: next(iter(()))}
    with pytest.raises(RuntimeError, match="collate or returns raised StopIteration"):
        next(iter(Loader(dataset, batch_size=4, threads=1, **options)))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "name", "when"),
    [(BatchJob, "wait", "before"), (PreparedBatch, "finish", "after")],
    ids=["waiting", "finishing"],
)
def test_an_interrupted_iteration_loses_no_batch(
    dataset: Dataset, where: type, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collate = Collate(PerSample(v2.RandomHorizontalFlip(0.5)), PerSample(v2.RandomInvert(0.5)))
    expected = [batch.images for batch in Loader(dataset, batch_size=4, threads=1, collate=collate)]
    with Loader(dataset, batch_size=4, threads=1, collate=collate) as loader:
        batches = iter(loader)
        got = [next(batches).images]
        once(monkeypatch, where, name, **{when: interrupt})
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert position(loader) == (0, 4)
        got += [batch.images for batch in batches]
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))


FORGETS = """
import sys, threading, time
from mmload import Loader

begun, forgotten = threading.Event(), threading.Event()

def slow(batch):
    if batch.ids.tolist() == [1]:
        begun.set()
        forgotten.wait()
        time.sleep(0.5)  # while the process ends
    print(batch.ids.tolist())
    return batch

def forget():
    batches = iter(Loader(sys.argv[1], batch_size=1, threads=1, prefetch=1, collate=slow))
    next(batches)
    begun.wait()

forget()
forgotten.set()
"""
DAEMON = """
import sys, threading, time
from mmload import Loader

def slow(batch):
    time.sleep(0.2)
    return batch

loaders = [Loader(sys.argv[1], batch_size=1, threads=1, prefetch=prefetch, collate=slow) for prefetch in (0, 5)]
for loader in loaders:
    threading.Thread(target=list, args=(loader,), daemon=True).start()
time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("program", "printed"), [(FORGETS, "[0]\n[1]\n"), (DAEMON, "")], ids=["a forgotten loader", "daemon threads"]
)
def test_a_process_ends_after_the_threads_of_its_loaders_and_reports_nothing(
    dataset: Dataset, program: str, printed: str
) -> None:
    command = [sys.executable, "-c", program, str(dataset.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == (printed, "")
