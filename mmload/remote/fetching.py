"""Threads that fetch blocks: first those that a batch waits for, then those that are prefetched, in their order.

A block that is requested several times is fetched once.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from mmload.errors import UsageError
from mmload.remote.layout import Run

NOW, AHEAD = 0, 1

_MOST_FETCHED = 2  # runs that wait to be stored: more of them no longer lie in the processor's cache

Contents = dict[int, memoryview]
"""Blocks -> their bytes."""


class FetchRequest:
    """Run of blocks that is being fetched or waits for it.

    Attributes:
        done: set when the blocks are stored, or fetching failed.
        is_taken: whether a thread fetches it.
        error: error of the fetch; None if there was none.
        contents: blocks that were fetched but not stored, as there is no room for them.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.contents: Contents = {}
        self.is_taken = False


class Fetching:
    """Threads that fetch the blocks of one field.

    Args:
        fetch: fetches the absent blocks of a run and returns their bytes; thread-safe.
        store: stores blocks and returns those that are stored.
        parallel: number of threads.
    """

    def __init__(
        self, fetch: Callable[[Run], Contents], store: Callable[[Contents], Iterable[int]], parallel: int
    ) -> None:
        self._fetch, self._store, self._parallel = fetch, store, parallel
        self._fetched: deque[FetchRequest] = deque()
        self._storing = threading.Lock()
        self._process = os.getpid()
        self._waiting: list[tuple[int, int, FetchRequest]] = []
        self._by_block: dict[int, FetchRequest] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def enqueue(self, runs: Iterable[Run], urgency: int) -> list[FetchRequest]:
        """Requests runs; a run that is already requested is not requested again, but becomes urgent if needed.

        Returns:
            The requests to wait for.
        """
        if os.getpid() != self._process:
            raise UsageError("blocks cannot be fetched in a forked process; start processes by spawn or forkserver")
        found: list[FetchRequest] = []
        with self._changed:
            before = len(self._waiting)
            for run in runs:
                blocks = range(run.first, run.first + run.blocks)
                known = {request for block in blocks if (request := self._by_block.get(block)) is not None}
                found += known
                for request in known if urgency == NOW else ():
                    heapq.heappush(self._waiting, (NOW, next(self._numbers), request))
                if all(block in self._by_block for block in blocks):
                    continue
                request = FetchRequest(run)
                self._by_block.update((block, request) for block in blocks if block not in self._by_block)
                heapq.heappush(self._waiting, (urgency, next(self._numbers), request))
                found.append(request)
            while len(self._threads) < min(self._parallel, len(self._waiting)):
                thread = threading.Thread(target=self._work, name="mmload-fetch", daemon=True)
                thread.start()  # first: one that cannot be started must not be counted on
                self._threads.append(thread)
            self._changed.notify(len(self._waiting) - before)
        return found

    @property
    def backlog(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def cancel_prefetch(self) -> None:
        """Drops waiting requests that no batch needs yet."""
        with self._changed:
            for _, _, request in (entry for entry in self._waiting if entry[0] == AHEAD):
                self._ended(request)
            self._waiting = [entry for entry in self._waiting if entry[0] == NOW]
            heapq.heapify(self._waiting)

    def close(self) -> None:
        """Ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                request = heapq.heappop(self._waiting)[2]
                if request.is_taken or request.done.is_set():
                    continue
                request.is_taken = True
            try:
                request.contents = self._fetch(request.run)
            except BaseException as error:
                request.error = error
            self._fetched.append(request)
            self._store_fetched(wait=len(self._fetched) > _MOST_FETCHED)

    def _store_fetched(self, *, wait: bool) -> None:
        """Stores what all threads have fetched in one call, unless another thread does: locking takes time."""
        while self._fetched and self._storing.acquire(blocking=wait):
            try:
                some = [self._fetched.popleft() for _ in range(len(self._fetched))]
                contents = {block: data for request in some for block, data in request.contents.items()}
                try:
                    for block in self._store(contents):
                        del contents[block]
                except BaseException as error:
                    for request in some:
                        request.error = request.error or error
                with self._changed:
                    for request in some:
                        request.contents = {block: contents[block] for block in request.contents if block in contents}
                        self._ended(request)
            finally:
                self._storing.release()

    def _ended(self, request: FetchRequest) -> None:
        for block in range(request.run.first, request.run.first + request.run.blocks):
            if self._by_block.get(block) is request:
                del self._by_block[block]
        request.done.set()
