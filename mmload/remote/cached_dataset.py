"""Datasets in object storage, read from chunks on the local disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mmload.errors import StoreError, parse_bytes
from mmload.remote.cache_folder import CacheFolder, ChunkFiles
from mmload.remote.chunk_map import ChunkMap
from mmload.remote.chunks import Chunks, manifest_at
from mmload.remote.object_store import Objects, check_parallel, check_process, in_parallel
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import Folder, OpenedFile, Places
from mmload.store.manifest import BYTES, FileRecord, parts_of
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import FieldRows, LocalFiles, Rows, copy_ranges

RowsAt = Callable[[int, int], Numbers]
"""(start, stop) -> the rows at these positions of this rank in an epoch, int64; fewer where it ends."""

_AT_ONCE = 4096


class CachedFolder(Folder):
    """Folder of a dataset at a URL in a cache. Thread-safe; picklable: a copy opens the URL.

    Lists and indexes are fetched as a whole when they are needed; rows are in chunks. A forked process cannot read it,
    as threads of its parent may hold locks.

    Attributes:
        cache: the cache.
    """

    def __init__(
        self,
        url: str,
        cache: Path,
        limit: int | None,
        parallel: int,
        version: int | None = None,
        contents: str | None = None,
    ) -> None:
        objects = Objects(url)
        manifest = manifest_at(objects, version)
        if contents not in (None, manifest.contents):
            raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
        self.cache = CacheFolder(cache, limit, objects, manifest)
        super().__init__(self.cache.lists, self.cache.lists, manifest, {})
        self._given = objects.url, cache, limit, parallel
        self._maps: dict[tuple[str, str], ChunkMap] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self._given, self.manifest.version, self.identity)

    @property
    def title(self) -> str:
        return self.cache.objects.url

    @property
    def remedy(self) -> str:
        return "run mmload verify on the dataset that was pushed there"

    def open(self, file: str, record: FileRecord) -> int:
        self._ensure_file(file, record)
        return super().open(file, record)

    def chunk_map(self, split: str, field: str, offsets: Numbers | None = None) -> ChunkMap:
        """Returns the map of a field, by offsets if its rows are variable-size.

        Raises:
            UsageError: in a forked process.
        """
        check_process()
        with self._lock:
            found = self._maps.get((split, field))
            if found is None:
                files = ChunkFiles(self.cache, Chunks(split, field, self.manifest.splits[split], offsets))
                found = self._maps[split, field] = ChunkMap(files, self._given[-1])
            return found

    def ensure_index(self, split: str, field: str) -> None:
        """Fetches and checks the files that locate the variable-size rows of a field, or lists, unless they are cached.

        Raises:
            DamagedError: if one is not the file that the manifest names; RemoteError: if it cannot be read.
        """
        record = self.manifest.splits[split]
        spec = record.fields[field]
        names = [f"{field}.{part}" for part in parts_of(spec) if part != BYTES or spec.is_list]
        files = (
            (f"{record.shard_folder(split, number)}/{name}.memmap", shard.files[name])
            for number, shard in enumerate(record.shards)
            for name in names
        )
        check_process()
        with self._lock:
            for _ in in_parallel(lambda file: self._ensure_file(*file), files, self._given[-1]):
                pass

    def _ensure_file(self, name: str, record: FileRecord) -> None:
        self.cache.fetched(name, record.bytes, lambda content: f"{crc32(content):08x}" == record.crc32)


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

    files_type, in_chunks = CachedFiles, True
    files: CachedFiles

    def maps(self, fields: Iterable[str]) -> dict[str, ChunkMap]:
        """Returns the maps of those of some fields whose rows are in chunks: not lists, nor what stays in memory."""
        found = [name for name in fields if not (self.record.fields[name].is_list or self.reader.is_column(name))]
        return {name: cast(ChunkMap, self.reader.field(name).mapped()) for name in found}

    def chunk_numbers(self, rows: Numbers) -> Numbers:
        """Returns the number of the chunk of each row of images, int64 [B]; 0 without images."""
        for chunks in self.maps({"images"} & self.record.fields.keys()).values():
            return chunks.chunks.chunks_at(self.reader.field("images").located(rows))
        return np.zeros(len(rows), np.int64)

    def prefetch(self, fields: Sequence[str], take: RowsAt) -> list[Generator[int]]:
        """Prefetches what an epoch reads, in its order, until the result is collected."""
        maps, begun = self.maps(fields), time.time()
        coming = [_needed(self.reader.field(name), chunks.files, take, begun) for name, chunks in maps.items()]
        for chunks, each in zip(maps.values(), coming, strict=True):
            chunks.begin_epoch(each)
        return coming


class CachedDataset(Dataset):
    """Dataset in object storage."""

    split_type = CachedSplit


def open_cached(
    url: str, cache: Path, cache_limit: str | int | None, parallel: int, version: int | None = None
) -> CachedDataset:
    """Opens a dataset at a URL for :func:`mmload.open`."""
    check_parallel(parallel)
    limit = None if cache_limit is None else parse_bytes(cache_limit, "cache_limit")
    return CachedDataset(CachedFolder(url, cache, limit, parallel, version))


def _needed(rows: Rows, files: ChunkFiles, take: RowsAt, begun: float) -> Generator[int]:
    """Yields the chunks that an epoch needs, in the order in which some positions at a time need them first."""
    now = 0
    while len(numbers := take(now, now + _AT_ONCE)):
        found, first = np.unique(files.chunks.chunks_at(rows.located(numbers)), return_index=True)
        yield from found[np.argsort(first)].tolist()
        now += len(numbers)
    files.end_epoch(begun)
