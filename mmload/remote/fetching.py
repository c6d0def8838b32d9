"""Threads that fetch blocks: what a batch waits for first, then what the epoch needs later, in its order.

A block that two batches, or the reader ahead and a batch, want is fetched once.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from mmload.errors import UsageError
from mmload.remote.block_grid import Run

NOW, AHEAD = 0, 1

_MOST_FETCHED = 2  # runs that wait to be stored: more of them no longer lie in the processor's cache

Contents = dict[int, memoryview]
"""Blocks -> their bytes."""


class Wanted:
    """A run that is fetched or waits for it.

    Attributes:
        done: set when it is there, or has failed.
        is_taken: whether a thread fetches it.
        error: what has failed; None: nothing.
        contents: the blocks that were fetched for it and are not stored, as there is no room for them.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.contents: Contents = {}
        self.is_taken = False


class Fetching:
    """The threads over one field.

    Args:
        fetch: gets a run's blocks that are absent, and returns their bytes; thread-safe.
        store: stores blocks, and returns which are stored.
        parallel: how many threads.
    """

    def __init__(
        self, fetch: Callable[[Run], Contents], store: Callable[[Contents], Iterable[int]], parallel: int
    ) -> None:
        self._fetch, self._store, self._parallel = fetch, store, parallel
        self._fetched: deque[Wanted] = deque()
        self._storing = threading.Lock()
        self._process = os.getpid()
        self._waiting: list[tuple[int, int, Wanted]] = []
        self._by_block: dict[int, Wanted] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def want(self, runs: Iterable[Run], urgency: int) -> list[Wanted]:
        """Ask for runs; those that are on their way already are not asked for again, but may become urgent.

        Returns:
            What to wait for.
        """
        if os.getpid() != self._process:
            raise UsageError("blocks cannot be fetched in a forked process; start processes by spawn or forkserver")
        found: list[Wanted] = []
        with self._changed:
            before = len(self._waiting)
            for run in runs:
                blocks = range(run.first, run.first + run.blocks)
                known = {wanted for block in blocks if (wanted := self._by_block.get(block)) is not None}
                found += known
                for wanted in known if urgency == NOW else ():
                    heapq.heappush(self._waiting, (NOW, next(self._numbers), wanted))
                if all(block in self._by_block for block in blocks):
                    continue
                wanted = Wanted(run)
                self._by_block.update((block, wanted) for block in blocks if block not in self._by_block)
                heapq.heappush(self._waiting, (urgency, next(self._numbers), wanted))
                found.append(wanted)
            while len(self._threads) < min(self._parallel, len(self._waiting)):
                thread = threading.Thread(target=self._work, name="mmload-fetch", daemon=True)
                thread.start()  # first: one that cannot be started must not be counted on
                self._threads.append(thread)
            self._changed.notify(len(self._waiting) - before)
        return found

    @property
    def backlog(self) -> int:
        """How many runs wait."""
        return len(self._waiting)

    def forget_ahead(self) -> None:
        """Drop what waits and no batch has asked for."""
        with self._changed:
            for _, _, wanted in (entry for entry in self._waiting if entry[0] == AHEAD):
                self._ended(wanted)
            self._waiting = [entry for entry in self._waiting if entry[0] == NOW]
            heapq.heapify(self._waiting)

    def close(self) -> None:
        """End the threads."""
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
                wanted = heapq.heappop(self._waiting)[2]
                if wanted.is_taken or wanted.done.is_set():
                    continue
                wanted.is_taken = True
            try:
                wanted.contents = self._fetch(wanted.run)
            except BaseException as error:
                wanted.error = error
            self._fetched.append(wanted)
            self._store_fetched(wait=len(self._fetched) > _MOST_FETCHED)

    def _store_fetched(self, *, wait: bool) -> None:
        """Stores what all threads have fetched, at once, unless another thread does; locking a cache takes its time."""
        while self._fetched and self._storing.acquire(blocking=wait):
            try:
                some = [self._fetched.popleft() for _ in range(len(self._fetched))]
                contents = {block: data for wanted in some for block, data in wanted.contents.items()}
                try:
                    for block in self._store(contents):
                        del contents[block]
                except BaseException as error:
                    for wanted in some:
                        wanted.error = wanted.error or error
                with self._changed:
                    for wanted in some:
                        wanted.contents = {block: contents[block] for block in wanted.contents if block in contents}
                        self._ended(wanted)
            finally:
                self._storing.release()

    def _ended(self, wanted: Wanted) -> None:
        for block in range(wanted.run.first, wanted.run.first + wanted.run.blocks):
            if self._by_block.get(block) is wanted:
                del self._by_block[block]
        wanted.done.set()
