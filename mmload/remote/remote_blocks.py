"""One field of a split in object storage: fetches, checks and stores its blocks."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from mmload.cloud.client import Objects
from mmload.errors import DamagedError, MmloadError, RemoteMissingError, StoreError
from mmload.remote.block_checksums import SUFFIX, BlockChecksums, parse
from mmload.remote.block_files import BlockFiles
from mmload.remote.block_grid import Numbers, Run
from mmload.remote.cache_folder import write_beside_blocks
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.fetching import AHEAD, NOW, Contents, Fetching, Wanted
from mmload.store.checksum import crc32
from mmload.store.manifest import SplitRecord, shard_name

MOST_JOINED = 4 * 2**20
"""The most bytes of neighboring blocks that one request fetches: a batch may wait for the last of them."""

Asked = dict[int, Wanted]
"""Blocks -> what fetches them."""

_TRIES = 2  # of bytes with another checksum, which may have been spoiled on their way
_RUNS_AT_ONCE = 256  # all threads wait meanwhile
_LOOKS = 3  # for a block that other processes store and evict


class RemoteBlocks:
    """The blocks of a field. Thread-safe.

    Args:
        objects: where the dataset lies.
        root: the dataset's folder in the cache.
        files: the blocks on the local disk.
        record: the split's manifest entry.
        parallel: requests at once.

    Attributes:
        plan: the order that is read now; None: none that is known.
        fetched_bytes: from object storage.
    """

    def __init__(self, objects: Objects, root: Path, files: BlockFiles, record: SplitRecord, parallel: int) -> None:
        self.files, self.grid = files, files.grid
        self._objects, self._root, self._record = objects, root, record
        self._fetching = Fetching(self._fetch, files.store, parallel)
        self._sums: dict[int, BlockChecksums] = {}
        self._sums_locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self.plan: EpochPlan | None = None
        self.fetched_bytes = 0

    def ahead(self, blocks: Numbers) -> None:
        """Fetches blocks that are needed later, in this order."""
        absent = self.files.absent(blocks)
        if len(absent):
            runs = self.grid.runs_by_need(absent, MOST_JOINED)
            for start in range(0, len(runs), _RUNS_AT_ONCE):
                self._fetching.want(runs[start : start + _RUNS_AT_ONCE], AHEAD)

    @property
    def backlog(self) -> int:
        """How many requests wait."""
        return self._fetching.backlog

    def forget_ahead(self) -> None:
        """Drops what was asked for ahead and is not on its way."""
        self._fetching.forget_ahead()

    def ask(self, blocks: Numbers, *, look: bool = False) -> Asked:
        """Fetches what a batch needs now, all of it at once, without waiting.

        Args:
            blocks: what it needs.
            look: look at the disk for all of them, and not only for those that are not expected there.

        Returns:
            The blocks that are fetched.
        """
        doubtful = np.unique(blocks if look else blocks[~self.files.expected[blocks]])
        absent = self.files.absent(doubtful) if len(doubtful) else doubtful
        if not len(absent):
            return {}
        wanted = self._fetching.want(self.grid.runs(absent, MOST_JOINED), NOW)
        return {block: each for each in wanted for block in range(each.run.first, each.run.first + each.run.blocks)}

    def content(self, block: int, asked: Asked) -> memoryview:
        """Returns the bytes of a block, from memory where it had to be fetched: it may be evicted at any time.

        Args:
            block: its number.
            asked: what :meth:`ask` returned.

        Raises:
            RemoteError, DamagedError: if it cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored.
        """
        number = np.array([block])
        for _ in range(_LOOKS):
            wanted = asked.get(block)
            if wanted is not None:
                wanted.done.wait()
                if wanted.error is not None:
                    raise _again(wanted.error)
                if block in wanted.contents:
                    return wanted.contents[block]
            data = self.files.content(block)
            if data is not None:
                return data
            asked = self.ask(number, look=True)
        return self._request(self.grid.runs(number, MOST_JOINED)[0])[block]

    def close(self) -> None:
        """Ends the threads."""
        self._fetching.close()

    def _fetch(self, run: Run) -> Contents:
        """Fetches those of a run's blocks that are absent; returns their bytes."""
        contents: Contents = {}
        absent = []
        for block in self.files.absent(np.arange(run.first, run.first + run.blocks)).tolist():
            data = self.files.adopt(block, partial(self._is_right, run.shard, block))
            if data is None:
                absent.append(block)
            else:
                contents[block] = data
        for part in self.grid.runs(np.array(absent, np.int64), MOST_JOINED):
            contents.update(self._request(part))
        return contents

    def _request(self, run: Run) -> Contents:
        """Gets the blocks of a run from object storage, and compares them with their checksums."""
        name = self._name(run.shard)
        for _ in range(_TRIES):
            data = self._objects.get_range(name, run.offset, run.length)
            with self._lock:
                self.fetched_bytes += run.length
            contents, at = {}, 0
            for block in range(run.first, run.first + run.blocks):
                length = int(self.grid.bytes_of(np.array([block]))[0])
                contents[block] = data[at : at + length]
                if not self._is_right(run.shard, block, contents[block]):
                    break
                at += length
            else:
                return contents
        raise DamagedError(
            f"{self._objects.url_of(name)} is damaged at byte {run.offset + at:,}: it does not have the checksum that "
            "was pushed; remove that object, and push the dataset again"
        )

    def _is_right(self, shard: int, block: int, data: memoryview) -> bool:
        return crc32(data) == int(self._sums_of(shard).each[block - int(self.grid.starts[shard])])

    def _name(self, shard: int) -> str:
        return f"{self.grid.split}/{shard_name(shard)}/{self.grid.field}.memmap"

    def _sums_of(self, shard: int) -> BlockChecksums:
        """Returns the checksums of a shard's blocks, which are stored in the cache, too."""
        sums = self._sums.get(shard)
        if sums is not None:
            return sums
        with self._sums_locks.setdefault(shard, threading.Lock()):
            return self._sums.get(shard) or self._sums.setdefault(shard, self._read_sums(shard))

    def _read_sums(self, shard: int) -> BlockChecksums:
        name, record = self._name(shard) + SUFFIX, self._record.shards.file(shard, self.grid.field)
        kind = record, self.grid.block_bytes, self.grid.lengths_in(shard)
        path = self._root / name
        sums = None
        with suppress(OSError):
            sums = parse(memoryview(path.read_bytes()), *kind)
        if sums is None:
            content = self._content_of_sums(name)
            sums = parse(content, *kind)
            if sums is None:
                raise DamagedError(
                    f"{self._objects.url_of(name)} does not belong to the manifest; push the dataset again"
                )
            write_beside_blocks(path, bytes(content))
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
    """Copies the exception of a fetching thread so that the waiting thread can raise it."""
    if isinstance(error, MmloadError):
        return type(error)(*error.args).with_traceback(error.__traceback__)
    return error
