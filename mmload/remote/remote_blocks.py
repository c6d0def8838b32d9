"""One field of a split in object storage, with its blocks in a cache: fetches, checks, keeps and evicts them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np

from mmload.cloud.client import Objects
from mmload.errors import DamagedError, MmloadError, RemoteMissingError, StoreError
from mmload.remote.block_checksums import SUFFIX, BlockChecksums, parse
from mmload.remote.block_grid import Numbers, Run
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.fetching import AHEAD, NOW, Fetching
from mmload.remote.kept_blocks import _KIND, UNCHECKED, KeptBlocks
from mmload.runtime.durable_files import write_atomically
from mmload.store.checksum import crc32
from mmload.store.manifest import SplitRecord, shard_name

MOST_JOINED = 4 * 2**20
"""The most bytes of neighboring blocks that one request fetches: a batch may wait for the last of them."""

_TRIES = 2  # of bytes with another checksum, which may have been spoiled on their way
_ASKED = 256  # runs at a time: all threads wait meanwhile
_READS = 50  # of blocks that are evicted again and again before they are read
_LONGEST_PAUSE = 0.05  # seconds
_chance = random.SystemRandom()  # of nobody else, and not copied by a fork

Room = Callable[[int], None]
"""Makes room for so many bytes, and counts them."""


class RemoteBlocks:
    """The blocks of a field. Thread-safe.

    Args:
        objects: where the dataset lies.
        kept: the blocks on the local disk.
        record: the split's manifest entry.
        room: called before bytes are stored.
        parallel: requests at once.

    Attributes:
        plan: the order that is read now; None: none that is known.
        fetched_bytes: from object storage.
    """

    def __init__(self, objects: Objects, kept: KeptBlocks, record: SplitRecord, room: Room, parallel: int) -> None:
        self.kept, self.grid = kept, kept.grid
        self._objects, self._record, self._room = objects, record, room
        self._fetching = Fetching(self._fetch, parallel)
        self._sums: dict[int, BlockChecksums] = {}
        self._awaited: list[Numbers] = []
        self._sums_locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self.plan: EpochPlan | None = None
        self.fetched_bytes = 0

    def ahead(self, blocks: Numbers) -> None:
        """Fetch blocks that are needed later, in this order."""
        absent = blocks[~self.kept.are_there(blocks)]
        if len(absent):
            runs = self.grid.runs_by_need(absent, MOST_JOINED)
            for start in range(0, len(runs), _ASKED):
                self._fetching.want(runs[start : start + _ASKED], AHEAD)

    @property
    def backlog(self) -> int:
        """How many requests wait."""
        return self._fetching.backlog

    def forget_ahead(self) -> None:
        """Drop what was asked for ahead and is not on its way."""
        self._fetching.forget_ahead()

    def ask(self, blocks: Numbers) -> None:
        """Fetch what a batch needs now, all of it at once, without waiting."""
        absent = blocks[~self.kept.are_there(blocks)]
        if len(absent):
            self._fetching.want(self.grid.runs(np.unique(absent), MOST_JOINED), NOW)

    def pinned(self) -> Numbers:
        """The blocks that something waits for: to evict them would make it wait again."""
        with self._lock:
            return np.unique(np.concatenate([np.empty(0, np.int64), *self._awaited]))

    def await_blocks(self, blocks: Numbers) -> None:
        """Wait until blocks are there: these and no others.

        Raises:
            RemoteError, DamagedError: if one cannot be fetched, or has other bytes than were pushed.
            StoreError: if they are evicted before they can be read.
        """
        if self.kept.are_there(blocks).all():
            return
        with self._lock:
            self._awaited.append(blocks)
        try:
            self._await(blocks)
        finally:
            with self._lock:
                self._awaited = [awaited for awaited in self._awaited if awaited is not blocks]

    def _await(self, blocks: Numbers) -> None:
        for attempt in range(_READS):
            if self.kept.are_there(blocks).all():
                return
            if attempt > 1:  # processes that evict each other's blocks must not go on in step
                time.sleep(_chance.random() * min(_LONGEST_PAUSE, 2**attempt / 1000))
            absent = blocks[~self.kept.are_there(blocks)]
            asked = self._fetching.want(self.grid.runs(np.unique(absent), MOST_JOINED), NOW)
            for wanted in asked:
                wanted.done.wait()
                if wanted.error is not None:
                    raise _again(wanted.error)
        raise StoreError(
            f"{self.kept.root} has no room for what is read at the same time; give a larger cache_limit, smaller "
            "batches or fewer loaders"
        )

    def close(self) -> None:
        """End the threads."""
        self._fetching.close()

    def _fetch(self, run: Run) -> None:
        """Have a run's blocks here, those that are not."""
        states = self.kept.states[run.first : run.first + run.blocks].copy()
        if not (states & _KIND).any():
            return self._fetch_absent(run)
        numbers = np.arange(run.first, run.first + run.blocks)
        doubted = numbers[(states & _KIND) == UNCHECKED]
        for part in self.grid.runs(doubted, MOST_JOINED):
            self._check_again(part)
        for part in self.grid.runs(numbers[~self.kept.are_there(numbers)], MOST_JOINED):
            self._fetch_absent(part)
        return None

    def _fetch_absent(self, run: Run) -> None:
        seen = self.kept.states[run.first : run.first + run.blocks].copy()
        name = self._name(run.shard)
        sums = self._sums_of(run.shard)
        for attempt in range(_TRIES):
            data = self._objects.get_range(name, run.offset, run.length)
            wrong = self._wrong(run, data, sums)
            if wrong is None:
                break
            if attempt + 1 == _TRIES:
                raise DamagedError(
                    f"{self._objects.url_of(name)} is damaged at byte {wrong:,}: it does not have the checksum that "
                    "was pushed; remove that object, and push the dataset again"
                )
        with self._lock:
            self.fetched_bytes += run.length
        self._room(run.length)
        self.kept.keep(run, data, seen)

    def _check_again(self, run: Run) -> None:
        """Blocks of before the machine was started anew: trusted if their bytes are on the disk, else removed."""
        for block in self.grid.runs(np.arange(run.first, run.first + run.blocks), 1):
            if self._wrong(block, self.kept.stored(block), self._sums_of(run.shard)) is None:
                self.kept.trust(block)
            else:
                with self.kept.cache.counting():
                    self.kept.evict(np.array([block.first]))

    def _wrong(self, run: Run, data: memoryview, sums: BlockChecksums) -> int | None:
        """The byte of the file at which the first block with another checksum begins."""
        first, at = run.first - int(self.grid.starts[run.shard]), 0
        lengths = self.grid.bytes_of(np.arange(run.first, run.first + run.blocks))
        for number, length in enumerate(lengths.tolist(), first):
            if crc32(data[at : at + length]) != int(sums.each[number]):
                return run.offset + at
            at += length
        return None

    def _name(self, shard: int) -> str:
        return f"{self.grid.split}/{shard_name(shard)}/{self.grid.field}.memmap"

    def _sums_of(self, shard: int) -> BlockChecksums:
        """The checksums of a shard's blocks, kept beside its file."""
        sums = self._sums.get(shard)
        if sums is not None:
            return sums
        with self._sums_locks.setdefault(shard, threading.Lock()):
            return self._sums.get(shard) or self._sums.setdefault(shard, self._read_sums(shard))

    def _read_sums(self, shard: int) -> BlockChecksums:
        name, record = self._name(shard) + SUFFIX, self._record.shards.file(shard, self.grid.field)
        kind = record, self.grid.block_bytes, self.grid.lengths_in(shard)
        path = self.kept.root / name
        sums = parse(memoryview(path.read_bytes()), *kind) if path.exists() else None
        if sums is None:
            content = self._content_of_sums(name)
            sums = parse(content, *kind)
            if sums is None:
                raise DamagedError(
                    f"{self._objects.url_of(name)} does not belong to the manifest; push the dataset again"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, bytes(content))
        return sums

    def _content_of_sums(self, name: str) -> memoryview:
        try:
            return self._objects.get(name)
        except RemoteMissingError as error:
            raise StoreError(
                f"{self._objects.url_of(name)} does not exist, so a part of a file cannot be checked: mmload push "
                "writes it; push the dataset once more, or pull it"
            ) from error


def _again(error: BaseException) -> BaseException:
    """An error of a thread, for another thread to raise."""
    if isinstance(error, MmloadError):
        return type(error)(*error.args).with_traceback(error.__traceback__)
    return error
