"""The block order of rows in object storage: each row once, and each chunk in one window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from written_datasets import of_tensors

import mmload
from mmload.loader.order import EpochOrder, chunk_order
from mmload.remote import chunk_map
from mmload.remote.copies import push

pytestmark = pytest.mark.usefixtures("fresh_caches")


def order_of(sizes: list[int], window: int, seed: int = 0) -> EpochOrder:
    return chunk_order(np.cumsum([0, *sizes]), window, seed)


def rows_of(order: EpochOrder, epoch: int = 0) -> list[int]:
    return order.rows_at(np.arange(order.rows, dtype=np.uint64), epoch)[0].tolist()


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), window=st.integers(1, 12), seed=st.integers(0, 99))
def test_chunk_order_reads_each_row_once_and_each_chunk_in_one_window(sizes: list[int], window: int, seed: int) -> None:
    order = order_of(sizes, window, seed)
    rows = rows_of(order)
    assert sorted(rows) == list(range(order.rows))
    chunks = (np.searchsorted(np.cumsum([0, *sizes]), rows, "right") - 1).tolist()
    seen: set[int] = set()
    at = 0
    while at < len(rows):
        inside: set[int] = set()
        while len(inside) < window and len(seen) + len(inside) < len(sizes):
            inside |= {next(chunk for chunk in chunks[at:] if chunk not in inside)}
        length = sum(sizes[chunk] for chunk in inside)
        assert set(chunks[at : at + length]) == inside
        assert not inside & seen
        seen |= inside
        at += length


def test_chunk_order_differs_between_epochs_and_seeds() -> None:
    sizes = [7] * 30
    assert rows_of(order_of(sizes, 4)) == rows_of(order_of(sizes, 4))
    others = rows_of(order_of(sizes, 4), epoch=1), rows_of(order_of(sizes, 4, seed=1))
    assert all(rows_of(order_of(sizes, 4)) != other for other in others)
    assert order_of(sizes, 4).identity != order_of([*sizes[:-1], 8], 4).identity


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset of 48 rows in 24 chunks."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    images = torch.randint(0, 256, (48, 3, 160, 160), dtype=torch.uint8)
    path = of_tensors(tmp_path / "local", {"train": {"images": images, "targets": torch.arange(48)}})
    push(path, f"file://{tmp_path}/pushed")
    return f"file://{tmp_path}/pushed"


def ids(loader: mmload.Loader) -> list[int]:
    return torch.cat([batch.ids for batch in loader]).tolist()


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": "block"}])
def test_loader_shuffles_chunks_in_object_storage(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    split, local = mmload.open(url, cache=tmp_path / "cache")["train"], mmload.open(tmp_path / "local")["train"]
    assert ids(mmload.Loader(split, **options)) == ids(mmload.Loader(local, **options))  # one window has all rows
    monkeypatch.setattr(chunk_map, "WINDOW", 4)
    got = ids(mmload.Loader(split, **options))
    assert len({row // 2 for row in got[:8]}) == 4
    assert sorted(got) == list(range(48))
    assert ids(mmload.Loader(split, order="full")) == ids(mmload.Loader(local, shuffle=True))
    subset = split.subset([*range(9, 30, 2), *range(30, 48)])
    assert sorted(ids(mmload.Loader(subset, **options))) == sorted(subset.indices)


def test_loader_of_several_nodes_says_that_each_fetches_all(url: str, tmp_path: Path) -> None:
    split = mmload.open(url, cache=tmp_path / "cache")["train"]
    with pytest.warns(UserWarning, match="each of 2 nodes fetches all"):
        mmload.Loader(split, shuffle=True, seed=0, ranks=(0, 2))
