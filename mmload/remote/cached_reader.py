"""Reads rows of a dataset in object storage from blocks on the local disk; waits for those that are absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from mmload.errors import StoreError, UsageError
from mmload.remote.block_grid import Numbers
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.epoch_plan import EpochPlan, Take
from mmload.remote.kept_blocks import can_be_read
from mmload.remote.read_ahead import ReadAhead
from mmload.remote.remote_blocks import RemoteBlocks
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.field_files import BYTES
from mmload.store.file_requests import Request, served
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord
from mmload.store.row_reader import SMALL_ROW, RowReader

_TRIES = 100  # of a row that is evicted while it is read


class RemoteFolder(Folder):
    """The folder of a dataset in a cache: its lists come when they are asked for. Picklable: a copy opens the URL."""

    def __init__(self, cache: DatasetCache) -> None:
        super().__init__(cache.root)
        self.cache = cache

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        return _folder, (cache.objects.url, cache.folder.path, cache.limit, cache.parallel, cache.manifest.contents)

    @property
    def title(self) -> str:
        """See :class:`Folder`."""
        return self.cache.objects.url

    @property
    def remedy(self) -> str:
        """See :class:`Folder`."""
        return "run mmload verify on the dataset that was pushed there"

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
        self.shared_handle = blocks.kept.handle(shard)

    @property
    def handle(self) -> int:  # type: ignore[override]  # belongs to the blocks, which close it
        """The descriptor."""
        return self.shared_handle

    def check(self) -> None:
        """Nothing: the reader compares the states of the blocks."""


class CachedReader(RowReader):
    """Reads rows of a split through a cache. Thread-safe and picklable."""

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self._cache = folder.cache

    def blocks(self, name: str) -> RemoteBlocks:
        """The blocks of a field, by its name or that of its file of rows."""
        field = name.removesuffix(f".{BYTES}")
        own_sizes = self._record.fields[field].own_sizes
        return self._cache.blocks(self._split, field, self.whole(field).index.offsets if own_sizes else None)

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
        specs = {name: self._record.fields[name] for name in fields}
        large = [self.blocks(name) for name, spec in specs.items() if spec.own_sizes or spec.row_bytes > SMALL_ROW]
        for blocks in large:
            blocks.plan = EpochPlan(blocks.grid, takes, margin, blocks.plan)
            blocks.plan.begin(epoch, now)
        return ReadAhead(large, self._cache.limit, epoch)

    def held(self, name: str, shard: int) -> HeldFile:
        """See :class:`RowReader`."""
        key = shard, name
        return self._files.get(key) or self._files.setdefault(key, self._opened(name, shard))

    def _opened(self, name: str, shard: int) -> HeldFile:
        field, _, part = name.partition(".")
        if part in ("", BYTES):
            return CachedFile(self.blocks(name), shard)
        self._cache.have_index(self._split, field)
        return super().held(name, shard)

    def _served(self, name: str, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """As :meth:`RowReader._served`: from blocks that were there before a group was read, and after."""
        blocks = self.blocks(name)
        of_rows = blocks.grid.of_rows(rows)
        blocks.ask(of_rows)
        if name.endswith(f".{BYTES}"):
            edges = list(range(len(rows) + 1))
        else:
            edges = [0, *accumulate(len(request.out) // blocks.grid.row_bytes for request in requests)]
        return _from_blocks(blocks, of_rows, edges, requests, groups)


def _from_blocks(
    blocks: RemoteBlocks, of_rows: Numbers, edges: list[int], requests: Sequence[Request], groups: Sequence[int]
) -> Iterator[None]:
    """See :meth:`CachedReader._served`; request k is of the rows from ``edges[k]`` on, whose blocks are ``of_rows``."""
    states = blocks.kept.states
    seen = states[of_rows]
    there = can_be_read(seen).tolist()
    reading, first = served(requests), 0
    for last in groups:
        for number in range(first, last):
            begin, end = edges[number], edges[number + 1]
            if not all(there[begin:end]):
                with requests[number].named():
                    blocks.await_blocks(of_rows[begin:end])
                seen[begin:end] = states[of_rows[begin:end]]
            next(reading)
        part = slice(edges[first], edges[last])
        now = states[of_rows[part]]
        if (now != seen[part]).any() or not can_be_read(now).all():
            for number in range(first, last):
                _read_again(blocks, of_rows[edges[number] : edges[number + 1]], requests[number])
        if last == len(requests) and blocks.plan is not None:
            blocks.plan.passed(len(of_rows))
        first = last
        yield


def _read_again(blocks: RemoteBlocks, of_rows: Numbers, request: Request) -> None:
    """Fill a request once more: one of its group's blocks was evicted while they were read."""
    states = blocks.kept.states
    for _ in range(_TRIES):
        with request.named():
            blocks.await_blocks(of_rows)
        seen = states[of_rows]
        request.fill()
        if can_be_read(seen).all() and (states[of_rows] == seen).all():
            return
    raise StoreError(f"{blocks.kept.root} has no room for what is read at the same time; give more cache_limit")
