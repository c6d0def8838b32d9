"""One pass over an epoch: submits batches to the worker threads a few ahead and yields them in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from mmload.augment.returns import Returns
from mmload.errors import UsageError
from mmload.loader.batch_worker import Delivery
from mmload.loader.order import Taken
from mmload.loader.worker_pool import WorkerPool


@dataclass
class Position:
    """Where a pass over an epoch is.

    Attributes:
        epoch: its number.
        offset: samples of the epoch, of all ranks together, that were used before this pass.
        used: rows that this pass has yielded.
    """

    epoch: int
    offset: int
    used: int = 0


@dataclass
class Counts:
    """Totals over all passes of a loader: batches yielded, and seconds that training waited for them."""

    batches: int = 0
    waited_s: float = 0.0


class BatchRows:
    """The rows of each batch. An error of ``take`` does not end the iterator: the next call tries again.

    Args:
        take: (start, stop) -> the rows at these positions of the epoch.
        batches: how many there are; the last may be smaller.
        size: rows of a batch.
        batches_at_once: how many batches to request from ``take`` at a time.
    """

    def __init__(self, take: Callable[[int, int], Taken], batches: int, size: int, batches_at_once: int = 1) -> None:
        self._take, self._batches, self._size, self._at_once = take, batches, size, batches_at_once
        self._taken: deque[Taken] = deque()
        self._next = 0

    def __iter__(self) -> BatchRows:
        return self

    def __next__(self) -> Taken:
        if self._next == self._batches:
            raise StopIteration
        if not self._taken:
            start = self._next * self._size
            self._taken.extend(self._take(start, start + self._size * self._at_once).split(self._size))
        self._next += 1
        return self._taken.popleft()


@dataclass
class _Pending:
    """A batch that was not yielded yet; without a future it has to be submitted (again)."""

    taken: Taken
    future: Future[Delivery] | None = None


class EpochIterator:
    """An epoch's batches in order. Threads may share it; each batch goes to one of them.

    A batch is a function of its rows and epoch. So after an error, or an interruption such as Ctrl-C, the next call
    makes the same batch again, and no batch is lost.

    Args:
        pool: the threads that make the batches.
        rows: of each batch.
        position: advanced by every batch.
        counts: likewise.
        ahead: batches to prepare besides the one that is yielded next.
        returns: what they are given as; None: as they are made.
    """

    def __init__(
        self,
        pool: WorkerPool,
        rows: BatchRows,
        position: Position,
        counts: Counts,
        *,
        ahead: int,
        returns: Returns | None = None,
    ) -> None:
        self._pool, self._rows, self._ahead, self._returns = pool, rows, ahead, returns
        self._position, self._counts = position, counts
        self._pending: deque[_Pending] = deque()
        self._lock = threading.Lock()

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            UsageError: if the loader was closed, or this is another process than the one that began the epoch.
            Exception: what made the batch fail.
        """
        self._pool.refuse_ended()  # before the lock, which a fork may have left locked
        with self._lock:
            self._submit()
            if not self._pending:
                raise StopIteration
            began = perf_counter()
            batch = self._received(self._pending[0])
            self._position.used += len(self._pending.popleft().taken.rows)
            self._counts.batches += 1
            self._counts.waited_s += perf_counter() - began
            return batch

    def __del__(self) -> None:
        for pending in self.__dict__.get("_pending", ()):
            if pending.future is not None:
                pending.future.cancel()

    def _submit(self) -> None:
        """Keep the threads busy."""
        while len(self._pending) <= self._ahead:
            taken = next(self._rows, None)
            if taken is None:
                break
            self._pending.append(_Pending(taken))
        for pending in self._pending:
            if pending.future is None:
                pending.future = self._pool.submit(pending.taken, self._position.epoch)

    def _received(self, pending: _Pending) -> Any:
        """Wait for the batch; after an error it has to be submitted again."""
        if pending.future is None:
            raise RuntimeError("the batch was not submitted")
        future, pending.future = pending.future, None
        try:
            made = future.result().receive()
        except CancelledError as error:
            self._pool.refuse_ended()
            raise UsageError("the batch was cancelled; begin another epoch with iter(loader)") from error
        return made if self._returns is None else self._returns.given(made)
