"""The blocks of a field: what is fetched, checked, kept and evicted as a unit, numbered over all shards of a split."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmload.remote.block_checksums import SMALLEST_BLOCK, first_rows
from mmload.store.field_files import BYTES
from mmload.store.manifest import SplitRecord
from mmload.store.row_reader import SMALL_ROW

Numbers = NDArray[np.int64]


class Run(NamedTuple):
    """Neighboring blocks of one shard's file.

    Attributes:
        shard: the shard.
        first: number of the first block, over all shards.
        blocks: how many.
        offset: of their bytes in the file.
        length: of their bytes.
    """

    shard: int
    first: int
    blocks: int
    offset: int
    length: int


class BlockGrid:
    """How a field of a split is divided into blocks: of as many rows each, as all rows have the same size.

    Attributes:
        field: the field's name; the names of files begin with it.
        row_bytes: bytes of a row; on average, where rows have their own sizes.
        block_bytes: bytes of a whole block; 0 where each has its own size.
        has_one_row: whether each block is one row.
        is_evicted: whether blocks may be evicted; small rows are read once, and stay in memory.
        starts: int64 [shards + 1], the first block of each shard.
    """

    def __init__(self, split: str, field: str, record: SplitRecord) -> None:
        self.split, self.field = split, field
        self.row_bytes = record.fields[field].row_bytes
        self.is_evicted = self.row_bytes > SMALL_ROW
        self._rows_per_block = max(1, SMALLEST_BLOCK // max(1, self.row_bytes))
        self.has_one_row = self._rows_per_block == 1
        self.block_bytes = self._rows_per_block * self.row_bytes
        self._rows = record.shards.rows
        self._row_starts = np.concatenate([[0], np.cumsum(self._rows)])
        self.starts = np.concatenate([[0], np.cumsum(-(-self._rows // self._rows_per_block))])

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return int(self._row_starts[-1]) * self.row_bytes

    def of_rows(self, rows: Numbers) -> Numbers:
        """The block of each row, int64 [B]."""
        if self.has_one_row:
            return rows
        shards = np.searchsorted(self._row_starts, rows, side="right") - 1
        blocks: Numbers = self.starts[shards] + (rows - self._row_starts[shards]) // self._rows_per_block
        return blocks

    def bytes_of(self, blocks: Numbers) -> Numbers:
        """The bytes of each block, int64 [B]."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        first = (blocks - self.starts[shards]) * self._rows_per_block
        sizes: Numbers = np.minimum(self._rows_per_block, self._rows[shards] - first) * self.row_bytes
        return sizes

    def offsets_of(self, blocks: Numbers) -> Numbers:
        """The first byte of each block in the file of its shard, int64 [B]."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        offsets: Numbers = (blocks - self.starts[shards]) * self.block_bytes
        return offsets

    def lengths_in(self, shard: int) -> Numbers:
        """The bytes of each block of a shard's file, int64 [B]."""
        return self.bytes_of(np.arange(self.starts[shard], self.starts[shard + 1]))

    def runs(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Blocks in ascending order as runs of neighbors in one file, of at most so many bytes (at least one block)."""
        if not len(blocks):
            return []
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        heads = np.flatnonzero(np.concatenate([[True], (np.diff(blocks) != 1) | (np.diff(shards) != 0)]))
        ends = [0, *np.cumsum(self.bytes_of(blocks)).tolist()]
        offsets = self.offsets_of(blocks).tolist()
        found = []
        for head, end in zip(heads.tolist(), [*heads[1:].tolist(), len(blocks)], strict=True):
            shard, past = int(shards[head]), head
            while past < end:
                stop = max(past + 1, bisect_right(ends, ends[past] + most_bytes, past, end + 1) - 1)
                first = int(blocks[past])
                found.append(Run(shard, first, stop - past, offsets[past], ends[stop] - ends[past]))
                past = stop
        return found

    def runs_by_need(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Blocks in any order, at least one, as :meth:`runs`; those whose first block comes first in it come first."""
        different, positions = np.unique(blocks, return_index=True)
        runs = self.runs(different, most_bytes)
        starts = np.cumsum([0, *(run.blocks for run in runs[:-1])])
        return [runs[index] for index in np.argsort(np.minimum.reduceat(positions, starts), kind="stable").tolist()]


class WholeGrid(BlockGrid):
    """How rows of their own sizes are divided into blocks, by :func:`mmload.remote.block_checksums.first_rows`.

    Args:
        split: the split's name.
        field: the field's.
        record: the split's manifest entry.
        offsets: int64 [rows + 1], where rows begin, counted as if the shards' bytes were one file.
    """

    def __init__(self, split: str, field: str, record: SplitRecord, offsets: Numbers) -> None:
        self.split, self.field = split, f"{field}.{BYTES}"
        self.block_bytes, self.is_evicted = 0, True
        self._shard_bytes = np.concatenate([[0], np.cumsum(record.shards.bytes[self.field])])
        row_starts = np.concatenate([[0], np.cumsum(record.shards.rows)]).tolist()
        firsts = [
            start + first_rows(offsets[start : stop + 1] - offsets[start])
            for start, stop in zip(row_starts[:-1], row_starts[1:], strict=True)
        ]
        self.starts = np.cumsum([0, *map(len, firsts)])
        self._first_rows = np.concatenate([np.empty(0, np.int64), *firsts])
        self.has_one_row = len(self._first_rows) == len(offsets) - 1
        self._edges = offsets if self.has_one_row else offsets[np.append(self._first_rows, -1)]
        self.row_bytes = self.bytes // max(1, len(offsets) - 1)

    @property
    def bytes(self) -> int:
        """See :class:`BlockGrid`."""
        return int(self._shard_bytes[-1])

    def of_rows(self, rows: Numbers) -> Numbers:
        """See :class:`BlockGrid`."""
        if self.has_one_row:
            return rows
        blocks: Numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        return blocks

    def bytes_of(self, blocks: Numbers) -> Numbers:
        """See :class:`BlockGrid`."""
        sizes: Numbers = self._edges[blocks + 1] - self._edges[blocks]
        return sizes

    def offsets_of(self, blocks: Numbers) -> Numbers:
        """See :class:`BlockGrid`."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        offsets: Numbers = self._edges[blocks] - self._shard_bytes[shards]
        return offsets
