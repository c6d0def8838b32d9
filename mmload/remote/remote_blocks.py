"""Blocks of one field of a split in object storage: fetches, checks and stores them as files in a cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, MmloadError, RemoteMissingError, StoreError
from mmload.remote.cache_files import BLOCKS, unlink, write_beside_blocks
from mmload.remote.cache_folder import CacheFolder
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.fetching import AHEAD, NOW, Contents, Fetching, FetchRequest
from mmload.remote.file_calls import file_sizes
from mmload.remote.layout import SUFFIX, BlockChecksums, BlockGrid, Numbers, Run, parse_checksums
from mmload.remote.object_store import Objects
from mmload.runtime.regular_files import open_regular, read_at
from mmload.store.checksum import crc32
from mmload.store.manifest import SplitRecord, shard_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BlockFiles:
    """Files of the blocks of a field in a cache. Thread-safe; processes share the files.

    Files are not synced. What was written before the machine last started lies in another folder, so that its bytes are
    compared with their checksums before they are used again.

    Args:
        cache: folder that counts the bytes.
        root: the dataset's folder inside it.
        grid: division of the field into blocks.

    Attributes:
        prefix: the folder of the split's shards.
        expected: bool [blocks], whether each block is expected to have its file. Only a hint, as other processes store
            and evict, too: only opening the file tells.
    """

    def __init__(self, cache: CacheFolder, root: Path, grid: BlockGrid) -> None:
        self.grid, self._cache = grid, cache
        current = BLOCKS + boot_id()
        self.prefix = os.path.join(root, current, grid.split)
        self._older = [os.path.join(entry, grid.split) for entry in root.glob(f"{BLOCKS}*") if entry.name != current]
        self.expected: NDArray[np.bool_] = np.zeros(grid.blocks, np.bool_)

    def paths(self, blocks: Numbers, prefix: str | None = None) -> list[str]:
        """Returns the path of each block's file."""
        shards = np.searchsorted(self.grid.starts, blocks, side="right") - 1
        folders = {
            shard: f"{prefix or self.prefix}/{shard_name(shard)}/{self.grid.field}" for shard in set(shards.tolist())
        }
        numbers = (blocks - self.grid.starts[shards]).tolist()
        return [f"{folders[shard]}/{number}.block" for shard, number in zip(shards.tolist(), numbers, strict=True)]

    def absent(self, blocks: Numbers) -> Numbers:
        """Returns the blocks without a file of their size, and updates :attr:`expected` for all given blocks."""
        found: NDArray[np.bool_] = file_sizes(self.paths(blocks)) == self.grid.bytes_of(blocks)
        self.expected[blocks] = found
        absent: Numbers = blocks[~found]
        return absent

    def content(self, block: int) -> memoryview | None:
        """Returns the bytes of a block; None if it has no file of its size."""
        number = np.array([block])
        data = memoryview(bytearray(int(self.grid.bytes_of(number)[0])))
        return data if _read(self.paths(number)[0], data) == len(data) else None

    def store(self, contents: Mapping[int, memoryview]) -> list[int]:
        """Stores blocks, number -> bytes, whose checksums were compared, as far as there is room.

        Returns:
            The blocks that are stored.

        Raises:
            StoreError: if the cache cannot be written.
        """
        numbers = np.fromiter(contents, np.int64, len(contents))
        is_stored = self._cache.store(list(zip(self.paths(numbers), contents.values(), strict=True)))
        self.expected[numbers] = is_stored
        return list(compress(contents, is_stored))

    def adopt(self, block: int, is_right: Callable[[memoryview], bool]) -> memoryview | None:
        """Takes over a block's file from before the machine started if its bytes are right; otherwise removes it."""
        number = np.array([block])
        for older in self._older:
            path, new = self.paths(number, older)[0], self.paths(number)[0]
            data = memoryview(bytearray(int(self.grid.bytes_of(number)[0])))
            if (got := _read(path, data)) is None:
                continue
            is_whole = got == len(data) and is_right(data)
            with suppress(OSError), self._cache.locked() as is_locked:  # or a survey would count it nowhere
                if is_locked and is_whole:
                    os.makedirs(os.path.dirname(new), exist_ok=True)
                    os.rename(path, new)
                elif is_locked:
                    os.unlink(path)
            if is_whole:
                return data
        return None

    def remove(self, blocks: Numbers) -> int:
        """Unlinks the files of the blocks; returns their bytes. The caller holds the lock of the cache."""
        self.expected[blocks] = False
        return sum(map(unlink, self.paths(blocks)))


def _read(path: str, out: memoryview) -> int | None:
    """Reads a file into ``out``, which has the size that the file must have.

    Returns:
        How many bytes were read; 0 if the file has another size; None if there is no such file.

    Raises:
        StoreError: if it cannot be read.
    """
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
    try:
        got = read_at(handle, out, 0)
        return got if os.fstat(handle).st_size == len(out) else 0
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
    finally:
        os.close(handle)


def boot_id() -> str:
    """Returns an identifier of the machine's current start; "any" on systems without one."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return "any"


MOST_JOINED = 4 * 2**20
"""The most bytes of neighboring blocks that one request fetches: a batch may wait for the last of them."""

Requests = dict[int, FetchRequest]
"""Blocks -> their requests."""

_TRIES = 2  # of bytes with another checksum, which may have been spoiled on their way
_RUNS_PER_CALL = 256  # all threads wait during a call
_LOOKS = 3  # for a block that other processes store and evict


class RemoteBlocks:
    """Blocks of a field in object storage and in the cache. Thread-safe.

    Attributes:
        plan: order that is read now; None: unknown.
        fetched_bytes: bytes fetched from object storage.
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

    def prefetch(self, blocks: Numbers) -> None:
        """Fetches blocks that are needed later, in this order."""
        absent = self.files.absent(blocks)
        if len(absent):
            runs = self.grid.runs_by_need(absent, MOST_JOINED)
            for start in range(0, len(runs), _RUNS_PER_CALL):
                self._fetching.enqueue(runs[start : start + _RUNS_PER_CALL], AHEAD)

    @property
    def backlog(self) -> int:
        """Number of waiting requests."""
        return self._fetching.backlog

    def cancel_prefetch(self) -> None:
        """Cancels prefetch requests that have not started."""
        self._fetching.cancel_prefetch()

    def fetch_missing(self, blocks: Numbers, *, check_disk: bool = False) -> Requests:
        """Requests all absent blocks that a batch needs now, without waiting.

        Args:
            blocks: blocks that the batch needs.
            check_disk: look on the disk for all of them, not only for those that are not expected there.

        Returns:
            The request of each block that is fetched.
        """
        doubtful = np.unique(blocks if check_disk else blocks[~self.files.expected[blocks]])
        absent = self.files.absent(doubtful) if len(doubtful) else doubtful
        if not len(absent):
            return {}
        request = self._fetching.enqueue(self.grid.runs(absent, MOST_JOINED), NOW)
        return {block: each for each in request for block in range(each.run.first, each.run.first + each.run.blocks)}

    def content(self, block: int, requests: Requests) -> memoryview:
        """Returns the bytes of a block, from memory if it had to be fetched, as its file may be evicted at any time.

        Raises:
            RemoteError, DamagedError: if it cannot be fetched, or has other bytes than were pushed.
            StoreError: if it cannot be stored.
        """
        number = np.array([block])
        for _ in range(_LOOKS):
            request = requests.get(block)
            if request is not None:
                request.done.wait()
                if request.error is not None:
                    raise _copied_error(request.error)
                if block in request.contents:
                    return request.contents[block]
            data = self.files.content(block)
            if data is not None:
                return data
            requests = self.fetch_missing(number, check_disk=True)
        return self._request(self.grid.runs(number, MOST_JOINED)[0])[block]

    def close(self) -> None:
        """Ends the threads."""
        self._fetching.close()

    def _fetch(self, run: Run) -> Contents:
        """Fetches the absent blocks of a run and returns their bytes."""
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
        """Reads the blocks of a run from object storage and compares their checksums."""
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
            sums = parse_checksums(memoryview(path.read_bytes()), *kind)
        if sums is None:
            content = self._content_of_sums(name)
            sums = parse_checksums(content, *kind)
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


def _copied_error(error: BaseException) -> BaseException:
    """Copies the exception of a fetching thread so that the waiting thread can raise it."""
    if isinstance(error, MmloadError):
        return type(error)(*error.args).with_traceback(error.__traceback__)
    return error
