"""The blocks of one field as files in a cache: finds, reads, stores and removes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import StoreError
from mmload.remote.block_grid import BlockGrid, Numbers
from mmload.remote.cache_folder import BLOCKS, CacheFolder, unlink
from mmload.runtime.file_calls import file_sizes
from mmload.runtime.positioned_reads import read_at
from mmload.runtime.regular_files import open_regular
from mmload.store.manifest import shard_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BlockFiles:
    """The files of the blocks of a field. Thread-safe; processes share the files.

    Files are not synced. What was written before the machine was last started lies in another folder, so that its bytes
    are compared with their checksum before they are used again.

    Args:
        cache: counts the bytes.
        root: the dataset's folder inside it.
        grid: the blocks.

    Attributes:
        prefix: the folder of the split's shards.
        expected: bool [blocks], whether each block is expected to have its file. Only a hint, as other processes store
            and evict, too: who needs a block opens its file.
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
        """Returns the blocks without a file of their size, and corrects what is expected of all of them."""
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
        """Stores blocks, number -> bytes, that were compared with their checksums, if there is room for them.

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
        """Takes over a block's file of before the machine was started, if its bytes are right; else removes that."""
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
    """Reads the first bytes of a file into ``out``.

    Returns:
        How many bytes were read; None if there is no such file.

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
        return read_at(handle, out, 0)
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
    finally:
        os.close(handle)


def boot_id() -> str:
    """Returns a name of the machine's current start; "any" where the system has none, and files survive or do not."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return "any"
