"""Order of an epoch, the ranks that share it, the share of each, and occurrences of rows that come several times.

An order is a pure function of (seed, epoch, position), in O(1) memory: it keeps no state between calls and uses no
generator. Positions of the epoch's order, which does not depend on ranks, are dealt to the ranks in turn, so after any
number of samples consumed by all ranks together, the rest can be dealt to another number of ranks.
:mod:`mmload.loader.samplers` is for the orders of users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch

from mmload.errors import UsageError
from mmload.runtime.random_words import GOLDEN, Words, key_of, permute_words, signed
from mmload.runtime.resources import local_ranks
from mmload.store.row_reader import Numbers
from mmload.store.split_views import View

TAILS = ("exact", "pad", "drop")

_FULL = 1  # purpose of a key


class EpochOrder(Protocol):
    """Order of an epoch, which does not depend on ranks. A pure function of seed, epoch and position."""

    @property
    def rows(self) -> int:
        """Number of rows to draw from."""

    @property
    def length(self) -> int:
        """Number of positions per epoch."""

    @property
    def group_size(self) -> int:
        """Number of successive positions that belong to one rank, as they make a batch; 1: each position by itself."""

    @property
    def identity(self) -> str:
        """Text in a loader's state that identifies the order, besides rows and seed."""

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """Returns the row at each position in [0, length), and a number that distinguishes positions with equal rows.

        Both are uint64 [B]. None instead of numbers: no row comes twice.
        """


@dataclass(frozen=True, kw_only=True)
class StoredOrder:
    """All rows in stored order."""

    rows: int
    group_size = 1
    identity = "sequential"

    @property
    def length(self) -> int:
        """Number of rows, each of which comes once."""
        return self.rows

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Returns the positions themselves."""
        return positions, None


@dataclass(frozen=True, kw_only=True)
class ShuffledOrder(StoredOrder):
    """Permutation of all rows, a different one in each epoch.

    Attributes:
        seed: 0 to 2**64 - 1; another seed, another order.
    """

    seed: int = 0
    identity = "full"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Returns the permuted positions."""
        return shuffled(positions, self.rows, self.seed, epoch), None


def shuffled(positions: Words, rows: int, seed: int, epoch: int) -> Words:
    """Returns the full shuffle of an epoch, which other orders share."""
    return permute_words(positions, rows, np.uint64(key_of(seed, epoch, _FULL)))


@dataclass(frozen=True)
class OrderContext:
    """Arguments of a Loader that its order depends on.

    Attributes:
        dataset: the dataset as it was given.
        view: rows that are read.
        seed: seed of the loader.
        batch_size: rows per batch, on each rank.
    """

    dataset: object
    view: View
    seed: int
    batch_size: int


@dataclass(frozen=True)
class Sampling:
    """Way to draw rows: result of the functions of :mod:`mmload.loader.orders`. Picklable.

    Attributes:
        text: the call, for ``repr``.
        bound: makes the order of a Loader's rows.
        framed: whether images that differ in size share a canvas, as large as the largest of their batch.
    """

    text: str
    bound: Callable[[OrderContext], EpochOrder]
    framed: bool = False

    def __repr__(self) -> str:
        return self.text


class RowSelection(NamedTuple):
    """Rows at some positions of an epoch.

    Attributes:
        rows: int64 [B].
        occurrences: int64 [B], a number that distinguishes positions with the same row, 0 for at most one of them;
            None: no row comes twice.
    """

    rows: Numbers
    occurrences: Numbers | None = None

    def split(self, size: int) -> list[RowSelection]:
        """Splits the rows into pieces of ``size``; the last may be smaller."""
        pieces = [slice(first, first + size) for first in range(0, len(self.rows), size)]
        again = self.occurrences
        return [RowSelection(self.rows[piece], None if again is None else again[piece]) for piece in pieces]


Take = Callable[[int, int, int], RowSelection]
"""(start, stop, offset) -> the rows at positions [start, stop) after ``offset`` of one epoch; fewer where it ends."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Share of one rank of an order, for every epoch.

    Rank r of w takes positions r, r + w, r + 2w ... of the epoch's order; of an order that makes batches, batches r, r
    + w, r + 2w ... For blocks this is the simplest way that is exact and the same for any w: all ranks pass through the
    same window together, so the ranks of one machine share what is read. A batch of 256 on any rank touches 63 of the
    64 blocks of a window, for 1 as for 8 ranks, where a full shuffle touches 254.

    Attributes:
        epoch_order: the epoch's order.
        rank: number of this rank.
        world_size: number of ranks.
        tail: when the ranks do not divide the positions: ``exact`` takes each once, so that some ranks have
            one position (or batch) more; ``pad`` repeats the beginning of the epoch and ``drop`` leaves out its end
            until all ranks have the same number, as torch's DistributedSampler does.
    """

    epoch_order: EpochOrder
    rank: int = 0
    world_size: int = 1
    tail: str = "exact"

    @property
    def ranks_here(self) -> Sequence[int]:
        """The ``LOCAL_WORLD_SIZE`` ranks of this machine, numbered as torchrun does, starting with this one."""
        rank, count = self.rank, local_ranks()
        if count == 1 or self.world_size % count:
            return [rank]
        first = rank // count * count
        return [rank, *(other for other in range(first, first + count) if other != rank)]

    @property
    def rows(self) -> int:
        """Number of rows to draw from."""
        return self.epoch_order.rows

    @property
    def identity(self) -> str:
        """Text in a loader's state that identifies the order, besides rows and seed."""
        return self.epoch_order.identity

    @property
    def length(self) -> int:
        """Number of samples of an epoch, of all ranks together."""
        return self.epoch_order.length

    def check_ranks(self) -> None:
        """Checks that torch.distributed was not initialized after the order: every rank would read all rows."""
        ranks = distributed_ranks()
        if ranks is not None and ranks[1] != self.world_size:
            raise UsageError(
                f"torch.distributed has {ranks[1]} ranks, but the loader was created for {self.world_size}; create it "
                "after init_process_group, or give it ranks=(rank, world_size)"
            )

    def __len__(self) -> int:
        """Returns the positions of this rank in a complete epoch."""
        return self.remaining()

    def remaining(self, offset: int = 0) -> int:
        """Returns the positions of this rank that remain once all ranks have consumed ``offset`` of the epoch."""
        remaining, group_size = max(0, self.epoch_order.length - offset), self.epoch_order.group_size
        batches = remaining // group_size if self.tail == "drop" else -(-remaining // group_size)
        more = {"exact": self.world_size - 1 - self.rank, "pad": self.world_size - 1, "drop": 0}[self.tail]
        count = (batches + more) // self.world_size * group_size
        has_last = self.tail == "exact" and batches and (batches - 1) % self.world_size == self.rank
        return count - (batches * group_size - remaining if has_last else 0)

    def most_remaining(self, offset: int = 0) -> int:
        """Returns the maximum of :meth:`remaining` over all ranks: 0 once the epoch is over everywhere."""
        return replace(self, rank=0).remaining(offset)

    def consumed(self, stop: int, offset: int = 0) -> int:
        """Returns the samples of an epoch that are used once every rank has taken its first ``stop`` after ``offset``.

        With the epoch, this is the complete state of a loader. As ``offset`` of any other :class:`Order` of the same
        epoch's order, whatever its rank and world size, it continues exactly there.
        """
        size = self.epoch_order.group_size
        begun = -(-stop // size) * size  # the last batch of an epoch may be smaller
        return min(self.epoch_order.length, offset + begun * self.world_size)

    def begin(self, epoch: int) -> Take:
        """Returns what takes positions of an epoch."""
        return partial(self.take, epoch)

    def take(self, epoch: int, start: int, stop: int, offset: int = 0) -> RowSelection:
        """Returns the rows at positions [start, stop) of this rank.

        4,000 positions cost about twice as much as 250: a loader of small batches may take several at once.

        Args:
            epoch: number of the epoch, from 0.
            start: the first position, counted from ``offset``.
            stop: one past the last; what lies past the epoch's end is left out, as in a slice.
            offset: samples that all ranks together had consumed when positions were dealt.

        Returns:
            min(stop, remaining(offset)) - start rows, at least 0.
        """
        count = max(0, min(stop, self.remaining(offset)) - start)
        if not count:
            return RowSelection(np.empty(0, np.int64))
        positions = self._positions(start, count, offset)
        again: Words | None = None
        if int(positions[-1]) >= self.epoch_order.length:
            again, positions = np.divmod(positions, np.uint64(self.epoch_order.length))
        rows, occurrences = self.epoch_order.rows_at(positions, epoch)
        numbers = None if occurrences is None else occurrences.view(np.int64)
        if again is not None:
            numbers = combine_occurrences(again.view(np.int64), numbers, GOLDEN)
        return RowSelection(rows.view(np.int64), numbers)

    def rows_for(self, epoch: int) -> Numbers:
        """Returns all rows of this rank in an epoch, int64 [len(self)]; the only call that needs memory for them."""
        return self.take(epoch, 0, len(self)).rows

    def _positions(self, start: int, count: int, offset: int) -> Words:
        """Returns the positions of this rank in the epoch's order, which may be past its end."""
        positions = np.arange(count, dtype=np.uint64)
        if self.epoch_order.group_size == 1:
            positions *= np.uint64(self.world_size)
            positions += np.uint64(offset + self.rank + start * self.world_size)
            return positions
        group_size = np.uint64(self.epoch_order.group_size)
        batches, places = np.divmod(positions + np.uint64(start), group_size)
        dealt: Words = (batches * np.uint64(self.world_size) + np.uint64(self.rank)) * group_size + places
        return dealt + np.uint64(offset)


def combine_occurrences(again: Numbers, occurrences: Numbers | None, factor: int) -> Numbers:
    """Combines occurrences that have two reasons: int64 [B], 0 where both numbers are 0.

    Both are int64 [B]; None: 0. The factor is an odd word, another one for each reason.
    """
    numbers: Numbers = again * np.int64(signed(factor))
    return numbers if occurrences is None else numbers + occurrences


def occurrences_in(rows: Numbers, count: int) -> Numbers | None:
    """Returns how often each of these rows, int64 [N] of ``count``, comes before; None if none comes twice."""
    if (rows[1:] > rows[:-1]).all():  # the usual list, in a quarter of the time
        return None
    is_listed = np.zeros(count, dtype=np.bool_)
    is_listed[rows] = True
    return None if np.count_nonzero(is_listed) == len(rows) else _counted(rows)


def occurrences_of(view: View) -> Numbers | None:
    """Returns how often each chosen row of a view comes before, int64 [N]; None if none comes twice."""
    return None if view.chosen is None else occurrences_in(view.chosen, len(view.rows))


def _counted(rows: Numbers) -> Numbers:
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(rows) else order
    numbers = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    found = np.empty(len(rows), dtype=np.int64)
    found[order] = numbers
    return found


class Occurrences:
    """Counter of the rows of an epoch as they come, piece by piece. It takes 4 bytes per row of the dataset."""

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, dtype=np.uint32)

    def add(self, rows: Numbers) -> Numbers | None:
        """Returns how often each row has come before, int64 [B]; None if none has."""
        before = self._counts[rows] + _counted(rows)
        np.add.at(self._counts, rows, np.uint32(1))
        return before if before.any() else None


def ranks_for(ranks: tuple[int, int] | None) -> tuple[int, int]:
    """Returns rank and world size: the given ones, else those of torch.distributed, else (0, 1)."""
    return ranks or distributed_ranks() or (0, 1)


def distributed_ranks() -> tuple[int, int] | None:
    """Returns rank and world size of torch.distributed; None if it is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
