"""One pass over an epoch: batches that worker threads make a few ahead, in order; its position, and the state of it.

An :class:`EpochIterator` advances the :class:`Position` of its pass. The :class:`Progress` of a loader refers to that
of the pass that was begun last, and says where the next begins; a :data:`State` is what a checkpoint keeps of it.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeAlias

from mmload.batch import BatchOrViews
from mmload.errors import UsageError, shown
from mmload.loader.batch_worker import BatchWorker, Delivery
from mmload.loader.order import Order, RowSelection, combine_occurrences
from mmload.loader.samplers import SamplerOrder
from mmload.runtime.random_words import FACTORS
from mmload.runtime.resources import single_op
from mmload.store.dataset import AnySplit, View
from mmload.store.row_numbers import Numbers, as_integer

State = dict[str, int | str]
"""State of a loader: the epoch, its used samples, and what two loaders must share for one to continue the other's."""

_REQUIRED, _OPTIONAL = ("rows", "seed", "order", "dataset"), ("subset", "sampler", "version")
_OF_VERSION = ("version", "rows", "dataset", "subset")  # what another version of a dataset may have otherwise
_ADVICE = {
    "version": "open that version, as in mmload.open(path, version=N), or give other_version=True",
    "subset": "resume with the same rows; None is all of them",
    "sampler": "resume with the same rows, or with a sampler of the same length",
}


@dataclass
class Position:
    """Position of a pass over an epoch.

    Attributes:
        epoch: number of the epoch.
        offset: samples of the epoch, of all ranks together, that were used before this pass.
        used: rows that this pass has yielded.
    """

    epoch: int
    offset: int
    used: int = 0


class Progress:
    """Position of a loader, of several passes the one that was begun last, and where its next epoch begins.

    Attributes:
        epoch: number of the next epoch.
        offset: samples of it that were used already.
        is_given: whether ``set_epoch`` or a state has said which epoch is next.
    """

    def __init__(self) -> None:
        self.epoch = self.offset = 0
        self.is_given = False
        self._pass = Position(0, 0)
        # Set by set_epoch, with the rows used then; it is the position until the pass yields another batch.
        self._chosen: tuple[Position, int] | None = None
        self._resumed = (-1, 0)  # the epoch of a loaded state, and its samples, until an epoch begins

    def choose(self, epoch: int) -> None:
        """Makes an epoch the next one; if it was resumed, it continues from there."""
        self.is_given = True
        if epoch != self.epoch:
            resumed, samples = self._resumed
            self.epoch, self.offset = epoch, samples if epoch == resumed else 0
        self._chosen = Position(self.epoch, self.offset), self._pass.used

    def skip(self, samples: int) -> None:
        """Begins the next epoch after some of its samples.

        Raises:
            UsageError: if it is not known which epoch that is, or a state says another position.
        """
        if not self.is_given:
            raise UsageError("it is not known which epoch to skip batches of; call loader.set_epoch(epoch) before")
        if self.offset not in (0, samples):
            raise UsageError(
                f"{samples} samples are to be skipped, and the loader's state is after {self.offset}; load the state, "
                "which suffices, or skip"
            )
        self.offset = samples

    def begin(self, position: Position) -> None:
        """Begins a pass over the next epoch."""
        self.epoch, self.offset, self.is_given = position.epoch + 1, 0, False
        self._pass, self._chosen, self._resumed = position, None, (-1, 0)

    def resume(self, saved: tuple[int, int], epoch: int, samples: int) -> None:
        """Continues after samples of an epoch; ``saved`` is what the state says, the same or the end of an epoch."""
        self.epoch, self.offset, self.is_given = epoch, samples, True
        self._pass, self._chosen, self._resumed = Position(epoch, samples), None, saved

    def current(self) -> tuple[Position, bool]:
        """Returns the position, and whether it is in an epoch that was begun."""
        if self._chosen is not None and self._chosen[1] == self._pass.used:
            return self._chosen[0], False
        return self._pass, self.epoch > self._pass.epoch


def position_in(
    state: Mapping[str, object], identity: State, *, length: int, other_version: bool = False
) -> tuple[int, int]:
    """Returns the epoch of a state, and how many of its samples are used, of ``length`` of all ranks together.

    ``other_version`` continues with other rows, such as those of another version of the dataset. The rows of a sampler
    are not compared, as they may change between epochs.

    Raises:
        ValueError: if it is not such a state, or the state of a loader with another order or other rows.
    """
    required = ("epoch", "samples", *_REQUIRED)
    if not isinstance(state, Mapping) or set(state) - set(_OPTIONAL) != set(required):
        keys = sorted(map(str, state)) if isinstance(state, Mapping) else state
        raise ValueError(f"the state has {keys!r}, expected {', '.join(required)}; give what state_dict() returned")
    for name in ("version", *_REQUIRED, "subset"):
        if not (other_version and name in _OF_VERSION):
            check_same(name, state, identity)
    epoch, samples = _number_in(state, "epoch"), _number_in(state, "samples")
    if samples > length and not other_version:
        raise ValueError(f"the state has samples {samples}, an epoch has {length}; resume with the same order")
    return epoch, min(samples, length)


def _number_in(state: Mapping[str, object], name: str) -> int:
    number = as_integer(state[name])
    if number is None or number < 0:
        raise ValueError(f"the state has {name} {shown(state[name])}, expected an integer from 0")
    return number


def check_same(name: str, state: Mapping[str, object], identity: State) -> None:
    """Checks that a state and a loader have the same under a name; raises ValueError, with advice."""
    given, own = state.get(name), identity.get(name)
    if (given if name == "order" else as_integer(given)) != own:
        advice = _ADVICE.get(name, "resume with the same")
        raise ValueError(f"the state has {name} {shown(given)}, this loader has {own!r}; {advice}")


def seed_in(state: Mapping[str, object], default: int) -> int:
    """Returns the seed of a state; the default if it has none that a loader can have."""
    seed = as_integer(state.get("seed")) if isinstance(state, Mapping) else None
    return seed if seed is not None and 0 <= seed < 2**64 else default


def begin_prefetch(order: Order | SamplerOrder, view: View, fields: Sequence[str], position: Position) -> Any:
    """Begins to prefetch what an epoch reads from object storage from a position on.

    Rows of a sampler are not known ahead, and not prefetched.

    Returns:
        The prefetch, which ends when it is collected; None: nothing is prefetched.
    """
    split: Any = view.rows
    if not split.in_chunks or not isinstance(order, Order):
        return None
    epoch, offset = position.epoch, position.offset
    return split.prefetch(fields, lambda start, stop: view.ids(order.take(epoch, start, stop, offset).rows))


class BatchJob:
    """Batch of an epoch, from its rows to what a thread makes of them.

    Attributes:
        selection: rows of the batch.
        epoch: epoch of the batch.
        is_submitted: whether a thread has it, or will take it.
        is_cancelled: whether nobody waits for the batch.
        made: the batch; None: it is not made, or was cancelled.
        error: the error of making it.
    """

    __slots__ = ("_done", "epoch", "error", "is_cancelled", "is_submitted", "made", "selection")

    def __init__(self, selection: RowSelection, epoch: int) -> None:
        self.selection, self.epoch = selection, epoch
        self.is_submitted = self.is_cancelled = False
        self.made: Delivery | None = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def make_batch(self, worker: BatchWorker) -> None:
        """Makes the batch, unless it was cancelled."""
        try:
            if not self.is_cancelled:
                self.made = worker.make(self.selection, self.epoch)
        except BaseException as error:
            self.error = error
        finally:
            self.end()

    def end(self) -> None:
        """Ends the wait for the batch; after an interrupted submission two threads may do so."""
        with suppress(RuntimeError):
            self._done.release()

    def wait(self) -> None:
        """Waits until the batch is made, has failed or was cancelled."""
        self._done.acquire()


Jobs: TypeAlias = "SimpleQueue[BatchJob | None]"

_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of pools, also of those that nobody refers to any more, whose threads end after what they are making."""


def single_op_threads(size: int, name: str, work: Callable[[], None]) -> list[threading.Thread]:
    """Starts ``size`` daemon threads that each run ``work`` once, with torch's intra-op parallelism at 1.

    A pool's futures cost the caller 10 us per call more than a queue that such threads take their work from.

    Raises:
        UsageError: if the system cannot start so many threads.
    """
    with single_op(size) as settle:

        def run() -> None:
            with suppress(threading.BrokenBarrierError):
                settle()
                work()

        threads = [threading.Thread(target=run, name=f"{name}_{number}", daemon=True) for number in range(size)]
        for thread in threads:
            thread.start()
    return threads


class WorkerPool:
    """Threads that make batches. A forked process inherits no threads, so it cannot use its parent's pool.

    Threads take batches from a queue, which wakes one of them only if it waits. A ThreadPoolExecutor costs the training
    thread 12 us per batch more.

    Attributes:
        worker: makes the batches.
        prefetch: prefetch of the epoch that was begun last, which ends with this reference; None: there is none.
    """

    def __init__(self, worker: BatchWorker, threads: int) -> None:
        self.worker = worker
        self.prefetch: Any = None
        self._jobs: Jobs = SimpleQueue()
        self._threads = single_op_threads(threads, "mmload-loader", partial(_make_batches, self._jobs, worker))
        self._process = os.getpid()
        self._closed = False
        weakref.finalize(self, _end, self._jobs, threads).atexit = False
        _pools.add(self)
        _running.update(self._threads)

    @property
    def usable(self) -> bool:
        """Whether batches can be submitted in this process."""
        return not self._closed and self._process == os.getpid()

    def check_open(self) -> None:
        """Checks that batches can be submitted.

        Raises:
            UsageError: if this is another process, or the pool was closed.
        """
        if self._process != os.getpid():
            raise UsageError("this epoch was begun in another process; begin one here with iter(loader)")
        if self._closed:
            if _ends.is_set() and threading.current_thread() is not threading.main_thread():
                raise SystemExit  # of a daemon thread while Python ends: an error would be reported, and none happened
            raise UsageError("the loader was closed in the middle of an epoch; begin another with iter(loader)")

    def submit(self, job: BatchJob) -> None:
        """Has a thread make a batch."""
        self._jobs.put(job)
        job.is_submitted = True
        if self._closed:  # by another thread, which may have seen the queue without it
            _end(self._jobs, len(self._threads))
            self.check_open()

    def receive(self, job: BatchJob) -> BatchOrViews:
        """Waits for a batch and returns it.

        Raises:
            UsageError: if the batch was cancelled.
            Exception: the error of the thread while it made the batch.
        """
        job.wait()
        if job.error is not None:
            try:
                raise job.error
            finally:
                del job  # else the error's traceback would refer to the error, and keep the batch
        if job.made is None:
            self.check_open()
            raise UsageError("the batch was cancelled; begin another epoch with iter(loader)")
        return job.made()

    def close(self) -> None:
        """Ends the threads, after the batches that they are making; a forked process has none to end."""
        self._closed, self.prefetch = True, None
        if self._process == os.getpid():
            _end(self._jobs, len(self._threads))
            for thread in self._threads:
                thread.join()


def _make_batches(jobs: Jobs, worker: BatchWorker) -> None:
    """Makes batches until the pool ends, in one of its threads."""
    while (job := jobs.get()) is not None:
        job.make_batch(worker)
        del job  # else the thread would keep the last batch's memory while it waits


def _end(jobs: Jobs, threads: int) -> None:
    """Cancels all batches that no thread has taken, and ends the threads, without waiting."""
    with suppress(Empty):
        while True:
            job = jobs.get_nowait()
            if job is not None:
                job.is_cancelled = True
                job.end()
    for _ in range(threads):
        jobs.put(None)


_ends = threading.Event()
"""Set when Python ends."""


@atexit.register
def _close_pools() -> None:
    """Waits for threads before the interpreter ends: one in torch would then end the process by a signal."""
    _ends.set()
    for pool in list(_pools):
        pool.close()
    for thread in list(_running):
        thread.join()


_beginning = threading.RLock()


def beginning() -> threading.RLock:
    """Returns a lock to hold while an epoch begins: threads that begin at the same time share a pool, not an epoch."""
    return _beginning


def _after_fork() -> None:
    """Replaces the lock in a forked process, as a thread of the parent may have held it."""
    global _beginning
    _beginning = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass
class Counts:
    """Totals over all passes of a loader: batches yielded, and seconds that training waited for them."""

    batches: int = 0
    waited_s: float = 0.0


class BatchRows:
    """Rows of each of the batches that remain of an epoch at a position.

    An Order computes the rows of many batches at a time. Rows that a view lists again, int64 [N], have other draws
    than the first time.
    """

    def __init__(
        self,
        order: Order | SamplerOrder,
        view: View,
        listed_again: Numbers | None,
        position: Position,
        size: int,
        batches: int,
    ) -> None:
        self._view, self._listed_again, self._size, self._batches = view, listed_again, size, batches
        self._take, self._offset = order.begin(position.epoch), position.offset
        self._at_once = max(1, order.taken_at_once // size)

    def some(self, first: int) -> list[RowSelection]:
        """Returns the rows of at least one batch from number ``first`` on; none if the epoch has ended."""
        stop = min(first + self._at_once, self._batches)
        if first == stop:
            return []
        places, occurrences = self._take(first * self._size, stop * self._size, self._offset)
        if self._listed_again is not None:
            occurrences = combine_occurrences(self._listed_again[places], occurrences, FACTORS[0])
        return RowSelection(self._view.ids(places), occurrences).split(self._size)


class EpochIterator:
    """Iterator over one epoch's batches in order. Threads may share it; each batch goes to one of them.

    A batch is a function of its rows and epoch. So after an error, or an interruption such as Ctrl-C, the next call
    makes the same batch again, and no batch is lost. ``ahead`` batches are prepared besides the one that is yielded
    next; each batch advances the position and the counts.

    The files of the split are compared with those that were opened where an epoch begins, and after its last batch.

    Raises:
        DamagedError, StoreError: if one was truncated or written to.
    """

    def __init__(
        self,
        split: AnySplit,
        pool: WorkerPool,
        rows: BatchRows,
        position: Position,
        counts: Counts,
        *,
        ahead: int,
        returns: Callable[[Any], Any],
    ) -> None:
        split.check_files()
        self._split, self._pool, self._rows, self._ahead, self._returns = split, pool, rows, ahead, returns
        self._position, self._counts = position, counts
        self._jobs: deque[BatchJob] = deque()  # of batches that were not yielded yet, in their order
        self._planned = 0  # batches whose jobs were made
        self._lock = threading.Lock()

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            UsageError: if the loader was closed, or this is another process than the one that began the epoch.
            DamagedError, StoreError: at the end of the epoch, if a file has changed since it was opened.
            Exception: the error of making the batch.
        """
        self._pool.check_open()  # before the lock, which a fork may have left locked
        with self._lock:
            self._submit()
            if not self._jobs:
                self._split.check_files()
                raise StopIteration
            began = perf_counter()
            batch = self._received()
            self._position.used += len(self._jobs.popleft().selection.rows)
            self._counts.batches += 1
            self._counts.waited_s += perf_counter() - began
            return batch

    def __del__(self) -> None:
        for job in self.__dict__.get("_jobs", ()):
            job.is_cancelled = True

    def _submit(self) -> None:
        """Submits enough batches to keep the threads busy."""
        while len(self._jobs) <= self._ahead and (found := self._rows.some(self._planned)):
            self._jobs.extend(BatchJob(selection, self._position.epoch) for selection in found)
            self._planned += len(found)
        for job in islice(self._jobs, self._ahead + 1):
            if not job.is_submitted:
                self._pool.submit(job)

    def _received(self) -> Any:
        """Waits for the next batch; the job in its place is submitted if that fails, as it may in any line."""
        job = self._jobs[0]
        self._jobs[0] = BatchJob(job.selection, job.epoch)
        try:
            return self._returns(self._pool.receive(job))
        except StopIteration as error:  # it would end the epoch without a word
            raise RuntimeError(
                "collate or returns raised StopIteration; return a batch, or raise another error"
            ) from error
