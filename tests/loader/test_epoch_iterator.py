"""One pass over an epoch: threads, forks, errors, interruptions and ends, each right or one clear error."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from conftest import crop_collate
from torch.utils.data import DataLoader, IterableDataset, Sampler

from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.loader import Loader, epoch_iterator
from mmload.loader import loader as loader_module
from mmload.loader.epoch_iterator import WorkerPool
from mmload.store.dataset import Dataset


def rows_of(batches: Any) -> list[int]:
    """The rows of all batches that are left."""
    return [row for batch in batches for row in batch.ids.tolist()]


def at_once(*tasks: Callable[[], object]) -> list[object]:
    """What the tasks return, each called in a thread of its own at the same moment."""
    barrier, results = threading.Barrier(len(tasks)), [None] * len(tasks)

    def call(place: int) -> None:
        barrier.wait()
        results[place] = tasks[place]()

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


def test_threads_that_begin_at_once_share_one_worker_and_get_epochs_of_their_own(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    worker, pool = loader_module.BatchWorker, epoch_iterator.single_op_threads

    def slow_worker(*args: Any, **options: Any) -> Any:
        made.append("worker")
        time.sleep(0.05)
        return worker(*args, **options)

    def slow_pool(*args: Any) -> Any:
        made.append("pool")
        time.sleep(0.05)
        return pool(*args)

    monkeypatch.setattr(loader_module, "BatchWorker", slow_worker)
    monkeypatch.setattr(epoch_iterator, "single_op_threads", slow_pool)
    with Loader(dataset, batch_size=4, shuffle=True, threads=1) as loader:
        got = at_once(*[lambda: rows_of(loader)] * 4)
        assert sorted(made) == ["pool", "worker"]
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


def test_an_iterator_that_goes_on_after_set_epoch_says_where_training_is(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, threads=1) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(7)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (7, 0)
        next(batches)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (0, 8)
        assert loader.epoch == 7


def test_a_loader_can_be_pickled_and_the_copy_goes_on_by_itself(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, shuffle=True, seed=3, collate=crop_collate(), threads=1) as loader:
        batches = iter(loader)
        next(batches)
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.state_dict() == loader.state_dict()
            rows_of(batches)
            for mine, theirs in zip(loader, again, strict=True):
                assert torch.equal(mine.images, theirs.images)


def in_a_fork(task: Callable[[], bool]) -> bool:
    """Whether ``task`` is true in a forked process; False too if it does not end."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if task() else 1)
        finally:
            os._exit(2)
    for _ in range(300):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_forked_process_begins_an_epoch_of_its_own(dataset: Dataset, tier: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "tier": tier, "threads": 2}
    with Loader(dataset, collate=crop_collate(), **options) as loader, Loader(dataset, **options) as plain:
        rows_of(plain)
        expected = rows_of(plain)
        batches = iter(loader)
        next(batches)
        lock = cast(WorkerPool, loader._usable_pool()).worker._lock
        lock.acquire()  # as a thread of this process may, when it forks
        try:
            assert in_a_fork(lambda: rows_of(loader) == expected)
        finally:
            lock.release()
        assert len(rows_of(batches)) == 14


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_iterator_of_another_process_says_so(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=4, threads=1) as loader:
        batches = iter(loader)
        next(batches)

        def child() -> bool:
            try:
                next(batches)
            except UsageError as error:
                return "another process" in str(error)
            return False

        assert in_a_fork(child)
        assert rows_of(batches) == list(range(4, 18))


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
        stock = DataLoader(Stream(loader), batch_size=None, num_workers=1)
        assert rows_of(stock) == rows_of(plain)


def test_a_closed_loader_ends_its_iterators_with_a_clear_error(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=2, threads=1, prefetch=1)
    batches = iter(loader)
    next(batches)
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
    waits, goes_on = threading.Event(), threading.Event()

    def collate(batch: Batch) -> Batch:
        waits.set()
        goes_on.wait(timeout=60)
        return batch

    loader = Loader(dataset, batch_size=2, threads=1, prefetch=2, collate=collate)
    batches = iter(loader)

    def consume() -> str:
        try:
            rows_of(batches)
        except UsageError as error:
            return str(error)
        return "no error"

    def close() -> None:
        waits.wait(timeout=60)
        threading.Timer(0.1, goes_on.set).start()
        loader.close()

    assert "closed in the middle" in str(at_once(consume, close)[0])


def test_closing_again_and_again_keeps_nothing(dataset: Dataset) -> None:
    import weakref

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
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                next(batches)
            assert loader.state_dict() == state
        fails.clear()
        assert rows_of(batches) == list(range(4, 18))


@pytest.mark.parametrize("argument", ["collate", "returns"])
def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch(dataset: Dataset, argument: str) -> None:
    options: Any = {argument: lambda batch: next(iter(()))}
    with (
        Loader(dataset, batch_size=4, threads=1, **options) as loader,
        pytest.raises(RuntimeError, match="collate or returns raised StopIteration"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("where", ["waiting", "finishing"])
def test_an_interrupted_iteration_loses_no_batch(dataset: Dataset, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.transforms import v2

    from mmload.augment import PerSample
    from mmload.augment.collate import Collate, PreparedBatch

    collate = Collate(PerSample(v2.RandomHorizontalFlip(0.5)), PerSample(v2.RandomInvert(0.5)))
    with Loader(dataset, batch_size=4, threads=1, collate=collate) as plain:
        expected = [batch.images for batch in plain]
    interrupts = [True]
    finish = PreparedBatch.finish

    def interrupted(self: PreparedBatch, out: torch.Tensor) -> Batch:
        made = finish(self, out)
        if where == "finishing" and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(PreparedBatch, "finish", interrupted)
    with Loader(dataset, batch_size=4, threads=1, collate=collate) as loader:
        batches = iter(loader)
        got = [] if where == "finishing" else [next(batches).images]
        if where == "waiting":
            wait = epoch_iterator.BatchJob.wait

            def ctrl_c(self: epoch_iterator.BatchJob) -> None:
                if interrupts:
                    interrupts.clear()
                    raise KeyboardInterrupt
                wait(self)

            monkeypatch.setattr(epoch_iterator.BatchJob, "wait", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert loader.state_dict()["samples"] == 4 * len(got)
        got += [batch.images for batch in batches]
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))


def test_an_iterator_that_is_forgotten_ends_its_work_and_with_its_loader_the_threads(dataset: Dataset) -> None:
    before = set(threading.enumerate())
    batches = iter(Loader(dataset, batch_size=1, threads=2, collate=crop_collate()))
    next(batches)
    ours = set(threading.enumerate()) - before
    assert len(ours) == 2
    del batches
    gc.collect()
    for thread in ours:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in ours)


FORGETS = """
import sys, time
from mmload import Loader, open
from mmload.loader.batch_worker import BatchWorker

make = BatchWorker.make

def slow(self, *arguments):
    time.sleep(1)
    made = make(self, *arguments)
    print("made")
    return made

def forget():
    batches = iter(Loader(open(sys.argv[1])["train"], batch_size=1, threads=1, prefetch=1))
    next(batches)
    time.sleep(0.3)  # the thread makes the next one

BatchWorker.make = slow
forget()
"""


def test_a_process_ends_after_the_threads_of_a_forgotten_loader(dataset: Dataset) -> None:
    command = [sys.executable, "-c", FORGETS, str(dataset.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["made"] * 2
    assert not done.stderr


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


def test_daemon_threads_that_read_batches_end_with_python_and_report_nothing(dataset: Dataset) -> None:
    command = [sys.executable, "-c", DAEMON, str(dataset.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""


class Generated(Sampler[int]):
    """A sampler whose ``__iter__`` is a generator: it reads its epoch when the first row is asked for."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        yield from range(self.epoch, self.epoch + 6)


def test_two_epochs_at_once_of_a_sampler_that_is_a_generator(dataset: Dataset) -> None:
    with Loader(dataset, batch_size=2, order=Generated(), threads=1) as loader:
        first, second = iter(loader), iter(loader)
        assert (rows_of(second), rows_of(first)) == (list(range(1, 7)), list(range(6)))
