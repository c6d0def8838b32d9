"""The share of one rank of an epoch's order, from any position on.

An order keeps no state between calls and uses no generator. Positions of the epoch's order, which does not depend on
ranks, are dealt to the ranks in turn, so after any number of samples consumed by all ranks together, the rest can be
dealt to another number of ranks. :mod:`mmload.loader.sampler_order` is for the orders of users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.errors import choices
from mmload.loader.epoch_orders import EpochOrder
from mmload.runtime.permutation import MAX_ROWS, Words, check_integer
from mmload.runtime.splitmix import GOLDEN, signed

TAILS = ("exact", "pad", "drop")


class Taken(NamedTuple):
    """Rows at some positions of an epoch.

    Attributes:
        rows: int64 [B].
        occurrences: int64 [B], a number that tells positions with the same row apart, 0 for one of them at most; None:
            no row comes twice.
    """

    rows: Tensor
    occurrences: Tensor | None = None

    def split(self, size: int) -> list[Taken]:
        """In pieces of ``size`` rows; the last may be smaller."""
        rows = self.rows.split(size)  # type: ignore[no-untyped-call]  # torch has none
        if self.occurrences is None:
            return [Taken(piece) for piece in rows]
        numbers = self.occurrences.split(size)  # type: ignore[no-untyped-call]
        return [Taken(*piece) for piece in zip(rows, numbers, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One rank's share of an order, for every epoch.

    Rank r of w takes positions r, r + w, r + 2w ... of the epoch's order; of an order that makes batches, batches r,
    r + w, r + 2w ... For blocks this is the simplest way that is exact and the same for any w: all ranks pass through
    the same window together, so the ranks of one machine share what is read. A batch of 256 on any rank touches 63 of
    the 64 blocks of a window, for 1 as for 8 ranks, where a full shuffle touches 254.

    Attributes:
        of: the epoch's order.
        rank: which of the ranks this is.
        world_size: how many ranks there are.
        tail: when the ranks do not divide the positions: ``exact`` takes each once, so that some ranks have
            one position (or batch) more; ``pad`` repeats the beginning of the epoch and ``drop`` leaves out its end
            until all ranks have the same number, as torch's DistributedSampler does.

    Raises:
        ValueError: if an option is out of its range.
    """

    of: EpochOrder
    rank: int = 0
    world_size: int = 1
    tail: str = "exact"

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise ValueError(f"tail is {self.tail!r}, choose one of {choices(TAILS)}")
        check_integer("world_size", self.world_size, 1, 2**31)
        check_integer("rank", self.rank, 0, self.world_size - 1)

    @property
    def rows(self) -> int:
        """How many rows there are to draw from."""
        return self.of.rows

    @property
    def identity(self) -> str:
        """What determines the order besides rows and seed, for a loader's state."""
        return self.of.identity

    def __len__(self) -> int:
        """Positions of this rank in a whole epoch."""
        return self.remaining()

    def remaining(self, offset: int = 0) -> int:
        """Positions of this rank once all ranks together have consumed the first ``offset`` of the epoch."""
        check_integer("offset", offset, 0, 2 * MAX_ROWS)
        left, together = max(0, self.of.length - offset), self.of.together
        batches = left // together if self.tail == "drop" else -(-left // together)
        more = {"exact": self.world_size - 1 - self.rank, "pad": self.world_size - 1, "drop": 0}[self.tail]
        count = (batches + more) // self.world_size * together
        has_last = self.tail == "exact" and batches and (batches - 1) % self.world_size == self.rank
        return count - (batches * together - left if has_last else 0)

    def most_remaining(self, offset: int = 0) -> int:
        """The same for the rank with most left: 0 once the epoch is over on all ranks."""
        return replace(self, rank=0).remaining(offset)

    def consumed(self, stop: int, offset: int = 0) -> int:
        """Samples of the epoch that are used once every rank has taken its first ``stop`` after ``offset``.

        With the epoch, this is the whole state of a loader. As ``offset`` of any other :class:`Order` of the
        same epoch's order, whatever its rank and world size, it continues exactly there.
        """
        begun = -(-stop // self.of.together) * self.of.together  # the last batch of an epoch may be smaller
        return min(self.of.length, offset + begun * self.world_size)

    def take(self, epoch: int, start: int, stop: int, offset: int = 0) -> Taken:
        """The rows at positions [start, stop) of this rank.

        4,000 positions cost about twice as much as 250: a loader of small batches may take several at once.

        Args:
            epoch: which epoch, from 0.
            start: the first position, counted from ``offset``.
            stop: one past the last; what lies past the epoch's end is left out, as in a slice.
            offset: samples that all ranks together had consumed when positions were dealt.

        Returns:
            min(stop, remaining(offset)) - start rows, at least 0.

        Raises:
            ValueError: if a number is negative.
        """
        check_integer("epoch", epoch, 0, 2**63)
        check_integer("start", start, 0, MAX_ROWS)
        check_integer("stop", stop, 0, 2 * MAX_ROWS)
        count = max(0, min(stop, self.remaining(offset)) - start)
        if not count:
            return Taken(torch.empty(0, dtype=torch.int64))
        positions = self._positions(start, count, offset)
        again: Words | None = None
        if int(positions[-1]) >= self.of.length:
            again, positions = np.divmod(positions, np.uint64(self.of.length))
        rows, occurrences = self.of.at(positions, epoch)
        numbers = None if occurrences is None else _tensor(occurrences)
        return Taken(_tensor(rows), numbers if again is None else told_apart(_tensor(again), numbers, GOLDEN))

    def rows_for(self, epoch: int) -> Tensor:
        """All rows of this rank in an epoch, int64 [len(self)]: the one call that needs memory for them."""
        return self.take(epoch, 0, len(self)).rows

    def _positions(self, start: int, count: int, offset: int) -> Words:
        """Those of this rank in the epoch's order, which may be past its end."""
        positions = np.arange(count, dtype=np.uint64)
        if self.of.together == 1:
            positions *= np.uint64(self.world_size)
            positions += np.uint64(offset + self.rank + start * self.world_size)
            return positions
        together = np.uint64(self.of.together)
        batches, places = np.divmod(positions + np.uint64(start), together)
        dealt: Words = (batches * np.uint64(self.world_size) + np.uint64(self.rank)) * together + places
        return dealt + np.uint64(offset)


def told_apart(again: Tensor, occurrences: Tensor | None, factor: int) -> Tensor:
    """Occurrences of rows that come again for another reason, too: int64 [B], 0 where both numbers are 0.

    Args:
        again: int64 [B], how often a row came before for that reason.
        occurrences: int64 [B], of the other reasons; None: 0.
        factor: an odd word, another one for each reason.
    """
    apart = again * signed(factor)
    return apart if occurrences is None else apart + occurrences


def _tensor(words: Words) -> Tensor:
    return torch.from_numpy(words.view(np.int64))
