"""Orders in which rows may come several times in an epoch, or not at all: weighted, balanced, repeated, mixed.

As the shuffles of :mod:`mmload.loader.epoch_orders`, they are pure functions of (seed, epoch, position): nothing is
drawn ahead, and a position costs the same wherever it is. Users make them by :mod:`mmload.loader.orders`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmload.loader.epoch_orders import shuffled
from mmload.runtime.permutation import Words, key_of, keys_of, permute_words
from mmload.runtime.splitmix import GOLDEN, mix_word

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

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """The shuffled rows, each for ``times`` positions."""
        return shuffled(positions // np.uint64(self.times), self.rows, self.seed, epoch)

    def occurrences_at(self, positions: Words, epoch: int) -> Words:
        """0 to ``times`` - 1."""
        return positions % np.uint64(self.times)


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """Each position a row of its own draw, as likely as its weight; with replacement.

    Attributes:
        sums: float64 [rows], the sums of the weights up to each row.
        length: positions of an epoch.
        seed: the loader's.
        digest: of the weights.
    """

    sums: NDArray[np.float64]
    length: int
    seed: int
    digest: int
    together = 1

    @property
    def rows(self) -> int:
        """As many as weights."""
        return len(self.sums)

    @property
    def identity(self) -> str:
        """With the weights' digest."""
        return f"weighted by {self.digest:016x}, {self.length} samples"

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """The first row whose sum exceeds a share of the whole."""
        drawn = _units(positions, key_of(self.seed, epoch, _DRAW)) * self.sums[-1]
        # A product that is rounded up to the whole belongs to the last row that has a weight.
        drawn = np.minimum(drawn, np.nextafter(self.sums[-1:], 0))
        rows: Words = np.searchsorted(self.sums, drawn, side="right").astype(np.uint64)
        return rows

    def occurrences_at(self, positions: Words, epoch: int) -> Words:
        """The position itself, from 1: how often a row came before is not known without drawing all."""
        return positions + np.uint64(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """The rows of each class that has any.

    Attributes:
        rows: int64 or int32 [N], the rows of the first class, then of the second, ascending.
        starts: int64 [C + 1], where each class begins.
        digest: of the classes of all rows.
    """

    rows: NDArray[np.signedinteger]
    starts: NDArray[np.int64]
    digest: int

    @property
    def count(self) -> int:
        """How many classes."""
        return len(self.starts) - 1

    def drawn(self, classes: Words, numbers: Words, cycles: Words, key: int) -> Words:
        """Rows of classes: number ``numbers`` of each in an order of their own for each class and cycle."""
        from mmload.runtime.permutation_loops import permute_each  # compiled only by those who draw by class

        starts = self.starts.view(np.uint64)
        sizes = starts[classes + np.uint64(1)] - starts[classes]
        places = numbers.copy()
        permute_each(places, sizes, keys_of(cycles * np.uint64(self.count) + classes, key))
        rows: Words = self.rows[starts[classes] + places].astype(np.uint64)
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

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """A class for each position, and its next row."""
        classes, turns, cycles = self._places(positions, epoch)
        return self.members.drawn(classes, turns, cycles, key_of(self.seed, epoch, _MEMBER))

    def occurrences_at(self, positions: Words, epoch: int) -> Words:
        """How often the class has given all of its rows before."""
        return self._places(positions, epoch)[2]

    def _places(self, positions: Words, epoch: int) -> tuple[Words, Words, Words]:
        """Class, number of the row in its cycle, and cycle."""
        runs, places = np.divmod(positions, np.uint64(self.members.count))
        keys = keys_of(runs, key_of(self.seed, epoch, _CLASS))
        classes = permute_words(places, self.members.count, keys)
        cycles, turns = np.divmod(runs, self.members.sizes(classes))
        return classes, turns, cycles


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

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """A class for each ``each`` positions, and rows of it."""
        classes, cycles, places = self._places(positions, epoch)
        sizes, each = self.members.sizes(classes), np.uint64(self.each)
        turns = np.maximum(sizes // each, np.uint64(1))
        numbers = (cycles % turns * each + places) % sizes
        return self.members.drawn(classes, numbers, cycles // turns, key_of(self.seed, epoch, _MEMBER))

    def occurrences_at(self, positions: Words, epoch: int) -> Words:
        """How often the class has given all of its rows before."""
        classes, cycles, places = self._places(positions, epoch)
        sizes, each = self.members.sizes(classes), np.uint64(self.each)
        again = (each + sizes - np.uint64(1)) // sizes
        occurrences: Words = cycles // np.maximum(sizes // each, np.uint64(1)) * again + places // sizes
        return occurrences

    def _places(self, positions: Words, epoch: int) -> tuple[Words, Words, Words]:
        """Class, cycle of the classes, and number among the ``each``."""
        groups, places = np.divmod(positions, np.uint64(self.each))
        usable = self.members.count // self.per_batch * self.per_batch
        cycles, numbers = np.divmod(groups, np.uint64(usable))
        keys = keys_of(cycles, key_of(self.seed, epoch, _CLASS))
        return permute_words(numbers, self.members.count, keys), cycles, places


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

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """The range of each position, and its next row."""
        parts, numbers = self._places(positions, epoch)
        rows = np.zeros_like(positions)
        first = 0
        for part, size in enumerate(self.sizes):
            here = parts == part
            cycles, places = np.divmod(numbers[here], np.uint64(size))
            keys = keys_of(cycles, key_of(self.seed, epoch, _OF_PART, part))
            rows[here] = permute_words(places, size, keys) + np.uint64(first)
            first += size
        return rows

    def occurrences_at(self, positions: Words, epoch: int) -> Words:
        """How often the range has given all of its rows before."""
        parts, numbers = self._places(positions, epoch)
        return numbers // np.array(self.sizes, dtype=np.uint64)[parts]

    def _places(self, positions: Words, epoch: int) -> tuple[NDArray[np.int64], Words]:
        """The range of each position, and how many positions of the epoch's runs it had before."""
        runs, places = np.divmod(positions, np.uint64(self.run))
        places = permute_words(places, self.run, keys_of(runs, key_of(self.seed, epoch, _PART)))
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
        digest: of the list.
    """

    rows: int
    listed: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seed: int
    digest: int
    together = 1

    @property
    def length(self) -> int:
        """Those of the list."""
        return len(self.listed)

    @property
    def identity(self) -> str:
        """With the list's digest."""
        return f"subset {self.digest:016x}, shuffled"

    def rows_at(self, positions: Words, epoch: int) -> Words:
        """The rows at the shuffled positions."""
        return self.listed[shuffled(positions, len(self.listed), self.seed, epoch)].view(np.uint64)

    def occurrences_at(self, positions: Words, epoch: int) -> Words | None:
        """Those of the list."""
        if self.occurrences is None:
            return None
        return self.occurrences[shuffled(positions, len(self.listed), self.seed, epoch)].view(np.uint64)


def _units(positions: Words, key: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each position, of 53 bits."""
    words: Words = mix_word(positions * np.uint64(GOLDEN) + np.uint64(key))  # type: ignore[arg-type, assignment]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
