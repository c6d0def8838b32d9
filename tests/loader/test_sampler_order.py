"""Orders that users give: lists, arrays, masks and torch's samplers."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from mmload.loader.samplers import SamplerOrder


class Items(Sampler[Any]):
    def __init__(self, items: list[Any]):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Endless(Sampler[int]):
    def __iter__(self):
        while True:
            yield from (2, 0, 1)


@pytest.mark.parametrize("source", [[3, 1, 4, 1], torch.tensor([3, 1, 4, 1]), np.array([3, 1, 4, 1]), (3, 1, 4, 1)])
def test_a_list_of_indices_is_taken_as_it_is(source: Any):
    order = SamplerOrder(source, 5)
    assert order.begin(0)(0, 3).rows.tolist() == [3, 1, 4]
    assert order.begin(0)(1, 9).rows.tolist() == [1, 4, 1]
    assert order.begin(0)(1, 9, offset=2).rows.tolist() == [1]
    assert order.begin(1)(4, 9).rows.dtype == np.int64
    assert (len(order), order.remaining(3), order.remaining(9), order.consumed(2, 1)) == (4, 1, 0, 3)


def test_sampler_order_sets_the_epoch_of_a_distributed_sampler():
    sampler = DistributedSampler(range(20), 2, 1, shuffle=True)
    order = SamplerOrder(sampler, 20)
    first, second = (order.begin(epoch)(0, 20).rows.tolist() for epoch in (0, 1))
    for epoch, taken in enumerate((first, second)):
        sampler.set_epoch(epoch)
        assert taken == list(sampler)
    assert first != second


def test_the_users_own_epoch_stays():
    sampler = DistributedSampler(range(20), 2, 1, shuffle=True)
    order = SamplerOrder(sampler, 20)
    order.begin(0)
    for epoch in (5, 5, 9):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        assert order.begin(1)(0, 20).rows.tolist() == expected


def test_an_epoch_set_before_the_first_stays():
    sampler = DistributedSampler(range(20), 2, 1, shuffle=True)
    sampler.set_epoch(3)
    SamplerOrder(sampler, 20).begin(0)
    assert sampler.epoch == 3


def test_sampler_order_epoch_set_by_another_loader_is_no_user_choice():
    sampler = DistributedSampler(range(20), 2, 1, shuffle=True)
    SamplerOrder(sampler, 20).begin(4)
    order = SamplerOrder(sampler, 20)
    order.begin(0)
    order.begin(1)
    assert sampler.epoch == 1


def test_two_epochs_at_once_do_not_mix():
    order = SamplerOrder(RandomSampler(range(1000)), 1000)
    drawn = [order.begin(epoch) for epoch in (0, 1)]
    parts = [[each(start, start + 10).rows for start in range(0, 1000, 10)] for each in drawn]
    alternate = [list(zip(*parts, strict=True))]
    for epoch in zip(*alternate[0], strict=True):
        assert sorted(np.concatenate(epoch)) == list(range(1000))


def test_masks_select_and_negative_rows_count_from_the_end():
    mask = [False, True, False, True, True]
    for source in (mask, torch.tensor(mask), np.array(mask)):
        order = SamplerOrder(source, 5)
        assert len(order) == 3
        assert order.begin(0)(0, 9).rows.tolist() == [1, 3, 4]
    assert SamplerOrder([-1, 0], 5).begin(0)(0, 9).rows.tolist() == [4, 0]
    assert SamplerOrder(np.array([-5, 2], dtype=np.int8), 5).begin(0)(0, 9).rows.tolist() == [0, 2]


def test_a_list_that_is_shuffled_between_epochs_is_looked_at_anew():
    rows = [0, 1, 2]
    order = SamplerOrder(rows, 3)
    rows.reverse()
    assert order.begin(1)(0, 3).rows.tolist() == [2, 1, 0]


def test_a_random_sampler_is_drawn_anew_for_each_epoch():
    order = SamplerOrder(RandomSampler(range(1000)), 1000)
    drawn = order.begin(0)
    whole = drawn(0, 1000).rows
    assert drawn(10, 20).rows.tolist() == whole[10:20].tolist()
    assert sorted(whole) == list(range(1000))
    assert order.begin(1)(0, 1000).rows.tolist() != whole.tolist()


def test_an_endless_sampler_is_read_no_further_than_asked():
    order = SamplerOrder(Endless(), 3)
    drawn = order.begin(0)
    assert drawn(0, 4).rows.tolist() == list(islice(Endless(), 4))
    assert drawn(4, 6).rows.tolist() == [0, 1]
    with pytest.raises(TypeError, match="has no len"):
        len(order)


def test_a_sampler_that_gives_something_else_is_refused():
    with pytest.raises(TypeError, match="give the sampler inside it"):
        SamplerOrder(BatchSampler(SequentialSampler(range(4)), 2, False), 4).begin(0)(0, 2)
    with pytest.raises(TypeError, match="sampler yields True"):
        SamplerOrder(Items([True]), 4).begin(0)(0, 2)
    with pytest.raises(ValueError, match=r"sampler yields 4, expected a row in \[-4, 3\]"):
        SamplerOrder(Items([0, 4]), 4).begin(0)(0, 2)


class TooLong(Items):
    def __len__(self) -> int:
        return len(self.items) + 1


def test_a_sampler_that_ends_before_its_length_is_an_error():
    drawn = SamplerOrder(TooLong([2, 0, 1]), 4).begin(0)
    assert drawn(0, 3).rows.tolist() == [2, 0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="sampler ends after 3 rows, its length is 4"):
            drawn(3, 6)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (iter([0, 1]), TypeError, "can be read only once"),
        (5, TypeError, "order is 5"),
        ([0, 4], IndexError, "row 4 does not exist: the sampler's dataset has 4 rows"),
        ([True, False], IndexError, "a mask has 2"),
        ([0.0, 1.0], TypeError, "contain 0.0"),
        (torch.ones(4), TypeError, "are torch.float32"),
    ],
)
def test_what_is_no_order_is_refused_when_it_is_given(source: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        SamplerOrder(source, 4)
