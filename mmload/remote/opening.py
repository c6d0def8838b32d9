"""Opens a dataset: at a path, or at a URL of object storage through a cache on the local disk.

What only URLs need is imported when the first one is opened.
"""

from __future__ import annotations

from pathlib import Path

from mmload.errors import UsageError
from mmload.remote.urls import PARALLEL, is_url
from mmload.store.dataset import Dataset


def open(
    path: str | Path,
    *,
    version: int | None = None,
    cache: str | Path | None = None,
    cache_limit: str | int | None = None,
    parallel: int = PARALLEL,
) -> Dataset:
    """Opens a dataset.

    Args:
        path: its folder; or its URL in object storage, such as ``s3://bucket/photos-256``.
        version: number of one of the versions that ``mmload info --versions`` lists; None: the current one.
        cache: for a URL, the folder on a local disk that caches chunks of rows. All datasets and processes of a machine
            can share one.
        cache_limit: maximum bytes that the cache keeps, such as ``"200GB"``; None: unlimited.
        parallel: for a URL, the number of concurrent requests for each field.

    Raises:
        StoreError: if there is no finished dataset, or no such version of it.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
        UsageError: if a URL comes without a cache, a path with one, or the cache is no folder for it.
        RemoteError: if the store cannot be read.
    """
    if not is_url(path):
        if cache is not None or cache_limit is not None:
            raise UsageError(f"{path} is a path, which needs no cache; give a URL, or leave cache and cache_limit out")
        return Dataset(path, version)
    if cache is None:
        raise UsageError(
            f"{path} is in object storage: give cache=, a folder on a local disk for what is read of it, and "
            'cache_limit=, such as "200GB"'
        )
    from mmload.remote.cached_dataset import open_cached

    return open_cached(str(path), Path(cache).absolute(), cache_limit, parallel, version)
