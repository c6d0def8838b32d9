"""Computes when this epoch or the next one needs each block, which decides what is evicted.

Belady's rule: evict what is needed last. The order of an epoch is a function of its number, so it is known. With room
for a share c of the data, an epoch that reads every row once has c of its reads as hits, which is the most there can
be: each row has to stay from one epoch into the next. A cache that evicts what was used longest ago has fewer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mmload.remote.layout import BlockGrid, Numbers

Take = Callable[[int, int, int], Numbers]
"""(epoch, start, stop) -> the rows at these positions of one rank, int64; fewer at the end of the epoch."""

AT_ONCE = 1 << 16
Needs = NDArray[np.float32]
_NEVER = np.float32(np.inf)


class EpochPlan:
    """Order in which the ranks of this machine, starting with this process's own, read a split. Thread-safe.

    A row being read may lie ``margin`` positions behind the number of rows read. The tables of the plan before are
    reused if the order is the same.
    """

    def __init__(self, grid: BlockGrid, takes: Sequence[Take], margin: int, before: EpochPlan | None = None) -> None:
        self._grid, self._takes, self._margin = grid, takes, margin
        self._lock = threading.Lock()
        self._needs: dict[int, tuple[Needs, Needs]] = {}
        self._length = 1
        self.epoch, self.now = 0, 0
        if before is not None and before._takes is takes:
            self._needs, self._length = before._needs, before._length

    def begin(self, epoch: int, now: int) -> None:
        """Starts an epoch, or continues it at a position."""
        self.epoch, self.now = epoch, now

    def advance(self, positions: int) -> None:
        """Records that `positions` more positions were read."""
        with self._lock:
            self.now += positions

    def chunks(self, epoch: int, start: int, size: int) -> Iterator[tuple[int, Numbers]]:
        """Yields (position, rows) of this process's own rank, from a position on."""
        return _chunks(self._takes[0], epoch, start, size)

    def next_needs(self, blocks: Numbers) -> Needs:
        """Returns in how many positions each block is needed next; infinite if not before the end of the next epoch."""
        now = self.now - self._margin
        first, last = self._needs_of(self.epoch)
        length = max(1, len(self))
        due = np.where(first[blocks] >= now, first[blocks], last[blocks])
        later = self._needs_of(self.epoch + 1)[0][blocks] + np.float32(length)
        needs: Needs = np.where((due >= now) & (due < _NEVER), due, later) - np.float32(now)
        return needs

    def __len__(self) -> int:
        """Returns the positions of the longest epoch evaluated so far."""
        return self._length

    def _needs_of(self, epoch: int) -> tuple[Needs, Needs]:
        """Returns the first and the last position at which an epoch needs each block."""
        with self._lock:
            if epoch not in self._needs:
                self._needs = {known: needs for known, needs in self._needs.items() if known in (epoch - 1, epoch + 1)}
                self._needs[epoch] = self._found(epoch)
            return self._needs[epoch]

    def _found(self, epoch: int) -> tuple[Needs, Needs]:
        first = np.full(self._grid.blocks, _NEVER, np.float32)
        last = first if self._grid.has_one_row else np.full(self._grid.blocks, -1, np.float32)
        for take in self._takes:
            for start, rows in _chunks(take, epoch, 0, AT_ONCE):
                blocks = self._grid.blocks_of_rows(rows)
                positions = np.arange(start, start + len(blocks), dtype=np.float32)
                np.minimum.at(first, blocks, positions)
                if last is not first:
                    np.maximum.at(last, blocks, positions)
                self._length = max(self._length, start + len(blocks))
        return first, last


def needed_last(needs: Needs, sizes: Numbers, wanted: int) -> Numbers:
    """Returns the fewest of the blocks needed last that have `wanted` bytes together; all if they have fewer.

    Needs are float32 [B], by :meth:`EpochPlan.next_needs`, and sizes int64 [B] bytes.
    """
    latest = np.argsort(-needs, kind="stable")
    return latest[: int(np.searchsorted(np.cumsum(sizes[latest]), wanted)) + 1]


def _chunks(take: Take, epoch: int, start: int, size: int) -> Iterator[tuple[int, Numbers]]:
    while len(rows := take(epoch, start, start + size)):
        yield start, rows
        start += len(rows)
