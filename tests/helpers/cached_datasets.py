"""Datasets in object storage as this process has them open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from mmload.remote import cache_files, cache_folder, dataset_cache
from mmload.remote.block_files import boot_id
from mmload.remote.dataset_cache import DatasetCache
from mmload.store.dataset import Dataset

BLOCKS = f"{cache_files.BLOCKS}{boot_id()}"


def as_before_a_start(root: Path, *, damaged: str) -> None:
    """Makes the blocks of a dataset look like those of before the machine was started, one of them with lost bytes."""
    path = root / BLOCKS / damaged
    path.write_bytes(bytes(path.stat().st_size))
    (root / BLOCKS).rename(root / f"{cache_files.BLOCKS}earlier")


def end_all() -> None:
    """As if this process had ended: the next opening begins with what lies in the cache."""
    for cache in dataset_cache._OPENED.values():
        cache.close()
    dataset_cache._OPENED.clear()
    cache_folder._FOLDERS.clear()


def cache_of(dataset: Dataset) -> DatasetCache:
    """The cache that a dataset is read through."""
    folder = dataset["train"].folder
    assert hasattr(folder, "cache")
    return folder.cache


def check_rows(remote: Dataset, local: Dataset, split: str = "train") -> None:
    rows = np.random.default_rng().permutation(len(local[split]))
    for name in ("images", "targets"):
        assert np.array_equal(remote[split].reader.array(name, rows), local[split].reader.array(name, rows))


def stored_bytes(cache: Path) -> int:
    total = 0
    for path in cache.rglob("*.block"):
        with suppress(FileNotFoundError):  # a thread that fetches ahead may have evicted it
            total += path.stat().st_size
    return total
