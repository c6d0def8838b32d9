"""Datasets in object storage, read from blocks on the local disk; each has one object per process for its cache."""

from __future__ import annotations

import os
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
from mmload.remote.remote_blocks import ReadAhead, RemoteBlocks, Requests
from mmload.runtime.regular_files import open_regular
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.field_rows import FieldRows, LocalFiles
from mmload.store.manifest import Manifest, SplitRecord
from mmload.store.opened_file import OpenedFile
from mmload.store.row_reader import SMALL_ROW, Places
from mmload.store.shard_table import BYTES


class RemoteFolder(Folder):
    """Folder of a dataset in a cache, whose lists are fetched on demand. Picklable: a copy opens the URL."""

    def __init__(self, cache: DatasetCache) -> None:
        super().__init__(cache.root)
        self.cache = cache

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        place = cache.objects.url, cache.folder.path, cache.limit, cache.parallel
        return _folder, (*place, cache.manifest.version, cache.manifest.contents)

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

    check_changed = check

    def stat(self, file: str) -> os.stat_result:
        self.cache.ensure_list(file)
        return os.stat(self.name(file))

    def _open(self, file: str) -> int:
        self.cache.ensure_list(file)
        return open_regular(self.name(file))


def _folder(url: str, cache: Path, limit: int | None, parallel: int, version: int, contents: str) -> RemoteFolder:
    folder = RemoteFolder(dataset_cache(url, cache, limit, parallel, version))
    if folder.read().contents != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFile(OpenedFile):
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
        self.cache = folder.cache

    def blocks(self, name: str) -> RemoteBlocks:
        """Returns the blocks of a field."""
        spec = self.record.fields[name]
        offsets = self.index(name).offsets if spec.variable_size else None
        return self.cache.blocks(self.split, name, offsets, self.order)

    def revision(self, name: str, shard: int) -> Revision:
        """Returns a constant per file, as the blocks are always those of the manifest."""
        return 0, int(self.record.shards.bytes[name][shard]), 0

    def opened(self, name: str, shard: int) -> OpenedFile:
        key = shard, name
        return self._opened_files.get(key) or self._opened_files.setdefault(key, self._open_file(name, shard))

    def _open_file(self, name: str, shard: int) -> OpenedFile:
        field, _, part = name.partition(".")
        is_index = part not in ("", BYTES) and not part.isdigit()  # a number is the version of an added field
        if not is_index and not self.record.fields[field].is_list:
            objects = self.cache.objects
            return CachedFile(objects.url, objects.url_of(self._path(name, shard)))
        self.cache.ensure_index(self.split, field)
        try:
            return super().opened(name, shard)
        except MmloadError:  # something has removed or truncated it since
            self.cache.ensure_index(self.split, field, check_disk=True)
            return super().opened(name, shard)

    def arriving(
        self,
        field: FieldRows,
        rows: Numbers,
        places: Places,
        out: memoryview,
        starts: Numbers,
        groups: Sequence[int],
    ) -> Iterator[None]:
        if field.name not in self.record.fields or field.spec.is_list:  # a file that is here as a whole
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

        ``takes`` are the orders of the ranks of this machine, starting with this one; the epoch continues at position
        ``now``. :class:`EpochPlan` says what the margin is.

        Returns:
            The prefetch, which ends when it is closed or collected.
        """
        specs = {name: self.record.fields[name] for name in fields}
        large = [
            self.files.blocks(name)
            for name, spec in specs.items()
            if spec.variable_size or not (spec.is_list or spec.row_bytes <= SMALL_ROW)
        ]
        for blocks in large:
            blocks.files.plan = EpochPlan(blocks.grid, takes, margin, blocks.files.plan)
            blocks.files.plan.begin(epoch, now)
        return ReadAhead(large, self.files.cache.limit, epoch)


class CachedDataset(Dataset):
    """Dataset in object storage."""

    def __init__(self, folder: RemoteFolder) -> None:
        self.manifest = folder.read()
        self.folder, self.path = folder, folder.path
        self._splits = {name: CachedSplit(folder, name, record) for name, record in self.manifest.splits.items()}


def open_cached(
    url: str, cache: Path, cache_limit: str | int | None, parallel: int, version: int | None = None
) -> CachedDataset:
    """Opens a dataset at a URL for :func:`mmload.open`."""
    check_parallel(parallel)
    limit = None if cache_limit is None else parse_bytes(cache_limit, "cache_limit")
    return CachedDataset(RemoteFolder(dataset_cache(url, cache, limit, parallel, version)))


def _pieces(
    blocks: RemoteBlocks, of_rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
) -> tuple[list[_Piece], list[int]]:
    """Joins rows that follow each other both in a block and in memory.

    Each row begins at its place in the file of its block and goes to its start in ``out``. After each of ``groups``,
    numbers of rows, the rows so far must be complete.

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
        if last == groups[-1] and blocks.files.plan is not None:
            blocks.files.plan.advance(rows)
        done = last
        yield
