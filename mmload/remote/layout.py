"""Layout of a pushed dataset: reads its manifest, divides its files into blocks, and keeps a checksum per block.

``NAME.crc32`` lies beside an object, so that a range of it can be checked by itself: "mmload crc32 1", a line feed, a
zero byte, the bytes per block as a little-endian uint64, and a little-endian CRC-32 per block; the last block may be
shorter. Blocks of variable-size rows differ in size: :func:`first_rows` defines them, and the number is 0. Joined, the
checksums must be the checksum of the manifest, so the list needs no trust of its own. It takes 4 bytes per block,
0.002% of a dataset with 196 kB per row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.remote.object_store import Objects
from mmload.runtime.regular_files import open_regular
from mmload.store.checksum import crc32, joined_crc32
from mmload.store.dataset_folder import DatasetFile
from mmload.store.manifest import FILE_NAME, MOST_BYTES, Manifest, loads
from mmload.store.shard_table import FileRecord
from mmload.store.versions import version_file, version_of

SUFFIX = ".crc32"
SMALLEST_BLOCK = 64 * 2**10
"""Bytes that rows of a fixed size share a block up to: smaller requests cost a store as much."""

SMALLEST_VARIABLE_BLOCK = 16 * 2**10
"""Bytes that variable-size rows share a block up to. Most are JPEGs of 10 to 60 kB. In a full shuffle with half of the
data in cache, blocks of two or three rows made every epoch fetch 0.75 to 0.85 of the data, blocks of one row 0.505.
Neighbors that are needed together are fetched by one request."""

Numbers = NDArray[np.int64]

_LIST_BLOCK = 8 * 2**20
_HEADER = struct.Struct("<16sQ")
_MAGIC = b"mmload crc32 1\n\0"


@dataclass(frozen=True)
class BlockChecksums:
    """Checksums of the blocks of a file.

    Attributes:
        block_bytes: bytes of every block but the last; 0: blocks differ in size.
        each: uint32 [blocks].
    """

    block_bytes: int
    each: NDArray[np.uint32]

    def to_bytes(self) -> bytes:
        """Returns the content of the object."""
        return _HEADER.pack(_MAGIC, self.block_bytes) + self.each.astype("<u4").tobytes()

    def match(self, record: FileRecord, lengths: Numbers) -> bool:
        """Returns whether the blocks have these lengths and together the size and checksum of the file."""
        if len(self.each) != len(lengths) or int(lengths.sum()) != record.bytes:
            return False
        return f"{joined_crc32(zip(self.each.tolist(), lengths.tolist(), strict=True)):08x}" == record.crc32


def bytes_per_block(file: DatasetFile) -> int:
    """Returns how many bytes of a file make a block; 0 for variable-size rows, whose blocks differ in size."""
    if file.offsets is not None:
        return 0
    return _LIST_BLOCK if file.row_bytes is None else bytes_of_rows(file.row_bytes)


def bytes_of_rows(row_bytes: int) -> int:
    """Returns the bytes of a block of rows of a fixed size."""
    return row_bytes * max(1, SMALLEST_BLOCK // max(1, row_bytes)) or SMALLEST_BLOCK


def first_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the first row of each block of a file of variable-size rows, int64 [blocks].

    Rows that begin in the same 16 KiB of the file share a block; a row of 16 KiB or more is a block by itself. Offsets,
    int64 [rows + 1], are the first byte of each row, and the end of the last one.
    """
    parts = offsets[:-1] // SMALLEST_VARIABLE_BLOCK
    return np.flatnonzero((np.diff(offsets) >= SMALLEST_VARIABLE_BLOCK) | (np.diff(parts, prepend=-1) != 0))


def lengths_of(starts: Numbers, size: int) -> Numbers:
    """Returns the bytes of each block of a file of ``size`` bytes, from the first byte of each, int64 [blocks]."""
    return np.diff(np.append(starts, size))


def block_lengths(root: Path, file: DatasetFile) -> Numbers:
    """Returns the bytes of each block of a file in a dataset's folder, int64 [blocks].

    Raises:
        DamagedError: if the file of offsets is damaged.
        OSError: if it cannot be read.
    """
    size = file.record.bytes
    if file.offsets is None:
        return lengths_of(np.arange(0, size, bytes_per_block(file)), size)
    path = root / file.offsets
    with open(path, "rb", opener=open_regular) as opened:
        offsets = np.fromfile(opened, "<i8")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) <= 0).any():
        raise DamagedError(f"{path} does not belong to the manifest; run: mmload verify {root}")
    return lengths_of(offsets[first_rows(offsets)], size)


def checksums_of_file(root: Path, file: DatasetFile) -> BlockChecksums:
    """Computes the checksums of the blocks of a file in a dataset's folder.

    Raises:
        DamagedError: if they are not those of the manifest: the file was changed or truncated.
        OSError: if it cannot be read.
    """
    lengths = block_lengths(root, file)
    sums = BlockChecksums(bytes_per_block(file), np.fromiter(_each(root / file.name, lengths), np.uint32))
    if not sums.match(file.record, lengths):
        path = root / file.name
        raise DamagedError(f"{path} does not have the size and checksum of the manifest; run: mmload verify {root}")
    return sums


def parse_checksums(
    content: memoryview, record: FileRecord, block_bytes: int, lengths: Numbers
) -> BlockChecksums | None:
    """Returns the checksums in an object's content; None if they are not of this file and blocks of these lengths."""
    if len(content) < _HEADER.size or (len(content) - _HEADER.size) % 4:
        return None
    magic, stored_bytes = _HEADER.unpack(content[: _HEADER.size])
    if magic != _MAGIC or stored_bytes != block_bytes:
        return None
    sums = BlockChecksums(block_bytes, np.frombuffer(content[_HEADER.size :], "<u4").astype(np.uint32))
    return sums if sums.match(record, lengths) else None


def _each(path: Path, lengths: Numbers) -> Iterator[int]:
    """Yields the checksum of each block, and one more if the file is longer than its blocks."""
    buffer = memoryview(bytearray(max(1, int(lengths.max(initial=0)))))
    with open(path, "rb", buffering=0, opener=open_regular) as opened:
        for length in [*lengths.tolist(), len(buffer)]:
            got = 0
            while got < length and (more := opened.readinto(buffer[got:length])):
                got += more
            if got == 0:
                return
            yield crc32(buffer[:got])


def manifest_at(objects: Objects, version: int | None = None) -> Manifest:
    """Reads the manifest of the dataset at a URL, or of one of its versions.

    Raises:
        StoreError: if there is no complete dataset; VersionError, DamagedError: if its manifest is not one.
        RemoteError: if the store cannot be read.
    """
    current = loads(manifest_text(objects), objects.url_of(FILE_NAME))
    if version is None or version == current.version:
        return current
    name = version_file(objects.url, version, current)
    try:
        return version_of(str(objects.get(name), "utf-8"), objects.url_of(name), version, current)
    except RemoteMissingError as error:
        raise StoreError(f"{objects.url} holds no version {version}: it was never pushed there") from error


def manifest_text(objects: Objects) -> str:
    """Reads the text of ``dataset.json`` and raises what :func:`manifest_at` raises."""
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
