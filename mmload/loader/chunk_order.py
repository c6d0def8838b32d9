"""Block order of rows in object storage: its blocks are the chunks that are fetched, so one window needs each."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mmload.errors import bytes_text
from mmload.loader.order import Order, ShuffledOrder
from mmload.runtime.random_words import Words, key_of, keys_of, permute_words
from mmload.store.split_views import View

_RUNS, _INSIDE = 13, 14  # purposes of keys
_AT_ONCE = 1 << 16


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
        keys = keys_of(windows.astype(np.uint64), key_of(self.seed, epoch, _INSIDE))
        inside = permute_words((at - firsts[windows]).astype(np.uint64), lengths[windows], keys)
        at = firsts[windows] + inside.astype(np.int64)
        slots = np.searchsorted(starts, at, "right") - 1
        return (self.edges[drawn[slots]] + at - starts[slots]).astype(np.uint64), None


def chunk_order(view: View, seed: int) -> ChunkOrder | None:
    """Returns the order of rows in object storage; None where rows are local, or one window has all of them."""
    split: Any = view.rows
    if not hasattr(split, "chunk_numbers"):
        return None
    from mmload.remote.chunk_map import WINDOW

    edges, last = [np.zeros(1, np.int64)], -1
    for first in range(0, len(view), _AT_ONCE):
        ids = view.ids(np.arange(first, min(first + _AT_ONCE, len(view))))
        numbers = split.chunk_numbers(ids)
        edges.append(first + np.flatnonzero(np.diff(numbers, prepend=last)))
        last = numbers[-1]
    joined = np.unique(np.concatenate([*edges, [len(view)]]))
    if len(joined) - 1 <= WINDOW:
        return None
    return ChunkOrder(rows=len(view), seed=seed, edges=joined, window=WINDOW)


def warn_of_nodes(order: Order, view: View) -> None:
    """Warns if several machines read rows in object storage: each of them fetches all."""
    split: Any = view.rows
    nodes = order.world_size // len(order.ranks_here)
    if nodes > 1 and hasattr(split, "chunk_numbers"):
        warnings.warn(
            f"each of {nodes} nodes fetches all of {view.rows!r} that its cache lacks: {nodes} times "
            f"{bytes_text(split.chunk_bytes)} in the first epoch",
            stacklevel=5,
        )
