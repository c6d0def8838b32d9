"""Datasets in object storage, read from chunks on the local disk; each has one object per process for its cache."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mmload.errors import MmloadError, StoreError, UsageError, parse_bytes
from mmload.remote.chunk_map import ChunkMap
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.object_store import check_parallel
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import Folder, OpenedFile
from mmload.store.field_rows import FieldRows, LocalFiles
from mmload.store.manifest import Manifest, SplitRecord
from mmload.store.row_reader import Numbers, Places, Rows
from mmload.store.shard_table import BYTES, FileRecord
from mmload.store.variable_rows import Index

Take = Callable[[int, int], Numbers]
"""(start, stop) -> the rows at these positions of this rank in an epoch, int64; fewer where it ends."""

_AT_ONCE = 4096


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

    def open(self, file: str, record: FileRecord) -> int:
        self.cache.ensure_file(file, record)
        return super().open(file, record)


def _folder(url: str, cache: Path, limit: int | None, parallel: int, version: int, contents: str) -> RemoteFolder:
    folder = RemoteFolder(dataset_cache(url, cache, limit, parallel, version))
    if folder.read().contents != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFiles(LocalFiles):
    """Files of a split in object storage, read through a cache; its indexes are local files."""

    is_local = False

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self.cache = folder.cache

    def chunk_map(self, name: str) -> ChunkMap:
        """Returns the map of a field."""
        offsets = self.index(name).offsets if self.record.fields[name].variable_size else None
        return self.cache.chunk_map(self.split, name, offsets)

    def index(self, name: str) -> Index:
        if name not in self._indexes:
            self.cache.ensure_index(self.split, name)  # all at once
        return super().index(name)

    def opened(self, name: str, shard: int) -> OpenedFile:
        """Returns an open file that is here as a whole.

        Raises:
            UsageError: if its rows are in chunks.
        """
        field, _, part = name.partition(".")
        if self.record.fields[field].is_list or (part not in ("", BYTES) and not part.isdigit()):
            return super().opened(name, shard)
        objects = self.cache.objects  # rows in chunks; a number is the version of an added field
        raise UsageError(
            f"{objects.url_of(self._path(name, shard))} is in object storage and cannot be mapped into memory; "
            f"read rows, or copy the dataset: mmload pull {objects.url} DIR"
        )

    def fill(self, field: FieldRows, rows: Numbers, places: Places, out: memoryview, starts: Numbers) -> None:
        if field.name not in self.record.fields or field.spec.is_list:  # a file that is here as a whole
            super().fill(field, rows, places, out, starts)
        elif len(rows):
            _copy(self.chunk_map(field.name), places, out, starts)


class CachedSplit(Split):
    """Split of a dataset in object storage."""

    files_type = CachedFiles
    files: CachedFiles

    def maps(self, fields: Iterable[str]) -> dict[str, ChunkMap]:
        """Returns the maps of those of some fields whose rows are in chunks: not lists, nor what stays in memory."""
        found = [name for name in fields if not (self.record.fields[name].is_list or self.reader.is_column(name))]
        return {name: self.files.chunk_map(name) for name in found}

    def chunk_numbers(self, rows: Numbers) -> Numbers:
        """Returns the number of the chunk of each row of images, int64 [B]; 0 without images."""
        for chunks in self.maps(["images"] if "images" in self.record.fields else []).values():
            return chunks.chunks.chunks_at(self.reader.field("images").located(rows))
        return np.zeros(len(rows), np.int64)

    def prefetch(self, fields: Sequence[str], take: Take) -> Prefetch:
        """Prefetches what an epoch reads, in its order, until the result is closed or collected."""
        return Prefetch([(self.reader.field(name), chunks) for name, chunks in self.maps(fields).items()], take)


class Prefetch:
    """Prefetch of an epoch of fields, in a thread for each, until it is closed or collected."""

    def __init__(self, fields: Sequence[tuple[Rows, ChunkMap]], take: Take) -> None:
        self._ended = threading.Event()
        self.close = weakref.finalize(self, _end, self._ended, [chunks for _, chunks in fields], os.getpid())
        for rows, chunks in fields:
            chunks.begin_epoch()
            arguments = chunks, _needed(rows, chunks, take), self._ended
            threading.Thread(target=_prefetch, args=arguments, name="mmload-ahead", daemon=True).start()


def _end(ended: threading.Event, maps: Sequence[ChunkMap], owner: int) -> None:
    """Ends a prefetch; a forked process has none to end, and its thread may hold the event's lock there."""
    if owner == os.getpid():
        ended.set()
        for chunks in maps:
            chunks.end_prefetch()


def _prefetch(chunks: ChunkMap, needed: Iterator[int], ended: threading.Event) -> None:
    with suppress(MmloadError):  # the batch that needs those rows meets the same error, and raises it
        chunks.prefetch(needed, ended)


def _needed(rows: Rows, chunks: ChunkMap, take: Take) -> Iterator[int]:
    """Yields the chunks that an epoch needs, in the order in which some positions at a time need them first."""
    now = 0
    while len(numbers := take(now, now + _AT_ONCE)):
        found, first = np.unique(chunks.chunks.chunks_at(rows.located(numbers)), return_index=True)
        yield from found[np.argsort(first)].tolist()
        now += len(numbers)


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


def _copy(chunks: ChunkMap, places: Places, out: memoryview, starts: Numbers) -> None:
    """Copies rows from their chunks to their starts in ``out``."""
    prepared = chunks.prepare(places, lambda _, error: error)
    chunks.wait(prepared, slice(None))
    at, size = prepared.starts, places["bytes"]
    is_head = np.ones(len(places), np.bool_)  # neighbors in both memories are copied at once
    is_head[1:] = (at[1:] != at[:-1] + size[:-1]) | (starts[1:] != starts[:-1] + size[:-1])
    heads = np.flatnonzero(is_head)
    ends = (at + size)[np.append(heads[1:], len(places)) - 1]
    target = np.frombuffer(out, np.uint8)
    for begin, end, place in zip(at[heads].tolist(), ends.tolist(), starts[heads].tolist(), strict=True):
        target[place : place + end - begin] = chunks.memory[begin:end]
    chunks.release(prepared)
