"""Batches of rows of like shapes: an order's rows, sorted by aspect within windows of some batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from mmload.errors import UsageError
from mmload.loader.epoch_orders import EpochOrder, Stored
from mmload.runtime.permutation import Words, key_of, permute_words
from mmload.store.split_views import View

WINDOW = 64
"""Batches that are sorted together: more are more alike, and less random."""

_BATCHES, _PLACE = 11, 12  # what a key is for


@dataclass(frozen=True, kw_only=True)
class Bucketed:
    """The rows of another order, each as often as there, in batches of like aspects; the batches of a window shuffled.

    A batch that is smaller, at the end of the epoch, has rows of any aspect.

    Attributes:
        of: the order.
        aspects: places in the loader's rows -> width / height, float64 [B].
        together: rows of a batch.
        seed: of the shuffle; None: batches come from the highest images to the widest.
    """

    of: EpochOrder
    aspects: Callable[[Words], NDArray[np.float64]]
    together: int
    seed: int | None

    @property
    def rows(self) -> int:
        """See :class:`EpochOrder`."""
        return self.of.rows

    @property
    def length(self) -> int:
        """See :class:`EpochOrder`."""
        return self.of.length

    @property
    def identity(self) -> str:
        """With the size of batches, as another size gives others."""
        return f"{self.of.identity}, batches of {self.together} by aspect"

    def at(self, positions: Words, epoch: int) -> tuple[Words, Words | None]:
        """See :class:`EpochOrder`."""
        span = self.together * WINDOW
        windows = positions // np.uint64(span)
        rows = np.empty_like(positions)
        occurrences: Words | None = None
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            first, stop = window * span, min((window + 1) * span, self.length)
            sources = self._sources(first, stop, epoch)[positions[chosen] - np.uint64(first)]
            rows[chosen], again = self.of.at(sources, epoch)
            if again is not None:
                occurrences = np.zeros_like(positions) if occurrences is None else occurrences
                occurrences[chosen] = again
        return rows, occurrences

    def _sources(self, first: int, stop: int, epoch: int) -> Words:
        """The position in the other order of each position of a window."""
        positions = np.arange(first, stop, dtype=np.uint64)
        places = positions[np.argsort(self.aspects(self.of.at(positions, epoch)[0]), kind="stable")]
        full, rest = divmod(len(places), self.together)
        if self.seed is None or not full:
            return places
        # The smaller batch is from anywhere: from an end, drop_last would leave out the widest images of all.
        gap = (key_of(self.seed, epoch, _PLACE) * (full + 1) >> 64) * self.together
        batches = np.delete(places, slice(gap, gap + rest)).reshape(full, self.together)
        key = np.uint64(key_of(self.seed ^ first, epoch, _BATCHES))
        shuffled = batches[permute_words(np.arange(full, dtype=np.uint64), full, key)]
        return np.concatenate([shuffled.reshape(-1), places[gap : gap + rest]])


def bucketed(bucket: str, of: EpochOrder, view: View, batch_size: int, seed: int) -> Bucketed:
    """The order of a Loader with ``bucket``.

    Raises:
        ValueError: if it is not "aspect", or the order makes batches of its own.
        UsageError: if images have one size.
    """
    if bucket != "aspect":
        raise ValueError(f'bucket is {bucket!r}; use "aspect" or None')
    if of.together > 1:
        raise ValueError('bucket is "aspect", and order=classes(...) decides what is in a batch: give one of them')
    spec = view.rows.fields.get("images")
    if spec is None or not spec.own_sizes:
        raise UsageError(f'bucket is "aspect", and split {view.rows.name!r} has no images of a size each: leave it out')
    return Bucketed(
        of=of, aspects=partial(_aspects, view), together=batch_size, seed=None if type(of) is Stored else seed
    )


def _aspects(view: View, places: Words) -> NDArray[np.float64]:
    """Width / height of the images at places of a view."""
    ids = view.ids(torch.from_numpy(places.view(np.int64))).numpy()
    located = view.rows.reader.field("images").located(ids)
    aspects: NDArray[np.float64] = located["width"] / located["height"]
    return aspects
