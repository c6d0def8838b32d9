"""Datasets in object storage as this process has them open."""

from __future__ import annotations

from mmload.remote import dataset_cache
from mmload.remote.dataset_cache import DatasetCache
from mmload.store.dataset import Dataset


def end_all() -> None:
    """As if this process had ended: the next opening begins with what lies in the cache."""
    for cache in dataset_cache._OPENED.values():
        cache.close()
    dataset_cache._OPENED.clear()


def cache_of(dataset: Dataset) -> DatasetCache:
    """The cache that a dataset is read through."""
    folder = dataset["train"].folder
    assert hasattr(folder, "cache")
    return folder.cache
