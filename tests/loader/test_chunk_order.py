"""The block order of rows in object storage: each row once, and each chunk in one window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaded import rows_of
from written_datasets import of_tensors

import mmload
from mmload.loader.order import chunk_order
from mmload.remote import chunk_map
from mmload.remote.copies import push

pytestmark = pytest.mark.usefixtures("fresh_caches")


def rows_of_chunks(sizes: list[int], window: int, seed: int = 0, epoch: int = 0) -> list[int]:
    order = chunk_order(np.cumsum([0, *sizes]), window, seed)
    return order.rows_at(np.arange(order.rows, dtype=np.uint64), epoch)[0].tolist()


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), window=st.integers(1, 12), seed=st.integers(0, 99))
def test_chunk_order_reads_each_row_once_and_each_chunk_in_one_window(sizes: list[int], window: int, seed: int) -> None:
    rows = rows_of_chunks(sizes, window, seed)
    assert sorted(rows) == list(range(sum(sizes)))
    chunks = (np.searchsorted(np.cumsum([0, *sizes]), rows, "right") - 1).tolist()
    order_of_chunks = list(dict.fromkeys(chunks))
    at = 0
    for first in range(0, len(sizes), window):
        inside = order_of_chunks[first : first + window]
        length = sum(sizes[chunk] for chunk in inside)
        assert set(chunks[at : at + length]) == set(inside)
        at += length


def test_chunk_order_differs_between_epochs_and_seeds() -> None:
    sizes = [7] * 30
    one = rows_of_chunks(sizes, 4)
    assert rows_of_chunks(sizes, 4) == one
    assert one not in (rows_of_chunks(sizes, 4, epoch=1), rows_of_chunks(sizes, 4, seed=1))
    first, other = (chunk_order(np.cumsum([0, *sizes[:-1], last]), 4, 0).identity for last in (7, 8))
    assert first != other


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset of 48 rows in 24 chunks."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    images = torch.randint(0, 256, (48, 3, 160, 160), dtype=torch.uint8)
    path = of_tensors(tmp_path / "local", {"train": {"images": images, "targets": torch.arange(48)}})
    push(path, f"file://{tmp_path}/pushed")
    return f"file://{tmp_path}/pushed"


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": "block"}])
def test_loader_shuffles_chunks_in_object_storage(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    split, local = mmload.open(url, cache=tmp_path / "cache")["train"], mmload.open(tmp_path / "local")["train"]

    def rows(dataset: Any, **order: Any) -> list[int]:
        return rows_of(mmload.Loader(dataset, **order))

    assert rows(split, **options) == rows(local, **options)  # one window has all rows
    monkeypatch.setattr(chunk_map, "CHUNKS_OF_WINDOW", 4)
    got = rows(split, **options)
    assert len({row // 2 for row in got[:8]}) == 4
    assert sorted(got) == list(range(48))
    assert rows(split, order="full") == rows(local, shuffle=True)
    subset = split.subset([*range(9, 30, 2), *range(30, 48)])
    assert sorted(rows(subset, **options)) == sorted(subset.indices)


def test_loader_of_several_nodes_says_that_each_fetches_all(url: str, tmp_path: Path) -> None:
    split = mmload.open(url, cache=tmp_path / "cache")["train"]
    with pytest.warns(UserWarning, match="each of 2 nodes fetches all"):
        mmload.Loader(split, shuffle=True, seed=0, ranks=(0, 2))
