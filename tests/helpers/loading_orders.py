"""Orders, rows and samplers that a user may ask for; how rows are dealt to ranks and cut into batches, said plainly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, Sampler

from mmload.loader.order import Order, block_order, shuffled_order, stored_order

Row = TypeVar("Row")


KINDS = ("sequential", "full", "block")


def order_options(name: str) -> dict[str, Any]:
    """Returns the arguments of a Loader for "sequential", "shuffled" or "block" order."""
    return {"order": name} if name == "block" else {"shuffle": name == "shuffled"}


def order_name(options: Mapping[str, Any]) -> str:
    """Returns the name of the order that arguments of a Loader request; the inverse of :func:`order_options`."""
    return options.get("order") or ("shuffled" if options.get("shuffle") else "sequential")


def given_rows(options: Mapping[str, Any]) -> Any:
    """Returns the rows or the sampler that arguments of a Loader have as order; None: there are none."""
    given = options.get("order")
    return None if isinstance(given, str) else given


def order(kind: str, rows: int, seed: int = 0, block_size: int = 64, window: int = 64, **dealt: Any) -> Order:
    """One rank's share of an order; ``dealt``: rank, world_size and tail."""
    if kind == "block":
        return Order(epoch_order=block_order(rows, seed, block_size, window), **dealt)
    return Order(epoch_order=shuffled_order(rows, seed) if kind == "full" else stored_order(rows), **dealt)


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


Draw = Any


class Turning(Sampler[int]):
    """A sampler as users write them: half of the rows, other ones each epoch."""

    def __init__(self, rows: int) -> None:
        self.rows, self.epoch = rows, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def rows_of(self, epoch: int) -> list[int]:
        """The rows of an epoch."""
        return [(row * 7 + epoch * 3) % self.rows for row in range(len(self))]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows_of(self.epoch))

    def __len__(self) -> int:
        return (self.rows + 1) // 2


class Ranked(DistributedSampler[int]):
    """torch's own, which can be asked for another epoch; ``fixed`` is the one that its user has set, if any."""

    def __init__(self, rows: int, ranks: int, rank: int, shuffle: bool, fixed: int | None) -> None:
        self.rows, self.fixed = rows, fixed
        super().__init__(range(rows), ranks, rank, shuffle, seed=3, drop_last=rows % 2 == 0)
        if fixed is not None:
            self.set_epoch(fixed)

    def rows_of(self, epoch: int) -> list[int]:
        """The rows of an epoch."""
        twin = DistributedSampler(range(self.rows), self.num_replicas, self.rank, self.shuffle, 3, self.drop_last)
        twin.set_epoch(epoch if self.fixed is None else self.fixed)
        return list(twin)


@st.composite
def samplers(draw: Draw, rows: int) -> Sampler[int]:
    """A sampler of an epoch's own rows."""
    if draw(st.booleans()):
        return Turning(rows)
    ranks = draw(st.integers(1, 3))
    fixed = draw(st.sampled_from([None, 1, 5]))
    return Ranked(rows, ranks, draw(st.integers(0, ranks - 1)), draw(st.booleans()), fixed)


@st.composite
def row_lists(draw: Draw, rows: int, negative: bool = True) -> list[int]:
    """Row numbers in any order, some of them twice."""
    return draw(st.lists(st.integers(-rows if negative else 0, rows - 1), min_size=1, max_size=9))


@st.composite
def row_likes(draw: Draw, rows: int) -> Any:
    """Rows as a list, tuple, tensor or array of any integer dtype, or as a mask of one boolean a row."""
    numbers = draw(row_lists(rows))
    kind = draw(st.sampled_from(["list", "tuple", "items", "mask", "int64", "int32", "int16", "uint8"]))
    if kind == "mask":
        mask = [row in numbers for row in range(rows)]
        return draw(st.sampled_from([mask, np.array(mask), torch.tensor(mask)]))
    if kind == "uint8":
        numbers = [abs(number) % min(rows, 256) for number in numbers]
    if kind in ("list", "tuple", "items"):
        return (
            [np.int64(number) for number in numbers]
            if kind == "items"
            else (tuple if kind == "tuple" else list)(numbers)
        )
    is_array = kind == "uint8" or draw(st.booleans())  # a tensor of uint8 is a mask in torch, and refused
    return np.array(numbers, kind) if is_array else torch.tensor(numbers, dtype=getattr(torch, kind))


def numbers_of(given: Any, rows: int) -> list[int]:
    """The rows that are meant, by numpy."""
    return [int(row) for row in np.arange(rows)[np.asarray(given)]]


@st.composite
def settings_of_loaders(draw: Draw, rows: int) -> dict[str, Any]:
    """What may differ between two loaders that give the same rows in the same order."""
    world = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    return {
        "batch_size": draw(st.integers(30, 90) if rows > 100 else st.integers(1, 9)),
        "threads": draw(st.integers(1, 3)),
        "prefetch": draw(st.integers(0, 3)),
        "tier": draw(st.sampled_from(["disk", "memory", "auto", "device"])),
        "drop_last": draw(st.booleans()),
        "tail": draw(st.sampled_from(["exact", "pad", "drop"])),
        "ranks": (draw(st.integers(0, world - 1)), world),
    }
