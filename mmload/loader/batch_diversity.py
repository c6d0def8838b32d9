"""Measures how well an order mixes, so that a poor one is noticed before training.

It compares a few batches of an :class:`~mmload.loader.order.Order` with batches of a full shuffle.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from torch import Tensor

from mmload.errors import counted
from mmload.loader.order import Order, ShuffledOrder
from mmload.store.split_views import View

Labels = Callable[[Tensor], Tensor]
"""Row numbers, int64 [B] -> their classes, int64 [B]."""

_ENOUGH = 0.9  # of what a full shuffle gives
_BATCHES = 64  # to look at
_LABELED = (8, 1024)  # the labels of so many batches are read at least, of more only up to so many samples


@dataclass(frozen=True, kw_only=True)
class BatchDiversity:
    """Measure of how well an order mixes, next to a full shuffle of the same rows: means over batches of one rank.

    Attributes:
        batch_size: samples in a batch.
        neighbors: distance in the store of two samples that follow each other, over that of a full shuffle:
            near 0 where stored neighbors stay together, about 1 - 1 / window for block, 1 for full.
        classes: effective number of classes in a batch, exp of the entropy of its labels: 10 equal classes
            count 10, one alone counts 1. None without labels.
        classes_full: the same for a full shuffle.
    """

    batch_size: int
    neighbors: float
    classes: float | None
    classes_full: float | None

    def warning(self) -> str | None:
        """Returns advice for an order that mixes poorly, or None; judged by classes if labels were given."""
        advice = "build it with --shuffle-seed, or give the Loader shuffle=True, which reads single rows"
        if self.classes is not None and self.classes_full is not None:
            if self.classes >= _ENOUGH * self.classes_full:
                return None
            return (
                f"a batch of {self.batch_size} holds {self.classes:.1f} classes in effect where a full "
                f"shuffle gives {self.classes_full:.1f}: the dataset seems to be sorted by class; {advice}"
            )
        if self.neighbors >= _ENOUGH:
            return None
        return (
            f"samples that follow each other lie {self.neighbors:.2f} times as far apart as in a full "
            f"shuffle, which is too near if the dataset is sorted; {advice}"
        )


def batch_diversity(order: Order, labels: Labels | None = None, *, batch_size: int = 256) -> BatchDiversity:
    """Measures how well an order mixes, over at most 64 batches spread evenly over its first epoch.

    Args:
        order: any kind, with at least 2 positions.
        labels: gives the classes of rows; asked for 8 to 64 of the batches, the fewer the larger they are, and for as
            many of a full shuffle: over many shards, reading them is what takes time.
        batch_size: samples in a batch of this rank, at least 2.

    Raises:
        ValueError: if there are fewer than 2 samples in a batch.
    """
    if len(order) < 2 or batch_size < 2:
        raise ValueError(
            f"{counted(len(order), 'position')} in batches of {batch_size}: a batch needs 2 samples to mix"
        )
    batches_in_epoch = max(1, len(order) // batch_size)
    count = min(batches_in_epoch, _BATCHES)
    starts = [batch * batches_in_epoch // count * batch_size for batch in range(count)]
    batches = [order.take(0, start, start + batch_size).rows for start in starts]
    shuffled = replace(order, epoch_order=ShuffledOrder(rows=order.rows))
    others = [shuffled.take(0, start, start + batch_size).rows for start in starts]
    fewest, samples = _LABELED
    step = max(1, count // max(fewest, samples // batch_size))
    distance = fmean(float(batch.diff().abs().double().mean()) for batch in batches)
    return BatchDiversity(
        batch_size=batch_size,
        neighbors=distance / ((order.rows + 1) / 3),  # the mean distance of two distinct numbers below rows
        classes=None if labels is None else fmean(_effective(labels(batch)) for batch in batches[::step]),
        classes_full=None if labels is None else fmean(_effective(labels(batch)) for batch in others[::step]),
    )


def warn_of_similar_samples(order: Order, view: View, batch_size: int) -> None:
    """Warns if block order gives batches of few classes, as in a dataset that is sorted by class."""
    targets = view.rows.fields.get("targets")
    all_ranks = replace(order, rank=0, world_size=1)
    if targets is None or targets.shape or batch_size < 2 or len(all_ranks) < 2:
        return

    def labels(positions: Tensor) -> Tensor:
        return view.rows.reader.gather("targets", view.ids(positions))

    advice = batch_diversity(all_ranks, labels, batch_size=batch_size).warning()
    if advice is not None:
        warnings.warn(f'order="block" over {view.rows!r}: {advice}', stacklevel=5)


def _effective(labels: Tensor) -> float:
    """Returns the Hill number of order 1: exp of the entropy."""
    shares = np.unique(labels.numpy(), return_counts=True)[1] / labels.numel()
    return math.exp(-float((shares * np.log(shares)).sum()))
