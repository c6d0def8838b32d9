"""The checksums of the blocks of a file, as an object beside it: a range of the file can be checked by itself.

``NAME.crc32`` is "mmload crc32 1", a line feed, a zero byte, the bytes of a block as a little-endian uint64, and a
little-endian CRC-32 for each block; the last block may be shorter. Of rows of their own sizes the blocks have theirs,
which :func:`first_rows` says, and the number is 0. Joined, they must be the checksum of the manifest, so such a list
needs no trust of its own. It takes 4 bytes a block, 0.002% of a dataset of 196 kB a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError
from mmload.runtime.regular_files import open_regular
from mmload.store.checksum import crc32
from mmload.store.dataset_files import DatasetFile
from mmload.store.joined_checksums import joined_checksum
from mmload.store.shard_table import FileRecord

SUFFIX = ".crc32"
SMALLEST_BLOCK = 64 * 2**10
"""A block is one row, or as many as fit into this: smaller requests cost a store as much."""

SMALLEST_OWN = 16 * 2**10
"""The same of rows of their own sizes, most of which are JPEGs of 10 to 60 kB. In a full shuffle with half of the data
in cache, blocks of two or three of them made every epoch fetch 0.75 to 0.85 of the data, where one row each has 0.505.
Where neighbors are needed together, one request fetches them."""

Lengths = NDArray[np.int64]

_LIST_BLOCK = 8 * 2**20
_HEADER = struct.Struct("<16sQ")
_MAGIC = b"mmload crc32 1\n\0"


@dataclass(frozen=True)
class BlockChecksums:
    """The checksums of a file's blocks.

    Attributes:
        block_bytes: of each block but the last; 0: each has its own size.
        each: uint32 [blocks].
    """

    block_bytes: int
    each: NDArray[np.uint32]

    def to_bytes(self) -> bytes:
        """The object's content."""
        return _HEADER.pack(_MAGIC, self.block_bytes) + self.each.astype("<u4").tobytes()

    def match(self, record: FileRecord, lengths: Lengths) -> bool:
        """Whether these are the checksums of a file with this size and checksum, and blocks of these bytes."""
        if len(self.each) != len(lengths) or int(lengths.sum()) != record.bytes:
            return False
        return f"{joined_checksum(zip(self.each.tolist(), lengths.tolist(), strict=True)):08x}" == record.crc32


def block_bytes_of(file: DatasetFile) -> int:
    """How many bytes of a file make a block; 0: each has its own size."""
    if file.offsets is not None:
        return 0
    if file.row_bytes is None:
        return _LIST_BLOCK
    return file.row_bytes * max(1, SMALLEST_BLOCK // max(1, file.row_bytes)) or SMALLEST_BLOCK


def first_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of each block of a file of rows of their own sizes, int64 [blocks].

    Rows that begin in the same 16 KiB of the file are a block; one of 16 KiB or more is a block by itself.

    Args:
        offsets: int64 [rows + 1], where each begins, and the end of the last.
    """
    parts = offsets[:-1] // SMALLEST_OWN
    return np.flatnonzero((np.diff(offsets) >= SMALLEST_OWN) | (np.diff(parts, prepend=-1) != 0))


def lengths_of(root: Path, file: DatasetFile) -> Lengths:
    """The bytes of each block of a file in a dataset's folder, int64 [blocks].

    Raises:
        DamagedError: if the file of offsets is damaged.
        OSError: if it cannot be read.
    """
    size = file.record.bytes
    if file.offsets is None:
        block = block_bytes_of(file)
        return np.diff(np.append(np.arange(0, size, block), size))
    path = root / file.offsets
    with open(path, "rb", opener=open_regular) as opened:
        offsets = np.fromfile(opened, "<i8")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) <= 0).any():
        raise DamagedError(f"{path} does not belong to the manifest; run: mmload verify {root}")
    return np.diff(np.append(offsets[first_rows(offsets)], size))


def sums_of_file(root: Path, file: DatasetFile) -> BlockChecksums:
    """The checksums of the blocks of a file in a dataset's folder.

    Raises:
        DamagedError: if they are not those of the manifest: the file was changed or truncated.
        OSError: if it cannot be read.
    """
    lengths = lengths_of(root, file)
    sums = BlockChecksums(block_bytes_of(file), np.fromiter(_each(root / file.name, lengths), np.uint32))
    if not sums.match(file.record, lengths):
        path = root / file.name
        raise DamagedError(f"{path} does not have the size and checksum of the manifest; run: mmload verify {root}")
    return sums


def parse(content: memoryview, record: FileRecord, block_bytes: int, lengths: Lengths) -> BlockChecksums | None:
    """The checksums of an object's content; None if they are not those of the file with these blocks.

    Args:
        content: of the object.
        record: of the file.
        block_bytes: as :class:`BlockChecksums` has them.
        lengths: int64 [blocks], the bytes of each block.
    """
    if len(content) < _HEADER.size or (len(content) - _HEADER.size) % 4:
        return None
    magic, given = _HEADER.unpack(content[: _HEADER.size])
    if magic != _MAGIC or given != block_bytes:
        return None
    sums = BlockChecksums(block_bytes, np.frombuffer(content[_HEADER.size :], "<u4").astype(np.uint32))
    return sums if sums.match(record, lengths) else None


def _each(path: Path, lengths: Lengths) -> Iterator[int]:
    """The checksum of each block; one more of what the file has beyond them."""
    buffer = memoryview(bytearray(max(1, int(lengths.max(initial=0)))))
    with open(path, "rb", buffering=0, opener=open_regular) as opened:
        for length in [*lengths.tolist(), len(buffer)]:
            got = 0
            while got < length and (more := opened.readinto(buffer[got:length])):
                got += more
            if got == 0:
                return
            yield crc32(buffer[:got])
