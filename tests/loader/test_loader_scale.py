"""What must not grow: memory over epochs and over rows, and the time to open."""

from __future__ import annotations

import gc
import os
from itertools import islice
from pathlib import Path

import pytest
from loading_orders import order_options
from written_datasets import sparse_dataset

import mmload
from mmload.loader import Loader


def resident() -> int:
    """Returns the bytes of this process in memory that no file backs: the system takes mapped pages back."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_does_not_grow_over_epochs(tmp_path: Path) -> None:
    path = sparse_dataset(tmp_path / "small", 512)
    collate = mmload.Collate(mmload.augment.RandomCrop(6))
    with Loader(path, batch_size=64, shuffle=True, collate=collate, threads=2) as loader:
        for epochs in (20, 200):
            gc.collect()
            before = resident()
            for _ in range(epochs):
                for _batch in loader:
                    pass
        gc.collect()
        assert resident() - before < 8 * 2**20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_ten_million_rows_take_no_memory(tmp_path: Path) -> None:
    path = sparse_dataset(tmp_path / "large", 10_000_000)
    before = resident()
    with Loader(path, batch_size=256, shuffle=True, tier="disk", threads=2) as loader:
        assert {len(batch) for batch in islice(loader, 51)} == {256}
        assert resident() - before < 64 * 2**20


def test_two_terabytes_open_at_once(tmp_path: Path) -> None:
    """10,000,000 rows of 256 x 256 in 1,832 shards: no row is read to open them."""
    path = sparse_dataset(tmp_path / "large", 10_000_000, side=256, shard_rows=5461)
    for order in ("shuffled", "block"):
        split = mmload.open(path)["train"]
        assert len(split) == 10_000_000
        batch = next(iter(Loader(split, batch_size=64, **order_options(order), threads=2, tier="disk")))
        assert batch.images.shape == (64, 3, 256, 256)


def test_more_shards_than_open_files_are_allowed(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limits of open files on Windows")
    path = sparse_dataset(tmp_path / "many", 64, shard_rows=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.open(path / "dataset.json", os.O_RDONLY) for _ in range(20)]  # lowest free numbers: others may be open
    for handle in spare:
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1, hard))
    try:
        assert len(mmload.open(path)["train"][:]) == 64
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
