"""A dataset in object storage with what a cache keeps of it: one object in each process."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from mmload.cloud.client import Objects
from mmload.cloud.parallel import in_parallel
from mmload.errors import DamagedError, StoreError, UsageError
from mmload.remote.block_grid import BlockGrid, Numbers, WholeGrid
from mmload.remote.cache_folder import OPEN, CacheFolder, kept_bytes
from mmload.remote.epoch_plan import needed_last
from mmload.remote.kept_blocks import KeptBlocks, doubt
from mmload.remote.remote_blocks import RemoteBlocks
from mmload.remote.remote_manifest import manifest_text
from mmload.runtime.byte_sizes import bytes_text
from mmload.runtime.durable_files import lock, open_lock, write_atomically
from mmload.runtime.file_holes import can_punch
from mmload.runtime.open_files import allow_more_files
from mmload.store.checksum import crc32
from mmload.store.dataset_files import lists_of
from mmload.store.field_files import BYTES, parts_of
from mmload.store.manifest import FILE_NAME, Manifest, loads, shard_name
from mmload.store.shard_table import FileRecord

_BOOT, _BOOT_ID = "boot", Path("/proc/sys/kernel/random/boot_id")
SPARE = 0.01
"""The share of the limit that an eviction frees beyond what is needed, so that not every block asks for one."""

_RESERVED = 16 * 2**20
"""Bytes that are counted ahead, so that not every request locks the file that processes share; at most a 256th of the
limit."""

_OPENED: dict[tuple[str, Path], DatasetCache] = {}
_OPENING = threading.Lock()


class DatasetCache:
    """A dataset at a URL. Thread-safe. Use :func:`dataset_cache`.

    Attributes:
        root: the dataset's folder in the cache.
        manifest: the dataset's.
        limit: of the cache, in bytes; None: none.
    """

    def __init__(
        self, objects: Objects, text: str, manifest: Manifest, cache: Path, limit: int | None, parallel: int
    ) -> None:
        self.objects, self.manifest, self.limit, self.parallel = objects, manifest, limit, parallel
        allow_more_files()  # ahead of an error, which connections to the store would meet as well as files
        self.folder = CacheFolder(cache, limit)
        self.root = cache / self.manifest.contents[:32]
        self._fields: dict[tuple[str, str], RemoteBlocks] = {}
        self._indexed: set[tuple[str, str]] = set()
        self._indexing = threading.Lock()
        self._lock = threading.Lock()
        self._reserve, self._reserving = 0, threading.Lock()
        self._random = np.random.default_rng(0)
        try:
            self.root.mkdir(exist_ok=True)
            self._lock_file = open_lock(self.root / OPEN)
            with self.folder.counting():
                if lock(self._lock_file):
                    self.folder.count(sum(map(kept_bytes, self.folder.path.iterdir())) - self.folder.used)
                lock(self._lock_file, shared=True)
                if not (self.root / FILE_NAME).exists():
                    write_atomically(self.root / FILE_NAME, text)
                self._doubt_what_a_crash_may_have_lost()
            if limit is not None and limit < self.bytes and not can_punch(self.root):
                raise UsageError(
                    f"files in {cache} can have no holes, so nothing can be evicted; give a cache_limit of at least "
                    f"{bytes_text(self.bytes)}, the size of {objects.url}, or a folder on ext4, XFS, btrfs or tmpfs"
                )
        except OSError as error:
            raise StoreError(f"cannot write {self.root} ({error.strerror})") from error

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(split.bytes for split in self.manifest.splits.values())

    def blocks(self, split: str, field: str, offsets: Numbers | None = None) -> RemoteBlocks:
        """The blocks of a field; where each row has its own size, ``offsets`` are where they begin."""
        with self._lock:
            key = split, field
            if key not in self._fields:
                record = self.manifest.splits[split]
                grid = BlockGrid(split, field, record) if offsets is None else WholeGrid(split, field, record, offsets)
                kept = KeptBlocks(self.folder, self.root, grid)
                self._fields[key] = RemoteBlocks(self.objects, kept, record, self.make_room, self.parallel)
            return self._fields[key]

    def have_list(self, name: str) -> None:
        """Have a split's list of samples here, whole and checked.

        Raises:
            DamagedError: if it is not the file that the manifest names; RemoteError: if it cannot be read.
        """
        split, _, file = name.partition("/")
        record = lists_of(self.manifest.splits[split]).get(file) if split in self.manifest.splits else None
        if record is not None:
            self._have(name, record)

    def have_index(self, split: str, field: str) -> None:
        """Have the files here, whole and checked, that say where the rows of a field are that have their own sizes.

        Raises:
            DamagedError: if one is not the file that the manifest names; RemoteError: if it cannot be read.
        """
        record = self.manifest.splits[split]
        with self._indexing:
            if (split, field) in self._indexed:
                return
            parts = [part for part in parts_of(record.fields[field]) if part != BYTES]
            names = ((shard, f"{field}.{part}") for shard in range(len(record.shards)) for part in parts)
            files = (
                (f"{split}/{shard_name(shard)}/{name}.memmap", record.shards.file(shard, name)) for shard, name in names
            )
            for _ in in_parallel(lambda file: self._have(*file), files, self.parallel):
                pass
            self._indexed.add((split, field))

    def _have(self, name: str, record: FileRecord) -> None:
        path = self.root / name
        if path.exists():
            return
        data = self.objects.get(name)
        if len(data) != record.bytes or f"{crc32(data):08x}" != record.crc32:
            raise DamagedError(f"{self.objects.url_of(name)} is not the file that the manifest names; push it again")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, bytes(data))

    def make_room(self, more: int) -> None:
        """Make room for so many bytes, and count them.

        What no process reads goes first; then, of this dataset, what the known orders need last.

        Raises:
            StoreError: if nothing can be evicted.
        """
        with self._reserving:
            if self._reserve < more:
                self._make_room(more)
            self._reserve -= more

    def _make_room(self, more: int) -> None:
        """Count at least so many bytes as reserved; more than that where nothing has to go for them."""
        more -= self._reserve
        with self.folder.counting():
            while (excess := self.folder.excess(more)) > 0 and self.folder.remove_unused(self.root.name):
                pass
            if excess > 0:
                self._evict(excess + int(SPARE * (self.limit or 0)))
                if self.folder.excess(more) > 0:
                    raise StoreError(
                        f"cache_limit is {bytes_text(self.limit or 0)}, which has no room for what is read at the same "
                        "time; give more"
                    )
            ahead = _RESERVED if self.limit is None else min(_RESERVED, self.limit // 256)
            if self.folder.excess(more + ahead) > 0:
                ahead = 0
            self.folder.count(more + ahead)
        self._reserve += more + ahead

    def close(self) -> None:
        """End the threads and close the files; nothing may read afterwards."""
        for blocks in self._fields.values():
            blocks.close()
            blocks.kept.close()
        with self.folder.counting():
            self.folder.count(-self._reserve)
        self._lock_file.close()
        self.folder.close()

    def _evict(self, wanted: int) -> None:
        """Remove at least so many bytes of what is needed last, if there are as many; under ``counting``."""
        known = [blocks for blocks in list(self._fields.values()) if blocks.grid.is_evicted]
        length = max((len(blocks.plan) for blocks in known if blocks.plan is not None), default=0)
        owners, numbers, needs, sizes = [], [], [], []
        for index, blocks in enumerate(known):
            there = np.flatnonzero(blocks.kept.states[: blocks.grid.blocks] & 3)
            there = np.setdiff1d(there, blocks.pinned(), assume_unique=True)
            owners.append(np.full(len(there), index))
            numbers.append(there)
            sizes.append(blocks.grid.bytes_of(there))
            if blocks.plan is not None:
                needs.append(blocks.plan.next_needs(there))
            else:  # such as validation, between two epochs of training
                needs.append(self._random.uniform(length / 2, length, len(there)).astype(np.float32))
        if not known:
            return
        owner, number, need, size = (np.concatenate(parts) for parts in (owners, numbers, needs, sizes))
        chosen = needed_last(need, size, wanted)
        for index, blocks in enumerate(known):
            mine = np.sort(number[chosen[owner[chosen] == index]])
            if len(mine):
                blocks.kept.evict(mine)

    def _doubt_what_a_crash_may_have_lost(self) -> None:
        """If the machine was started anew since, compare each block with its checksum once more before it is read."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii")
        except OSError:  # not Linux
            return
        path = self.root / _BOOT
        with suppress(FileNotFoundError):
            if path.read_text(encoding="ascii") == boot:
                return
            for states in self.root.rglob("*.states"):
                doubt(states)
        write_atomically(path, boot)


def dataset_cache(url: str, cache: Path, limit: int | None, parallel: int) -> DatasetCache:
    """The dataset at a URL, read through a cache: the same object for all of this process that open it."""
    if sys.platform == "win32":
        raise UsageError("datasets are read from object storage on Linux and macOS; here, use: mmload pull")
    with _OPENING:
        objects = Objects(url)
        text = manifest_text(objects)
        manifest = loads(text, objects.url_of(FILE_NAME))
        known = _OPENED.get((manifest.contents, cache))
        if known is None:
            known = DatasetCache(objects, text, manifest, cache, limit, parallel)
            _OPENED[manifest.contents, cache] = known
        elif known.limit != limit:
            raise UsageError(
                f"{url} is open in this process with the cache_limit {known.limit}, and {limit} is asked for now; "
                "give the same"
            )
        return known
