"""Orders in which rows may come several times in an epoch, or not at all: weighted, balanced, repeated, mixed.

As the shuffles of :mod:`mmload.loader.epoch_orders`, they are pure functions of (seed, epoch, position): nothing is
drawn ahead, and a position costs the same wherever it is. Users make them by :mod:`mmload.loader.orders`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mmload.loader.epoch_orders import shuffled
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.permutation import Words, key_of, keys_of
from mmload.runtime.splitmix import GOLDEN, mix_word
from mmload.store.row_numbers import rows_digest

_DRAW, _CLASS, _MEMBER, _PART, _OF_PART = 5, 6, 7, 8, 9  # what a key is for; the shuffles have 1 to 4


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Every row ``times`` times in a row of positions, shuffled; the epoch ends after as many positions as rows.

    Attributes:
        rows: how many rows there are.
        seed: the loader's.
        times: how often a row comes.
    """

    rows: int
    seed: int
    times: int
    together = 1

    @property
    def length(self) -> int:
        """As many as rows: a third of them, three times."""
        return self.rows

    @property
    def identity(self) -> str:
        """With the number of times."""
        return f"repeated {self.times} times"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """The shuffled rows, each for ``times`` positions; 0 to ``times`` - 1."""
        places, occurrences = np.divmod(positions, np.uint64(self.times))
        return shuffled(places, self.rows, self.seed, epoch), occurrences


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """Each position a row of its own draw, as likely as its weight; with replacement.

    Attributes:
        sums: float64 [rows], the sums of the weights up to each row.
        length: positions of an epoch.
        seed: the loader's.
    """

    sums: NDArray[np.float64]
    length: int
    seed: int
    together = 1

    @property
    def rows(self) -> int:
        """As many as weights."""
        return len(self.sums)

    @property
    def identity(self) -> str:
        """With the weights' digest."""
        return f"weighted by {self._digest:016x}, {self.length} samples"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """The first row whose sum exceeds a share of the whole.

        With the position itself, from 1: how often a row came before is not known without drawing all.
        """
        from mmload.loader.drawn_loops import find_rows

        drawn = _units(positions, key_of(self.seed, epoch, _DRAW)) * self.sums[-1]
        # A product that is rounded up to the whole belongs to the last row that has a weight.
        drawn = np.minimum(drawn, np.nextafter(self.sums[-1:], 0))
        rows = np.empty_like(positions)
        find_rows(drawn, self.sums, self._coarse, rows)
        return rows, positions + np.uint64(1)

    @lazy_property
    def _coarse(self) -> NDArray[np.float64]:
        """Some of the sums, few enough to stay in cache."""
        from mmload.loader.drawn_loops import APART

        return self.sums[APART - 1 :: APART].copy()

    @lazy_property
    def _digest(self) -> int:
        """Of the weights; a second for each 10**8 of them, so only for a state."""
        return rows_digest(torch.from_numpy(self.sums))


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """The rows of each class that has any.

    Attributes:
        rows: int64 or int32 [N], the rows of the first class, then of the second, ascending.
        starts: int64 [C + 1], where each class begins.
    """

    rows: NDArray[np.signedinteger]
    starts: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many classes."""
        return len(self.starts) - 1

    @lazy_property
    def digest(self) -> int:
        """Of the rows of all classes."""
        return rows_digest(torch.from_numpy(self.rows)) ^ rows_digest(torch.from_numpy(self.starts))

    def drawn(self, classes: Words, numbers: Words, cycles: Words, key: int) -> Words:
        """Rows of classes: number ``numbers`` of each in an order of their own for each class and cycle."""
        keys = keys_of(cycles * np.uint64(self.count) + classes, key)
        places = permuted(numbers, self.sizes(classes), keys)
        rows: Words = self.rows[self.starts.view(np.uint64)[classes] + places].astype(np.uint64)
        return rows

    def sizes(self, classes: Words) -> Words:
        """Rows of each of these classes."""
        starts = self.starts.view(np.uint64)
        sizes: Words = starts[classes + np.uint64(1)] - starts[classes]
        return sizes


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """Every class once in each run of as many positions as there are classes, in an order of its own.

    A class gives all of its rows, shuffled, before it gives one of them again.

    Attributes:
        members: the rows of each class.
        length: positions of an epoch.
        seed: the loader's.
    """

    members: Members
    length: int
    seed: int
    together = 1

    @property
    def rows(self) -> int:
        """Those of all classes."""
        return len(self.members.rows)

    @property
    def identity(self) -> str:
        """With the classes' digest."""
        return f"balanced over {self.members.count} classes {self.members.digest:016x}, {self.length} samples"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """A class for each position, and its next row; how often the class has given all of its rows before."""
        runs, places = np.divmod(positions, np.uint64(self.members.count))
        classes = permuted(places, self.members.count, keys_of(runs, key_of(self.seed, epoch, _CLASS)))
        cycles, numbers = np.divmod(runs, self.members.sizes(classes))
        return self.members.drawn(classes, numbers, cycles, key_of(self.seed, epoch, _MEMBER)), cycles


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Batches of ``per_batch`` classes with ``each`` rows of each.

    Within a cycle no class comes twice; what is left of the classes at its end is left out. So are the rows of a class
    that are left when it has given as many ``each`` as it has. A class with fewer rows gives them several times.

    Attributes:
        members: the rows of each class.
        per_batch: classes of a batch.
        each: rows of a class in a batch.
        batches: how many an epoch has.
        seed: the loader's.
    """

    members: Members
    per_batch: int
    each: int
    batches: int
    seed: int

    @property
    def rows(self) -> int:
        """Those of all classes."""
        return len(self.members.rows)

    @property
    def together(self) -> int:
        """Rows of a batch."""
        return self.per_batch * self.each

    @property
    def length(self) -> int:
        """Rows of all batches."""
        return self.batches * self.together

    @property
    def identity(self) -> str:
        """With the classes' digest."""
        return (
            f"{self.batches} batches of {self.each} of {self.per_batch} classes, of {self.members.count} classes "
            f"{self.members.digest:016x}"
        )

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """A class for each ``each`` positions, and rows of it; how often it has given all of its rows before."""
        groups, places = np.divmod(positions, np.uint64(self.each))
        usable = self.members.count // self.per_batch * self.per_batch
        cycles, numbers = np.divmod(groups, np.uint64(usable))
        classes = permuted(numbers, self.members.count, keys_of(cycles, key_of(self.seed, epoch, _CLASS)))
        sizes, each = self.members.sizes(classes), np.uint64(self.each)
        rounds, turns = np.divmod(cycles, np.maximum(sizes // each, np.uint64(1)))
        again, numbers = np.divmod(turns * each + places, sizes)
        rows = self.members.drawn(classes, numbers, rounds, key_of(self.seed, epoch, _MEMBER))
        per_round = (each + sizes - np.uint64(1)) // sizes
        return rows, rounds * per_round + again


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Shares of several ranges of rows, exact in every run of ``run`` positions but for one row.

    A range gives all of its rows, shuffled, before it gives one of them again; in a different order each time.

    Attributes:
        sizes: rows of each range.
        shares: of each, which sum to 1.
        length: positions of an epoch.
        seed: the loader's.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    length: int
    seed: int
    together = 1

    @property
    def rows(self) -> int:
        """Those of all ranges."""
        return sum(self.sizes)

    @property
    def run(self) -> int:
        """Positions of a run: so many that each range has three or more of them."""
        return max(64, *(int(4 / share) for share in self.shares))

    @property
    def identity(self) -> str:
        """With the shares."""
        shares = ", ".join(f"{share:g} of {size}" for share, size in zip(self.shares, self.sizes, strict=True))
        return f"mixed {shares}, {self.length} samples"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """The range of each position, and its next row; how often the range has given all of its rows before."""
        parts, numbers = self._places(positions, epoch)
        sizes = np.array(self.sizes, dtype=np.uint64)
        firsts = np.cumsum(sizes) - sizes
        keys = np.array([key_of(self.seed, epoch, _OF_PART, part) for part in range(len(sizes))], dtype=np.uint64)
        cycles, places = np.divmod(numbers, sizes[parts])
        return permuted(places, sizes[parts], keys_of(cycles, keys[parts])) + firsts[parts], cycles

    def _places(self, positions: Words, epoch: int) -> tuple[NDArray[np.int64], Words]:
        """The range of each position, and how many positions the range had before it."""
        runs, places = np.divmod(positions, np.uint64(self.run))
        places = permuted(places, self.run, keys_of(runs, key_of(self.seed, epoch, _PART)))
        before = self._given(runs)
        within = self._given(runs + np.uint64(1)) - before
        parts = (places >= within[1:-1]).sum(0)
        each = np.arange(len(positions))
        numbers: Words = before[parts + 1, each] - before[parts, each] + places - within[parts, each]
        return parts, numbers

    def _given(self, runs: Words) -> Words:
        """Positions that the ranges below each have in so many runs; the last row is of all: uint64 [ranges + 1, B]."""
        below = np.array([0.0, *np.cumsum(self.shares[:-1]), 1.0])
        given: Words = np.floor(runs.astype(np.float64) * self.run * below[:, None] + 0.5).astype(np.uint64)
        return given


@dataclass(frozen=True, kw_only=True, eq=False)
class Listed:
    """Listed rows, shuffled.

    Attributes:
        rows: how many rows there are to choose from.
        listed: int64 [N].
        occurrences: int64 [N], how often each comes before in the list; None: none comes twice.
        seed: the loader's.
    """

    rows: int
    listed: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seed: int
    together = 1

    @property
    def length(self) -> int:
        """Those of the list."""
        return len(self.listed)

    @property
    def identity(self) -> str:
        """With the list's digest."""
        return f"subset {rows_digest(torch.from_numpy(self.listed)):016x}, shuffled"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """The rows at the shuffled positions; their occurrences in the list."""
        places = shuffled(positions, len(self.listed), self.seed, epoch)
        again = None if self.occurrences is None else self.occurrences[places].view(np.uint64)
        return self.listed[places].view(np.uint64), again


def permuted(x: Words, sizes: Words | int, keys: Words) -> Words:
    """Each number under a permutation of its own: of range(sizes[k]), by keys[k]."""
    from mmload.runtime.permutation_loops import permute_each  # compiled only by those who draw by class

    out = x.copy()
    permute_each(out, np.full(len(x), sizes, np.uint64) if isinstance(sizes, int) else sizes, keys)
    return out


def _units(positions: Words, key: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each position, of 53 bits."""
    words: Words = mix_word(positions * np.uint64(GOLDEN) + np.uint64(key))  # type: ignore[arg-type, assignment]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
