"""Which rows, in which order: pure functions of (seed, epoch, rank, world size).

Comes in: a number of rows and the few integers of an :class:`Order`, or somebody else's sampler
(:class:`Given`). Goes out: int64 row numbers for any stretch of an epoch. An order remembers nothing between
calls, touches no generator, and takes no memory that grows with the rows: any position of an epoch over a
billion rows costs the same.

An epoch has one global order, which knows nothing of ranks. Ranks are dealt its positions like cards, so
after any number of samples consumed by all ranks together, the rest can be dealt anew to another number of
ranks.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmload.errors import choices

KINDS = ("sequential", "full", "block")
TAILS = ("exact", "pad", "drop")
MAX_ROWS = 2**61
"""More rows than this could leave int64 on the way."""

_Words = NDArray[np.uint64]
_MASK = 2**64 - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# As numpy scalars: a Python int costs each of some hundred small operations half a microsecond more.
_WIDE_GOLDEN, _WIDE_1, _WIDE_2, _HALF = (np.uint64(word) for word in (_GOLDEN, _MIX_1, _MIX_2, 32))
_FULL, _BLOCKS, _HOLE, _INSIDE = 1, 2, 3, 4  # what a key is for
_SMALL, _FEW_ROUNDS, _MANY_ROUNDS = 1024, 6, 16


def _mix(word: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): every bit of the input moves every bit."""
    word = (word ^ word >> 30) * _MIX_1 & _MASK
    word = (word ^ word >> 27) * _MIX_2 & _MASK
    return word ^ word >> 31


def _key(*parts: int) -> int:
    """64 bits made of whole numbers, in which every one of them counts."""
    key = 0
    for part in parts:
        key = _mix((key ^ part) + _GOLDEN & _MASK)
    return key


_ROUNDS = tuple(np.uint64(_mix(turn * _GOLDEN & _MASK)) for turn in range(1, _MANY_ROUNDS + 1))


def _feistel(x: _Words, n: int, key: _Words | np.uint64) -> _Words:
    """One keyed bijection of [0, a * b), hardly more than [0, n): a is even, and a and b are near sqrt(n).

    A Feistel network over mixed radix (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"):
    x = left * b + right, and in turn each half is shifted by a hash of the other. About sqrt(n) numbers of
    the range are not below n, where a power of four would have up to three in four. An even a lets odd
    permutations out, too. Six rounds pass chi-square tests of lagged differences from 1,000 rows on; fewer
    rows need 16.
    """
    a = 2 * -(-(math.isqrt(n - 1) + 1) // 2)
    sizes = (np.uint64(a), np.uint64(-(-n // a)))
    left = x // sizes[1]
    halves = [left, x - left * sizes[1]]
    for turn in range(_FEW_ROUNDS if n >= _SMALL else _MANY_ROUNDS):
        moved, size = turn % 2, sizes[turn % 2]
        shift = halves[1 - moved] ^ (key ^ _ROUNDS[turn])
        shift *= _WIDE_1
        shift ^= shift >> _HALF
        shift *= _WIDE_2
        shift >>= _HALF
        shift *= size  # the upper half of 32 random bits times size is a number below size
        shift >>= _HALF
        shift += halves[moved]
        halves[moved] = np.minimum(shift, shift - size)  # modulo size: what is below zero wraps to huge
    result: _Words = halves[0] * sizes[1] + halves[1]
    return result


def _permute(x: _Words, n: int, key: _Words | np.uint64) -> _Words:
    """Keyed permutation of [0, n) by cycle walking; one key, or one for each element."""
    out = _feistel(x, n, key)
    over = np.flatnonzero(out >= n)
    while over.size:
        again = _feistel(out[over], n, key[over] if isinstance(key, np.ndarray) else key)
        out[over] = again
        over = over[again >= n]
    return out


def permute(positions: Tensor, n: int, key: int) -> Tensor:
    """Where a keyed permutation of range(n) sends each position, in O(1) memory and O(1) time each.

    Args:
        positions: int64 [B] on the CPU, each in [0, n).
        n: how many numbers are permuted, 1 to 2**61.
        key: which permutation, 0 to 2**64 - 1; neighbouring keys give unrelated permutations.

    Returns:
        int64 [B], each in [0, n), distinct where the positions are.

    Raises:
        TypeError: if positions is not int64.
        ValueError: if n, key or a position is out of its range.
    """
    _check_whole("n", n, 1, MAX_ROWS)
    _check_whole("key", key, 0, 2**64 - 1)
    if positions.dtype != torch.int64:
        raise TypeError(f"positions are {positions.dtype}, expected torch.int64")
    x = positions.numpy()
    if x.size and not 0 <= x.min() <= x.max() < n:
        raise ValueError(f"positions lie in [{x.min()}, {x.max()}], expected [0, {n - 1}]")
    return torch.from_numpy(_permute(x.view(np.uint64), n, np.uint64(_key(key))).view(np.int64))


@dataclass(frozen=True, kw_only=True)
class Order:
    """One rank's order of rows, for every epoch.

    ``sequential`` is the order of the store; ``full`` a permutation of all rows. ``block`` cuts the store
    into blocks of neighbours, permutes the blocks, and permutes the samples within each window of that many
    blocks, so that for a long while all that is read lies in few places of the disk.

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
        _check_whole("rows", self.rows, 0, MAX_ROWS)
        _check_whole("seed", self.seed, 0, 2**64 - 1)
        _check_whole("world_size", self.world_size, 1, 2**31)
        _check_whole("rank", self.rank, 0, self.world_size - 1)
        _check_whole("block_size", self.block_size, 1, MAX_ROWS)
        _check_whole("window", self.window, 1, MAX_ROWS)

    def __len__(self) -> int:
        """Positions of this rank in a whole epoch."""
        return self.remaining()

    def remaining(self, offset: int = 0) -> int:
        """Positions of this rank once all ranks together have consumed the first ``offset`` of the epoch."""
        _check_whole("offset", offset, 0, 2 * MAX_ROWS)
        left = max(0, self.rows - offset)
        more = {"exact": self.world_size - 1 - self.rank, "pad": self.world_size - 1, "drop": 0}[self.tail]
        return (left + more) // self.world_size

    def consumed(self, stop: int, offset: int = 0) -> int:
        """Samples of the epoch that are gone once every rank has taken its first ``stop`` after ``offset``.

        With the epoch, this is the whole state of a loader. As ``offset`` of any other :class:`Order` of the
        same kind, rows, seed, block_size and window, whatever its rank and world size, it goes on exactly
        there.
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
        _check_whole("epoch", epoch, 0, 2**63)
        _check_whole("start", start, 0, MAX_ROWS)
        _check_whole("stop", stop, 0, 2 * MAX_ROWS)
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

    def _rows_at(self, positions: _Words, epoch: int) -> _Words:
        if self.kind == "sequential" or not positions.size:
            return positions
        if self.kind == "full":
            return _permute(positions, self.rows, np.uint64(_key(self.seed, epoch, _FULL)))
        return _block_rows(positions, self, epoch)


@dataclass(frozen=True)
class _Layout:
    """Where the blocks of one epoch lie: in slots, in one of which, the hole, lies the partial block, if any.

    Addresses count as if every block were full, so that division alone finds a window or a slot.
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
    # The upper half of 64 random bits times slots: the partial block lies in any slot with equal chance.
    hole = _key(order.seed, epoch, _HOLE) * slots >> 64 if rest else slots
    return _Layout(size, full, slots, min(order.window, slots), (size - rest) % size, hole)


def _block_rows(positions: _Words, order: Order, epoch: int) -> _Words:
    """Positions -> addresses -> addresses permuted within their windows -> rows."""
    layout = _layout(order, epoch)
    if layout.gap:
        holed = layout.hole // layout.window
        end = holed * layout.window * layout.size + layout.window_rows(holed)
        positions = positions + np.uint64(layout.gap) * (positions >= end)
    addresses = _permute_windows(positions, layout, _key(order.seed, epoch, _INSIDE))
    slots = addresses // np.uint64(layout.size)
    partial = slots == layout.hole
    blocks = np.where(partial, np.uint64(0), slots - (slots > layout.hole))
    blocks = _permute(blocks, max(1, layout.full), np.uint64(_key(order.seed, epoch, _BLOCKS)))
    blocks[partial] = layout.full
    rows: _Words = (blocks - slots) * np.uint64(layout.size) + addresses
    return rows


def _permute_windows(addresses: _Words, layout: _Layout, key: int) -> _Words:
    """Each address permuted among those of its window, by the window's own key."""
    span = np.uint64(layout.window * layout.size)
    windows = addresses // span
    inside = addresses - windows * span
    keys = (windows + np.uint64(1)) * _WIDE_GOLDEN ^ np.uint64(key)
    keys = (keys ^ keys >> _HALF) * _WIDE_1
    keys ^= keys >> _HALF
    holed, last = layout.hole // layout.window, (layout.slots - 1) // layout.window
    short = (windows == holed) | (windows == last)
    for number in {int(window) for window in windows[short]}:
        here = windows == number
        inside[here] = _permute(inside[here], layout.window_rows(number), keys[here])
    if not short.all():
        inside[~short] = _permute(inside[~short], int(span), keys[~short])
    mixed: _Words = windows * span + inside
    behind = (windows == holed) & (mixed >= (layout.hole + 1) * layout.size - layout.gap)
    mixed += np.uint64(layout.gap) * behind
    return mixed


class Given:
    """Somebody else's order: a list of indices, a tensor, or any torch ``Sampler``, read as its turn comes.

    As in a DataLoader, what is given is this rank's own: a DistributedSampler is dealt out already, and a
    list is taken whole by every rank that is given it. The sampler's ``set_epoch`` is called where it has
    one. Going on in the middle of an epoch skips what was consumed, and is exact where the sampler is a
    function of its epoch. Not safe to use from two threads at once.

    Args:
        source: yields one whole number in [0, rows) at a time, anew for every ``iter``.
        rows: how many rows there are.

    Raises:
        TypeError: if source is an iterator, which has but one epoch.
    """

    rank, world_size = 0, 1

    def __init__(self, source: Iterable[Any], rows: int) -> None:
        if isinstance(source, Iterator):
            raise TypeError(
                f"sampler is a {type(source).__name__}, which ends for good; give a list or a torch Sampler"
            )
        self.rows = rows
        self._source = source.tolist() if isinstance(source, Tensor | np.ndarray) else source
        self._epoch = -1
        self._coming: Iterator[Any] = iter(())
        self._seen = array("q")

    def __len__(self) -> int:
        """How many indices an epoch has; TypeError where the sampler does not say."""
        return len(self._source)  # type: ignore[arg-type]  # a sampler without a length says so itself

    def remaining(self, offset: int = 0) -> int:
        """Indices left in an epoch after the first ``offset``."""
        return max(0, len(self) - offset)

    def consumed(self, stop: int, offset: int = 0) -> int:
        """See :meth:`Order.consumed`; counts this rank alone."""
        return offset + stop

    def take(self, epoch: int, start: int, stop: int, offset: int = 0) -> Tensor:
        """The rows at positions [start, stop) after ``offset``, int64, fewer where the sampler ends.

        Another epoch than the last call's draws the sampler anew.

        Raises:
            TypeError: if the sampler yields anything but whole numbers.
            ValueError: if it yields a number outside [0, rows).
        """
        if epoch != self._epoch:
            self._begin(epoch)
        self._read_until(offset + stop)
        return torch.from_numpy(np.array(self._seen[offset + start : offset + stop]))

    def _begin(self, epoch: int) -> None:
        set_epoch = getattr(self._source, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        self._epoch, self._seen, self._coming = epoch, array("q"), iter(self._source)

    def _read_until(self, stop: int) -> None:
        for item in islice(self._coming, max(0, stop - len(self._seen))):
            try:
                row = index(item)
            except TypeError as error:
                raise TypeError(
                    f"sampler yields {item!r}, expected one whole number at a time; of a batch sampler, "
                    "give the sampler inside it"
                ) from error
            if not 0 <= row < self.rows:
                raise ValueError(f"sampler yields {row}, expected a row in [0, {self.rows - 1}]")
            self._seen.append(row)


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, expected a whole number from {low} to {high}")
