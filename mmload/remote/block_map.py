"""Maps the files of the blocks of a batch, so that rows are rendered directly from the page cache.

A block's file is immutable, and an unlinked file survives while it is mapped. A thread maps the files of all blocks of
a batch at once, each over its place in a window of addresses, and unmaps all of them after the batch. Mapping a few at
a time took longer than reading them.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref

import numpy as np

from mmload.errors import DamagedError, StoreError
from mmload.remote.cached_reader import CachedFiles
from mmload.remote.layout import Numbers
from mmload.remote.remote_blocks import RemoteBlocks
from mmload.store.field_rows import FieldRows
from mmload.store.row_map import PreparedRows, Refusal, reserved
from mmload.store.row_reader import Places, Rows

SMALLEST_ROW = 64 * 2**10
"""Bytes of a row from which on its block is mapped: to map and unmap a smaller one takes longer than to read it."""

_LARGEST_STEP = 16 * 2**20  # of addresses from block to block: 8 GiB for 512 blocks


def block_map(rows: Rows) -> BlockMap | None:
    """Maps the blocks of rows that are read through a cache; returns None where reading is faster."""
    from mmload.runtime.resident_pages import can_populate

    if not isinstance(rows, FieldRows) or not isinstance(rows.split_files, CachedFiles) or not can_populate():
        return None
    blocks, spec = rows.split_files.blocks(rows.name), rows.spec
    step = math.lcm(1 if spec.variable_size else spec.row_bytes, mmap.PAGESIZE)
    if blocks.grid.row_bytes < SMALLEST_ROW or step > _LARGEST_STEP:
        return None
    return BlockMap(blocks, step)


class BlockMap:
    """Blocks of a field, mapped at multiples of ``step`` bytes while a batch is rendered. Thread-safe.

    It has the methods of ``RowMap``.

    Attributes:
        most_rows: how many rows can be prepared at once: a process may have 65,530 maps on Linux.
    """

    most_rows = 512

    def __init__(self, blocks: RemoteBlocks, step: int) -> None:
        self._blocks, self._step = blocks, step
        self._windows = threading.local()

    @property
    def memory(self) -> np.ndarray:
        """Memory of the rows that this thread has prepared, uint8 [n]."""
        return self._window().memory

    def prepare(self, places: Places, refuse: Refusal) -> PreparedRows:
        """Maps the blocks of rows, or of parts of them, until this thread prepares others or releases these.

        ``refuse`` makes the error of a row. All rows are said to be absent.

        Raises:
            DamagedError, RemoteError, StoreError: if a block cannot be fetched, or has other bytes than were pushed.
        """
        from mmload.remote.file_calls import map_files

        grid, window = self._blocks.grid, self._window()
        of_rows = grid.blocks_at(places["file"], places["offset"])
        blocks, index, block_of = np.unique(of_rows, return_index=True, return_inverse=True)
        sizes = grid.bytes_of(blocks)
        room = -(-sizes // self._step) * self._step
        slots = np.cumsum(room) - room
        firsts = places["offset"] - grid.offsets_of(of_rows)
        low, high = sizes.copy(), np.zeros(len(blocks), np.int64)
        np.minimum.at(low, block_of, firsts)
        np.maximum.at(high, block_of, firsts + places["bytes"])
        window.begin(int(room.sum()))
        requests = self._blocks.fetch_missing(blocks)
        for request in set(requests.values()):
            request.done.wait()
        addresses = (window.address + slots).astype(np.uintp)
        handles = map_files(self._blocks.files.paths(blocks), sizes, addresses, low, high)
        window.hold(handles, sizes)
        absent = np.flatnonzero(handles < 0)
        if len(absent):
            requests = self._blocks.fetch_missing(blocks[absent], check_disk=True) | requests
        for k in absent.tolist():
            try:
                content = self._blocks.content(int(blocks[k]), requests)
            except DamagedError as error:
                raise refuse(int(index[k]), error) from error
            window.memory[slots[k] : slots[k] + sizes[k]] = np.frombuffer(content, np.uint8)
        if self._blocks.files.plan is not None:
            self._blocks.files.plan.advance(len(places))
        return PreparedRows(places, slots[block_of] + firsts, places["bytes"].copy(), refuse)

    def wait(self, prepared: PreparedRows, group: slice) -> None:
        """Returns at once, as rows are in memory as soon as they are prepared."""

    def release(self, prepared: PreparedRows) -> None:  # noqa: ARG002  # as RowMap.release
        """Unmaps all prepared rows, and checks that their files have kept their lengths.

        Raises:
            StoreError: if a file was truncated or written anew meanwhile.
        """
        if not self._window().end():
            raise StoreError(
                f"a block of {self._blocks.files.prefix} was written to while it was in use; read the batch again"
            )

    def _window(self) -> _Window:
        found: _Window | None = getattr(self._windows, "own", None)
        if found is None:
            found = self._windows.own = _Window()
        return found


class _Window:
    """Address range of one thread over which files are mapped.

    Attributes:
        memory: uint8 [n].
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self._sizes = np.empty(0, np.int64)
        weakref.finalize(self, _close, self._open)
        self._reserve(mmap.PAGESIZE)

    @property
    def address(self) -> int:
        return self.memory.ctypes.data

    def begin(self, size: int) -> None:
        """Begins a batch of `size` bytes, and ends an earlier one that failed."""
        self.end()
        if len(self.memory) < size:
            self._reserve(1 << size.bit_length())
        self._used = size

    def hold(self, handles: Numbers, sizes: Numbers) -> None:
        """Keeps the descriptors of the mapped files (int64 [B], or -1) and their sizes until the end."""
        self._open += handles.tolist()
        self._sizes = sizes

    def end(self) -> bool:
        """Unmaps all files, so that unlinked ones free their space; returns whether all still have their size."""
        from mmload.remote.file_calls import unmap_files

        if not self._used:
            return True
        handles, used = np.array(self._open, np.int64), self._used
        self._open.clear()
        self._used = 0
        return unmap_files(self.address, used, handles, self._sizes)

    def _reserve(self, size: int) -> None:
        self.memory, self._used = reserved(size), 0


def _close(handles: list[int]) -> None:
    """Closes the descriptors of a thread that ended in the middle of a batch."""
    for handle in handles:
        if handle >= 0:
            os.close(handle)
