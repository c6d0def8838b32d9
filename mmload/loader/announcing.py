"""Tells a reader that fetches rows from afar what an epoch is going to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmload.loader.arguments import ranks_here
from mmload.loader.order import Order
from mmload.loader.sampler_order import SamplerOrder
from mmload.store.split_views import Following, FollowsEpochs, View


class Announcer:
    """Announces a loader's epochs; of a copy of it, none is announced yet.

    Args:
        order: of a sampler, nothing is known before, and nothing announced.
        view: the rows that are read.
        fields: the fields that are read.
        margin: positions by which one of the loader's threads may be behind all others.
    """

    def __init__(self, order: Order | SamplerOrder, view: View, fields: Sequence[str], margin: int) -> None:
        self._order, self._view, self._fields, self._margin = order, view, fields, margin
        self._takes: list[Callable[[int, int, int], Any]] = []
        self._following: Following | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Announcer, (self._order, self._view, self._fields, self._margin)

    def announce(self, epoch: int, offset: int) -> None:
        """Say that an epoch begins, after ``offset`` of its samples; those announced before end."""
        order, reader = self._order, self._view.rows.reader
        if not isinstance(order, Order) or not isinstance(reader, FollowsEpochs):
            return
        if not self._takes:
            ranks = ranks_here(order.rank, order.world_size)
            self._takes = [partial(_rows_at, replace(order, rank=rank), self._view) for rank in ranks]
        self.close()
        self._following = reader.follow(self._fields, self._takes, epoch, offset // order.world_size, self._margin)

    def close(self) -> None:
        """End what was announced."""
        if self._following is not None:
            self._following.close()


def _rows_at(order: Order, view: View, epoch: int, start: int, stop: int) -> Any:
    """The rows at positions of an epoch, int64 [B]."""
    return view.ids(order.take(epoch, start, stop).rows).numpy()
