"""How well blocks mix: classes in effect of a batch, and the warning of blocks in a sorted dataset."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from loading_orders import order as order_of_kind
from written_datasets import of_tensors

from mmload.loader import Loader
from mmload.loader.order import Order, effective_classes
from mmload.runtime.random_words import permuted
from mmload.store.row_reader import Numbers


def by_class(rows: Numbers) -> Numbers:
    """Labels of a store that is sorted by class."""
    return rows // 1024


def blocks_of_batches(order: Order, batch_size: int = 256, block_size: int = 64) -> float:
    """Mean number of blocks that a batch touches."""
    count = len(order) // batch_size
    starts = [batch * count // 64 * batch_size for batch in range(64)]
    return fmean(len(np.unique(order.take(0, start, start + batch_size).rows // block_size)) for start in starts)


def test_batches_of_a_full_shuffle_have_more_classes_in_effect_than_those_of_blocks_or_of_stored_order() -> None:
    full, block, stored = (
        effective_classes(order_of_kind(kind=kind, rows=102_400, window=8), by_class, 256)
        for kind in ("full", "block", "sequential")
    )
    assert full > 75
    assert 7 < block < 9
    assert stored < 1.2
    assert blocks_of_batches(order_of_kind(kind="sequential", rows=102_400), 128) == 2


@pytest.mark.parametrize("world", [1, 8])
def test_a_batch_touches_as_many_blocks_on_any_number_of_ranks(world: int) -> None:
    order = order_of_kind(kind="block", rows=1_000_000, rank=world - 1, world_size=world)
    # A batch may lie across two windows: 256 positions of 8 ranks span half a window.
    assert 60 < blocks_of_batches(order) < 75


def test_effective_classes_are_exp_of_the_entropy() -> None:
    labels = np.array([5, 5, 5, 9])
    found = effective_classes(order_of_kind(kind="sequential", rows=4), labels.__getitem__, 4)
    assert found == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_effective_classes_of_a_billion_rows_reads_only_a_few() -> None:
    asked: list[int] = []

    def labels(rows: Numbers) -> Numbers:
        asked.append(len(rows))
        return rows % 1000

    assert effective_classes(order_of_kind(kind="full", rows=10**9), labels, 256) > 200
    assert sum(asked) == 8 * 256


def test_blocks_of_a_sorted_dataset_are_warned_of_and_of_a_shuffled_one_are_not(tmp_path: Path) -> None:
    labels = torch.arange(20_480) // 200
    of_tensors(tmp_path / "sorted", {"train": {"targets": labels}})
    of_tensors(tmp_path / "mixed", {"train": {"targets": labels[permuted(range(20_480), 20_480, 1)]}})
    with pytest.warns(UserWarning, match="seems to be sorted by class; build it with --shuffle-seed") as warned:
        Loader(tmp_path / "sorted", 256, order="block")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(tmp_path / "mixed", 256, order="block")
    advice = str(warned[0].message)
    assert re.findall(r"--[a-z-]+", advice) == ["--shuffle-seed"]
    assert set(re.findall(r"(\w+)=", advice)) - {"order"} <= set(inspect.signature(Loader).parameters)
