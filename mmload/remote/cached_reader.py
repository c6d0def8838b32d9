"""Reads rows of a dataset in object storage from blocks on the local disk, and fetches blocks ahead of an epoch."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import DamagedError, MmloadError, StoreError, UsageError, parse_bytes
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.epoch_plan import EpochPlan, Take
from mmload.remote.file_calls import read_files
from mmload.remote.layout import Numbers
from mmload.remote.object_store import check_parallel
from mmload.remote.remote_blocks import RemoteBlocks, Requests
from mmload.runtime.regular_files import open_regular
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import Folder, HeldFile, Revision
from mmload.store.field_rows import FieldRows, LocalFiles
from mmload.store.manifest import Manifest, SplitRecord, shard_name
from mmload.store.row_reader import SMALL_ROW, Places
from mmload.store.shard_table import BYTES


class RemoteFolder(Folder):
    """Folder of a dataset in a cache, whose lists are fetched on demand. Picklable: a copy opens the URL."""

    def __init__(self, cache: DatasetCache) -> None:
        super().__init__(cache.root)
        self.cache = cache

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        return _folder, (cache.objects.url, cache.folder.path, cache.limit, cache.parallel, cache.manifest.contents)

    @property
    def title(self) -> str:
        return self.cache.objects.url

    @property
    def remedy(self) -> str:
        return "run mmload verify on the dataset that was pushed there"

    def read(self) -> Manifest:
        """Returns the manifest at the URL."""
        self._manifest = self.cache.manifest
        return self._manifest

    def check(self) -> None:
        """Does nothing: the folder is named after the dataset's content, and every file in it is checked."""

    def check_changed(self) -> None:
        """Does nothing, for the same reason as :meth:`check`."""

    def stat(self, file: str) -> os.stat_result:
        self.cache.ensure_list(file)
        return os.stat(self.name(file))

    def _open(self, file: str) -> int:
        self.cache.ensure_list(file)
        return open_regular(self.name(file))


def _folder(url: str, cache: Path, limit: int | None, parallel: int, contents: str) -> RemoteFolder:
    folder = RemoteFolder(dataset_cache(url, cache, limit, parallel))
    if folder.read().contents != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFile(HeldFile):
    """File of a shard in object storage, whose blocks lie in a cache."""

    def __init__(self, dataset: str, name: str) -> None:
        self._dataset, self.path = dataset, name

    @property
    def handle(self) -> int:  # type: ignore[override]  # there is none
        """Raises UsageError, as there is no local file to open.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{self.path} is in object storage and cannot be mapped into memory; read rows, or copy the dataset: "
            f"mmload pull {self._dataset} DIR"
        )

    def check(self) -> None:
        """Does nothing, as blocks are immutable."""


class _Piece(NamedTuple):
    """Part of one block that is read from `offset` in its file; ``first`` is the index of its first row."""

    first: int
    block: int
    path: str
    offset: int
    out: memoryview


class CachedFiles(LocalFiles):
    """Files of a split in object storage, read through a cache; its indexes are local files."""

    is_local = False

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self._cache = folder.cache

    @property
    def limit(self) -> int | None:
        """Limit of the cache in bytes."""
        return self._cache.limit

    def blocks(self, name: str) -> RemoteBlocks:
        """Returns the blocks of a field."""
        field = self.field(name)
        offsets = field.index.offsets if field.spec.variable_size else None
        return self._cache.blocks(self.split, name, offsets)

    def revision(self, name: str, shard: int) -> Revision:
        """Returns a constant per file, as the blocks are always those of the manifest."""
        return 0, int(self.record.shards.bytes[name][shard]), 0

    def held(self, name: str, shard: int) -> HeldFile:
        key = shard, name
        return self._held.get(key) or self._held.setdefault(key, self._opened(name, shard))

    def _opened(self, name: str, shard: int) -> HeldFile:
        field, _, part = name.partition(".")
        if part in ("", BYTES):
            objects = self._cache.objects
            return CachedFile(objects.url, objects.url_of(f"{self.split}/{shard_name(shard)}/{name}.memmap"))
        self._cache.ensure_index(self.split, field)
        try:
            return super().held(name, shard)
        except MmloadError:  # something has removed or truncated it since
            self._cache.ensure_index(self.split, field, check_disk=True)
            return super().held(name, shard)

    def arriving(
        self,
        field: FieldRows,
        rows: Numbers,
        places: Places,
        out: memoryview,
        starts: Numbers,
        groups: Sequence[int],
    ) -> Iterator[None]:
        if field.name not in self.record.fields:  # a file of an index, which is here as a whole
            return super().arriving(field, rows, places, out, starts, groups)
        blocks = self.blocks(field.name)
        of_rows = blocks.grid.blocks_of_rows(rows)
        requests = blocks.fetch_missing(of_rows)
        pieces, ends = _pieces(blocks, of_rows, places, out, starts, groups)

        def damaged(index: int, reason: str) -> DamagedError:
            return field.damaged(int(rows[index]), reason)

        return _filled(blocks, requests, pieces, ends, damaged, len(rows))


class CachedSplit(Split):
    """Split of a dataset in object storage."""

    files_type = CachedFiles
    files: CachedFiles

    def prefetch_epoch(
        self, fields: Sequence[str], takes: Sequence[Take], epoch: int, now: int, margin: int
    ) -> ReadAhead:
        """Prefetches what an epoch reads, in its order, and makes evictions follow that order, too.

        Args:
            fields: fields that the epoch reads.
            takes: the order of each rank of this machine, starting with this one.
            epoch: number of the epoch.
            now: position at which it continues.
            margin: see :class:`EpochPlan`.

        Returns:
            The prefetch, which ends when it is closed or collected.
        """
        specs = {name: self.fields[name] for name in fields}
        large = [
            self.files.blocks(name) for name, spec in specs.items() if spec.variable_size or spec.row_bytes > SMALL_ROW
        ]
        for blocks in large:
            blocks.plan = EpochPlan(blocks.grid, takes, margin, blocks.plan)
            blocks.plan.begin(epoch, now)
        return ReadAhead(large, self.files.limit, epoch)


class CachedDataset(Dataset):
    """Dataset in object storage."""

    def __init__(self, folder: RemoteFolder) -> None:
        self.manifest = folder.read()
        self.path = folder.path
        self._splits = {name: CachedSplit(folder, name, record) for name, record in self.manifest.splits.items()}


def open_cached(url: str, cache: Path, cache_limit: str | int | None, parallel: int) -> CachedDataset:
    """Opens a dataset at a URL for :func:`mmload.open`."""
    check_parallel(parallel)
    limit = None if cache_limit is None else parse_bytes(cache_limit)
    return CachedDataset(RemoteFolder(dataset_cache(url, cache, limit, parallel)))


def _pieces(
    blocks: RemoteBlocks, of_rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
) -> tuple[list[_Piece], list[int]]:
    """Joins rows that follow each other both in a block and in memory.

    Args:
        blocks: blocks of the field.
        of_rows: int64 [B], the block of each row.
        places: [B], the place of each row in its file.
        out: destination.
        starts: int64 [B], the first byte of each row in ``out``.
        groups: numbers of rows after each of which the rows so far must be complete.

    Returns:
        The pieces in order, and the number of pieces up to the end of each group.
    """
    offset, size = places["offset"], places["bytes"]
    is_head = np.ones(len(of_rows), np.bool_)
    is_head[1:] = (of_rows[1:] != of_rows[:-1]) | (offset[1:] != offset[:-1] + size[:-1])
    is_head[1:] |= starts[1:] != starts[:-1] + size[:-1]
    is_head[groups[:-1]] = True
    heads = np.flatnonzero(is_head)
    numbers = of_rows[heads]
    past = (offset[heads] - blocks.grid.offsets_of(numbers)).tolist()
    ends = (starts + size)[np.append(heads[1:], len(of_rows)) - 1].tolist()
    pieces = [
        _Piece(index, block, path, at, out[start:end])
        for index, block, path, at, start, end in zip(
            heads.tolist(),
            numbers.tolist(),
            blocks.files.paths(numbers),
            past,
            starts[heads].tolist(),
            ends,
            strict=True,
        )
    ]
    return pieces, np.searchsorted(heads, groups).tolist()


def _filled(
    blocks: RemoteBlocks,
    requests: Requests,
    pieces: Sequence[_Piece],
    groups: Sequence[int],
    damaged: Callable[[int, str], DamagedError],
    rows: int,
) -> Iterator[None]:
    """Fills the memory of the pieces; yields after each of ``groups``, numbers of pieces.

    When a piece is missing though expected, all later ones are looked up on the disk at once.
    """
    looked, done = False, 0
    for last in groups:
        some = pieces[done:last]
        for piece in some:
            if piece.block in requests:
                requests[piece.block].done.wait()
        offsets = np.array([piece.offset for piece in some], np.int64)
        sizes = blocks.grid.bytes_of(np.array([piece.block for piece in some], np.int64))
        got = read_files([piece.path for piece in some], sizes, offsets, [piece.out for piece in some])
        lengths = np.array([len(piece.out) for piece in some], np.int64)
        for index in np.flatnonzero(got != lengths).tolist():
            first, block, _, offset, out = some[index]
            if block not in requests and not looked:
                looked = True
                later = np.array([piece.block for piece in pieces[done + index :]])
                requests = blocks.fetch_missing(later, check_disk=True) | requests
            try:
                out[:] = blocks.content(block, requests)[offset : offset + len(out)]
            except DamagedError as error:
                raise damaged(first, str(error)) from error
        if last == groups[-1] and blocks.plan is not None:
            blocks.plan.advance(rows)
        done = last
        yield


AHEAD_BYTES = 2 * 2**30
"""Maximum bytes to prefetch ahead: half of it is more than a window of the block order, 64 blocks of 64 rows of 196 kB.
Neighbors that one window reads in any order are then fetched by one request."""

_SHARE = 1 / 16  # of the limit: what comes early evicts what the same epoch may still need
_LEAST, _LARGEST = 256, 1 << 16  # positions requested at a time
_WAIT_S = 0.002


class ReadAhead:
    """Prefetch of an epoch in a thread, until it is closed or collected.

    Args:
        fields: blocks of the fields that are read, each with its plan.
        limit: limit of the cache in bytes.
        epoch: number of the epoch.
    """

    def __init__(self, fields: Sequence[RemoteBlocks], limit: int | None, epoch: int) -> None:
        self._ended = threading.Event()
        self.close = weakref.finalize(self, self._ended.set)
        row_bytes = sum(blocks.grid.row_bytes for blocks in fields)
        positions = positions_ahead(row_bytes, limit)
        plans = [(blocks, blocks.plan) for blocks in fields if blocks.plan is not None]
        if plans:
            arguments = plans, epoch, positions, limit is not None, self._ended
            threading.Thread(target=_run, args=arguments, name="mmload-ahead", daemon=True).start()


def _run(
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
        blocks.cancel_prefetch()


def positions_ahead(row_bytes: int, limit: int | None) -> int:
    """Returns how many positions an epoch is prefetched ahead at most, for a row size summed over all fields."""
    ahead = AHEAD_BYTES if limit is None else min(AHEAD_BYTES, int(_SHARE * limit))
    return max(1, ahead // max(1, row_bytes))


def positions_at_once(most: int) -> int:
    """Returns how many positions are requested at a time; with more, one request fetches more neighbors."""
    return max(min(_LEAST, most), min(_LARGEST, most // 2))
