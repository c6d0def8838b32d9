"""Orders by the name of their kind, and how rows are dealt to ranks and cut into batches, written plainly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mmload.loader.order import Order, ShuffledOrder, StoredOrder
from mmload.loader.window_orders import BlockOrder

Row = TypeVar("Row")

KINDS = ("sequential", "full", "block")


def order_options(name: str) -> dict[str, Any]:
    """Returns the arguments of a Loader for "sequential", "shuffled" or "block" order."""
    return {"order": name} if name == "block" else {"shuffle": name == "shuffled"}


def order_name(options: Mapping[str, Any]) -> str:
    """Returns the name of the order that arguments of a Loader request; the inverse of :func:`order_options`."""
    return options.get("order") or ("shuffled" if options.get("shuffle") else "sequential")


def order(kind: str, rows: int, seed: int = 0, block_size: int = 64, window: int = 64, **dealt: Any) -> Order:
    """One rank's share of an order; ``dealt``: rank, world_size and tail."""
    if kind == "block":
        return Order(epoch_order=BlockOrder(rows=rows, seed=seed, block_size=block_size, window=window), **dealt)
    return Order(epoch_order=ShuffledOrder(rows=rows, seed=seed) if kind == "full" else StoredOrder(rows=rows), **dealt)


def dealt(count: int, rank: int, world_size: int, tail: str, offset: int) -> list[int]:
    """A rank's positions of an epoch of which ``offset`` are used, dealt as DistributedSampler deals.

    Those from ``count`` on are its beginning again.
    """
    left = list(range(offset, count))
    spare = -len(left) % world_size
    if tail == "pad":
        left += range(count, count + spare)
    elif tail == "drop":
        left = left[: len(left) // world_size * world_size]
    return left[rank::world_size]


def batched(rows: Sequence[Row], size: int, drop_last: bool) -> list[list[Row]]:
    """Rows cut into batches."""
    batches = [list(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]
