"""Layout of a pushed dataset: its files, and beside each object ``NAME`` the checksums of its chunks, ``NAME.crc32``.

That is a list of little-endian uint32: the CRC-32 of the file, by which it belongs to the manifest, and that of each
chunk, so that a range of the file can be checked by itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.remote.chunks import chunk_starts
from mmload.remote.object_store import Objects
from mmload.runtime.regular_files import open_regular
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import DatasetFile
from mmload.store.manifest import FILE_NAME, FileRecord, Manifest, loads
from mmload.store.row_reader import Numbers
from mmload.store.versions import version_file, version_of

SUFFIX = ".crc32"

Sums = NDArray[np.uint32]


def chunks_of(root: Path, file: DatasetFile) -> Numbers:
    """Returns the first byte of each chunk of a file in a dataset's folder, int64 [chunks].

    Raises:
        DamagedError: if the file of offsets is damaged.
        OSError: if it cannot be read.
    """
    size, offsets = file.record.bytes, None
    if file.offsets is not None:
        path = root / file.offsets
        with open(path, "rb", opener=open_regular) as opened:
            offsets = np.fromfile(opened, "<i8")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) <= 0).any():
            raise DamagedError(f"{path} does not belong to the manifest; run: mmload verify {root}")
    return chunk_starts(size, file.row_bytes or 1, offsets)


def checksums_of_file(root: Path, file: DatasetFile) -> bytes:
    """Computes the content of the object with the checksums of a file in a dataset's folder.

    Raises:
        DamagedError: if the file does not have the checksum of the manifest: it was changed or truncated.
        OSError: if it cannot be read.
    """
    path, total, each = root / file.name, 0, []
    with open(path, "rb", opener=open_regular) as opened:
        for length in np.diff(np.append(chunks_of(root, file), file.record.bytes)).tolist():
            data = opened.read(length)
            total = crc32(data, total)
            each.append(crc32(data))
        is_longer = bool(opened.read(1))
    if f"{total:08x}" != file.record.crc32 or is_longer:
        raise DamagedError(f"{path} does not have the size and checksum of the manifest; run: mmload verify {root}")
    return np.array([total, *each], "<u4").tobytes()


def parse_checksums(content: bytes | memoryview, record: FileRecord, count: int) -> Sums | None:
    """Returns the checksums of ``count`` chunks in the content of an object; None if they are not of this file."""
    if len(content) != 4 * (count + 1):
        return None
    total, *_ = sums = np.frombuffer(content, "<u4")
    return sums[1:].astype(np.uint32) if f"{total:08x}" == record.crc32 else None


def manifest_at(objects: Objects, version: int | None = None) -> Manifest:
    """Reads the manifest of the dataset at a URL, or of one of its versions.

    Raises:
        StoreError: if there is no complete dataset; VersionError, DamagedError: if its manifest is not one.
        RemoteError: if the store cannot be read.
    """
    try:
        current = loads(str(objects.get(FILE_NAME), "utf-8"), objects.url_of(FILE_NAME))
    except RemoteMissingError as error:
        raise StoreError(
            f"there is no dataset at {objects.url}: it has no {FILE_NAME}, which a push writes last; "
            f"push one with: mmload push DATASET {objects.url}"
        ) from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{objects.url_of(FILE_NAME)} is not UTF-8 text; push the dataset again") from error
    if version is None or version == current.version:
        return current
    name = version_file(objects.url, version, current)
    try:
        return version_of(str(objects.get(name), "utf-8"), objects.url_of(name), version, current)
    except RemoteMissingError as error:
        raise StoreError(f"{objects.url} holds no version {version}: it was never pushed there") from error
