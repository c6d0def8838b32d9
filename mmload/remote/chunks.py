"""Division of a dataset's files into chunks, which are fetched, checked and cached, each with a place in one map.

A chunk of a shard's file is a run of whole rows: the fewest that have 16 MiB together; the last of a file may be
smaller. It is a function of the layout of its shard alone, so versions of a dataset that share the shard share the
chunk. In the map each chunk begins at a multiple of the bytes of a row, so that rows of one size can be indexed, and
has pages of its own.
"""

from __future__ import annotations

import math
import mmap
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mmload.store.manifest import SplitRecord, file_name
from mmload.store.row_reader import Numbers, Places

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
        each: all chunks.
        starts: int64 [C], first byte of each chunk in its file.
        places: int64 [C], first byte of each chunk in the map.
        counts: number of chunks of each shard's file.
        extent: bytes of the map.
    """

    def __init__(self, split: str, field: str, record: SplitRecord, offsets: Numbers | None = None) -> None:
        spec = record.fields[field]
        self.split, self.record, self.file = split, record, file_name(field, spec)
        sizes = [shard.files[self.file].bytes for shard in record.shards]
        firsts = np.cumsum([0, *(shard.rows for shard in record.shards)])
        unit = spec.row_bytes if offsets is None else 1
        step, end = math.lcm(unit, _PAGE), 0
        self.each: list[Chunk] = []
        self.counts: list[int] = []
        for shard, size in enumerate(sizes):
            end = _rounded(end, step)
            own = None if offsets is None else offsets[firsts[shard] : firsts[shard + 1] + 1] - offsets[firsts[shard]]
            edges = [*chunk_starts(size, unit, own).tolist(), size]
            self.counts.append(len(edges) - 1)
            for number, (start, stop) in enumerate(pairwise(edges)):
                self.each.append(Chunk(shard, number, start, stop - start, end))
                end = _rounded(_rounded(end + stop - start, _PAGE), unit)
        self.extent = end
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
