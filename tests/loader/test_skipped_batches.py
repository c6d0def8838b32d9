"""Accelerate's ``skip_first_batches`` over a loader: the rest of the epoch that is named, or an error."""

from __future__ import annotations

from typing import Any

import pytest

from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.store.dataset import Dataset

accelerate = pytest.importorskip("accelerate")


def loader_of(dataset: Dataset, **options: Any) -> Loader:
    return Loader(dataset, batch_size=4, shuffle=True, seed=7, threads=1, **options)


def rows(batches: Any) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"device": "cpu", "tier": "memory"}], ids=str)
@pytest.mark.parametrize("skipped", [0, 2, 9])
def test_skipped_batches_are_those_of_the_epoch_that_was_set(
    options: dict[str, Any], skipped: int, dataset: Dataset
) -> None:
    plain, loader = loader_of(dataset, **options), loader_of(dataset, **options)
    expected = [rows(plain) for _ in range(3)]
    loader.set_epoch(1)
    assert rows(accelerate.skip_first_batches(loader, skipped)) == expected[1][skipped:]
    assert rows(loader) == expected[2]


def test_skipped_batches_of_a_subset_are_its_rows(dataset: Dataset) -> None:
    subset: Any = dataset["train"].subset(range(3, 14))
    plain, loader = loader_of(subset), loader_of(subset)
    loader.set_epoch(0)
    assert rows(accelerate.skip_first_batches(loader, 1)) == rows(plain)[1:]


def test_batches_to_skip_of_an_unknown_epoch_are_an_error(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="set_epoch"):
        rows(accelerate.skip_first_batches(loader_of(dataset), 2))
    loader = loader_of(dataset)
    next(iter(loader))
    with pytest.raises(UsageError, match="set_epoch"):
        rows(accelerate.skip_first_batches(loader, 1))


def test_batches_to_skip_to_another_place_than_the_state_are_an_error(dataset: Dataset) -> None:
    begun, loader = loader_of(dataset), loader_of(dataset)
    next(iter(begun))
    loader.load_state_dict(begun.state_dict())
    with pytest.raises(UsageError, match="8 samples are to be skipped, and the loader's state is after 4"):
        rows(accelerate.skip_first_batches(loader, 2))
    assert len(rows(accelerate.skip_first_batches(loader, 1))) == len(begun) - 1
