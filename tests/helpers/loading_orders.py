"""Orders by the name of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmload.loader.order import Order, ShuffledOrder, StoredOrder
from mmload.loader.window_orders import BlockOrder

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
