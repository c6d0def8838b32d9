"""The order of rows: pure functions of (seed, epoch, rank, world size).

An order keeps no state between calls and uses no generator. Memory and time per position are O(1) in the rows.
:mod:`mmload.loader.sampler_order` is for the orders of users.

An epoch has one global order, which does not depend on ranks. Positions are dealt to the ranks in turn, so after any
number of samples consumed by all ranks together, the rest can be dealt to another number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmload.errors import choices
from mmload.runtime.permutation import MAX_ROWS, Words, check_integer, key_of, keys_of, permute_words

KINDS = ("sequential", "full", "block")
TAILS = ("exact", "pad", "drop")
_FULL, _BLOCKS, _HOLE, _INSIDE = 1, 2, 3, 4  # what a key is for


@dataclass(frozen=True, kw_only=True)
class Order:
    """One rank's order of rows, for every epoch.

    ``sequential`` is the order of the store; ``full`` a permutation of all rows. ``block`` cuts the store
    into blocks of neighbors, permutes the blocks, and permutes the samples within each window of that many
    blocks, so that reads stay in few regions of the disk for a long time.

    Rank r of w takes positions r, r + w, r + 2w ... of the global order. For ``block`` this is the simplest
    way that is exact and the same for any w: all ranks pass through the same window together, so the ranks of
    one machine share what is read. A batch of 256 on any rank touches 63 of the 64 blocks of a window, for 1
    as for 8 ranks, where a full shuffle touches 254.

    Attributes:
        kind: one of :data:`KINDS`.
        rows: how many rows there are in all.
        seed: 0 to 2**64 - 1; another seed, another order.
        rank: which of the ranks this is.
        world_size: how many ranks there are.
        tail: when the ranks do not divide the rows: ``exact`` takes each row once, so that some ranks have
            one position more; ``pad`` repeats the beginning of the epoch and ``drop`` leaves out its end
            until all ranks have the same number, as torch's DistributedSampler does.
        block_size: rows in a block.
        window: blocks in a window; a reader that holds a window holds window * block_size rows.

    Raises:
        ValueError: if an option is out of its range.
    """

    kind: str
    rows: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    tail: str = "exact"
    block_size: int = 64
    window: int = 64

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, choose one of {choices(KINDS)}")
        if self.tail not in TAILS:
            raise ValueError(f"tail is {self.tail!r}, choose one of {choices(TAILS)}")
        check_integer("rows", self.rows, 0, MAX_ROWS)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        check_integer("world_size", self.world_size, 1, 2**31)
        check_integer("rank", self.rank, 0, self.world_size - 1)
        check_integer("block_size", self.block_size, 1, MAX_ROWS)
        check_integer("window", self.window, 1, MAX_ROWS)

    @property
    def identity(self) -> str:
        """What determines the order besides rows and seed, for a loader's state."""
        return self.kind if self.kind != "block" else f"block of {self.block_size} rows, window of {self.window}"

    def __len__(self) -> int:
        """Positions of this rank in a whole epoch."""
        return self.remaining()

    def remaining(self, offset: int = 0) -> int:
        """Positions of this rank once all ranks together have consumed the first ``offset`` of the epoch."""
        check_integer("offset", offset, 0, 2 * MAX_ROWS)
        left = max(0, self.rows - offset)
        more = {"exact": self.world_size - 1 - self.rank, "pad": self.world_size - 1, "drop": 0}[self.tail]
        return (left + more) // self.world_size

    def most_remaining(self, offset: int = 0) -> int:
        """The same for the rank with most left: 0 once the epoch is over on all ranks."""
        return replace(self, rank=0).remaining(offset)

    def consumed(self, stop: int, offset: int = 0) -> int:
        """Samples of the epoch that are used once every rank has taken its first ``stop`` after ``offset``.

        With the epoch, this is the whole state of a loader. As ``offset`` of any other :class:`Order` of the
        same kind, rows, seed, block_size and window, whatever its rank and world size, it continues
        exactly there.
        """
        return min(self.rows, offset + stop * self.world_size)

    def take(self, epoch: int, start: int, stop: int, offset: int = 0) -> Tensor:
        """The rows at positions [start, stop) of this rank.

        4,000 positions cost about twice as much as 250: a loader of small batches may take several at once.

        Args:
            epoch: which epoch, from 0.
            start: the first position, counted from ``offset``.
            stop: one past the last; what lies past the epoch's end is left out, as in a slice.
            offset: samples that all ranks together had consumed when positions were dealt.

        Returns:
            int64 [min(stop, remaining(offset)) - start], at least 0 long.

        Raises:
            ValueError: if a number is negative.
        """
        check_integer("epoch", epoch, 0, 2**63)
        check_integer("start", start, 0, MAX_ROWS)
        check_integer("stop", stop, 0, 2 * MAX_ROWS)
        count = max(0, min(stop, self.remaining(offset)) - start)
        positions = np.arange(count, dtype=np.uint64)
        positions *= np.uint64(self.world_size)
        positions += np.uint64(offset + self.rank + start * self.world_size if count else 0)
        if count and positions[-1] >= self.rows:
            positions %= np.uint64(self.rows)
        return torch.from_numpy(self._rows_at(positions, epoch).view(np.int64))

    def rows_for(self, epoch: int) -> Tensor:
        """All rows of this rank in an epoch, int64 [len(self)]: the one call that needs memory for them."""
        return self.take(epoch, 0, len(self))

    def _rows_at(self, positions: Words, epoch: int) -> Words:
        if self.kind == "sequential" or not positions.size:
            return positions
        if self.kind == "full":
            return permute_words(positions, self.rows, np.uint64(key_of(self.seed, epoch, _FULL)))
        return _block_rows(positions, self, epoch)


@dataclass(frozen=True)
class _Layout:
    """The layout of one epoch: blocks lie in slots; the hole is the slot of the partial block, if there is one.

    Addresses count as if every block were full, so that a division finds the window or slot.
    """

    size: int  # rows of a full block
    full: int  # how many full blocks there are
    slots: int
    window: int  # slots of a full window
    gap: int  # rows that the partial block lacks
    hole: int  # == slots where no block is partial

    def window_rows(self, number: int) -> int:
        lacking = self.gap if number == self.hole // self.window else 0
        return min(self.window, self.slots - number * self.window) * self.size - lacking


def _layout(order: Order, epoch: int) -> _Layout:
    size = min(order.block_size, order.rows)
    full, rest = divmod(order.rows, size)
    slots = full + (rest > 0)
    # The upper half of 64 random bits times slots: every slot is equally likely to hold the partial block.
    hole = key_of(order.seed, epoch, _HOLE) * slots >> 64 if rest else slots
    return _Layout(size, full, slots, min(order.window, slots), (size - rest) % size, hole)


def _block_rows(positions: Words, order: Order, epoch: int) -> Words:
    """Positions -> addresses -> addresses permuted within their windows -> rows."""
    layout = _layout(order, epoch)
    if layout.gap:
        holed = layout.hole // layout.window
        end = holed * layout.window * layout.size + layout.window_rows(holed)
        positions = positions + np.uint64(layout.gap) * (positions >= end)
    addresses = _permute_windows(positions, layout, key_of(order.seed, epoch, _INSIDE))
    slots = addresses // np.uint64(layout.size)
    partial = slots == layout.hole
    blocks = np.where(partial, np.uint64(0), slots - (slots > layout.hole))
    blocks = permute_words(blocks, max(1, layout.full), np.uint64(key_of(order.seed, epoch, _BLOCKS)))
    blocks[partial] = layout.full
    rows: Words = (blocks - slots) * np.uint64(layout.size) + addresses
    return rows


def _permute_windows(addresses: Words, layout: _Layout, key: int) -> Words:
    """Each address permuted among those of its window, by the window's own key."""
    span = np.uint64(layout.window * layout.size)
    windows = addresses // span
    inside = addresses - windows * span
    keys = keys_of(windows, key)
    holed, last = layout.hole // layout.window, (layout.slots - 1) // layout.window
    short = (windows == holed) | (windows == last)
    for number in {int(window) for window in windows[short]}:
        here = windows == number
        inside[here] = permute_words(inside[here], layout.window_rows(number), keys[here])
    if not short.all():
        inside[~short] = permute_words(inside[~short], int(span), keys[~short])
    mixed: Words = windows * span + inside
    behind = (windows == holed) & (mixed >= (layout.hole + 1) * layout.size - layout.gap)
    mixed += np.uint64(layout.gap) * behind
    return mixed
