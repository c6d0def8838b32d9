"""The simulated cluster downloads what real caches download, here of a store that is a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import script
from loading_orders import order_options
from written_datasets import of_tensors

import mmload
from mmload.remote.copies import push

ROWS, ROW_BYTES = 96, 3 * 160 * 160


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    with script("simulate_cluster") as module:
        yield module


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("simulated")
    images = torch.arange(ROWS, dtype=torch.uint8)[:, None, None, None].expand(ROWS, 3, 160, 160).contiguous()
    push(of_tensors(place / "rows", {"train": {"images": images}}), f"file://{place / 'store'}")
    return f"file://{place / 'store'}"


def downloaded(url: str, cache: Path, limit: int | None, **options: Any) -> list[int]:
    """Bytes that a real cache fetches in each of three epochs."""
    split = mmload.open(url, cache=cache, cache_limit=limit)["train"]
    blocks: Any = split.files.blocks("images")  # type: ignore[attr-defined]  # of a reader through a cache
    fetched = [0]
    with mmload.Loader(split, batch_size=2, seed=0, threads=1, prefetch=0, tier="disk", **options) as loader:
        for _ in range(3):
            for _ in loader:
                pass
            fetched.append(blocks.fetched_bytes)
    return np.diff(fetched).tolist()


@pytest.mark.parametrize("order", ["shuffled", "block"])
def test_two_nodes_download_the_bytes_of_real_caches(cluster: Any, url: str, tmp_path: Path, order: str) -> None:
    """But for a row or two that the real reader ahead, in its own time, takes an epoch before."""
    epochs = cluster.ORDERS[order](rows=ROWS)
    for node in range(2):
        simulated = cluster.Node(cluster.grid_of(ROWS, ROW_BYTES), cluster.takes_of(epochs, node, 2, 1), None)
        real = downloaded(url, tmp_path / f"{order}{node}", None, **order_options(order), ranks=(node, 2))
        expected = [simulated.epoch(number).bytes for number in range(3)]
        assert real == pytest.approx(expected, rel=0, abs=2 * ROW_BYTES)


@pytest.mark.parametrize("order", ["shuffled", "block"])
def test_simulate_cluster_half_of_the_data_in_cache(cluster: Any, url: str, tmp_path: Path, order: str) -> None:
    """The real reader ahead runs in its own time, so its last rows may differ: of three runs one is as simulated."""
    limit = ROWS // 2 * ROW_BYTES
    simulated = cluster.Node(
        cluster.grid_of(ROWS, ROW_BYTES), cluster.takes_of(cluster.ORDERS[order](rows=ROWS), 0, 1, 1), limit
    )
    shares = np.array([simulated.epoch(number).bytes / (ROWS * ROW_BYTES) for number in range(3)])
    apart = []
    for attempt in range(3):
        real = downloaded(url, tmp_path / f"cache-{attempt}", limit, **order_options(order))
        apart.append(float(np.abs(np.array(real) / (ROWS * ROW_BYTES) - shares).max()))
        if apart[-1] <= 0.12:
            break
    assert min(apart) <= 0.12, apart
    assert simulated.used == simulated.there.sum() * ROW_BYTES <= limit


def test_a_line_an_epoch(cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--images 2k --nodes 4 --ranks 2 --replay 1 --cache 0.25 --order block --epochs 2"
    monkeypatch.setattr("sys.argv", ["simulate_cluster", *words.split()])
    cluster.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1]
    assert lines[0]["downloaded_share"] == 1
    assert 0 < lines[1]["downloaded_share"] < 1
