"""The blocks of a field: what is fetched, checked, kept and evicted as a unit, numbered over all shards of a split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmload.remote.block_checksums import SMALLEST_BLOCK
from mmload.store.manifest import SplitRecord

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
    """How a field of a split is divided into blocks.

    Attributes:
        field: the field's name.
        rows_per_block: rows of a block; the last of a shard may have fewer.
        block_bytes: bytes of a whole block.
        starts: int64 [shards + 1], the first block of each shard.
    """

    def __init__(self, split: str, field: str, record: SplitRecord) -> None:
        self.split, self.field = split, field
        self.row_bytes = record.fields[field].row_bytes
        self.rows_per_block = max(1, SMALLEST_BLOCK // max(1, self.row_bytes))
        self.block_bytes = self.rows_per_block * self.row_bytes
        self._rows = record.shards.rows
        self._row_starts = np.concatenate([[0], np.cumsum(self._rows)])
        self.starts = np.concatenate([[0], np.cumsum(-(-self._rows // self.rows_per_block))])

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return int(self._row_starts[-1]) * self.row_bytes

    def shard_bytes(self, shard: int) -> int:
        """Bytes of a shard's file."""
        return int(self._rows[shard]) * self.row_bytes

    def of_rows(self, rows: Numbers) -> Numbers:
        """The block of each row, int64 [B]."""
        if self.rows_per_block == 1:
            return rows
        shards = np.searchsorted(self._row_starts, rows, side="right") - 1
        blocks: Numbers = self.starts[shards] + (rows - self._row_starts[shards]) // self.rows_per_block
        return blocks

    def bytes_of(self, blocks: Numbers) -> Numbers:
        """The bytes of each block, int64 [B]."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        first = (blocks - self.starts[shards]) * self.rows_per_block
        sizes: Numbers = np.minimum(self.rows_per_block, self._rows[shards] - first) * self.row_bytes
        return sizes

    def runs(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Blocks in ascending order as runs of neighbors in one file, of at most so many bytes (at least one block)."""
        if not len(blocks):
            return []
        most = max(1, most_bytes // self.block_bytes)
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        heads = np.flatnonzero(np.concatenate([[True], (np.diff(blocks) != 1) | (np.diff(shards) != 0)]))
        found = []
        for head, end in zip(heads.tolist(), [*heads[1:].tolist(), len(blocks)], strict=True):
            shard = int(shards[head])
            for past in range(head, end, most):
                found.append(self._run(shard, int(blocks[past]), min(most, end - past)))
        return found

    def runs_by_need(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Blocks in any order, at least one, as :meth:`runs`; those whose first block comes first in it come first."""
        different, positions = np.unique(blocks, return_index=True)
        runs = self.runs(different, most_bytes)
        starts = np.cumsum([0, *(run.blocks for run in runs[:-1])])
        return [runs[index] for index in np.argsort(np.minimum.reduceat(positions, starts), kind="stable").tolist()]

    def _run(self, shard: int, first: int, count: int) -> Run:
        inside = first - int(self.starts[shard])
        rows = min(count * self.rows_per_block, int(self._rows[shard]) - inside * self.rows_per_block)
        return Run(shard, first, count, inside * self.block_bytes, rows * self.row_bytes)
