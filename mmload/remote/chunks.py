"""A pushed dataset: its manifest, and its files in chunks, which are fetched, checked, cached, and mapped in one map.

A chunk of a shard's file is a run of whole rows: the fewest that have 16 MiB together; the last of a file may be
smaller. It is a function of the layout of its shard alone, so versions of a dataset that share the shard share the
chunk. In the map each chunk begins at a multiple of the bytes of a row, so that rows of one size can be indexed, and
has pages of its own.

Beside each object ``NAME`` lie the checksums of its chunks, ``NAME.crc32``: a list of little-endian uint32, the CRC-32
of the file, by which it belongs to the manifest, and that of each chunk, so that a range of the file can be checked by
itself.
"""

from __future__ import annotations

import math
import mmap
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.remote.object_store import Objects
from mmload.runtime.files import open_regular
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import DatasetFile, Places
from mmload.store.manifest import FILE_NAME, FileRecord, Manifest, SplitRecord, file_name, loads
from mmload.store.row_numbers import Numbers
from mmload.store.versions import version_file, version_of

CHUNK_BYTES = 16 * 2**20
"""Least bytes of a chunk: object stores give such ranges at the rate of the connection."""

_PAGE = mmap.PAGESIZE


def chunk_starts(size: int, row_bytes: int, offsets: Numbers | None = None) -> Numbers:
    """Returns the first byte of each chunk of a file of ``size`` bytes, int64 [chunks].

    Offsets, int64 [rows + 1], are the first byte of each row, and the end of the last; None: rows have one size.
    """
    if offsets is None:
        return np.arange(0, size, -(-CHUNK_BYTES // row_bytes) * row_bytes)
    starts, first = [], 0
    while first < size:
        starts.append(first)
        first = int(offsets[min(int(np.searchsorted(offsets, first + CHUNK_BYTES)), len(offsets) - 1)])
    return np.array(starts, np.int64)


class ChunkSpan(NamedTuple):
    """Part of one shard's file.

    Attributes:
        shard: number of the shard.
        number: number of the chunk in the file.
        start: first byte in the file.
        length: bytes.
        place: first byte in the map.
    """

    shard: int
    number: int
    start: int
    length: int
    place: int

    @property
    def padding(self) -> int:
        """Bytes before the chunk in its cached file, which is mapped from the begin of a page."""
        return self.place % _PAGE

    @property
    def stored_bytes(self) -> int:
        """Bytes of the cached file."""
        return self.padding + self.length


class Chunks:
    """Chunks of a field of a split.

    Offsets, int64 [n + 1], are the first byte of each of the shards' variable-size rows, as if the bytes of all were
    one file; None: rows have one size.

    Attributes:
        file: name of the shards' files, without ``.memmap``.
        each: all chunks.
        starts: int64 [C], first byte of each chunk in its file.
        places: int64 [C], first byte of each chunk in the map.
        ends: int64 [C], the byte in the map after its last.
        counts: number of chunks of each shard's file.
        extent: bytes of the map.
    """

    def __init__(self, split: str, field: str, record: SplitRecord, offsets: Numbers | None = None) -> None:
        spec = record.fields[field]
        self.split, self.record, self.file = split, record, file_name(field, spec)
        sizes = [shard.files[self.file].bytes for shard in record.shards]
        firsts = np.cumsum([0, *(shard.rows for shard in record.shards)])
        unit = spec.row_bytes if offsets is None else 1
        step = math.lcm(unit, _PAGE)
        self.each: list[ChunkSpan] = []
        self.counts: list[int] = []
        self.extent = 0
        for shard, size in enumerate(sizes):
            self.extent = _rounded(self.extent, step)
            own = None if offsets is None else offsets[firsts[shard] : firsts[shard + 1] + 1] - offsets[firsts[shard]]
            edges = [*chunk_starts(size, unit, own).tolist(), size]
            self.counts.append(len(edges) - 1)
            for number, (start, stop) in enumerate(pairwise(edges)):
                self.each.append(ChunkSpan(shard, number, start, stop - start, self.extent))
                self.extent = _rounded(_rounded(self.extent + stop - start, _PAGE), unit)
        shards, _, self.starts, lengths, self.places = np.array(self.each, np.int64).reshape(-1, 5).T.copy()
        self.ends = self.places + lengths
        self._file_starts = np.cumsum([0, *sizes])
        self._edges = self._file_starts[shards] + self.starts

    def chunks_at(self, places: Places) -> Numbers:
        """Returns the number of the chunk of each row, or part of one, int64 [B]."""
        found: Numbers = np.searchsorted(self._edges, self._file_starts[places["file"]] + places["offset"], "right") - 1
        return found


def _rounded(number: int, unit: int) -> int:
    """Returns the least multiple of a unit from a number on."""
    return -(-number // unit) * unit


SUFFIX = ".crc32"
"""Of the name of the object with the checksums of a file: four bytes for the file, and for each chunk."""


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


def file_checksum(record: FileRecord) -> bytes:
    """Returns the first four bytes of the object with the checksums of a file."""
    return bytes.fromhex(record.crc32)[::-1]


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


def current_manifest(objects: Objects) -> Manifest | None:
    """Reads the manifest of the dataset at a URL; None if there is none; raises as :func:`manifest_at`."""
    try:
        return loads(str(objects.get(FILE_NAME), "utf-8"), objects.url_of(FILE_NAME))
    except RemoteMissingError:
        return None
    except UnicodeDecodeError as error:
        raise DamagedError(f"{objects.url_of(FILE_NAME)} is not UTF-8 text; push the dataset again") from error


def manifest_at(objects: Objects, version: int | None = None) -> Manifest:
    """Reads the manifest of the dataset at a URL, or of one of its versions.

    Raises:
        StoreError: if there is no complete dataset; VersionError, DamagedError: if its manifest is not one.
        RemoteError: if the store cannot be read.
    """
    current = current_manifest(objects)
    if current is None:
        raise StoreError(
            f"there is no dataset at {objects.url}: it has no {FILE_NAME}, which a push writes last; "
            f"push one with: mmload push DATASET {objects.url}"
        )
    if version is None or version == current.version:
        return current
    name = version_file(objects.url, version, current)
    try:
        return version_of(str(objects.get(name), "utf-8"), objects.url_of(name), version, current)
    except RemoteMissingError as error:
        raise StoreError(f"{objects.url} holds no version {version}: it was never pushed there") from error
