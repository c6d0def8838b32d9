"""Subsets and concatenations under a Loader, against torch's own way through them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
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


def rows_of(loader: Loader) -> tuple[list[torch.Tensor], list[int]]:
    batches = list(loader)
    return [image for batch in batches for image in batch.images], [
        t for batch in batches for t in batch.targets.tolist()
    ]


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
@pytest.mark.parametrize("name", NESTED)
def test_the_rows_are_torchs_in_its_order(dataset: Dataset, name: str, tier: str) -> None:
    nested = NESTED[name](dataset["train"])
    for collate in (None, mmload.Collate(dtype=torch.uint8)):
        loader = Loader(nested, batch_size=4, tier=tier, collate=collate)
        images, targets = rows_of(loader)
        expected = [nested[index] for index in range(len(nested))]
        assert len(loader) == -(-len(nested) // 4)
        assert targets == [int(row.targets) for row in expected]
        assert all(torch.equal(image, row.images) for image, row in zip(images, expected, strict=True))


@pytest.mark.filterwarnings("ignore:order=.block. over")  # the tiny dataset is sorted by class
@pytest.mark.parametrize("order", ["shuffled", "block"])
@pytest.mark.parametrize("name", NESTED)
def test_ranks_share_an_epoch_and_a_state_goes_on(dataset: Dataset, name: str, order: str) -> None:
    nested = NESTED[name](dataset["train"])
    whole = Loader(nested, batch_size=3, seed=0, **order_options(order), collate=crop_collate())
    batches = list(whole)
    ids = [row for batch in batches for row in batch.ids.tolist()]
    dealt = [
        r
        for rank in range(2)
        for b in Loader(nested, seed=0, **order_options(order), ranks=(rank, 2))
        for r in b.ids.tolist()
    ]
    assert sorted(dealt) == sorted(ids) == sorted(r for b in Loader(nested) for r in b.ids.tolist())
    if len(batches) > 1:
        first = Loader(nested, batch_size=3, seed=0, **order_options(order))
        next(iter(first))
        resumed = Loader(nested, batch_size=3, seed=0, **order_options(order), collate=crop_collate())
        resumed.load_state_dict(first.state_dict())
        assert all(torch.equal(a.images, b.images) for a, b in zip(resumed, batches[1:], strict=True))


def test_ids_are_those_beneath_the_subsets(dataset: Dataset) -> None:
    split = dataset["train"]
    assert next(iter(Loader(split.subset([5, 3])))).ids.tolist() == [5, 3]
    joined = ConcatDataset([split, split.subset([7, 8])])
    assert next(iter(Loader(joined))).ids.tolist() == list(range(20))
    assert next(iter(Loader(Subset(joined, [19, 1])))).ids.tolist() == [19, 1]


def test_a_row_of_a_subset_is_drawn_as_in_its_split(dataset: Dataset) -> None:
    split = dataset["train"]
    plain = {
        int(row): image
        for b in Loader(split, collate=crop_collate())
        for row, image in zip(b.ids, b.images, strict=True)
    }
    for batch in Loader(halves(split)[0], batch_size=3, shuffle=True, collate=crop_collate()):
        assert all(torch.equal(image, plain[int(row)]) for row, image in zip(batch.ids, batch.images, strict=True))


def test_a_sampler_counts_positions_of_the_subset(dataset: Dataset) -> None:
    loader = Loader(dataset["train"].subset([5, 3, 9]), order=[2, 0])
    assert next(iter(loader)).ids.tolist() == [9, 5]
    with pytest.raises(IndexError, match="row 3 does not exist"):
        Loader(dataset["train"].subset([5, 3, 9]), order=[3])


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
