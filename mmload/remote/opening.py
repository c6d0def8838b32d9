"""Opens a dataset: at a path, or at a URL of object storage through a cache on the local disk."""

from __future__ import annotations

from pathlib import Path

from mmload.cloud.client import PARALLEL
from mmload.cloud.parallel import check_parallel
from mmload.cloud.urls import is_url
from mmload.errors import UsageError
from mmload.remote.cached_reader import CachedFiles, CachedReader, RemoteFolder
from mmload.remote.dataset_cache import dataset_cache
from mmload.runtime.byte_sizes import parse_bytes
from mmload.store.dataset import Dataset, Split


def open(
    path: str | Path, *, cache: str | Path | None = None, cache_limit: str | int | None = None, parallel: int = PARALLEL
) -> Dataset:
    """Open a dataset.

    Args:
        path: its folder; or its URL in object storage, such as ``s3://bucket/photos-256``.
        cache: of a URL, the folder on a local disk in which blocks of rows are kept. All datasets and processes of a
            machine can share one.
        cache_limit: how many bytes may be kept there, such as ``"200GB"``; None: everything that is read.
        parallel: of a URL, how many requests are made at once.

    Raises:
        StoreError: if there is no finished dataset.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
        UsageError: if a URL comes without a cache, a path with one, or the cache is no folder for it.
        RemoteError: if the store cannot be read.
    """
    if not is_url(path):
        if cache is not None or cache_limit is not None:
            raise UsageError(f"{path} is a path, which needs no cache; give a URL, or leave cache and cache_limit out")
        return Dataset(Path(path))
    if cache is None:
        raise UsageError(
            f"{path} is in object storage: give cache=, a folder on a local disk for what is read of it, and "
            'cache_limit=, such as "200GB"'
        )
    check_parallel(parallel)
    limit = None if cache_limit is None else parse_bytes(cache_limit)
    return CachedDataset(RemoteFolder(dataset_cache(str(path), Path(cache).absolute(), limit, parallel)))


class CachedDataset(Dataset):
    """A dataset in object storage. See :func:`open`."""

    def __init__(self, folder: RemoteFolder) -> None:
        self.manifest = folder.read()
        self.path = folder.path
        self._splits = {name: CachedSplit(folder, name, record) for name, record in self.manifest.splits.items()}


class CachedSplit(Split):
    """A split of a dataset in object storage."""

    reader_type, files_type = CachedReader, CachedFiles
