"""Datasets in object storage as this process has them open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from mmload.remote import cache_folder, cached_dataset
from mmload.remote.cache_folder import CacheFolder
from mmload.remote.chunk_map import ChunkMap
from mmload.store.dataset import Dataset

CHUNK_BYTES = 100_000
"""Least bytes of a chunk in tests."""

SMALL_CHUNKS = f"from mmload.remote import chunks; chunks.CHUNK_BYTES = {CHUNK_BYTES}"
"""Line of a program that makes chunks as small as they are in tests."""


def end_all() -> None:
    """As if this process had ended: the next opening begins with what lies in the cache."""
    for folder in list(cached_dataset._OPENED.values()):
        folder.close()
    cached_dataset._OPENED.clear()
    cache_folder._FOLDERS.clear()


def cache_of(dataset: Dataset) -> CacheFolder:
    """The cache that a dataset is read through."""
    folder = dataset["train"].folder
    assert hasattr(folder, "cache")
    return folder.cache


def map_of(dataset: Dataset, field: str = "images") -> ChunkMap:
    """The map of a field of a dataset's train split."""
    found = dataset["train"].reader.field(field).mapped()
    assert isinstance(found, ChunkMap)
    return found


def check_rows(remote: Dataset, local: Dataset, split: str = "train") -> None:
    rows = np.random.default_rng().permutation(len(local[split]))
    for name in ("images", "targets"):
        assert np.array_equal(remote[split].reader.array(name, rows), local[split].reader.array(name, rows))


def stored_bytes(cache: Path) -> int:
    total = 0
    for path in cache.rglob("*.chunk"):
        with suppress(FileNotFoundError):  # another process may have removed it
            total += path.stat().st_size
    return total
