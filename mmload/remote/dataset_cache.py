"""Dataset in object storage with its cached files: one object per process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from mmload.errors import DamagedError, StoreError
from mmload.remote.cache_folder import cache_folder
from mmload.remote.chunk_files import ChunkFiles
from mmload.remote.chunk_map import ChunkMap
from mmload.remote.chunks import Chunks
from mmload.remote.fetch_threads import FetchThreads
from mmload.remote.layout import manifest_at
from mmload.remote.object_store import Objects, in_parallel
from mmload.runtime.regular_files import allow_more_files
from mmload.store.checksum import crc32
from mmload.store.manifest import Manifest
from mmload.store.row_reader import Numbers
from mmload.store.shard_table import BYTES, FileRecord, parts_of

_OPENED: dict[tuple[str, str, Path], DatasetCache] = {}
_OPENING = threading.Lock()


def _after_fork() -> None:
    """Replaces the locks in a forked process, which can read what is cached, as threads of the parent may hold them."""
    global _OPENING
    _OPENING = threading.Lock()
    for cache in _OPENED.values():
        cache.begin_anew()


os.register_at_fork(after_in_child=_after_fork)


class DatasetCache:
    """Dataset at a URL with its cached files: one object per process. Thread-safe. Use :func:`dataset_cache`.

    Attributes:
        root: the dataset's folder in the cache.
        manifest: manifest of the dataset.
        limit: limit of the cache in bytes; None: unlimited.
    """

    def __init__(self, objects: Objects, manifest: Manifest, cache: Path, limit: int | None, parallel: int) -> None:
        self.objects, self.manifest, self.limit, self.parallel = objects, manifest, limit, parallel
        allow_more_files()  # ahead of an error, which connections to the store would meet as well as files
        self.folder = cache_folder(cache, limit)
        self.root = cache / manifest.contents[:32]
        first = manifest.versions[0] if manifest.versions else manifest
        self._chunks_root = cache / first.contents[:32]
        self._maps: dict[tuple[str, str], ChunkMap] = {}
        self.begin_anew()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._open_mark = self.folder.open_dataset(self._chunks_root)
        except OSError as error:
            raise StoreError(f"cannot write {self.root} ({error.strerror})") from error

    def begin_anew(self) -> None:
        """Begins with locks that nobody holds, and with threads of this process."""
        self._indexing, self._lock = threading.Lock(), threading.Lock()
        self._threads = FetchThreads(self.parallel)
        for each in self._maps.values():
            each.begin_anew(self._threads)

    def chunk_map(self, split: str, field: str, offsets: Numbers | None = None) -> ChunkMap:
        """Returns the map of a field, by offsets if its rows are variable-size."""
        with self._lock:
            key = split, field
            if key not in self._maps:
                chunks = Chunks(split, field, self.manifest.splits[split], offsets)
                files = ChunkFiles(self.objects, self.folder, self.root, self._chunks_root, chunks)
                self._maps[key] = ChunkMap(files, self._threads)
            return self._maps[key]

    def ensure_index(self, split: str, field: str) -> None:
        """Fetches and checks the files that locate the variable-size rows of a field, or lists, unless they are cached.

        Raises:
            DamagedError, RemoteError: as :meth:`ensure_file`.
        """
        record = self.manifest.splits[split]
        spec = record.fields[field]
        parts = [part for part in parts_of(spec) if part != BYTES or spec.is_list]
        names = ((shard, f"{field}.{part}") for shard in range(len(record.shards)) for part in parts)
        files = (
            (f"{record.shard_folder(split, shard)}/{name}.memmap", record.shards.file(shard, name))
            for shard, name in names
        )
        with self._indexing:
            for _ in in_parallel(lambda file: self.ensure_file(*file), files, self.parallel):
                pass

    def ensure_file(self, name: str, record: FileRecord) -> None:
        """Fetches and checks a list or a file of an index unless it is cached.

        Raises:
            DamagedError: if it is not the file that the manifest names; RemoteError: if it cannot be read.
        """
        path = self.root / name
        with suppress(OSError):
            if path.stat().st_size == record.bytes:
                return
        data = self.objects.get(name)
        if len(data) != record.bytes or f"{crc32(data):08x}" != record.crc32:
            raise DamagedError(f"{self.objects.url_of(name)} is not the file that the manifest names; push it again")
        self.folder.write_list(path, bytes(data))

    def close(self) -> None:
        """Ends the threads; nothing may read afterwards."""
        self._threads.close()
        self._open_mark.close()


def dataset_cache(url: str, cache: Path, limit: int | None, parallel: int, version: int | None = None) -> DatasetCache:
    """Returns the cached dataset at a URL: one object per process for all that open it."""
    with _OPENING:
        objects = Objects(url)
        manifest = manifest_at(objects, version)
        key = objects.url, manifest.contents, cache
        known = _OPENED.get(key)
        if known is None or known.limit != limit:
            known = _OPENED[key] = DatasetCache(objects, manifest, cache, limit, parallel)
        return known
