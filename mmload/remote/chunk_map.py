"""Maps the chunks of a field at their places in one range of addresses, while they are in use.

A chunk is mapped by the thread that opens or fetches its file, and unmapped when nobody uses it and many others were
used since, so that a window of an order maps each chunk once. What a batch uses stays mapped until the batch is
released, or given up and collected: then until the next one is prepared.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from _thread import start_new_thread
from collections import Counter, OrderedDict, deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress

import numpy as np

from mmload.errors import MmloadError, StoreError
from mmload.remote.cache_folder import ChunkFiles
from mmload.store.dataset_folder import NO_HANDLE, MappedRows, Places, PreparedRows, map_over, reserved
from mmload.store.row_numbers import Numbers

CHUNKS_OF_WINDOW = 64
"""Chunks of a window of the block order, and the most that are prefetched: 1 GiB of each field."""

MOST_IDLE = CHUNKS_OF_WINDOW + 16
"""Chunks of a field that stay mapped without use, so that the slowest thread still finds those of its window."""


class ChunkMap(MappedRows):
    """Chunks of a field as one array, opened by up to ``parallel`` threads, which end when there is nothing to open.

    Attributes:
        files: files of the chunks.

    Raises:
        StoreError: if there are not enough addresses.
    """

    most_rows = 512  # a process may have 65,530 maps on Linux, and each may need a chunk of its own

    def __init__(self, files: ChunkFiles, parallel: int) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self.files, self.chunks, self._parallel, self._pages = files, files.chunks, parallel, pages
        self.memory = reserved(max(mmap.PAGESIZE, self.chunks.extent))
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
        self._lock = threading.Lock()  # of all that follows
        self._threads = 0
        self._wanted, self._arriving = dict[int, Future[None]](), dict[int, Future[None]]()
        self._mapped: OrderedDict[int, None] = OrderedDict()
        self._uses: Counter[int] = Counter()
        self._given_up: deque[list[int]] = deque()
        self._ahead, self._coming = set[int](), list[weakref.ref[Generator[int]]]()

    def prepare(self, places: Places) -> PreparedRows:
        """Fetches the chunks of rows, or of parts of them, and begins to bring the rows into memory.

        Raises:
            RemoteError, DamagedError: if a chunk cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored or read.
        """
        of_rows = self.chunks.chunks_at(places)
        starts: Numbers = self.chunks.places[of_rows] + places["offset"] - self.chunks.starts[of_rows]
        needed = np.unique(of_rows).tolist()
        with self._lock:
            self._uses.update(needed)  # before there is an end, as an interrupt may come anywhere
            # Collected in any thread, even in one with the lock of a future that another asks under this lock.
            end = weakref.finalize(starts, self._given_up.append, needed)
            end.atexit = False
            self._end_uses()
            self._ahead.difference_update(needed)
            arriving = {chunk: self._arrival(chunk) for chunk in needed if not self._is_mapped(chunk)}
            self._start_threads()
        for future in arriving.values():
            future.result()
        prepared = self.begun(places, of_rows, starts, np.ascontiguousarray(places["bytes"]))._replace(end=end)
        if arriving and self._pages.can_populate():  # what was fetched counts as read
            arrived = np.isin(of_rows, list(arriving))
            prepared.absent[arrived] = places["bytes"][arrived]
        return prepared

    def release(self, prepared: PreparedRows) -> None:
        """Ends the use of prepared rows."""
        prepared.end()
        with self._lock:
            self._end_uses()

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns that the cache cannot be read."""
        return StoreError(f"cannot read the cache {self.files.cache.path} ({why})")

    def begin_epoch(self, coming: Generator[int]) -> None:
        """Begins to fetch the chunks that an epoch needs, in its order, until ``coming`` is collected."""
        with self._lock:
            self._ahead.clear()  # of an epoch that was broken off
            self._coming.append(weakref.ref(coming))
            for chunk in self._mapped:  # whose files are not opened again
                self.files.touch(self.chunks.each[chunk])
            self._start_threads()

    def _is_mapped(self, chunk: int) -> bool:
        if chunk in self._mapped:
            self._mapped.move_to_end(chunk)
            return True
        return False

    def _arrival(self, chunk: int) -> Future[None]:
        """Returns the arrival of a chunk that a batch waits for; the caller holds the lock."""
        return self._arriving.get(chunk) or self._wanted.setdefault(chunk, Future())

    def _start_threads(self) -> None:
        """Starts as many threads as have something to open; the caller holds the lock.

        Raises:
            RuntimeError: if the system has no more threads.
        """
        tasks = len(self._wanted) + (CHUNKS_OF_WINDOW - len(self._ahead) if self._coming else 0)
        for _ in range(min(tasks, self._parallel - self._threads)):
            start_new_thread(self._work, ())  # a Thread would wait for its begin, and for the interpreter lock
            self._threads += 1

    def _work(self) -> None:
        """Opens chunks in a thread as long as there are some to open."""
        while (chunk := self._next()) is not None:
            error: BaseException | None = None
            try:
                self._open(chunk)
            except BaseException as failure:
                error = failure
            with self._lock:
                future = self._arriving.pop(chunk)
                if error is None:  # else it stays ahead: a prefetch must not go on through an epoch of errors
                    self._mapped[chunk] = None
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
            del future, error  # else the error's traceback would refer to the error

    def _next(self) -> int | None:
        """Returns the next chunk to open: one that a batch waits for, or of an epoch; None: the thread ends."""
        with self._lock:
            chunk = next(iter(self._wanted), None)
            while chunk is None and self._coming and len(self._ahead) < CHUNKS_OF_WINDOW:
                coming, found = self._coming[-1](), None
                with suppress(Exception):  # the batch that needs those rows meets the same error, and raises it
                    found = None if coming is None else next(coming, None)
                if found is None:
                    self._coming.pop()
                elif not self._is_mapped(found) and found not in self._arriving:
                    self._ahead.add(found)
                    chunk = found
            if chunk is None:
                self._threads -= 1
            else:
                self._arriving[chunk] = self._wanted.pop(chunk, Future())
            return chunk

    def _open(self, chunk: int) -> None:
        """Opens the file of a chunk and maps it; reads what is prefetched into memory."""
        handle = self.files.open(self.chunks.each[chunk])
        try:
            self._map(chunk, handle)
        finally:
            os.close(handle)
        if chunk in self._ahead and self._pages.can_populate():  # else its batch reads it
            place = self.chunks.each[chunk]
            self._pages.populate(self.memory.ctypes.data + place.place, place.length)

    def _end_uses(self) -> None:
        """Ends the uses by batches that were released or given up, and unmaps chunks; the caller holds the lock.

        Those that were used longest ago leave, beyond as many as stay.
        """
        while self._given_up:
            self._uses.subtract(self._given_up.popleft())
        self._uses = +self._uses
        idle = [chunk for chunk in self._mapped if not self._uses[chunk] and chunk not in self._ahead]
        for chunk in idle[: max(0, len(idle) - MOST_IDLE)]:
            del self._mapped[chunk]
            self._map(chunk, NO_HANDLE)
            self.files.end_use(self.chunks.each[chunk])

    def _map(self, chunk: int, handle: int) -> None:
        """Maps the file of a chunk over its place, or nothing."""
        place = self.chunks.each[chunk]
        address = self.memory.ctypes.data + place.place - place.padding
        map_over(address, place.stored_bytes, handle, self.files.cache.path)
