"""Files of the blocks of a field, in the cache of object storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import compress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmload.errors import StoreError
from mmload.remote.cache_files import BLOCKS, unlink
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.file_calls import file_sizes
from mmload.remote.layout import BlockGrid, Numbers
from mmload.runtime.regular_files import open_regular, read_at
from mmload.store.manifest import shard_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BlockStore(Protocol):
    """Folder that counts the bytes of all blocks: :class:`mmload.remote.cache_folder.CacheFolder`."""

    def locked(self) -> AbstractContextManager[bool]:
        """Holds the lock of all threads and processes; yields False if it cannot be had in time."""

    def store(self, files: Sequence[tuple[str, memoryview]]) -> list[bool]:
        """Stores complete files as far as there is room; returns which are stored."""


class BlockFiles:
    """Files of the blocks of a field in a cache. Thread-safe; processes share the files.

    Files are not synced. What was written before the machine last started lies in another folder, so that its bytes are
    compared with their checksums before they are used again. Blocks of equal shards of earlier versions of the dataset,
    in their folders, are the same.

    Attributes:
        prefix: the folder of the split's shards.
        expected: bool [blocks], whether each block is expected to have its file. Only a hint, as other processes store
            and evict, too: only opening the file tells.
        plan: order in which this process reads the blocks now, by which they are evicted; None: unknown.
    """

    def __init__(self, cache: BlockStore, root: Path, grid: BlockGrid, earlier: Sequence[Path] = ()) -> None:
        self.grid, self._cache = grid, cache
        self._shards = {folder: index for index, folder in enumerate(grid.folders.tolist())}
        current = BLOCKS + boot_id()
        self.prefix = os.path.join(root, current, grid.split)
        self._older = [os.path.join(entry, grid.split) for entry in root.glob(f"{BLOCKS}*") if entry.name != current]
        self._earlier = [os.path.join(entry, grid.split) for folder in earlier for entry in folder.glob(f"{BLOCKS}*")]
        self.expected: NDArray[np.bool_] = np.zeros(grid.blocks, np.bool_)
        self.plan: EpochPlan | None = None

    def shard_of(self, folder: int) -> int | None:
        """Returns the shard that has this number of a folder; None if the dataset has none."""
        return self._shards.get(folder)

    def paths(self, blocks: Numbers, prefix: str | None = None) -> list[str]:
        """Returns the path of each block's file."""
        shards = np.searchsorted(self.grid.starts, blocks, side="right") - 1
        folders = {
            shard: f"{prefix or self.prefix}/{shard_name(int(self.grid.folders[shard]))}/{self.grid.field}"
            for shard in set(shards.tolist())
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
        """Takes over a block's file from before the machine started, or from an earlier version of the dataset.

        It must have the right bytes; a file from before the machine started is removed if it has not.
        """
        number = np.array([block])
        for older in (*self._older, *self._earlier):
            path, new = self.paths(number, older)[0], self.paths(number)[0]
            data = memoryview(bytearray(int(self.grid.bytes_of(number)[0])))
            if (got := _read(path, data)) is None:
                continue
            is_whole = got == len(data) and is_right(data)
            with suppress(OSError), self._cache.locked() as is_locked:  # or a survey would count it nowhere
                if is_locked and is_whole:
                    os.makedirs(os.path.dirname(new), exist_ok=True)
                    if older in self._earlier:
                        os.link(path, new)  # whose readers go on; it counts twice, which keeps the limit
                    else:
                        os.rename(path, new)
                elif is_locked and older in self._older:
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
