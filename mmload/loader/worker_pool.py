"""The threads of a loader and the worker that they run; they end when the loader is closed or collected."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

from mmload.errors import UsageError
from mmload.loader.batch_worker import BatchWorker, Delivery
from mmload.loader.order import Taken
from mmload.runtime.thread_pools import single_op_pool


class WorkerPool:
    """Threads that make batches. A forked process inherits no threads, so it cannot use its parent's pool.

    Args:
        worker: what makes the batches.
        threads: how many threads.
    """

    def __init__(self, worker: BatchWorker, threads: int) -> None:
        self.worker = worker
        self._threads = single_op_pool(threads, "mmload-loader")
        self._process = os.getpid()
        self._closed = False
        weakref.finalize(self, _end, self._threads, self._process).atexit = False

    @property
    def usable(self) -> bool:
        """Whether batches can be submitted here."""
        return not self._closed and self._process == os.getpid()

    def refuse_ended(self) -> None:
        """UsageError unless the pool is :attr:`usable`."""
        if self._process != os.getpid():
            raise UsageError("this epoch was begun in another process; begin one here with iter(loader)")
        if self._closed:
            raise UsageError("the loader was closed in the middle of an epoch; begin another with iter(loader)")

    def submit(self, taken: Taken, epoch: int) -> Future[Delivery]:
        """Have a thread make a batch."""
        try:
            return self._threads.submit(self.worker.make, taken, epoch)
        except RuntimeError:
            self.refuse_ended()  # closed by another thread
            raise

    def close(self) -> None:
        """End the threads, after the batches that they are making; a forked process has none to end."""
        self._closed = True
        if self._process == os.getpid():
            self._threads.shutdown(wait=True, cancel_futures=True)


def _end(threads: ThreadPoolExecutor, process: int) -> None:
    """End threads that nobody can use anymore, without waiting."""
    if process == os.getpid():
        threads.shutdown(wait=False, cancel_futures=True)
