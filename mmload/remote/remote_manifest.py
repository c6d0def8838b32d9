"""Reads the manifest of a dataset in object storage."""

from __future__ import annotations

from mmload.cloud.client import Objects
from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.store.manifest import FILE_NAME, Manifest, loads
from mmload.store.manifest_text import MOST_BYTES


def manifest_at(objects: Objects) -> Manifest:
    """The manifest of the dataset at a URL.

    Raises:
        StoreError: if there is no complete dataset; VersionError, DamagedError: if its manifest is not one.
        RemoteError: if the store cannot be read.
    """
    return loads(manifest_text(objects), objects.url_of(FILE_NAME))


def manifest_text(objects: Objects) -> str:
    """The text of ``dataset.json``; raises as :func:`manifest_at`."""
    try:
        size = objects.size(FILE_NAME)
        if size > MOST_BYTES:
            raise DamagedError(f"{objects.url_of(FILE_NAME)} has {size:,} bytes, at most {MOST_BYTES:,} are read")
        return str(objects.get(FILE_NAME), "utf-8")
    except RemoteMissingError as error:
        raise StoreError(
            f"there is no dataset at {objects.url}: it has no {FILE_NAME}, which a push writes last; "
            f"push one with: mmload push DATASET {objects.url}"
        ) from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{objects.url_of(FILE_NAME)} is not UTF-8 text; push the dataset again") from error
