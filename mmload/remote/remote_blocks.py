"""Blocks of one field of a split in object storage: fetches, checks and stores them as files in a cache.

Threads fetch first the blocks that a batch waits for, then those that are prefetched, in their order. A block that is
requested several times is fetched once.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from mmload.errors import DamagedError, MmloadError, RemoteMissingError, StoreError, UsageError
from mmload.remote.block_files import BlockFiles
from mmload.remote.cache_files import write_beside_blocks
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.layout import SUFFIX, BlockChecksums, Numbers, Run, parse_checksums
from mmload.remote.object_store import Objects
from mmload.store.checksum import crc32
from mmload.store.manifest import SplitRecord

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

    ``fetch`` returns the bytes of the absent blocks of a run, and is thread-safe; ``store`` stores blocks and returns
    those that are stored.
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


MOST_JOINED = 4 * 2**20
"""The most bytes of neighboring blocks that one request fetches: a batch may wait for the last of them."""

Requests = dict[int, FetchRequest]
"""Blocks -> their requests."""

_TRIES = 2  # of bytes with another checksum, which may have been spoiled on their way
_RUNS_PER_CALL = 256  # all threads wait during a call
_LOOKS = 3  # for a block that other processes store and evict


class RemoteBlocks:
    """Blocks of a field in object storage and in the cache. Thread-safe.

    Attributes:
        fetching: threads that fetch blocks.
        fetched_bytes: bytes fetched from object storage.
    """

    def __init__(self, objects: Objects, root: Path, files: BlockFiles, record: SplitRecord, parallel: int) -> None:
        self.files, self.grid = files, files.grid
        self._objects, self._root, self._record = objects, root, record
        self.fetching = Fetching(self._fetch, files.store, parallel)
        self._sums: dict[int, BlockChecksums] = {}
        self._sums_locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self.fetched_bytes = 0

    def prefetch(self, blocks: Numbers) -> None:
        """Fetches blocks that are needed later, in this order."""
        absent = self.files.absent(blocks)
        if len(absent):
            runs = self.grid.runs_by_need(absent, MOST_JOINED)
            for start in range(0, len(runs), _RUNS_PER_CALL):
                self.fetching.enqueue(runs[start : start + _RUNS_PER_CALL], AHEAD)

    def fetch_missing(self, blocks: Numbers, *, check_disk: bool = False) -> Requests:
        """Requests all absent blocks that a batch needs now, without waiting.

        ``check_disk`` looks on the disk for all of them, not only for those that are not expected there.

        Returns:
            The request of each block that is fetched.
        """
        doubtful = np.unique(blocks if check_disk else blocks[~self.files.expected[blocks]])
        absent = self.files.absent(doubtful) if len(doubtful) else doubtful
        if not len(absent):
            return {}
        request = self.fetching.enqueue(self.grid.runs(absent, MOST_JOINED), NOW)
        return {block: each for each in request for block in range(each.run.first, each.run.first + each.run.blocks)}

    def content(self, block: int, requests: Requests) -> memoryview:
        """Returns the bytes of a block, from memory if it had to be fetched, as its file may be evicted at any time.

        Raises:
            RemoteError, DamagedError: if it cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored.
        """
        number = np.array([block])
        for look in range(_LOOKS):
            if look:
                requests = self.fetch_missing(number, check_disk=True)
            request = requests.get(block)
            if request is not None:
                request.done.wait()
                if request.error is not None:
                    raise _copied_error(request.error)
                if block in request.contents:
                    return request.contents[block]
            data = self.files.content(block)
            if data is not None:
                return data
        return self._request(self.grid.runs(number, MOST_JOINED)[0])[block]

    def _fetch(self, run: Run) -> Contents:
        """Fetches the absent blocks of a run and returns their bytes."""
        contents: Contents = {}
        absent = []
        for block in self.files.absent(np.arange(run.first, run.first + run.blocks)).tolist():
            data = self.files.adopt(block, partial(self._is_right, run.shard, block))
            if data is None:
                absent.append(block)
            else:
                contents[block] = data
        for part in self.grid.runs(np.array(absent, np.int64), MOST_JOINED):
            contents.update(self._request(part))
        return contents

    def _request(self, run: Run) -> Contents:
        """Reads the blocks of a run from object storage and compares their checksums."""
        name = self._name(run.shard)
        for _ in range(_TRIES):
            data = self._objects.get_range(name, run.offset, run.length)
            with self._lock:
                self.fetched_bytes += run.length
            contents, at = {}, 0
            for block in range(run.first, run.first + run.blocks):
                length = int(self.grid.bytes_of(np.array([block]))[0])
                contents[block] = data[at : at + length]
                if not self._is_right(run.shard, block, contents[block]):
                    break
                at += length
            else:
                return contents
        raise DamagedError(
            f"{self._objects.url_of(name)} is damaged at byte {run.offset + at:,}: it does not have the checksum that "
            "was pushed; remove that object, and push the dataset again"
        )

    def _is_right(self, shard: int, block: int, data: memoryview) -> bool:
        return crc32(data) == int(self._sums_of(shard).each[block - int(self.grid.starts[shard])])

    def _name(self, shard: int) -> str:
        return f"{self._record.shard_folder(self.grid.split, shard)}/{self.grid.field}.memmap"

    def _sums_of(self, shard: int) -> BlockChecksums:
        """Returns the checksums of a shard's blocks, which are stored in the cache, too."""
        sums = self._sums.get(shard)
        if sums is not None:
            return sums
        with self._sums_locks.setdefault(shard, threading.Lock()):
            return self._sums.get(shard) or self._sums.setdefault(shard, self._read_sums(shard))

    def _read_sums(self, shard: int) -> BlockChecksums:
        name, record = self._name(shard) + SUFFIX, self._record.shards.file(shard, self.grid.field)
        kind = record, self.grid.block_bytes, self.grid.lengths_in(shard)
        path = self._root / name
        sums = None
        with suppress(OSError):
            sums = parse_checksums(memoryview(path.read_bytes()), *kind)
        if sums is None:
            content = self._content_of_sums(name)
            sums = parse_checksums(content, *kind)
            if sums is None:
                raise DamagedError(
                    f"{self._objects.url_of(name)} does not belong to the manifest; push the dataset again"
                )
            self.files.store({})  # as before a list: the cache may have been deleted
            write_beside_blocks(path, bytes(content))
        return sums

    def _content_of_sums(self, name: str) -> memoryview:
        try:
            return self._objects.get(name)
        except RemoteMissingError as error:
            raise StoreError(
                f"{self._objects.url_of(name)} does not exist, so a part of a file cannot be checked: mmload push "
                "writes it; push the dataset once more, or pull it"
            ) from error


def _copied_error(error: BaseException) -> BaseException:
    """Copies the exception of a fetching thread so that the waiting thread can raise it."""
    if isinstance(error, MmloadError):
        return type(error)(*error.args).with_traceback(error.__traceback__)
    return error


AHEAD_BYTES = 2 * 2**30
"""Maximum bytes to prefetch ahead: half of it is more than a window of the block order, 64 blocks of 64 rows of 196 kB.
Neighbors that one window reads in any order are then fetched by one request."""

_SHARE = 1 / 16  # of the limit: what comes early evicts what the same epoch may still need
_LEAST, _LARGEST = 256, 1 << 16  # positions requested at a time
_WAIT_S = 0.002


class ReadAhead:
    """Prefetch of an epoch of fields with plans, in a thread, until it is closed or collected.

    The limit is that of the cache in bytes.
    """

    def __init__(self, fields: Sequence[RemoteBlocks], limit: int | None, epoch: int) -> None:
        self._ended = threading.Event()
        self.close = weakref.finalize(self, _end, self._ended, os.getpid())
        row_bytes = sum(blocks.grid.row_bytes for blocks in fields)
        positions = positions_ahead(row_bytes, limit)
        plans = [(blocks, blocks.files.plan) for blocks in fields if blocks.files.plan is not None]
        if plans:
            arguments = plans, epoch, positions, limit is not None, self._ended
            threading.Thread(target=_read_ahead, args=arguments, name="mmload-ahead", daemon=True).start()


def _end(ended: threading.Event, owner: int) -> None:
    """Ends a prefetch; a forked process has none to end, and its thread may hold the event's lock there."""
    if owner == os.getpid():
        ended.set()


def _read_ahead(
    fields: list[tuple[RemoteBlocks, EpochPlan]], epoch: int, most: int, is_limited: bool, ended: threading.Event
) -> None:
    plan = fields[0][1]
    if is_limited:  # the tables of an eviction take seconds for millions of rows: compute them outside of its lock
        for _, each in fields:
            each.next_needs(np.empty(0, np.int64))
    try:
        for position, rows in plan.chunks(epoch, plan.now, positions_at_once(most)):
            while position + len(rows) - plan.now > most and position > plan.now and not ended.wait(_WAIT_S):
                pass
            if ended.is_set():
                break
            for blocks, _ in fields:
                blocks.prefetch(blocks.grid.blocks_of_rows(rows))
    except MmloadError:
        return  # the batch that needs those rows meets the same error, and raises it
    for blocks, _ in fields if ended.is_set() else ():
        blocks.fetching.cancel_prefetch()


def positions_ahead(row_bytes: int, limit: int | None) -> int:
    """Returns how many positions an epoch is prefetched ahead at most, for a row size summed over all fields."""
    ahead = AHEAD_BYTES if limit is None else min(AHEAD_BYTES, int(_SHARE * limit))
    return max(1, ahead // max(1, row_bytes))


def positions_at_once(most: int) -> int:
    """Returns how many positions are requested at a time; with more, one request fetches more neighbors."""
    return max(min(_LEAST, most), min(_LARGEST, most // 2))
