"""Reads rows of a dataset in object storage from blocks on the local disk; waits for those that are absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmload.errors import StoreError, UsageError
from mmload.remote.block_grid import Numbers
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.epoch_plan import EpochPlan, Take
from mmload.remote.read_ahead import ReadAhead
from mmload.remote.remote_blocks import RemoteBlocks
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord
from mmload.store.row_reader import SMALL_ROW, Request, RowReader

_THERE = 1
_TRIES = 100  # of a row that is evicted while it is read


class RemoteFolder(Folder):
    """The folder of a dataset in a cache: its lists come when they are asked for. Picklable: a copy opens the URL."""

    def __init__(self, cache: DatasetCache) -> None:
        super().__init__(cache.root)
        self.cache = cache

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        return _folder, (cache.objects.url, cache.folder.path, cache.limit, cache.parallel, cache.manifest.contents)

    def stat(self, file: str) -> os.stat_result:
        """See :class:`Folder`."""
        self.cache.have_list(file)
        return super().stat(file)

    def open(self, file: str) -> int:
        """See :class:`Folder`."""
        self.cache.have_list(file)
        return super().open(file)


def _folder(url: str, *given: Any) -> RemoteFolder:
    *options, contents = given
    folder = RemoteFolder(dataset_cache(url, *options))
    if folder.read().contents != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFile(HeldFile):
    """A shard's file in a cache. What is read of it is valid if the states of its blocks say so, not its revision."""

    def __init__(self, blocks: RemoteBlocks, shard: int) -> None:
        self.path = str(blocks.kept.path(shard))
        self._first = int(blocks.grid.starts[shard])
        self._block_bytes = blocks.grid.block_bytes
        self.shared_handle = blocks.kept.handle(shard)

    @property
    def handle(self) -> int:  # type: ignore[override]  # belongs to the blocks, which close it
        """The descriptor."""
        return self.shared_handle

    def blocks_at(self, offset: int, length: int) -> slice:
        """The blocks of a range of bytes."""
        first = offset // self._block_bytes
        return slice(self._first + first, self._first + (offset + length - 1) // self._block_bytes + 1)

    def check(self) -> None:
        """Nothing: the reader compares the states of the blocks."""


class CachedReader(RowReader):
    """Reads rows of a split through a cache. Thread-safe and picklable."""

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self._cache = folder.cache

    def blocks(self, name: str) -> RemoteBlocks:
        """The blocks of a field."""
        return self._cache.blocks(self._split, name)

    def revision(self, name: str, shard: int) -> Revision:
        """Not of the file, which changes when blocks come and go: all blocks are as the manifest says."""
        return 0, int(self._record.shards.bytes[name][shard]), 0

    def handle(self, name: str, shard: int) -> int:
        """Refused: a map of a file would show zeros where blocks are absent."""
        raise UsageError(
            f"{name} of {self._cache.objects.url} is in object storage and cannot be mapped into memory; read rows, or "
            f"copy it: mmload pull {self._cache.objects.url} DIR"
        )

    def follow(self, fields: Sequence[str], takes: Sequence[Take], epoch: int, now: int, margin: int) -> ReadAhead:
        """Fetch what an epoch reads, ahead of it and in its order, and evict by what it needs last.

        Args:
            fields: that it reads.
            takes: the order of each rank of this machine, this one's first.
            epoch: its number.
            now: the position at which it goes on.
            margin: as :class:`EpochPlan` has it.

        Returns:
            The reader ahead; it ends when it is closed or collected.
        """
        large = [self.blocks(name) for name in fields if self._record.fields[name].row_bytes > SMALL_ROW]
        for blocks in large:
            blocks.plan = EpochPlan(blocks.grid, takes, margin, blocks.plan)
            blocks.plan.begin(epoch, now)
        return ReadAhead(large, self._cache.limit, epoch)

    def held(self, name: str, shard: int) -> HeldFile:
        """See :class:`RowReader`."""
        key = shard, name
        return self._files.get(key) or self._files.setdefault(key, CachedFile(self.blocks(name), shard))

    def _served(self, name: str, rows: Numbers, requests: Sequence[Request]) -> Iterator[None]:
        """Fill the requests in turn, from blocks that were there before and after."""
        blocks = self.blocks(name)
        states, wait = blocks.kept.states, blocks.await_blocks
        blocks.ask(blocks.grid.of_rows(rows))
        reading = super()._served(name, rows, requests)
        for request in requests:
            file: Any = request.file
            where = file.blocks_at(request.offset, len(request.out))
            seen = states[where].tolist()  # mostly one: faster as a list than as an array
            if not _are_there(seen):
                wait(np.arange(where.start, where.stop))
                seen = states[where].tolist()
            next(reading)
            for _ in range(_TRIES):
                if states[where].tolist() == seen and _are_there(seen):
                    break
                wait(np.arange(where.start, where.stop))
                seen = states[where].tolist()
                file.fill(request.out, request.offset)
            else:
                raise StoreError(f"{file.path} has no room for what is read at the same time; give more cache_limit")
            yield
        if blocks.plan is not None:
            blocks.plan.passed(len(rows))


def _are_there(states: list[int]) -> bool:
    return all(state & 3 == _THERE for state in states)
