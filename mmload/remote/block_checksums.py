"""The checksums of the blocks of a file, as an object beside it: a range of the file can be checked by itself.

``NAME.crc32`` is "mmload crc32 1", a line feed, a zero byte, the bytes of a block as a little-endian uint64, and a
little-endian CRC-32 for each block; the last block may be shorter. Joined, they must be the checksum of the manifest,
so such a list needs no trust of its own. It takes 4 bytes a block, 0.002% of a dataset of 196 kB a row.
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

_LIST_BLOCK = 8 * 2**20
_HEADER = struct.Struct("<16sQ")
_MAGIC = b"mmload crc32 1\n\0"


@dataclass(frozen=True)
class BlockChecksums:
    """The checksums of a file's blocks.

    Attributes:
        block_bytes: of each block but the last.
        each: uint32 [blocks].
    """

    block_bytes: int
    each: NDArray[np.uint32]

    def to_bytes(self) -> bytes:
        """The object's content."""
        return _HEADER.pack(_MAGIC, self.block_bytes) + self.each.astype("<u4").tobytes()

    def match(self, record: FileRecord) -> bool:
        """Whether these are the checksums of a file with this size and checksum."""
        if len(self.each) != blocks_in(record.bytes, self.block_bytes):
            return False
        lengths = [self.block_bytes] * len(self.each)
        if lengths:
            lengths[-1] = record.bytes - self.block_bytes * (len(lengths) - 1)
        return f"{joined_checksum(zip(self.each.tolist(), lengths, strict=True)):08x}" == record.crc32


def block_bytes_of(file: DatasetFile) -> int:
    """How many bytes of a file make a block."""
    if file.row_bytes is None:
        return _LIST_BLOCK
    return file.row_bytes * max(1, SMALLEST_BLOCK // max(1, file.row_bytes)) or SMALLEST_BLOCK


def blocks_in(size: int, block_bytes: int) -> int:
    """How many blocks a file of this size has."""
    return -(-size // block_bytes)


def sums_of_file(path: Path, file: DatasetFile) -> BlockChecksums:
    """The checksums of a file's blocks.

    Raises:
        DamagedError: if they are not those of the manifest: the file was changed or truncated.
        OSError: if it cannot be read.
    """
    block_bytes = block_bytes_of(file)
    sums = BlockChecksums(block_bytes, np.fromiter(_each(path, block_bytes), np.uint32))
    if not sums.match(file.record):
        raise DamagedError(f"{path} does not have the size and checksum of the manifest; run: mmload verify")
    return sums


def parse(content: memoryview, file: DatasetFile) -> BlockChecksums | None:
    """The checksums of an object's content; None if they are not those of this file."""
    if len(content) < _HEADER.size or (len(content) - _HEADER.size) % 4:
        return None
    magic, block_bytes = _HEADER.unpack(content[: _HEADER.size])
    if magic != _MAGIC or not 0 < block_bytes < 2**62:
        return None
    sums = BlockChecksums(block_bytes, np.frombuffer(content[_HEADER.size :], "<u4").astype(np.uint32))
    return sums if sums.match(file.record) else None


def _each(path: Path, block_bytes: int) -> Iterator[int]:
    buffer = memoryview(bytearray(block_bytes))
    with open(path, "rb", buffering=0, opener=open_regular) as opened:
        while True:
            got = 0
            while got < block_bytes and (more := opened.readinto(buffer[got:])):
                got += more
            if got == 0:
                return
            yield crc32(buffer[:got])
            if got < block_bytes:
                return
