"""Orders that users give: lists, arrays, masks and torch's samplers; and the sampler of a loader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from loaded import rows_of
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from mmload.loader import Loader
from mmload.loader.samplers import SamplerOrder
from mmload.store.dataset import Dataset

MASK = [row in (1, 3, 4) for row in range(18)]


class Items(Sampler[Any]):
    """A sampler that yields items, perhaps fewer than it says."""

    def __init__(self, items: list[Any], missing: int = 0) -> None:
        self.items, self.missing = items, missing

    def __len__(self) -> int:
        return len(self.items) + self.missing

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Endless(Sampler[int]):
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from (2, 0, 1)


class Generated(Sampler[int]):
    """A sampler whose ``__iter__`` is a generator: it reads its epoch when the first row is asked for."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        yield from range(self.epoch, self.epoch + 6)


def distributed() -> DistributedSampler[Any]:
    """Half of the rows, in an order of each epoch."""
    return DistributedSampler(range(18), 2, 1, shuffle=True)  # type: ignore[arg-type]  # it is only counted


def loader_of(dataset: Dataset, order: Any, batch_size: int = 3) -> Loader:
    return Loader(dataset, batch_size=batch_size, order=order, threads=1)


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ([3, 1, 4, 1], [3, 1, 4, 1]),
        ((3, 1, 4, 1), [3, 1, 4, 1]),
        (torch.tensor([3, 1, 4, 1]), [3, 1, 4, 1]),
        (np.array([3, 1, 4, 1]), [3, 1, 4, 1]),
        ([-1, 0], [17, 0]),
        (np.array([-5, 2], dtype=np.int8), [13, 2]),
        (MASK, [1, 3, 4]),
        (torch.tensor(MASK), [1, 3, 4]),
        (np.array(MASK), [1, 3, 4]),
    ],
)
def test_rows_and_masks_are_taken_as_they_are(dataset: Dataset, source: Any, rows: list[int]) -> None:
    loader = loader_of(dataset, source)
    assert [batch.ids.tolist() for batch in loader] == [rows[start : start + 3] for start in range(0, len(rows), 3)]
    assert len(loader) == -(-len(rows) // 3)


def test_a_list_that_is_shuffled_between_epochs_is_looked_at_anew(dataset: Dataset) -> None:
    rows = [0, 1, 2]
    loader = loader_of(dataset, rows)
    rows.reverse()
    assert rows_of(loader) == [2, 1, 0]


def test_a_random_sampler_is_drawn_anew_for_each_epoch(dataset: Dataset) -> None:
    loader = loader_of(dataset, RandomSampler(range(18)))
    first, second = rows_of(loader), rows_of(loader)
    assert sorted(first) == sorted(second) == list(range(18))
    assert first != second


def test_a_distributed_sampler_is_told_the_epoch_until_its_user_does_so(dataset: Dataset) -> None:
    sampler, twin = distributed(), distributed()
    loader = loader_of(dataset, sampler)
    assert loader.sampler is sampler
    found = [rows_of(loader) for _ in range(2)]
    for epoch in (0, 1):
        twin.set_epoch(epoch)
        assert found[epoch] == list(twin)
    assert found[0] != found[1]
    for epoch in (5, 5, 2):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        assert rows_of(loader) == rows_of(loader) == expected  # from now on its user says which epoch it is


def test_an_epoch_set_before_the_first_stays_and_one_set_by_another_loader_is_no_users(dataset: Dataset) -> None:
    sampler = distributed()
    sampler.set_epoch(3)
    rows_of(loader_of(dataset, sampler))
    assert sampler.epoch == 3
    sampler = distributed()
    first, second = loader_of(dataset, sampler), loader_of(dataset, sampler)
    first.set_epoch(4)
    for loader in (first, second, second):
        rows_of(loader)
    assert sampler.epoch == 1


def test_two_epochs_at_once_of_a_sampler_that_is_a_generator(dataset: Dataset) -> None:
    loader = loader_of(dataset, Generated())
    first, second = iter(loader), iter(loader)
    assert (rows_of(second), rows_of(first)) == (list(range(1, 7)), list(range(6)))


def test_an_endless_sampler_is_read_no_further_than_asked() -> None:
    order = SamplerOrder(Endless(), 3)
    drawn = order.begin(0)
    assert drawn(0, 4).rows.tolist() == list(islice(Endless(), 4))
    assert drawn(4, 6).rows.tolist() == [0, 1]
    with pytest.raises(TypeError, match="has no len"):
        len(order)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (iter([0, 1]), TypeError, "can be read only once"),
        ([0, 18], IndexError, "row 18 does not exist: the sampler's dataset has 18 rows"),
        ([True, False], IndexError, "a mask has 2"),
        ([0.0, 1.0], TypeError, "contain 0.0"),
        (torch.ones(4), TypeError, "are torch.float32"),
        (BatchSampler(SequentialSampler(range(4)), 2, False), TypeError, "give the sampler inside it"),
        (Items([True]), TypeError, "sampler yields True"),
        (Items([0, 18]), ValueError, r"sampler yields 18, expected a row in \[-18, 17\]"),
    ],
)
def test_what_is_no_order_is_refused(dataset: Dataset, source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        next(iter(loader_of(dataset, source)))


def test_a_sampler_that_ends_before_its_length_is_an_error(dataset: Dataset) -> None:
    batches = iter(loader_of(dataset, Items([2, 0, 1], missing=1)))
    for _ in range(2):
        with pytest.raises(ValueError, match="sampler ends after 3 rows, its length is 4"):
            rows_of(batches)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_of_a_loader_is_its_order(dataset: Dataset, shuffle: bool) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": shuffle, "seed": 2, "ranks": (1, 2)}
    loader, other = Loader(dataset["train"], **options), Loader(dataset["train"], **options)
    assert isinstance(loader.sampler, Sampler)
    loader.sampler.set_epoch(5)
    other.set_epoch(5)
    assert loader.epoch == loader.sampler.epoch == 5
    rows = list(loader.sampler)
    assert rows_of(loader) == rows_of(other) == rows
    assert len(loader.sampler) == len(rows) == 9
    assert loader.sampler.epoch == 6


def test_the_sampler_of_a_subset_gives_places_in_it(dataset: Dataset) -> None:
    chosen = [7, 2, 11]
    loader = Loader(dataset["train"].subset(chosen), batch_size=2, shuffle=True)
    places = list(loader.sampler)
    assert sorted(places) == [0, 1, 2]
    assert rows_of(loader) == [chosen[place] for place in places]
