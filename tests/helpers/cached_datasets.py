"""Datasets in object storage as this process has them open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from mmload.remote.cache_folder import NAME, CacheFolder
from mmload.remote.chunk_map import ChunkMap
from mmload.store.dataset import Dataset

CHUNK_BYTES = 100_000
"""Least bytes of a chunk in tests."""

SMALL_CHUNKS = f"from mmload.remote import chunks; chunks.CHUNK_BYTES = {CHUNK_BYTES}"
"""Line of a program that makes chunks as small as they are in tests."""


OPENED: WeakSet[CacheFolder] = WeakSet()


class NotedFolder(CacheFolder):
    """A cache that :func:`end_all` knows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        OPENED.add(self)


def end_all() -> None:
    """As if this process had ended: nothing that was opened in a cache is in use any more."""
    for cache in OPENED:
        cache.close()


def used_bytes(cache: Path) -> int:
    """The count of the bytes of chunks in a cache."""
    return int((cache / NAME).read_bytes()[-20:])


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
