"""Division of the shards' files of a field into chunks, which are fetched and cached, each with a place in one map.

A chunk is a run of whole blocks, which have the checksums, of one shard's file: the fewest that have 16 MiB together;
the last of a file may be smaller. It is a function of the layout of its shard alone, so versions of a dataset that
share the shard share the chunk. In the map each chunk begins at a multiple of the bytes of a row, so that rows of one
size can be indexed, and has pages of its own.
"""

from __future__ import annotations

import math
import mmap
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mmload.remote.layout import Numbers, bytes_of_rows, first_rows, lengths_of
from mmload.store.manifest import SplitRecord
from mmload.store.row_reader import Places
from mmload.store.shard_table import file_name

CHUNK_BYTES = 16 * 2**20
"""Least bytes of a chunk: object stores give such ranges at the rate of the connection."""

_PAGE = mmap.PAGESIZE


class Chunk(NamedTuple):
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
        block_bytes: bytes of a complete block; 0 where blocks differ in size.
        each: all chunks.
        starts: int64 [C], first byte of each chunk in its file.
        places: int64 [C], first byte of each chunk in the map.
        extent: bytes of the map.
    """

    def __init__(self, split: str, field: str, record: SplitRecord, offsets: Numbers | None = None) -> None:
        spec = record.fields[field]
        self.split, self.record, self.file = split, record, file_name(field, spec)
        self._offsets, self.block_bytes = offsets, 0 if offsets is not None else bytes_of_rows(spec.row_bytes)
        self._first_rows = np.concatenate([[0], np.cumsum(record.shards.rows)])
        self._sizes = record.shards.bytes[self.file].tolist()
        unit = max(1, spec.row_bytes) if offsets is None else 1
        step, end = math.lcm(unit, _PAGE), 0
        self.each: list[Chunk] = []
        for shard, size in enumerate(self._sizes):
            end = _rounded(end, step)
            blocks = self.block_starts(shard)
            edges = [*(int(blocks[head]) for head in _heads(blocks)), size]
            for number, (start, stop) in enumerate(pairwise(edges)):
                self.each.append(Chunk(shard, number, start, stop - start, end))
                end = _rounded(_rounded(end + stop - start, _PAGE), unit)
        self.extent = end
        shards, _, self.starts, lengths, self.places = np.array(self.each, np.int64).reshape(-1, 5).T.copy()
        self.ends = self.places + lengths
        self._file_starts = np.cumsum([0, *self._sizes])
        self._edges = self._file_starts[shards] + self.starts

    def chunks_at(self, places: Places) -> Numbers:
        """Returns the number of the chunk of each row, or part of one, int64 [B]."""
        found: Numbers = np.searchsorted(self._edges, self._file_starts[places["file"]] + places["offset"], "right") - 1
        return found

    def block_starts(self, shard: int) -> Numbers:
        """Returns the first byte of each block of a shard's file, int64 [blocks]."""
        if self._offsets is None:
            return np.arange(0, self._sizes[shard], self.block_bytes)
        offsets = self._offsets[self._first_rows[shard] : self._first_rows[shard + 1] + 1]
        starts: Numbers = (offsets - offsets[0])[first_rows(offsets - offsets[0])]
        return starts

    def block_lengths(self, shard: int) -> Numbers:
        """Returns the bytes of each block of a shard's file, int64 [blocks]."""
        return lengths_of(self.block_starts(shard), self._sizes[shard])


def _heads(blocks: Numbers) -> list[int]:
    """Returns which blocks begin a chunk."""
    heads, following = [], 0
    while following < len(blocks):
        heads.append(following)
        following = int(np.searchsorted(blocks, blocks[following] + CHUNK_BYTES))
    return heads


def _rounded(number: int, unit: int) -> int:
    """Returns the least multiple of a unit from a number on."""
    return -(-number // unit) * unit
