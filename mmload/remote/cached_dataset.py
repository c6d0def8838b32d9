"""Datasets in object storage, read from chunks on the local disk; each has one object per process for its cache."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from mmload.errors import DamagedError, StoreError, parse_bytes
from mmload.remote.cache_folder import cache_folder
from mmload.remote.chunk_files import ChunkFiles
from mmload.remote.chunk_map import ChunkMap, FetchThreads
from mmload.remote.chunks import Chunks, manifest_at
from mmload.remote.object_store import Objects, check_parallel, in_parallel
from mmload.runtime.files import allow_more_files
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import Folder, OpenedFile, Places
from mmload.store.manifest import BYTES, FileRecord, Manifest, parts_of
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import FieldRows, LocalFiles, Rows, copy_ranges

RowsAt = Callable[[int, int], Numbers]
"""(start, stop) -> the rows at these positions of this rank in an epoch, int64; fewer where it ends."""

_AT_ONCE = 4096

_OPENED: weakref.WeakValueDictionary[tuple[str, str, Path], CachedFolder] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


def _after_fork() -> None:
    """Replaces the locks in a forked process, which can read what is cached, as threads of the parent may hold them."""
    global _OPENING
    _OPENING = threading.Lock()
    for folder in list(_OPENED.values()):
        folder.begin_anew()


os.register_at_fork(after_in_child=_after_fork)


class CachedFolder(Folder):
    """Folder of a dataset at a URL in a cache: one object per process. Thread-safe. Use :func:`cached_folder`.

    Lists and indexes are fetched as a whole when they are needed; rows are in chunks. The folder is named after the
    content of the dataset. Picklable: a copy opens the URL.

    Attributes:
        objects: the dataset at the URL.
        cache: the cache.
        close: ends the use of the cache, as collecting the folder does; nothing may read afterwards.
    """

    def __init__(self, objects: Objects, manifest: Manifest, cache: Path, limit: int | None, parallel: int) -> None:
        root = cache / manifest.contents[:32]
        super().__init__(root, root, manifest, {})
        self.objects, self._parallel = objects, parallel
        allow_more_files()  # ahead of an error, which connections to the store would meet as well as files
        self.cache = cache_folder(cache, limit)
        first = manifest.versions[0] if manifest.versions else manifest
        self._chunks_root = cache / first.contents[:32]  # which later versions of the dataset share
        self._maps: dict[tuple[str, str], ChunkMap] = {}
        self.begin_anew()
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.close = weakref.finalize(self, self.cache.open_dataset(self._chunks_root).close)
        except OSError as error:
            raise StoreError(f"cannot write {root} ({error.strerror})") from error

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        place = self.objects.url, cache.path, cache.limit, self._parallel
        return _opened_again, (*place, self.manifest.version, self.identity)

    def begin_anew(self) -> None:
        """Begins with locks that nobody holds, and with threads of this process."""
        self._indexing, self._lock = threading.Lock(), threading.Lock()
        self._threads = FetchThreads(self._parallel)
        for each in self._maps.values():
            each.begin_anew(self._threads)

    @property
    def title(self) -> str:
        return self.objects.url

    @property
    def remedy(self) -> str:
        return "run mmload verify on the dataset that was pushed there"

    def open(self, file: str, record: FileRecord) -> int:
        self.ensure_file(file, record)
        return super().open(file, record)

    def chunk_map(self, split: str, field: str, offsets: Numbers | None = None) -> ChunkMap:
        """Returns the map of a field, by offsets if its rows are variable-size."""
        with self._lock:
            key = split, field
            if key not in self._maps:
                chunks = Chunks(split, field, self.manifest.splits[split], offsets)
                files = ChunkFiles(self.objects, self.cache, self.path, self._chunks_root, chunks)
                self._maps[key] = ChunkMap(files, self._threads)
            return self._maps[key]

    def ensure_index(self, split: str, field: str) -> None:
        """Fetches and checks the files that locate the variable-size rows of a field, or lists, unless they are cached.

        Raises:
            DamagedError, RemoteError: as :meth:`ensure_file`.
        """
        record = self.manifest.splits[split]
        spec = record.fields[field]
        names = [f"{field}.{part}" for part in parts_of(spec) if part != BYTES or spec.is_list]
        files = (
            (f"{record.shard_folder(split, number)}/{name}.memmap", shard.files[name])
            for number, shard in enumerate(record.shards)
            for name in names
        )
        with self._indexing:
            for _ in in_parallel(lambda file: self.ensure_file(*file), files, self._parallel):
                pass

    def ensure_file(self, name: str, record: FileRecord) -> None:
        """Fetches and checks a list or a file of an index unless it is cached.

        Raises:
            DamagedError: if it is not the file that the manifest names; RemoteError: if it cannot be read.
        """
        path = self.path / name
        with suppress(OSError):
            if path.stat().st_size == record.bytes:
                return
        data = self.objects.get(name)
        if len(data) != record.bytes or f"{crc32(data):08x}" != record.crc32:
            raise DamagedError(f"{self.objects.url_of(name)} is not the file that the manifest names; push it again")
        self.cache.write_list(path, bytes(data))


def cached_folder(url: str, cache: Path, limit: int | None, parallel: int, version: int | None = None) -> CachedFolder:
    """Returns the folder of the dataset at a URL: one object per process for all that open it."""
    with _OPENING:
        objects = Objects(url)
        manifest = manifest_at(objects, version)
        key = objects.url, manifest.contents, cache
        known = _OPENED.get(key)
        if known is None or known.cache.limit != limit:  # which the cache refuses
            known = _OPENED[key] = CachedFolder(objects, manifest, cache, limit, parallel)
        return known


def _opened_again(url: str, cache: Path, limit: int | None, parallel: int, version: int, contents: str) -> CachedFolder:
    folder = cached_folder(url, cache, limit, parallel, version)
    if folder.identity != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFiles(LocalFiles):
    """Files of a split in object storage, read through a cache; its lists are local files."""

    folder: CachedFolder

    def field(self, name: str) -> FieldRows:
        spec = self.record.fields[name]
        if spec.encoding is not None:
            self.folder.ensure_index(self.split, name)  # all at once
        return FieldRows(self, name) if spec.is_list else ChunkedRows(self, name)


class ChunkedRows(FieldRows):
    """Rows of one field in object storage, in chunks."""

    files: CachedFiles

    def opened(self) -> list[OpenedFile]:
        raise StoreError(f"{self.name} is in object storage, not in files of this machine")

    def mapped(self, ranks: int = 1) -> ChunkMap:
        """Returns the map of the chunks."""
        offsets = self.index.offsets if self.spec.variable_size else None
        return self.files.folder.chunk_map(self.files.split, self.name, offsets)

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        if not len(places):
            return
        chunks = self.mapped()
        prepared = chunks.prepare(places)
        chunks.wait(prepared, slice(None))
        lengths = np.ascontiguousarray(places["bytes"])
        copy_ranges(chunks.memory, prepared.starts, lengths, np.frombuffer(out, np.uint8), starts)
        chunks.release(prepared)


class CachedSplit(Split):
    """Split of a dataset in object storage."""

    files_type = CachedFiles
    files: CachedFiles

    def maps(self, fields: Iterable[str]) -> dict[str, ChunkMap]:
        """Returns the maps of those of some fields whose rows are in chunks: not lists, nor what stays in memory."""
        found = [name for name in fields if not (self.record.fields[name].is_list or self.reader.is_column(name))]
        return {name: cast(ChunkMap, self.reader.field(name).mapped()) for name in found}

    def chunk_numbers(self, rows: Numbers) -> Numbers:
        """Returns the number of the chunk of each row of images, int64 [B]; 0 without images."""
        for chunks in self.maps(["images"] if "images" in self.record.fields else []).values():
            return chunks.chunks.chunks_at(self.reader.field("images").located(rows))
        return np.zeros(len(rows), np.int64)

    def prefetch(self, fields: Sequence[str], take: RowsAt) -> Prefetch:
        """Prefetches what an epoch reads, in its order, until the result is collected."""
        return Prefetch([(self.reader.field(name), chunks) for name, chunks in self.maps(fields).items()], take)


class CachedDataset(Dataset):
    """Dataset in object storage."""

    split_type = CachedSplit


def open_cached(
    url: str, cache: Path, cache_limit: str | int | None, parallel: int, version: int | None = None
) -> CachedDataset:
    """Opens a dataset at a URL for :func:`mmload.open`."""
    check_parallel(parallel)
    limit = None if cache_limit is None else parse_bytes(cache_limit, "cache_limit")
    return CachedDataset(cached_folder(url, cache, limit, parallel, version))


class Prefetch:
    """Prefetch of an epoch of fields, until this is collected."""

    def __init__(self, fields: Sequence[tuple[Rows, ChunkMap]], take: RowsAt) -> None:
        self._owner = os.getpid()
        self._coming = [(chunks, _needed(rows, chunks, take)) for rows, chunks in fields]
        for chunks, coming in self._coming:
            chunks.begin_epoch(coming)

    def __del__(self) -> None:
        for chunks, coming in self._coming if self._owner == os.getpid() else ():  # a forked process has none to end
            chunks.end_prefetch(coming)


def _needed(rows: Rows, chunks: ChunkMap, take: RowsAt) -> Iterator[int]:
    """Yields the chunks that an epoch needs, in the order in which some positions at a time need them first."""
    now = 0
    while len(numbers := take(now, now + _AT_ONCE)):
        found, first = np.unique(chunks.chunks.chunks_at(rows.located(numbers)), return_index=True)
        yield from found[np.argsort(first)].tolist()
        now += len(numbers)
