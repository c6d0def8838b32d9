"""Accelerate's ``skip_first_batches`` over a loader: the rest of the epoch that is named, or an error."""

from __future__ import annotations

from typing import Any

import pytest
from loaded import begun, resumed, rows_of

from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.store.dataset import Dataset

accelerate = pytest.importorskip("accelerate")


def loader_of(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, batch_size=4, shuffle=True, seed=7, threads=1, **options)


@pytest.mark.parametrize(
    "options", [{}, {"drop_last": True}, {"device": "cpu", "tier": "memory"}, {"subset": range(3, 14)}], ids=str
)
@pytest.mark.parametrize("skipped", [0, 2, 9])
def test_skipped_batches_are_those_of_the_epoch_that_was_set(
    options: dict[str, Any], skipped: int, dataset: Dataset
) -> None:
    more = dict(options)
    rows: Any = dataset["train"].subset(more.pop("subset", range(18)))
    plain, loader = loader_of(rows, **more), loader_of(rows, **more)
    expected = [rows_of(plain) for _ in range(3)]
    loader.set_epoch(1)
    assert rows_of(accelerate.skip_first_batches(loader, skipped)) == expected[1][4 * skipped :]
    assert rows_of(loader) == expected[2]


def test_batches_to_skip_of_an_unknown_epoch_are_an_error(dataset: Dataset) -> None:
    begun_loader = loader_of(dataset)
    next(iter(begun_loader))
    for loader in (loader_of(dataset), begun_loader):
        with pytest.raises(UsageError, match="set_epoch"):
            rows_of(accelerate.skip_first_batches(loader, 1))


def test_batches_to_skip_to_another_place_than_the_state_are_an_error(dataset: Dataset) -> None:
    first = loader_of(dataset)
    rest = begun(first)
    loader = resumed(loader_of(dataset), first.state_dict())
    with pytest.raises(UsageError, match="8 samples are to be skipped, and the loader's state is after 4"):
        rows_of(accelerate.skip_first_batches(loader, 2))
    assert rows_of(accelerate.skip_first_batches(loader, 1)) == rows_of(rest)
