"""Maps the chunks of a field at their places in one range of addresses, while they are in use.

A chunk is mapped by the thread that opens or fetches its file, and unmapped when nobody uses it and many others were
used since, so that a window of an order maps each chunk once. What a batch uses stays mapped until the batch is
released, or given up and collected: then until the next one is prepared.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import PriorityQueue

import numpy as np

from mmload.errors import MmloadError, StoreError
from mmload.remote.chunk_files import ChunkFiles
from mmload.remote.chunks import ChunkSpan
from mmload.store.dataset_folder import MappedRows, Places, PreparedRows, map_over, reserved
from mmload.store.row_numbers import Numbers

NOW, AHEAD, _END = 0, 1, 2
"""Urgency of a task; the least comes first."""

Task = tuple[int, int, "Future[None]", Callable[[], None]]


class FetchThreads:
    """Up to ``parallel`` threads, which end with this object after their tasks, or at once with the process.

    Thread-safe.
    """

    def __init__(self, parallel: int) -> None:
        self._tasks: PriorityQueue[Task] = PriorityQueue()
        self._numbers = itertools.count()
        self._parallel, self._threads = parallel, list[threading.Thread]()
        self._starting = threading.Lock()  # maps submit at the same time
        weakref.finalize(self, _end_threads, self._tasks, self._threads, os.getpid()).atexit = False

    def submit(self, urgency: int, task: Callable[[], None]) -> Future[None]:
        """Calls a task in a thread, those of urgency NOW first; a future that is cancelled is not begun.

        Raises:
            RuntimeError: if the system has no more threads.
        """
        future: Future[None] = Future()
        with self._starting:
            if len(self._threads) < self._parallel:  # first: nobody may wait for a thread that cannot be started
                thread = threading.Thread(target=_work, args=(self._tasks,), name="mmload-fetch", daemon=True)
                thread.start()
                self._threads.append(thread)
        self._tasks.put((urgency, next(self._numbers), future, task))
        return future


def _end_threads(tasks: PriorityQueue[Task], threads: Sequence[threading.Thread], owner: int) -> None:
    """Ends threads after all tasks; a forked process has none to end, and one may hold the lock of the tasks there."""
    for number in range(len(threads) if owner == os.getpid() else 0):
        tasks.put((_END, number, Future(), lambda: None))


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


WINDOW = 64
"""Chunks of a window of the block order, and the most that are prefetched: 1 GiB of each field."""

MOST_IDLE = WINDOW + 16
"""Chunks of a field that stay mapped without use, so that the slowest thread still finds those of its window."""

_PAGE = mmap.PAGESIZE


class ChunkMap(MappedRows):
    """Chunks of a field as one array.

    Attributes:
        files: files of the chunks.

    Raises:
        StoreError: if there are not enough addresses.
    """

    most_rows = 512  # a process may have 65,530 maps on Linux, and each may need a chunk of its own

    def __init__(self, files: ChunkFiles, threads: FetchThreads) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self.files, self.chunks, self._pages = files, files.chunks, pages
        self.memory = reserved(max(_PAGE, self.chunks.extent))
        self._mapped: OrderedDict[int, None] = OrderedDict()
        nothing = np.empty(0, np.int64)
        self.ranges = pages.FileRanges(
            firsts=self.chunks.places,
            ends=self.chunks.ends,
            known=np.empty(0, np.uint8),
            segments=nothing,
            looks=True,
            reads=False,
            handles=nothing,
        )
        self.begin_anew(threads)

    def begin_anew(self, threads: FetchThreads) -> None:
        """Begins with a lock that nobody holds, and without what threads of the parent of a fork do."""
        self._threads, self._lock = threads, threading.RLock()
        self._arriving: dict[int, tuple[Future[None], bool]] = {}
        self._uses: Counter[int] = Counter()
        self._ahead, self._coming = set[int](), list[Iterator[int]]()
        self._given_up: deque[list[int]] = deque()
        self.files.begin_anew()

    def prepare(self, places: Places) -> PreparedRows:
        """Fetches the chunks of rows, or of parts of them, and begins to bring the rows into memory.

        Raises:
            RemoteError, DamagedError: if a chunk cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored or read.
        """
        of_rows = self.chunks.chunks_at(places)
        starts: Numbers = self.chunks.places[of_rows] + places["offset"] - self.chunks.starts[of_rows]
        needed = np.unique(of_rows).tolist()
        # Collected anywhere, even by a thread with the lock of a future that another asks under the lock of this map.
        end = weakref.finalize(starts, self._given_up.append, needed)
        end.atexit = False
        with self._lock:
            self._uses.update(needed)
            self._end_uses()
            self._ahead.difference_update(needed)
            arriving = {chunk: self._request(chunk, NOW) for chunk in needed if not self._is_mapped(chunk)}
            self._prefetch()
        for future in arriving.values():
            future.result()
        prepared = self.begun(places, of_rows, starts)._replace(end=end)
        if arriving and self._pages.can_populate():  # what was fetched counts as read
            arrived = np.isin(of_rows, list(arriving))
            prepared.absent[arrived] = places["bytes"][arrived]
        return prepared

    def release(self, prepared: PreparedRows) -> None:
        """Ends the use of prepared rows."""
        if prepared.end is not None:
            prepared.end()
        with self._lock:
            self._end_uses()

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns that the cache cannot be read."""
        return StoreError(f"cannot read the cache {self.files.folder.path} ({why})")

    def begin_epoch(self, coming: Iterator[int]) -> None:
        """Begins to fetch the chunks that an epoch needs, in its order, ahead of the batches that use them.

        Those that are mapped are in use, as those of an earlier epoch may leave the cache.
        """
        self.files.folder.begin_epoch(self.files)
        with self._lock:
            for chunk in self._mapped:
                self.files.touch(self.chunks.each[chunk])
            self._coming.append(coming)
            self._prefetch()

    def end_prefetch(self, coming: Iterator[int]) -> None:
        """Drops what is prefetched and not used yet."""
        with self._lock:
            with suppress(ValueError):  # all of it was fetched
                self._coming.remove(coming)
            for chunk, (future, is_ahead) in list(self._arriving.items()):
                if is_ahead and future.cancel():
                    del self._arriving[chunk]
            self._ahead.clear()
            self._unmap_idle()

    def _prefetch(self) -> None:
        """Requests some chunks of the epoch that began last; the caller holds the lock."""
        while self._coming and len(self._ahead) < WINDOW:
            chunk = None
            with suppress(MmloadError):  # the batch that needs those rows meets the same error, and raises it
                chunk = next(self._coming[-1], None)
            if chunk is None:
                self._coming.pop()
            elif not self._is_mapped(chunk) and chunk not in self._arriving:
                self._ahead.add(chunk)
                self._request(chunk, AHEAD)

    def _is_mapped(self, chunk: int) -> bool:
        if chunk in self._mapped:
            self._mapped.move_to_end(chunk)
            return True
        return False

    def _request(self, chunk: int, urgency: int) -> Future[None]:
        """Opens a chunk in a thread, unless one does; the caller holds the lock."""
        if chunk in self._arriving:
            future, is_ahead = self._arriving[chunk]
            if urgency == AHEAD or not is_ahead or not future.cancel():
                return future
        future = self._threads.submit(urgency, partial(self._arrive, chunk, urgency))
        self._arriving[chunk] = future, urgency == AHEAD
        return future

    def _arrive(self, chunk: int, urgency: int) -> None:
        """Opens the file of a chunk and maps it; reads what is prefetched into memory."""
        place, is_mapped = self.chunks.each[chunk], False
        try:
            handle = self.files.open(place)
            try:
                self._map(place, handle)
            finally:
                os.close(handle)
            if urgency == AHEAD and self._pages.can_populate():
                self._pages.populate(self.memory.ctypes.data + place.place, place.length)  # else its batch reads it
            is_mapped = True
        finally:
            with self._lock:  # at once: who finds it on its way has its use counted before it can be unmapped
                self._arriving.pop(chunk, None)
                if is_mapped:
                    self._mapped[chunk] = None
                else:
                    self._ahead.discard(chunk)
                self._unmap_idle()

    def _end_uses(self) -> None:
        """Ends the uses by batches that were released or given up; the caller holds the lock."""
        while self._given_up:
            self._uses.subtract(self._given_up.popleft())
        self._uses = +self._uses
        self._unmap_idle()

    def _unmap_idle(self) -> None:
        """Unmaps the chunks used longest ago beyond those that stay; the caller holds the lock."""
        idle = [chunk for chunk in self._mapped if not self._uses[chunk] and chunk not in self._ahead]
        for chunk in idle[: max(0, len(idle) - MOST_IDLE)]:
            del self._mapped[chunk]
            place = self.chunks.each[chunk]
            self._map(place, None)
            self.files.end_use(place)

    def _map(self, place: ChunkSpan, handle: int | None) -> None:
        """Maps the file of a chunk over its place, or nothing."""
        address = self.memory.ctypes.data + place.place - place.padding
        map_over(address, place.stored_bytes, handle, self.files.folder.path)
