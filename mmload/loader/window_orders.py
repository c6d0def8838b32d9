"""Orders that arrange rows within windows: blocks and chunks of stored neighbors, and batches of similar shapes.

They are pure functions of (seed, epoch, position), as all orders of :mod:`mmload.loader.order`. Their names are here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mmload.errors import UsageError, bytes_text, counted
from mmload.loader.order import EpochOrder, Order, OrderContext, Sampling, ShuffledOrder, StoredOrder
from mmload.runtime.random_words import Words, key_of, keys_of, permute_words
from mmload.store.split_views import View

_BLOCKS, _HOLE, _INSIDE, _RUNS, _INSIDE_RUNS = 2, 3, 4, 13, 14  # purposes of keys; the full shuffle has 1
_AT_ONCE = 1 << 16  # rows of which the chunks are looked up


@dataclass(frozen=True, kw_only=True)
class BlockOrder(ShuffledOrder):
    """Permutation of blocks of stored neighbors, with samples permuted within each window of blocks.

    Reads stay in few regions of the disk for a long time.

    Attributes:
        block_size: rows in a block.
        window: blocks in a window; a reader that holds a window holds window * block_size rows.
    """

    block_size: int = 64
    window: int = 64

    @property
    def identity(self) -> str:  # type: ignore[override]  # of the others it is a constant
        """Text that identifies the order, with the sizes."""
        return f"block of {self.block_size} rows, window of {self.window}"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Returns the rows of permuted blocks, permuted within windows."""
        return _block_rows(positions, self, epoch) if positions.size else positions, None


@dataclass(frozen=True)
class _Layout:
    """Layout of one epoch: blocks lie in slots; the hole is the slot of the partial block, if there is one.

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


def _layout(order: BlockOrder, epoch: int) -> _Layout:
    size = min(order.block_size, order.rows)
    full, rest = divmod(order.rows, size)
    slots = full + (rest > 0)
    # The upper half of 64 random bits times slots: every slot is equally likely to hold the partial block.
    hole = key_of(order.seed, epoch, _HOLE) * slots >> 64 if rest else slots
    return _Layout(size, full, slots, min(order.window, slots), (size - rest) % size, hole)


def _block_rows(positions: Words, order: BlockOrder, epoch: int) -> Words:
    """Converts positions to addresses, permutes these within their windows, and converts them to rows."""
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
    """Permutes each address among those of its window, by the window's own key."""
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


@dataclass(frozen=True, kw_only=True)
class ChunkOrder(ShuffledOrder):
    """Permutation of runs of rows of one chunk, with samples permuted within each window of runs.

    Attributes:
        edges: int64 [runs + 1], the first row of each run, and the number of rows.
        window: runs in a window.
    """

    edges: NDArray[np.int64] = field(repr=False, compare=False)
    window: int

    @property
    def identity(self) -> str:  # type: ignore[override]  # of the others it is a constant
        """Text that identifies the order, with the window and a digest of the runs."""
        return f"chunks {crc32(self.edges.astype('<i8').tobytes()):08x}, window of {self.window}"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, None]:
        """Returns the rows of permuted runs, permuted within windows."""
        runs = len(self.edges) - 1
        drawn = permute_words(np.arange(runs, dtype=np.uint64), runs, np.uint64(key_of(self.seed, epoch, _RUNS)))
        sizes = np.diff(self.edges)[drawn]
        starts = np.cumsum(sizes) - sizes
        firsts = starts[:: self.window]
        lengths = np.diff(np.append(firsts, self.rows)).astype(np.uint64)
        at = positions.astype(np.int64)
        windows = np.searchsorted(firsts, at, "right") - 1
        keys = keys_of(windows.astype(np.uint64), key_of(self.seed, epoch, _INSIDE_RUNS))
        inside = permute_words((at - firsts[windows]).astype(np.uint64), lengths[windows], keys)
        at = firsts[windows] + inside.astype(np.int64)
        slots = np.searchsorted(starts, at, "right") - 1
        return (self.edges[drawn[slots]] + at - starts[slots]).astype(np.uint64), None


def order_of_chunks(view: View, seed: int) -> ChunkOrder | None:
    """Returns the order of rows in object storage; None where rows are local, or one window has all of them."""
    split: Any = view.rows
    if not hasattr(split, "chunk_numbers"):
        return None
    from mmload.remote.chunk_map import WINDOW as CHUNKS

    edges, last = [np.zeros(1, np.int64)], -1
    for first in range(0, len(view), _AT_ONCE):
        ids = view.ids(np.arange(first, min(first + _AT_ONCE, len(view))))
        numbers = split.chunk_numbers(ids)
        edges.append(first + np.flatnonzero(np.diff(numbers, prepend=last)))
        last = numbers[-1]
    joined = np.unique(np.concatenate([*edges, [len(view)]]))
    if len(joined) - 1 <= CHUNKS:
        return None
    return ChunkOrder(rows=len(view), seed=seed, edges=joined, window=CHUNKS)


WINDOW = 64
"""Batches that are sorted together: a larger window makes batches more alike, and less random."""

_BATCHES, _PLACE = 11, 12  # purposes of keys


@dataclass(frozen=True, kw_only=True)
class BucketOrder:
    """Rows of another order in batches of similar aspects; the batches of a window are shuffled.

    A smaller batch at the end of the epoch has rows of any aspect.

    Attributes:
        source: the order.
        aspects: places in the loader's rows -> width / height, float64 [B].
        group_size: rows of a batch.
        seed: seed of the shuffle; None: batches come from the highest images to the widest.
    """

    source: EpochOrder
    aspects: Callable[[Words], NDArray[np.float64]]
    group_size: int
    seed: int | None

    @property
    def rows(self) -> int:
        """Number of rows of the other order."""
        return self.source.rows

    @property
    def length(self) -> int:
        """Number of positions of the other order."""
        return self.source.length

    @property
    def identity(self) -> str:
        """Text that identifies the order, with the batch size, as another size gives another order."""
        return f"{self.source.identity}, batches of {self.group_size} by aspect"

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """Returns the rows of the other order, sorted by aspect within windows."""
        span = self.group_size * WINDOW
        windows = positions // np.uint64(span)
        rows = np.empty_like(positions)
        occurrences: Words | None = None
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            first, stop = window * span, min((window + 1) * span, self.length)
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
        full, rest = divmod(len(places), self.group_size)
        if self.seed is None or not full:
            return places
        # The smaller batch is from anywhere: from an end, drop_last would leave out the widest images of all.
        gap = (key_of(self.seed, epoch, _PLACE) * (full + 1) >> 64) * self.group_size
        batches = np.delete(places, slice(gap, gap + rest)).reshape(full, self.group_size)
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
    rows, seed = len(context.view), context.seed
    if order in ("shuffled", "block"):
        stored = order_of_chunks(context.view, seed)
        if stored is not None:
            return stored
    if order in ("shuffled", "full"):
        return ShuffledOrder(rows=rows, seed=seed)
    if order == "block":
        return BlockOrder(rows=rows, seed=seed)
    if order == "sequential":
        return StoredOrder(rows=rows)
    raise ValueError(
        f"order is {order!r}; give 'block', 'full', an order of mmload.loader.orders, rows or a torch Sampler"
    )


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
    if isinstance(order.epoch_order, BlockOrder | ChunkOrder):
        _warn_of_similar_samples(order, view, batch_size)


def _warn_of_nodes(order: Order, view: View) -> None:
    """Warns if several machines read rows in object storage: each of them fetches all."""
    split: Any = view.rows
    nodes = order.world_size // len(order.ranks_here)
    if nodes > 1 and hasattr(split, "chunk_numbers"):
        warnings.warn(
            f"each of {nodes} nodes fetches all of {view.rows!r} that its cache lacks: {nodes} times "
            f"{bytes_text(split.record.bytes)} in the first epoch",
            stacklevel=5,
        )


def _warn_of_similar_samples(order: Order, view: View, batch_size: int) -> None:
    """Warns if blocks give batches of few classes, as in a dataset that is sorted by class."""
    targets, mixed = view.rows.fields.get("targets"), ShuffledOrder(rows=order.rows)
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


def order_by_aspect(source: EpochOrder, context: OrderContext) -> BucketOrder:
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
    return BucketOrder(
        source=source,
        aspects=partial(_aspects, context.view),
        group_size=context.batch_size,
        seed=None if type(source) is StoredOrder else context.seed,
    )


def _aspects(view: View, places: Words) -> NDArray[np.float64]:
    """Returns width / height of the images at places of a view."""
    located = view.rows.reader.field("images").located(view.ids(places.view(np.int64)))
    aspects: NDArray[np.float64] = located["width"] / located["height"]
    return aspects
