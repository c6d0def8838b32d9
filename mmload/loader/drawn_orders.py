"""Orders in which rows may come several times in an epoch, or not at all: weighted, balanced, repeated, mixed.

As the shuffles of :mod:`mmload.loader.order`, they are pure functions of (seed, epoch, position): nothing is
drawn ahead, and a position costs the same wherever it is. Users make them by :mod:`mmload.loader.orders`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmload.loader.order import shuffled
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.random_words import GOLDEN, Words, key_of, keys_of, mix_word, permute_words
from mmload.store.row_numbers import rows_digest

_DRAW, _CLASS, _MEMBER, _PART, _OF_PART = 5, 6, 7, 8, 9  # purposes of keys; the shuffles have 1 to 4


@dataclass(frozen=True, kw_only=True)
class RepeatedOrder:
    """Shuffle in which every row comes ``times`` times in succession; an epoch has as many positions as rows."""

    rows: int
    seed: int
    times: int
    group_size = 1

    @property
    def length(self) -> int:
        """Number of positions, which equals the number of rows: a third of them, three times."""
        return self.rows

    @property
    def identity(self) -> str:
        """Text that identifies the order, with the number of times."""
        return f"repeated {self.times} times"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns the shuffled rows, each at ``times`` positions, and the number of each repetition, from 0."""
        places, occurrences = np.divmod(positions, np.uint64(self.times))
        return shuffled(places, self.rows, self.seed, epoch), occurrences


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedOrder:
    """Order that samples rows with replacement, with probability proportional to their weights.

    Attributes:
        sums: float64 [rows], the sums of the weights up to each row.
        length: positions of an epoch.
        seed: seed of the loader.
    """

    sums: NDArray[np.float64]
    length: int
    seed: int
    group_size = 1

    @property
    def rows(self) -> int:
        """Number of weights."""
        return len(self.sums)

    @property
    def identity(self) -> str:
        """Text that identifies the order, with a digest of the weights."""
        return f"weighted by {self._digest:016x}, {self.length} samples"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns the row at each position and a key that distinguishes repeated rows.

        Inverts the cumulative distribution: the row is the first whose cumulative weight exceeds a uniform draw. The
        key is the position + 1, because the number of earlier occurrences of a row is unknown without drawing all
        earlier positions.
        """
        drawn = _units(positions, key_of(self.seed, epoch, _DRAW)) * self.sums[-1]
        # A product that is rounded up to the whole belongs to the last row that has a weight.
        drawn = np.minimum(drawn, np.nextafter(self.sums[-1:], 0))
        return np.searchsorted(self.sums, drawn, "right").astype(np.uint64), positions + np.uint64(1)

    @lazy_property
    def _digest(self) -> int:
        """Digest of the weights; takes a second per 10**8 weights, so it is only computed for a state."""
        return rows_digest(self.sums)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMembers:
    """Rows of each class that has any.

    Attributes:
        rows: int64 or int32 [N], the rows of the first class, then of the second, ascending.
        starts: int64 [C + 1], where each class begins.
    """

    rows: NDArray[np.signedinteger]
    starts: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.starts) - 1

    @lazy_property
    def digest(self) -> int:
        """Digest of the rows of all classes."""
        return rows_digest(self.rows) ^ rows_digest(self.starts)

    def drawn(self, classes: Words, numbers: Words, cycles: Words, key: int) -> Words:
        """Returns row ``numbers`` of each class, in an order that differs by class and cycle."""
        keys = keys_of(cycles * np.uint64(self.count) + classes, key)
        places = permute_words(numbers, self.sizes(classes), keys)
        rows: Words = self.rows[self.starts.view(np.uint64)[classes] + places].astype(np.uint64)
        return rows

    def sizes(self, classes: Words) -> Words:
        """Returns the number of rows of each of these classes."""
        starts = self.starts.view(np.uint64)
        sizes: Words = starts[classes + np.uint64(1)] - starts[classes]
        return sizes


@dataclass(frozen=True, kw_only=True)
class BalancedOrder:
    """Order in which every run of as many positions as classes has every class once, in its own order.

    A class gives all of its rows, shuffled, before it gives one of them again.
    """

    members: ClassMembers
    length: int
    seed: int
    group_size = 1

    @property
    def rows(self) -> int:
        """Number of rows of all classes."""
        return len(self.members.rows)

    @property
    def identity(self) -> str:
        """Text that identifies the order, with a digest of the classes."""
        return f"balanced over {self.members.count} classes {self.members.digest:016x}, {self.length} samples"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns the next row of each position's class, and how often the class has given all of its rows before."""
        runs, places = np.divmod(positions, np.uint64(self.members.count))
        classes = permute_words(places, self.members.count, keys_of(runs, key_of(self.seed, epoch, _CLASS)))
        cycles, numbers = np.divmod(runs, self.members.sizes(classes))
        return self.members.drawn(classes, numbers, cycles, key_of(self.seed, epoch, _MEMBER)), cycles


@dataclass(frozen=True, kw_only=True)
class ClassOrder:
    """Order of batches of ``per_batch`` classes with ``each`` rows per class.

    Within a cycle no class comes twice; classes that do not fill a batch at its end are left out. So are the rows of a
    class that remain when it has given as many ``each`` as it has. A class with fewer rows gives them several times.

    Attributes:
        members: the rows of each class.
        per_batch: classes of a batch.
        each: rows of a class in a batch.
        batches: number of batches per epoch.
        seed: seed of the loader.
    """

    members: ClassMembers
    per_batch: int
    each: int
    batches: int
    seed: int

    @property
    def rows(self) -> int:
        """Number of rows of all classes."""
        return len(self.members.rows)

    @property
    def group_size(self) -> int:
        """Number of rows per batch."""
        return self.per_batch * self.each

    @property
    def length(self) -> int:
        """Number of rows of all batches."""
        return self.batches * self.group_size

    @property
    def identity(self) -> str:
        """Text that identifies the order, with a digest of the classes."""
        return (
            f"{self.batches} batches of {self.each} of {self.per_batch} classes, of {self.members.count} classes "
            f"{self.members.digest:016x}"
        )

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns rows of each position's class, and how often the class has given all of its rows before."""
        groups, places = np.divmod(positions, np.uint64(self.each))
        usable = self.members.count // self.per_batch * self.per_batch
        cycles, numbers = np.divmod(groups, np.uint64(usable))
        classes = permute_words(numbers, self.members.count, keys_of(cycles, key_of(self.seed, epoch, _CLASS)))
        sizes, each = self.members.sizes(classes), np.uint64(self.each)
        rounds, turns = np.divmod(cycles, np.maximum(sizes // each, np.uint64(1)))
        again, numbers = np.divmod(turns * each + places, sizes)
        rows = self.members.drawn(classes, numbers, rounds, key_of(self.seed, epoch, _MEMBER))
        per_round = (each + sizes - np.uint64(1)) // sizes
        return rows, rounds * per_round + again


@dataclass(frozen=True, kw_only=True)
class MixedOrder:
    """Order with fixed shares of several ranges of rows, exact in every run of ``run`` positions but for one row.

    A range gives all of its rows, shuffled, before it gives one of them again, in a different order each time.

    Attributes:
        sizes: rows of each range.
        shares: share of each range; they sum to 1.
        length: positions of an epoch.
        seed: seed of the loader.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    length: int
    seed: int
    group_size = 1

    @property
    def rows(self) -> int:
        """Number of rows of all ranges."""
        return sum(self.sizes)

    @property
    def run(self) -> int:
        """Number of positions per run, so that each range has three or more of them."""
        return max(64, *(int(4 / share) for share in self.shares))

    @property
    def identity(self) -> str:
        """Text that identifies the order, with the shares."""
        shares = ", ".join(f"{share:g} of {size}" for share, size in zip(self.shares, self.sizes, strict=True))
        return f"mixed {shares}, {self.length} samples"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns the next row of each position's range, and how often the range has given all of its rows before."""
        parts, numbers = self._places(positions, epoch)
        sizes = np.array(self.sizes, dtype=np.uint64)
        firsts = np.cumsum(sizes) - sizes
        keys = np.array([key_of(self.seed, epoch, _OF_PART, part) for part in range(len(sizes))], dtype=np.uint64)
        cycles, places = np.divmod(numbers, sizes[parts])
        return permute_words(places, sizes[parts], keys_of(cycles, keys[parts])) + firsts[parts], cycles

    def _places(self, positions: Words, epoch: int) -> tuple[NDArray[np.int64], Words]:
        """Returns the range of each position, and how many positions the range had before it."""
        runs, places = np.divmod(positions, np.uint64(self.run))
        places = permute_words(places, self.run, keys_of(runs, key_of(self.seed, epoch, _PART)))
        before = self._positions_below(runs)
        within = self._positions_below(runs + np.uint64(1)) - before
        parts = (places >= within[1:-1]).sum(0)
        each = np.arange(len(positions))
        numbers: Words = before[parts + 1, each] - before[parts, each] + places - within[parts, each]
        return parts, numbers

    def _positions_below(self, runs: Words) -> Words:
        """Returns the positions of all ranges below each one in so many runs, uint64 [ranges + 1, B]."""
        below = np.array([0.0, *np.cumsum(self.shares[:-1]), 1.0])
        positions: Words = np.floor(runs.astype(np.float64) * self.run * below[:, None] + 0.5).astype(np.uint64)
        return positions


@dataclass(frozen=True, kw_only=True, eq=False)
class ListOrder:
    """Shuffle of listed rows.

    Attributes:
        rows: number of rows to choose from.
        listed: int64 [N].
        occurrences: int64 [N], how often each comes before in the list; None: none comes twice.
        seed: seed of the loader.
    """

    rows: int
    listed: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seed: int
    group_size = 1

    @property
    def length(self) -> int:
        """Number of listed rows."""
        return len(self.listed)

    @property
    def identity(self) -> str:
        """Text that identifies the order, with a digest of the list."""
        return f"subset {rows_digest(self.listed):016x}, shuffled"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """Returns the rows at the shuffled positions, and their occurrences in the list."""
        places = shuffled(positions, len(self.listed), self.seed, epoch)
        again = None if self.occurrences is None else self.occurrences[places].view(np.uint64)
        return self.listed[places].view(np.uint64), again


def _units(positions: Words, key: int) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each position, of 53 bits."""
    words: Words = mix_word(positions * np.uint64(GOLDEN) + np.uint64(key))  # type: ignore[arg-type, assignment]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
