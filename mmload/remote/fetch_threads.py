"""Threads that fetch what batches wait for before what is prefetched."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import PriorityQueue

NOW, AHEAD, _END = 0, 1, 2

Task = tuple[int, int, "Future[None]", Callable[[], None]]


class FetchThreads:
    """Up to ``parallel`` threads, which end with the process without waiting for their tasks. Thread-safe."""

    def __init__(self, parallel: int) -> None:
        self._tasks: PriorityQueue[Task] = PriorityQueue()
        self._numbers = itertools.count()
        self._parallel, self._threads = parallel, 0

    def submit(self, urgency: int, task: Callable[[], None]) -> Future[None]:
        """Calls a task in a thread, those of urgency NOW first; a future that is cancelled is not begun.

        Raises:
            RuntimeError: if the system has no more threads.
        """
        future: Future[None] = Future()
        if self._threads < self._parallel:  # first: nobody may wait for a thread that cannot be started
            threading.Thread(target=_work, args=(self._tasks,), name="mmload-fetch", daemon=True).start()
            self._threads += 1
        self._tasks.put((urgency, next(self._numbers), future, task))
        return future

    def close(self) -> None:
        """Ends the threads after all tasks."""
        for _ in range(self._threads):
            self._tasks.put((_END, next(self._numbers), Future(), lambda: None))


def _work(tasks: PriorityQueue[Task]) -> None:
    while (entry := tasks.get())[0] != _END:
        _, _, future, task = entry
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)
        del entry, future, task  # else this thread would keep them while it waits
