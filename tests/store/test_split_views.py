"""Subsets and concatenations under a Loader, against torch's own way through them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
from loaded import resumed, rows_of
from loading_orders import order_options
from torch.utils.data import ConcatDataset, Subset, random_split
from written_datasets import of_one_value

import mmload
from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.store.dataset import Dataset, Split

Make = Callable[[Split], Any]


def halves(split: Split) -> list[Any]:
    return random_split(split, [10, 8], generator=torch.Generator().manual_seed(0))


NESTED: dict[str, Make] = {
    "subset": lambda split: split.subset([5, -1, 5, 0]),
    "mask": lambda split: split.subset(torch.arange(18) % 2 == 0),
    "random split": lambda split: halves(split)[0],
    "subset of a subset": lambda split: Subset(halves(split)[1], [3, 1, 7]),
    "twice": lambda split: ConcatDataset([split, split]),
    "joined subsets": lambda split: ConcatDataset([halves(split)[1], split, split.subset(range(4))]),
    "joined joined": lambda split: ConcatDataset([ConcatDataset([split, split]), halves(split)[0]]),
    "subset of joined": lambda split: Subset(ConcatDataset([split, split.subset([2])]), [18, 0, 17]),
    "joined subset of joined": lambda split: ConcatDataset([Subset(ConcatDataset([split, split]), [20, 3]), split]),
    "empty": lambda split: split.subset([]),
}


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
@pytest.mark.parametrize("name", NESTED)
def test_the_rows_are_torchs_in_its_order(dataset: Dataset, name: str, tier: str) -> None:
    nested = NESTED[name](dataset["train"])
    expected = [nested[index] for index in range(len(nested))]
    for collate in (None, mmload.Collate(dtype=torch.uint8)):
        batches = list(Loader(nested, batch_size=4, tier=tier, collate=collate))
        assert len(batches) == -(-len(nested) // 4)
        found = [row for batch in batches for row in batch.unbind(0)]
        assert [int(row.targets) for row in found] == [int(row.targets) for row in expected]
        assert all(torch.equal(row.images, other.images) for row, other in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore:order=.block. over")  # the tiny dataset is sorted by class
@pytest.mark.parametrize("order", ["shuffled", "block"])
@pytest.mark.parametrize("name", NESTED)
def test_ranks_share_an_epoch_and_a_state_goes_on(dataset: Dataset, name: str, order: str) -> None:
    nested = NESTED[name](dataset["train"])
    options: dict[str, Any] = {"seed": 0, **order_options(order)}

    def whole() -> Loader:
        return Loader(nested, batch_size=3, collate=crop_collate(), **options)

    batches = list(whole())
    dealt = [row for rank in range(2) for row in rows_of(Loader(nested, ranks=(rank, 2), **options))]
    assert sorted(dealt) == sorted(rows_of(batches)) == sorted(rows_of(Loader(nested)))
    if len(batches) > 1:
        first = whole()
        next(iter(first))
        rest = resumed(whole(), first.state_dict())
        assert all(torch.equal(a.images, b.images) for a, b in zip(rest, batches[1:], strict=True))


def test_ids_are_those_beneath_the_subsets(dataset: Dataset) -> None:
    split = dataset["train"]
    joined = ConcatDataset([split, split.subset([7, 8])])
    assert rows_of(Loader(split.subset([5, 3]))) == [5, 3]
    assert rows_of(Loader(joined)) == list(range(20))
    assert rows_of(Loader(Subset(joined, [19, 1]))) == [19, 1]


def test_a_sampler_counts_positions_of_the_subset(dataset: Dataset) -> None:
    subset = dataset["train"].subset([5, 3, 9])
    assert rows_of(Loader(subset, order=[2, 0])) == [9, 5]
    with pytest.raises(IndexError, match="row 3 does not exist"):
        Loader(subset, order=[3])


def test_two_datasets_are_joined_where_fields_and_classes_agree(dataset: Dataset, tmp_path: Path) -> None:
    one, two = (mmload.open(of_one_value(tmp_path / f"of{value}", value))["train"] for value in (1, 2))
    batch = next(iter(Loader(ConcatDataset([one, two]), batch_size=192)))
    assert batch.targets.tolist() == [1] * 96 + [2] * 96
    with pytest.raises(UsageError, match="have different classes: they cannot be joined"):
        Loader(ConcatDataset([one, dataset["train"]]))


class Doing(Subset[Any]):
    """A subset that does more."""


def test_what_is_no_split_is_refused(dataset: Dataset) -> None:
    for other in (5, [1, 2], Doing(dataset["train"], [0]), ConcatDataset([[1], [2]]), Subset([1, 2], [0])):  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a Loader reads a path, a Dataset, a Split, or"):
            Loader(other)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="row 18 does not exist: the subset"):
        Loader(Subset(dataset["train"], [18]))
