"""An epoch's order: every row once, dealt to ranks, the same in any stretch."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from conftest import deviation
from hypothesis import given, settings
from hypothesis import strategies as st
from loading_orders import KINDS
from loading_orders import order as order_of_kind
from torch.utils.data import DistributedSampler

from mmload.loader.order import TAILS
from mmload.runtime.random_words import permuted

ROWS = st.integers(1, 200)
SEEDS = st.integers(0, 2**64 - 1)
WORLDS = st.integers(1, 7)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": draw(st.sampled_from(KINDS)),
        "rows": draw(ROWS),
        "seed": draw(SEEDS),
        "block_size": draw(st.integers(1, 30)),
        "window": draw(st.integers(1, 12)),
    }


def whole_epoch(given_options: dict[str, Any], epoch: int = 0) -> list[int]:
    return order_of_kind(**given_options).rows_for(epoch).tolist()


@given(options(), st.integers(0, 3))
def test_an_epoch_has_every_row_once(chosen: dict[str, Any], epoch: int):
    assert sorted(whole_epoch(chosen, epoch)) == list(range(chosen["rows"]))


def test_an_epoch_in_blocks_has_every_row_once_at_every_edge():
    for rows, size, window in product(range(1, 26), range(1, 8), range(1, 5)):
        rows_of = order_of_kind(kind="block", rows=rows, block_size=size, window=window).rows_for(0)
        assert sorted(rows_of) == list(range(rows)), (rows, size, window)


@given(options(), WORLDS, st.sampled_from(TAILS))
def test_ranks_are_dealt_one_global_order(chosen: dict[str, Any], world: int, tail: str):
    order = whole_epoch(chosen)
    dealt = {"exact": order, "drop": order[: len(order) // world * world], "pad": order * world}[tail]
    if tail == "pad":
        dealt = dealt[: -(-len(order) // world) * world]
    for rank in range(world):
        mine = order_of_kind(**chosen, rank=rank, world_size=world, tail=tail)
        assert mine.rows_for(0).tolist() == dealt[rank::world]
        assert len(mine) == len(dealt[rank::world])


@given(st.integers(1, 100), WORLDS, st.sampled_from(["pad", "drop"]))
def test_tails_are_those_of_distributed_sampler(rows: int, world: int, tail: str):
    for rank in range(world):
        sampler = DistributedSampler(range(rows), world, rank, shuffle=False, drop_last=tail == "drop")
        mine = order_of_kind(kind="sequential", rows=rows, rank=rank, world_size=world, tail=tail)
        assert mine.rows_for(0).tolist() == list(sampler)


@given(options(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_any_stretch_is_a_slice_of_the_epoch(chosen: dict[str, Any], start: int, stop: int, offset: int):
    taken = order_of_kind(**chosen).take(2, start, stop, offset).rows
    assert taken.dtype == np.int64
    assert taken.tolist() == whole_epoch(chosen, 2)[offset:][start:stop]


@settings(max_examples=200)
@given(options(), st.lists(st.tuples(WORLDS, st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=4))
def test_going_on_with_other_ranks_and_batches_misses_and_repeats_nothing(chosen, stretches):
    order, consumed = whole_epoch(chosen, 1), 0
    for world, batch, steps in stretches:
        ranks = [order_of_kind(**chosen, rank=rank, world_size=world) for rank in range(world)]
        for step in range(steps):
            parts = [mine.take(1, step * batch, (step + 1) * batch, consumed).rows.tolist() for mine in ranks]
            now = ranks[0].consumed(step * batch, consumed)
            after = ranks[0].consumed((step + 1) * batch, consumed)
            assert sorted(sum(parts, [])) == sorted(order[now:after])
        consumed = ranks[0].consumed(steps * batch, consumed)
    last = [order_of_kind(**chosen, rank=rank, world_size=3) for rank in range(3)]
    rest = [mine.take(1, 0, mine.remaining(consumed), consumed).rows.tolist() for mine in last]
    assert sorted(sum(rest, [])) == sorted(order[consumed:])


@given(options(), st.integers(1, 200))
def test_blocks_are_visited_a_window_at_a_time(chosen: dict[str, Any], rows: int):
    chosen |= {"kind": "block", "rows": rows}
    blocks = [row // chosen["block_size"] for row in whole_epoch(chosen)]
    visits: list[set[int]] = [set()]
    left = {block: blocks.count(block) for block in set(blocks)}
    for block in blocks:
        visits[-1].add(block)
        left[block] -= 1
        if len(visits[-1]) == chosen["window"] and not any(left[seen] for seen in visits[-1]):
            visits.append(set())
    assert all(len(visit) <= chosen["window"] for visit in visits)
    assert sum(len(visit) for visit in visits) == len(left)


def test_rows_of_a_window_are_mixed_well_and_each_window_in_its_own_way():
    order = order_of_kind(kind="block", rows=64_000, block_size=10, window=100)
    windows = torch.from_numpy(order.rows_for(0)).view(64, 1000)
    ranked = windows.argsort(dim=1).argsort(dim=1).double()
    correlation = torch.corrcoef(ranked) - torch.eye(64)
    assert correlation.abs().max() < 6 / math.sqrt(1000)
    same = (windows // 10).diff(dim=1).eq(0).double().mean().item()
    assert same == pytest.approx(9 / 999, abs=4 * math.sqrt(9 / 999 / windows.numel()))


def test_the_partial_block_comes_at_any_time():
    chosen = {"kind": "block", "rows": 41, "block_size": 10, "window": 1}
    places = [whole_epoch(chosen, epoch).index(40) // 10 for epoch in range(1000)]
    assert abs(deviation(np.bincount(places, minlength=5))) < 4


@pytest.mark.parametrize("kind", ["full", "block"])
def test_epochs_and_seeds_give_unrelated_orders(kind: str):
    orders = [
        torch.from_numpy(
            order_of_kind(kind=kind, rows=5000, seed=seed, block_size=4, window=8).rows_for(epoch)
        ).double()
        for seed, epoch in product((0, 1, 2**64 - 1), (0, 1, 2))
    ]
    correlation = torch.corrcoef(torch.stack(orders)) - torch.eye(9)
    # Rows of a block window travel together, so fewer of its positions are independent.
    assert correlation.abs().max() < 5 / math.sqrt(5000 if kind == "full" else 5000 / 32)


def test_orders_stay_what_they_were_in_earlier_versions():
    full = order_of_kind(kind="full", rows=1_000_000, seed=7)
    block = order_of_kind(kind="block", rows=1003, seed=7, block_size=10, window=5)
    assert full.take(0, 0, 5).rows.tolist() == [422824, 928425, 5054, 884545, 598156]
    assert full.take(3, 999_995, 10**9).rows.tolist() == [783334, 873790, 269239, 983767, 860849]
    assert order_of_kind(kind="full", rows=7, seed=7).rows_for(0).tolist() == [1, 4, 3, 2, 5, 0, 6]
    assert block.take(0, 0, 8).rows.tolist() == [672, 990, 789, 675, 787, 412, 993, 998]
    assert order_of_kind(kind="full", rows=2**40, seed=7).take(0, 0, 2).rows.tolist() == [641306055077, 1087419575747]
    assert permuted(range(8), 8, 7) == [0, 2, 7, 4, 6, 3, 5, 1]


@pytest.mark.parametrize("rows", [10**9, 2**40, 2**61])
@pytest.mark.parametrize("kind", ["sequential", "full"])
def test_a_billion_rows_take_no_memory(kind: str, rows: int):
    order = order_of_kind(kind=kind, rows=rows, rank=1, world_size=3)
    order.take(0, 0, 256)
    tracemalloc.start()
    parts = [order.take(1, start, start + 256).rows for start in (0, len(order) // 2, len(order) - 256)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert len(np.unique(np.concatenate(parts))) == 3 * 256
    assert 0 <= np.min(parts) <= np.max(parts) < rows


def test_no_rows_give_an_empty_epoch():
    for kind, tail in product(KINDS, TAILS):
        order = order_of_kind(kind=kind, rows=0, tail=tail, world_size=2)
        assert len(order) == 0
        assert order.rows_for(0).shape == (0,)


def test_an_order_travels_to_other_processes():
    order = order_of_kind(kind="block", rows=100, seed=3)
    assert np.array_equal(pickle.loads(pickle.dumps(order)).rows_for(2), order.rows_for(2))
