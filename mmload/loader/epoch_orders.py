"""Which row lies at each position of an epoch, for all ranks together: the store's own order, and shuffles of it.

Pure functions of (seed, epoch, position), in O(1) memory. :mod:`mmload.loader.drawn_orders` has those in which rows may
come several times; :mod:`mmload.loader.order` deals positions to ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mmload.runtime.permutation import MAX_ROWS, Words, check_integer, key_of, keys_of, permute_words

_FULL, _BLOCKS, _HOLE, _INSIDE = 1, 2, 3, 4  # what a key is for


class EpochOrder(Protocol):
    """The order of an epoch, which does not depend on ranks."""

    @property
    def rows(self) -> int:
        """How many rows there are to draw from."""

    @property
    def length(self) -> int:
        """Positions of an epoch."""

    @property
    def together(self) -> int:
        """How many positions in a row belong to one rank, as they make a batch; 1: every position by itself."""

    @property
    def identity(self) -> str:
        """What determines the order besides rows and seed, for a loader's state."""

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """The row at each position in [0, length), and a number that no other position with that row has, uint64 [B].

        None instead of numbers: no row comes twice.
        """


@dataclass(frozen=True, kw_only=True)
class Stored:
    """All rows in the order of the store.

    Attributes:
        rows: how many rows there are.

    Raises:
        ValueError: if an option is out of its range.
    """

    rows: int
    together = 1
    identity = "sequential"

    def __post_init__(self) -> None:
        check_integer("rows", self.rows, 0, MAX_ROWS)

    @property
    def length(self) -> int:
        """Each row once."""
        return self.rows

    def at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """The positions themselves."""
        return positions, None


@dataclass(frozen=True, kw_only=True)
class Shuffled(Stored):
    """A permutation of all rows, another one in each epoch.

    Attributes:
        seed: 0 to 2**64 - 1; another seed, another order.
    """

    seed: int = 0
    identity = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seed", self.seed, 0, 2**64 - 1)

    def at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """The permuted positions."""
        return shuffled(positions, self.rows, self.seed, epoch), None


def shuffled(positions: Words, rows: int, seed: int, epoch: int) -> Words:
    """The full shuffle of an epoch, which other orders share."""
    return permute_words(positions, rows, np.uint64(key_of(seed, epoch, _FULL)))


@dataclass(frozen=True, kw_only=True)
class Blocks(Shuffled):
    """Blocks of stored neighbors permuted, and samples permuted within each window of so many blocks.

    Reads stay in few regions of the disk for a long time.

    Attributes:
        block_size: rows in a block.
        window: blocks in a window; a reader that holds a window holds window * block_size rows.
    """

    block_size: int = 64
    window: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("block_size", self.block_size, 1, MAX_ROWS)
        check_integer("window", self.window, 1, MAX_ROWS)

    @property
    def identity(self) -> str:  # type: ignore[override]  # of the others it is a constant
        """With the sizes."""
        return f"block of {self.block_size} rows, window of {self.window}"

    def at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Permuted blocks, permuted within windows."""
        return _block_rows(positions, self, epoch) if positions.size else positions, None


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


def _layout(order: Blocks, epoch: int) -> _Layout:
    size = min(order.block_size, order.rows)
    full, rest = divmod(order.rows, size)
    slots = full + (rest > 0)
    # The upper half of 64 random bits times slots: every slot is equally likely to hold the partial block.
    hole = key_of(order.seed, epoch, _HOLE) * slots >> 64 if rest else slots
    return _Layout(size, full, slots, min(order.window, slots), (size - rest) % size, hole)


def _block_rows(positions: Words, order: Blocks, epoch: int) -> Words:
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
