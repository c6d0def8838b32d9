"""How well an order mixes: measures known of each order, and the warning of blocks in a sorted dataset."""

from __future__ import annotations

import inspect
import math
import re
from statistics import fmean

import pytest
import torch
from loading_orders import order as order_of_kind

from mmload.loader import Loader
from mmload.loader.batch_diversity import batch_diversity
from mmload.loader.order import Order
from mmload.loader.window_orders import BlockOrder
from mmload.runtime.random_words import permute


def by_class(rows: torch.Tensor) -> torch.Tensor:
    """Labels of a store that is sorted by class."""
    return rows // 1024


def mixed(rows: torch.Tensor) -> torch.Tensor:
    """Labels of a store that was shuffled at its build."""
    return by_class(permute(rows, 102_400, 1))


def blocks_of_batches(order: Order, batch_size: int = 256, block_size: int = BlockOrder.block_size) -> float:
    """Mean number of blocks that a batch touches."""
    count = len(order) // batch_size
    starts = [batch * count // 64 * batch_size for batch in range(64)]
    return fmean(len((order.take(0, start, start + batch_size).rows // block_size).unique()) for start in starts)


def test_a_full_shuffle_is_its_own_measure():
    result = batch_diversity(order_of_kind(kind="full", rows=102_400), by_class)
    assert result.neighbors == pytest.approx(1, abs=0.03)
    assert result.classes == result.classes_full
    assert result.warning() is None


def test_a_sequential_order_does_not_mix():
    result = batch_diversity(order_of_kind(kind="sequential", rows=102_400), by_class, batch_size=128)
    assert result.neighbors == pytest.approx(3 / 102_401)
    assert blocks_of_batches(order_of_kind(kind="sequential", rows=102_400), 128) == 2
    assert result.classes is not None
    assert result.classes < 1.2
    assert "0.00 times as far apart" in str(batch_diversity(order_of_kind(kind="sequential", rows=102_400)).warning())


def test_blocks_of_a_sorted_dataset_are_warned_of_and_of_a_shuffled_one_are_not():
    order = order_of_kind(kind="block", rows=102_400, block_size=64, window=8)
    warned = batch_diversity(order, by_class)
    assert blocks_of_batches(order, block_size=64) == pytest.approx(8, abs=0.6)
    assert warned.neighbors == pytest.approx(7 / 8, abs=0.05)
    assert warned.classes is not None
    assert warned.classes < 9
    assert "build it with --shuffle-seed" in str(warned.warning())
    assert batch_diversity(order, mixed).warning() is None
    assert (
        batch_diversity(order_of_kind(kind="block", rows=102_400, block_size=2, window=20_000), by_class).warning()
        is None
    )


@pytest.mark.parametrize("world", [1, 8])
def test_a_batch_touches_as_many_blocks_on_any_number_of_ranks(world: int):
    order = order_of_kind(kind="block", rows=1_000_000, rank=world - 1, world_size=world)
    # A batch may lie across two windows: 256 positions of 8 ranks span half a window.
    assert 60 < blocks_of_batches(order) < 75


def test_effective_classes_are_exp_of_the_entropy():
    result = batch_diversity(
        order_of_kind(kind="sequential", rows=4), torch.tensor([5, 5, 5, 9]).__getitem__, batch_size=4
    )
    assert result.classes == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_mixing_of_a_billion_rows_reads_only_a_few():
    asked: list[int] = []

    def labels(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return rows % 1000

    assert batch_diversity(order_of_kind(kind="full", rows=10**9), labels).neighbors == pytest.approx(1, abs=0.03)
    assert sum(asked) == 2 * 8 * 256


def test_mixing_refuses_what_cannot_mix():
    with pytest.raises(ValueError, match="1 position in batches of 256"):
        batch_diversity(order_of_kind(kind="full", rows=1))


def test_the_advice_names_what_there_is() -> None:
    """Every option in it is one of the loader's or of the command's."""
    advice = batch_diversity(order_of_kind(kind="block", rows=102_400, window=1), lambda rows: rows // 1024).warning()
    assert advice is not None
    assert re.findall(r"--[a-z-]+", advice) == ["--shuffle-seed"]
    named = set(re.findall(r"(\w+)=", advice))
    assert named == {"shuffle"}
    assert named <= set(inspect.signature(Loader).parameters)
    assert "window" not in advice
