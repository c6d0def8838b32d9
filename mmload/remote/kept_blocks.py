"""The blocks of one dataset that are on the local disk: sparse files, and a state for each block that processes share.

A state is a uint32: its lowest two bits say whether the block is there, the others count its arrivals and departures.
A reader looks at the states before and after it reads; if they are equal, what it has read was there all the time. So
readers need no lock, and eviction never waits for them. Bits: 0 absent, 1 there, 2 there before the machine was
started anew, so that its bytes may not have reached the disk: such a block is compared with its checksum once more.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import RemoteError, StoreError
from mmload.remote.block_grid import BlockGrid, Numbers, Run
from mmload.remote.cache_folder import CacheFolder
from mmload.runtime.file_holes import punch
from mmload.runtime.positioned_reads import read_at, write_at
from mmload.runtime.regular_files import open_regular
from mmload.store.manifest import shard_name

ABSENT, THERE, UNCHECKED, _KIND = 0, 1, 2, 3
_STEP = 4
_PAGE = 4096

States = NDArray[np.uint32]


def can_be_read(states: States) -> NDArray[np.bool_]:
    """Whether blocks of these states can be read."""
    found: NDArray[np.bool_] = (states & _KIND) == THERE
    return found


def doubt(path: Path) -> None:
    """Take every block as unchecked, of which this is the file of states: after the machine was started anew."""
    if path.stat().st_size:
        states = np.memmap(path, np.uint32, "r+")
        there = can_be_read(states)
        states[there] += np.uint32(UNCHECKED - THERE)


class _Stored:
    """Blocks whose bytes are in their file, with the states that they had before they were fetched."""

    def __init__(self, run: Run, seen: States) -> None:
        self.run, self.seen = run, seen
        self.is_marked = False


class KeptBlocks:
    """The blocks of one field of one split. Thread-safe; processes share them.

    Args:
        cache: the folder that counts the bytes.
        root: the dataset's folder inside it.
        grid: the blocks.

    Attributes:
        states: uint32 [blocks], shared by all processes.
    """

    def __init__(self, cache: CacheFolder, root: Path, grid: BlockGrid) -> None:
        self.cache, self.root, self.grid = cache, root, grid
        path = root / grid.split / f"{grid.field}.states"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            if file.tell() < 4 * max(1, grid.blocks):
                file.truncate(4 * max(1, grid.blocks))
        mapped = np.memmap(path, np.uint32, "r+", shape=(max(1, grid.blocks),))
        self.states: States = mapped.view(np.ndarray)  # a slice of a memmap takes ten times as long
        self._open: dict[int, int] = {}
        self._lock, self._marking = threading.Lock(), threading.Lock()
        self._stored: list[_Stored] = []

    def bytes(self) -> int:
        """Bytes of all blocks that are there."""
        there = np.flatnonzero(self.states[: self.grid.blocks] & _KIND)
        return int(self.grid.bytes_of(there).sum()) if len(there) else 0

    def are_there(self, blocks: Numbers) -> NDArray[np.bool_]:
        """Whether each block can be read."""
        return can_be_read(self.states[blocks])

    def handle(self, shard: int) -> int:
        """The descriptor of a shard's file, which is made with its full size."""
        handle = self._open.get(shard)
        if handle is not None:
            return handle
        with self._lock:
            if shard not in self._open:
                path = self.path(shard)
                size = int(self.grid.shard_bytes(shard))
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    opened = open_regular(path, os.O_RDWR | os.O_CREAT)
                    if os.fstat(opened).st_size != size:
                        os.ftruncate(opened, size)
                except OSError as error:
                    raise StoreError(f"cannot write {path} ({error.strerror})") from error
                self._open[shard] = opened
            return self._open[shard]

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.root / self.grid.split / shard_name(shard) / f"{self.grid.field}.memmap"

    def keep(self, run: Run, data: memoryview, seen: States) -> None:
        """Store blocks that were checked, and that :meth:`CacheFolder.count` has counted.

        Args:
            run: which.
            data: their bytes.
            seen: their states before they were fetched. What has come, or come and gone, since then is left as it is: a
                block that another process has evicted after this wrote its bytes must not be taken for there.
        """
        try:
            write_at(self.handle(run.shard), data, run.offset)
        except OSError as error:
            self.cancel(run)
            raise StoreError(f"cannot write {self.path(run.shard)} ({error.strerror})") from error
        stored = _Stored(run, seen)
        self._stored.append(stored)
        with self._marking:
            if not stored.is_marked:  # else the thread before has marked it with its own: one file lock for many runs
                with self.cache.counting():
                    while self._stored:
                        self._mark(self._stored.pop())

    def _mark(self, stored: _Stored) -> None:
        """Say that blocks are there; under ``counting``."""
        run, seen = stored.run, stored.seen
        states = self.states[run.first : run.first + run.blocks]
        ours = (states == seen) & ((seen & _KIND) == ABSENT)
        states[ours] += np.uint32(_STEP + THERE)
        if not ours.all():
            self.cache.count(-int(self.grid.bytes_of(run.first + np.flatnonzero(~ours)).sum()))
        stored.is_marked = True

    def cancel(self, run: Run) -> None:
        """Take back the count of blocks that have not come."""
        with self.cache.counting():
            self.cache.count(-run.length)

    def stored(self, run: Run) -> memoryview:
        """The bytes of blocks, as they are in the file."""
        out, got = memoryview(bytearray(run.length)), 0
        while got < run.length and (more := read_at(self.handle(run.shard), out[got:], run.offset + got)):
            got += more
        return out

    def trust(self, run: Run) -> None:
        """Unchecked blocks have their checksums."""
        blocks = slice(run.first, run.first + run.blocks)
        with self.cache.counting():
            states = self.states[blocks]
            states[(states & _KIND) == UNCHECKED] -= np.uint32(UNCHECKED - THERE)

    def evict(self, blocks: Numbers) -> int:
        """Remove blocks, in ascending order; under ``counting``. Returns their bytes."""
        freed = 0
        for run in self.grid.runs(blocks, 1 << 30):
            states = self.states[run.first : run.first + run.blocks]
            states[:] = (states & ~np.uint32(_KIND)) + np.uint32(_STEP)  # first: readers look at them after reading
            start, end = self._first_page(run), self._last_page(run)
            if not punch(self.handle(run.shard), start, end - start):
                raise RemoteError(
                    f"{self.root} is on a file system whose files can have no holes, so blocks cannot be evicted; "
                    "use a cache_limit of at least the dataset's bytes, or another folder"
                )
            freed += run.length
        self.cache.count(-freed)
        return freed

    def _first_page(self, run: Run) -> int:
        """Where the page of a run's first byte begins; that byte, if another block there has to stay.

        Only whole pages can be freed, so a block that goes last takes the rest of its page along. Blocks there that are
        absent may be on their way: their states change, so that their bytes, which may go, are not taken for there.
        """
        page, start, block = run.offset // _PAGE * _PAGE, run.offset, run.first
        while start > page and not self.states[block - 1] & _KIND:
            block -= 1
            start = self.grid.offset_of(block, run.shard)
        if start > page:
            return run.offset
        self.states[block : run.first] += np.uint32(_STEP)
        return page

    def _last_page(self, run: Run) -> int:
        """Where the page of a run's last byte ends, or that byte, as :meth:`_first_page`."""
        end, block = run.offset + run.length, run.first + run.blocks
        page, last = -(-end // _PAGE) * _PAGE, int(self.grid.starts[run.shard + 1])
        while block < last and self.grid.offset_of(block, run.shard) < page and not self.states[block] & _KIND:
            block += 1
        if block < last and self.grid.offset_of(block, run.shard) < page:
            return end
        self.states[run.first + run.blocks : block] += np.uint32(_STEP)
        return page

    def close(self) -> None:
        """Close the files."""
        for handle in self._open.values():
            os.close(handle)
        self._open = {}
