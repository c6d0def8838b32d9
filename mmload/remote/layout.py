"""Layout of a pushed dataset: reads its manifest, divides its files into blocks, and keeps a checksum per block.

``NAME.crc32`` lies beside an object, so that a range of it can be checked by itself: "mmload crc32 1", a line feed, a
zero byte, the bytes per block as a little-endian uint64, and a little-endian CRC-32 per block; the last block may be
shorter. Blocks of variable-size rows differ in size: :func:`first_rows` defines them, and the number is 0. Joined, the
checksums must be the checksum of the manifest, so the list needs no trust of its own. It takes 4 bytes per block,
0.002% of a dataset with 196 kB per row.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, RemoteMissingError, StoreError
from mmload.remote.object_store import Objects
from mmload.runtime.regular_files import open_regular
from mmload.store.checksum import crc32, joined_crc32
from mmload.store.dataset_folder import DatasetFile
from mmload.store.manifest import FILE_NAME, MOST_BYTES, Manifest, SplitRecord, loads
from mmload.store.row_reader import SMALL_ROW
from mmload.store.shard_table import BYTES, FileRecord, file_name
from mmload.store.versions import version_file, version_of

SUFFIX = ".crc32"
SMALLEST_BLOCK = 64 * 2**10
"""Bytes that rows of a fixed size share a block up to: smaller requests cost a store as much."""

SMALLEST_VARIABLE_BLOCK = 16 * 2**10
"""Bytes that variable-size rows share a block up to. Most are JPEGs of 10 to 60 kB. In a full shuffle with half of the
data in cache, blocks of two or three rows made every epoch fetch 0.75 to 0.85 of the data, blocks of one row 0.505.
Neighbors that are needed together are fetched by one request."""

Lengths = NDArray[np.int64]

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

    def match(self, record: FileRecord, lengths: Lengths) -> bool:
        """Returns whether the blocks have these lengths and together the size and checksum of the file."""
        if len(self.each) != len(lengths) or int(lengths.sum()) != record.bytes:
            return False
        return f"{joined_crc32(zip(self.each.tolist(), lengths.tolist(), strict=True)):08x}" == record.crc32


def bytes_per_block(file: DatasetFile) -> int:
    """Returns how many bytes of a file make a block; 0 for variable-size rows, whose blocks differ in size."""
    if file.offsets is not None:
        return 0
    if file.row_bytes is None:
        return _LIST_BLOCK
    return file.row_bytes * max(1, SMALLEST_BLOCK // max(1, file.row_bytes)) or SMALLEST_BLOCK


def first_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the first row of each block of a file of variable-size rows, int64 [blocks].

    Rows that begin in the same 16 KiB of the file share a block; a row of 16 KiB or more is a block by itself. Offsets,
    int64 [rows + 1], are the first byte of each row, and the end of the last one.
    """
    parts = offsets[:-1] // SMALLEST_VARIABLE_BLOCK
    return np.flatnonzero((np.diff(offsets) >= SMALLEST_VARIABLE_BLOCK) | (np.diff(parts, prepend=-1) != 0))


def block_lengths(root: Path, file: DatasetFile) -> Lengths:
    """Returns the bytes of each block of a file in a dataset's folder, int64 [blocks].

    Raises:
        DamagedError: if the file of offsets is damaged.
        OSError: if it cannot be read.
    """
    size = file.record.bytes
    if file.offsets is None:
        block = bytes_per_block(file)
        return np.diff(np.append(np.arange(0, size, block), size))
    path = root / file.offsets
    with open(path, "rb", opener=open_regular) as opened:
        offsets = np.fromfile(opened, "<i8")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) <= 0).any():
        raise DamagedError(f"{path} does not belong to the manifest; run: mmload verify {root}")
    return np.diff(np.append(offsets[first_rows(offsets)], size))


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
    content: memoryview, record: FileRecord, block_bytes: int, lengths: Lengths
) -> BlockChecksums | None:
    """Returns the checksums in an object's content; None if they are not of this file and blocks of these lengths."""
    if len(content) < _HEADER.size or (len(content) - _HEADER.size) % 4:
        return None
    magic, stored_bytes = _HEADER.unpack(content[: _HEADER.size])
    if magic != _MAGIC or stored_bytes != block_bytes:
        return None
    sums = BlockChecksums(block_bytes, np.frombuffer(content[_HEADER.size :], "<u4").astype(np.uint32))
    return sums if sums.match(record, lengths) else None


def _each(path: Path, lengths: Lengths) -> Iterator[int]:
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


Numbers = NDArray[np.int64]


class Run(NamedTuple):
    """Neighboring blocks of one shard's file.

    Attributes:
        shard: number of the shard.
        first: number of the first block, over all shards.
        blocks: number of blocks.
        offset: first byte in the file.
        length: number of bytes.
    """

    shard: int
    first: int
    blocks: int
    offset: int
    length: int


class BlockGrid:
    """Division of a field into blocks of equally many rows, where all rows have the same size.

    The split is the one whose folder has the shards. The order has the number over all shards of each row, int64
    [rows]; None: the same number.

    Attributes:
        field: first part of the names of the files.
        row_bytes: bytes per row; the average for variable-size rows.
        block_bytes: bytes of a complete block; 0 where blocks differ in size.
        has_one_row: whether each block is one row.
        is_evicted: whether blocks may be evicted; small rows are read once and stay in memory.
        starts: int64 [shards + 1], the first block of each shard.
        folders: int64 [shards], number of each shard's folder.
    """

    def __init__(self, split: str, field: str, record: SplitRecord, order: Numbers | None = None) -> None:
        self.split, self.field, self._order = split, file_name(field, record.fields[field]), order
        self.row_bytes = record.fields[field].row_bytes
        self.is_evicted = self.row_bytes > SMALL_ROW
        self._rows_per_block = max(1, SMALLEST_BLOCK // max(1, self.row_bytes))
        self.has_one_row = self._rows_per_block == 1
        self.block_bytes = self._rows_per_block * self.row_bytes
        self._rows, self.folders = record.shards.rows, record.shards.folder_numbers
        self._row_starts = np.concatenate([[0], np.cumsum(self._rows)])
        self.starts = np.concatenate([[0], np.cumsum(-(-self._rows // self._rows_per_block))])

    @property
    def blocks(self) -> int:
        """Number of blocks over all shards."""
        return int(self.starts[-1])

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return int(self._row_starts[-1]) * self.row_bytes

    def blocks_of_rows(self, rows: Numbers) -> Numbers:
        """Returns the block of each row, int64 [B]."""
        if self._order is not None:
            rows = self._order[rows]
        return rows if self.has_one_row else self._blocks_of_shard_rows(rows)

    def _blocks_of_shard_rows(self, rows: Numbers) -> Numbers:
        """Returns the block of each row, by its number over all shards."""
        shards = np.searchsorted(self._row_starts, rows, side="right") - 1
        blocks: Numbers = self.starts[shards] + (rows - self._row_starts[shards]) // self._rows_per_block
        return blocks

    def blocks_at(self, shards: Numbers, offsets: Numbers) -> Numbers:
        """Returns the block at each byte offset of a shard's file, int64 [B]."""
        blocks: Numbers = self.starts[shards] + offsets // self.block_bytes
        return blocks

    def bytes_of(self, blocks: Numbers) -> Numbers:
        """Returns the bytes of each block, int64 [B]."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        first = (blocks - self.starts[shards]) * self._rows_per_block
        sizes: Numbers = np.minimum(self._rows_per_block, self._rows[shards] - first) * self.row_bytes
        return sizes

    def offsets_of(self, blocks: Numbers) -> Numbers:
        """Returns the first byte of each block in the file of its shard, int64 [B]."""
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        offsets: Numbers = (blocks - self.starts[shards]) * self.block_bytes
        return offsets

    def lengths_in(self, shard: int) -> Numbers:
        """Returns the bytes of each block of a shard's file, int64 [B]."""
        return self.bytes_of(np.arange(self.starts[shard], self.starts[shard + 1]))

    def runs(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Joins ascending blocks to runs of neighbors in a file, of at most `most_bytes` but at least one block."""
        if not len(blocks):
            return []
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        heads = np.flatnonzero(np.concatenate([[True], (np.diff(blocks) != 1) | (np.diff(shards) != 0)]))
        ends = [0, *np.cumsum(self.bytes_of(blocks)).tolist()]
        offsets = self.offsets_of(blocks).tolist()
        found = []
        for head, end in zip(heads.tolist(), [*heads[1:].tolist(), len(blocks)], strict=True):
            shard, past = int(shards[head]), head
            while past < end:
                stop = max(past + 1, bisect_right(ends, ends[past] + most_bytes, past, end + 1) - 1)
                first = int(blocks[past])
                found.append(Run(shard, first, stop - past, offsets[past], ends[stop] - ends[past]))
                past = stop
        return found

    def runs_by_need(self, blocks: Numbers, most_bytes: int) -> list[Run]:
        """Joins blocks in any order (at least one) to runs, in the order of each run's first position in ``blocks``."""
        different, positions = np.unique(blocks, return_index=True)
        runs = self.runs(different, most_bytes)
        starts = np.cumsum([0, *(run.blocks for run in runs[:-1])])
        return [runs[index] for index in np.argsort(np.minimum.reduceat(positions, starts), kind="stable").tolist()]


class VariableGrid(BlockGrid):
    """Division of variable-size rows into blocks by :func:`first_rows`.

    Offsets, int64 [n + 1], are the first byte of each of the shards' rows, as if the bytes of all were one file.
    """

    def __init__(
        self, split: str, field: str, record: SplitRecord, offsets: Numbers, order: Numbers | None = None
    ) -> None:
        self.split, self.field, self._order = split, f"{field}.{BYTES}", order
        self.block_bytes, self.is_evicted, self.folders = 0, True, record.shards.folder_numbers
        self._shard_bytes = np.concatenate([[0], np.cumsum(record.shards.bytes[self.field])])
        row_starts = np.concatenate([[0], np.cumsum(record.shards.rows)]).tolist()
        firsts = [
            start + first_rows(offsets[start : stop + 1] - offsets[start])
            for start, stop in zip(row_starts[:-1], row_starts[1:], strict=True)
        ]
        self.starts = np.cumsum([0, *map(len, firsts)])
        self._first_rows = np.concatenate([np.empty(0, np.int64), *firsts])
        self.has_one_row = len(self._first_rows) == len(offsets) - 1
        self._edges = offsets if self.has_one_row else offsets[np.append(self._first_rows, -1)]
        self.row_bytes = self.bytes // max(1, len(offsets) - 1)

    @property
    def bytes(self) -> int:
        return int(self._shard_bytes[-1])

    def _blocks_of_shard_rows(self, rows: Numbers) -> Numbers:
        blocks: Numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        return blocks

    def blocks_at(self, shards: Numbers, offsets: Numbers) -> Numbers:
        blocks: Numbers = np.searchsorted(self._edges, self._shard_bytes[shards] + offsets, side="right") - 1
        return blocks

    def bytes_of(self, blocks: Numbers) -> Numbers:
        sizes: Numbers = self._edges[blocks + 1] - self._edges[blocks]
        return sizes

    def offsets_of(self, blocks: Numbers) -> Numbers:
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        offsets: Numbers = self._edges[blocks] - self._shard_bytes[shards]
        return offsets


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
