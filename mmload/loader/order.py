"""Order of an epoch, the ranks that share it, the share of each, and occurrences of rows that come several times.

An order is a pure function of (seed, epoch, position) and uses no generator. It takes no memory; an order of blocks or
chunks takes some 30 bytes for each. Positions of the epoch's order, which does not depend on ranks, are dealt to the
ranks in turn, so after any number of samples consumed by all ranks together, the rest can be dealt to another number of
ranks. :mod:`mmload.loader.orders` has the orders that draw, :mod:`mmload.loader.samplers` those of users.
At the end are the seeds of loaders that are given none, on which ranks agree.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from mmload.augment.collate import collates_of
from mmload.errors import UsageError, bytes_text, counted
from mmload.runtime.random_words import GOLDEN, Words, key_of, keys_of, permute_words, signed
from mmload.runtime.resources import local_ranks
from mmload.store.dataset import View
from mmload.store.row_numbers import Numbers, row_blocks

TAILS = ("exact", "pad", "drop")

MOST_SEED = 2**64 - 1

_FULL, _BLOCKS, _HOLE, _INSIDE, _BATCHES, _PLACE = 1, 2, 3, 4, 11, 12  # purposes of keys


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochOrder:
    """Order of an epoch, which does not depend on ranks.

    Attributes:
        rows: number of rows to draw from.
        length: number of positions per epoch.
        identity: text in a loader's state that identifies the order, besides rows and seed.
        rows_at: a pure, picklable function: (positions in [0, length), epoch) -> the row at each, and a number that
            distinguishes positions with equal rows; both uint64 [B]. None instead of numbers: no row comes twice.
        group_size: number of successive positions that belong to one rank, as they make a batch; 1: each position by
            itself.
        is_drawn: whether it depends on the seed.
        keeps_neighbors: whether a batch has few regions of the stored rows.
    """

    rows: int
    length: int
    identity: str
    rows_at: Callable[[Words, int], tuple[Words, Words | None]]
    group_size: int = 1
    is_drawn: bool = True
    keeps_neighbors: bool = False


def stored_order(rows: int, seed: int = 0) -> EpochOrder:
    """Returns all rows in stored order, which depends on no seed."""
    return EpochOrder(rows=rows, length=rows, identity="sequential", rows_at=_stored_rows, is_drawn=False)


def _stored_rows(positions: Words, epoch: int) -> tuple[Words, None]:
    return positions, None


def shuffled_order(rows: int, seed: int) -> EpochOrder:
    """Returns a permutation of all rows, a different one in each epoch."""
    return EpochOrder(rows=rows, length=rows, identity="full", rows_at=partial(_shuffled_rows, rows, seed))


def _shuffled_rows(rows: int, seed: int, positions: Words, epoch: int) -> tuple[Words, None]:
    return shuffled(positions, rows, seed, epoch), None


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

    digest = None  # of an order of a user; this one has an identity
    taken_at_once = 4096  # many positions cost little more than few

    @property
    def ranks_here(self) -> Sequence[int]:
        """The ``LOCAL_WORLD_SIZE`` ranks of this machine, numbered as torchrun does, starting with this one."""
        rank, count = self.rank, local_ranks()
        if self.world_size % count:
            return [rank]
        first = rank // count * count
        return [rank, *(other for other in range(first, first + count) if other != rank)]

    @property
    def is_drawn(self) -> bool:
        """Whether it depends on the seed."""
        return self.epoch_order.is_drawn

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
        again, positions = np.divmod(self._positions(start, count, offset), np.uint64(self.epoch_order.length))
        rows, occurrences = self.epoch_order.rows_at(positions, epoch)
        numbers = None if occurrences is None else occurrences.view(np.int64)
        if again[-1]:
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


def _counted(rows: Numbers) -> Numbers:
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
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


def distributed_ranks() -> tuple[int, int] | None:
    """Returns rank and world size of torch.distributed; None if it is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


class _Runs:
    """Permutation of runs of stored neighbors, with samples permuted within each window of runs.

    The last run may be cut off: it comes at a random place between the others.
    """

    def __init__(self, edges: Numbers, window: int, seed: int, is_cut: bool) -> None:
        self._edges, self._window, self._seed, self._is_cut = edges, window, seed, is_cut
        self._drawn: tuple[int, tuple[Numbers, Numbers, Numbers, Words]] | None = None

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Returns the rows of permuted runs, permuted within windows."""
        drawn, starts, firsts, lengths = self._drawn_in(epoch)
        at = positions.astype(np.int64)
        windows = np.searchsorted(firsts, at, "right") - 1
        keys = keys_of(windows.astype(np.uint64), key_of(self._seed, epoch, _INSIDE))
        inside = permute_words((at - firsts[windows]).view(np.uint64), lengths[windows], keys)
        at = firsts[windows] + inside.view(np.int64)
        slots = np.searchsorted(starts, at, "right") - 1
        return (self._edges[drawn[slots]] + at - starts[slots]).astype(np.uint64), None

    def _drawn_in(self, epoch: int) -> tuple[Numbers, Numbers, Numbers, Words]:
        """Returns the runs of an epoch in their order, where each begins, and first place and length of each window."""
        known = self._drawn
        if known is None or known[0] != epoch:
            runs = len(self._edges) - 1
            whole = runs - self._is_cut
            blocks = np.arange(whole, dtype=np.uint64)
            drawn = permute_words(blocks, max(1, whole), np.uint64(key_of(self._seed, epoch, _BLOCKS))).view(np.int64)
            if self._is_cut:  # the upper half of 64 random bits times runs: every place is equally likely
                drawn = np.insert(drawn, key_of(self._seed, epoch, _HOLE) * runs >> 64, whole)
            starts = np.concatenate([[0], np.cumsum(np.diff(self._edges)[drawn])])
            firsts = starts[: -1 : self._window]
            lengths = np.diff(np.append(firsts, starts[-1])).astype(np.uint64)
            known = self._drawn = epoch, (drawn, starts, firsts, lengths)
        return known[1]


def block_order(rows: int, seed: int, block_size: int = 64, window: int = 64) -> EpochOrder:
    """Returns a permutation of blocks of stored neighbors, with samples permuted within each window of blocks.

    Reads stay in few regions of the disk for a long time. A reader that holds a window holds window * block_size rows.
    """
    edges = np.append(np.arange(0, rows, block_size), rows)
    runs = _Runs(edges, window, seed, is_cut=rows % block_size > 0 and rows > block_size)
    identity = f"block of {block_size} rows, window of {window}"
    return EpochOrder(rows=rows, length=rows, identity=identity, rows_at=runs.rows_at, keeps_neighbors=True)


def chunk_order(edges: Numbers, window: int, seed: int) -> EpochOrder:
    """Returns a permutation of runs of rows of one chunk, with samples permuted within each window of runs.

    Args:
        edges: int64 [runs + 1], the first row of each run, and the number of rows.
        window: runs in a window.
        seed: another seed, another order.
    """
    rows, runs = int(edges[-1]), _Runs(edges, window, seed, is_cut=False)
    identity = f"chunks {crc32(edges.astype('<i8').tobytes()):08x}, window of {window}"
    return EpochOrder(rows=rows, length=rows, identity=identity, rows_at=runs.rows_at, keeps_neighbors=True)


def order_of_chunks(view: View, seed: int) -> EpochOrder | None:
    """Returns the order of rows in object storage; None where rows are local, or one window has all of them."""
    split: Any = view.rows
    if not split.in_chunks:
        return None
    from mmload.remote.chunk_map import CHUNKS_OF_WINDOW

    edges, last = [np.zeros(1, np.int64)], -1
    for places in row_blocks(len(view)):
        numbers = split.chunk_numbers(view.ids(places))
        edges.append(places[np.diff(numbers, prepend=last) != 0])
        last = numbers[-1]
    joined = np.unique(np.concatenate([*edges, [len(view)]]))
    if len(joined) - 1 <= CHUNKS_OF_WINDOW:
        return None
    return chunk_order(joined, CHUNKS_OF_WINDOW, seed)


BATCHES_SORTED = 64
"""Batches that are sorted together: a larger window makes batches more alike, and less random."""


@dataclass(frozen=True, kw_only=True)
class _Buckets:
    """Rows of another order in batches of similar aspects; the batches of a window are shuffled.

    A smaller batch at the end of the epoch has rows of any aspect.

    Attributes:
        source: the order.
        aspects: places in the loader's rows -> width / height, float64 [B].
        size: rows of a batch.
        seed: seed of the shuffle; None: batches come from the highest images to the widest.
    """

    source: EpochOrder
    aspects: Callable[[Words], NDArray[np.float64]]
    size: int
    seed: int | None

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """Returns the rows of the other order, sorted by aspect within windows."""
        span = self.size * BATCHES_SORTED
        windows = positions // np.uint64(span)
        rows = np.empty_like(positions)
        occurrences: Words | None = None
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            first, stop = window * span, min((window + 1) * span, self.source.length)
            sources = self._sources(first, stop, epoch)[positions[chosen] - np.uint64(first)]
            rows[chosen], again = self.source.rows_at(sources, epoch)
            if again is not None:
                occurrences = np.zeros_like(positions) if occurrences is None else occurrences
                occurrences[chosen] = again
        return rows, occurrences

    def _sources(self, first: int, stop: int, epoch: int) -> Words:
        """Returns the position in the other order of each position of a window."""
        positions = np.arange(first, stop, dtype=np.uint64)
        places = positions[np.argsort(self.aspects(self.source.rows_at(positions, epoch)[0]), kind="stable")]
        full, rest = divmod(len(places), self.size)
        if self.seed is None or not full:
            return places
        # The smaller batch is from anywhere: from an end, drop_last would leave out the widest images of all.
        gap = (key_of(self.seed, epoch, _PLACE) * (full + 1) >> 64) * self.size
        batches = np.delete(places, slice(gap, gap + rest)).reshape(full, self.size)
        key = np.uint64(key_of(self.seed ^ first, epoch, _BATCHES))
        shuffled = batches[permute_words(np.arange(full, dtype=np.uint64), full, key)]
        return np.concatenate([shuffled.reshape(-1), places[gap : gap + rest]])


def bind_order(order: str | Sampling, context: OrderContext) -> EpochOrder:
    """Returns the order of a name, or the one that a Sampling makes.

    Raises:
        ValueError, TypeError, UsageError: if there is none, or it does not fit the rows.
    """
    if isinstance(order, Sampling):
        return order.bound(context)
    if order not in _ORDERS:
        raise ValueError(
            f"order is {order!r}; give 'block', 'full', an order of mmload.loader.orders, rows or a torch Sampler"
        )
    of_chunks = order_of_chunks(context.view, context.seed) if order in ("shuffled", "block") else None
    return of_chunks or _ORDERS[order](len(context.view), context.seed)


_ORDERS: Mapping[str, Callable[[int, int], EpochOrder]] = {
    "shuffled": shuffled_order,
    "full": shuffled_order,
    "block": block_order,
    "sequential": stored_order,
}
"""Orders of rows in files, by the names of orders."""


def check_batches(order: Order, named: object, view: View, batch_size: int, drop_last: bool) -> None:
    """Checks that an order, ``named`` in messages, suits the batches; warns if there are none, or of few classes.

    Raises:
        ValueError: if the order makes batches of another size.
    """
    group, rows = order.epoch_order.group_size, order.remaining()
    if batch_size % group:
        message = f"batch_size is {batch_size}, and order={named} makes batches of {group}"
        raise ValueError(f"{message}: give batch_size={group}")
    if drop_last and 0 < rows < batch_size:
        message = f"drop_last=True leaves no batch: {counted(rows, 'row')} per rank and epoch, but batch_size is"
        warnings.warn(f"{message} {batch_size}; use a smaller batch_size or drop_last=False", stacklevel=4)
    _warn_of_nodes(order, view)
    if order.epoch_order.keeps_neighbors:
        _warn_of_similar_samples(order, view, batch_size)


def _warn_of_nodes(order: Order, view: View) -> None:
    """Warns if several machines read rows in object storage: each of them fetches all."""
    split: Any = view.rows
    nodes = order.world_size // len(order.ranks_here)
    if nodes > 1 and split.in_chunks:
        warnings.warn(
            f"each of {nodes} nodes fetches all of {view.rows!r} that its cache lacks: {nodes} times "
            f"{bytes_text(split.record.bytes)} in the first epoch",
            stacklevel=5,
        )


def _warn_of_similar_samples(order: Order, view: View, batch_size: int) -> None:
    """Warns if blocks give batches of few classes, as in a dataset that is sorted by class."""
    targets, mixed = view.rows.fields.get("targets"), shuffled_order(order.rows, seed=0)
    if targets is None or targets.shape or batch_size < 2 or order.rows < 2:
        return

    def labels(places: NDArray[np.int64]) -> NDArray[np.integer]:
        return view.rows.reader.array("targets", view.ids(places))

    orders = (Order(epoch_order=each) for each in (order.epoch_order, mixed))
    found, best = (effective_classes(each, labels, batch_size) for each in orders)
    if found < _ENOUGH * best:
        warnings.warn(
            f'order="block" over {view.rows!r}: a batch of {batch_size} holds {found:.1f} classes in effect where a '
            f"full shuffle gives {best:.1f}: the dataset seems to be sorted by class; build it with --shuffle-seed, or "
            "give the Loader shuffle=True, which reads single rows",
            stacklevel=5,
        )


_ENOUGH = 0.9  # of the classes of a full shuffle
_FEWEST, _MOST, _SAMPLES = 8, 64, 1024  # batches to look at; between the two, so many samples


def effective_classes(order: Order, labels: Callable[[NDArray[np.int64]], NDArray[np.integer]], size: int) -> float:
    """Returns the mean number of classes in effect of some batches of the first epoch, spread evenly over it.

    That is the Hill number of order 1, exp of the entropy of a batch's labels: 10 equal classes count 10, one alone 1.
    """
    in_epoch = max(1, len(order) // size)
    count = min(in_epoch, max(_FEWEST, min(_MOST, _SAMPLES // size)))
    found = []
    for start in (number * in_epoch // count * size for number in range(count)):
        rows = order.take(0, start, start + size).rows
        shares = np.unique(labels(rows), return_counts=True)[1] / len(rows)
        found.append(math.exp(-float((shares * np.log(shares)).sum())))
    return fmean(found)


def order_by_aspect(source: EpochOrder, context: OrderContext) -> EpochOrder:
    """Returns the order of :func:`mmload.loader.orders.by_aspect`.

    Raises:
        ValueError: if the other order makes batches itself.
        UsageError: if images have one size.
    """
    if source.group_size > 1:
        raise ValueError("by_aspect(order) makes batches, and so does its order; give it one that makes none")
    split = context.view.rows
    spec = split.fields.get("images")
    if spec is None or not spec.variable_size:
        raise UsageError(f"order=by_aspect(...), but split {split.name!r} has no variable-size images; use its order")
    return bucket_order(source, partial(_aspects, context.view), context.batch_size, context.seed)


def bucket_order(
    source: EpochOrder, aspects: Callable[[Words], NDArray[np.float64]], size: int, seed: int
) -> EpochOrder:
    """Returns the rows of another order in batches of similar aspects, width / height."""
    identity = f"{source.identity}, batches of {size} by aspect"  # as another size gives another order
    buckets = _Buckets(source=source, aspects=aspects, size=size, seed=seed if source.is_drawn else None)
    return replace(source, identity=identity, rows_at=buckets.rows_at, group_size=size, keeps_neighbors=False)


def _aspects(view: View, places: Words) -> NDArray[np.float64]:
    """Returns width / height of the images at places of a view."""
    located = view.rows.reader.field("images").located(view.ids(places.view(np.int64)))
    aspects: NDArray[np.float64] = located["width"] / located["height"]
    return aspects


_SHUFFLES: Mapping[object, str] = {"shuffled": "give shuffle=True", "sequential": "leave it out, or give shuffle=False"}
"""Replacement for each order that ``shuffle`` requests."""


def resolve_order(shuffle: object, order: object) -> Any:
    """Returns the order that ``shuffle`` or ``order`` requests: a name, a Sampling, or rows and samplers as given.

    Raises:
        ValueError: if both are given, or ``order`` is a name that ``shuffle`` requests.
    """
    if order is None:
        return "shuffled" if shuffle else "sequential"
    if shuffle:
        raise ValueError("shuffle and order are both given; each decides the order alone")
    if isinstance(order, str) and order in _SHUFFLES:
        raise ValueError(f"order is {order!r}; {_SHUFFLES[order]}")
    return order


def torch_seed() -> int:
    """Returns the seed of torch's default generator.

    Raises:
        UsageError: in a worker of a DataLoader, as each worker has another one.
    """
    if get_worker_info() is not None:
        raise UsageError(
            "seed is None, and each worker of a DataLoader has a torch seed of its own; give seed=N, or make the "
            "Loader in the training process"
        )
    return torch.initial_seed() & MOST_SEED


def needs_agreement(order: Any, collate: object) -> bool:
    """Returns whether ranks have to agree on a seed: there are several, and the order or the collate draws.

    Raises:
        ValueError: if they have to and cannot, as they are not those of torch.distributed.
    """
    if order.world_size == 1 or not (order.is_drawn or is_random(collate)):
        return False
    ranks = distributed_ranks()
    if ranks is None or ranks[1] != order.world_size:
        given = order.rank, order.world_size
        raise ValueError(f"ranks is {given}, which are not torch.distributed's and share no seed; give seed=N")
    return True


def is_random(collate: object) -> bool:
    """Returns whether a collate may depend on the samples' seeds; a function may."""
    collates = collates_of(collate)
    return any(each.is_random for each in collates) if collates else collate is not None


def agreed_seed(own: int) -> int:
    """Returns rank 0's seed, on every rank of torch.distributed; all have to call it.

    Raises:
        UsageError: in a worker of a DataLoader, which is no rank.
    """
    if get_worker_info() is not None:
        raise UsageError("a worker of a DataLoader cannot ask rank 0 for its seed; give the Loader seed=N")
    seeds = [own]
    torch.distributed.broadcast_object_list(seeds, src=0)  # by the backend's device
    return seeds[0]
