"""Chunks of a field: whole rows of one shard, with a place in the map that no other chunk touches."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.records import FieldSpec
from mmload.remote import chunks as chunks_module
from mmload.remote.chunks import Chunks
from mmload.store.manifest import FileRecord, ShardRecord, SplitRecord, files_of
from mmload.store.row_reader import ROW

LEAST = 300_000


def chunks_of(rows: list[int], row_bytes: int | list[int]) -> Chunks:
    """Chunks of shards of rows of one size, or of variable size."""
    counts, samples = np.array(rows), FileRecord(bytes=0, crc32="00000000")
    if isinstance(row_bytes, int):
        file, sizes, offsets = "images", counts * row_bytes, None
        spec = FieldSpec(dtype="uint8", shape=(row_bytes,))
    else:
        offsets = np.concatenate([[0], np.cumsum(row_bytes)])
        file, spec = "images.bytes", FieldSpec(dtype="uint8", shape=(3, -1, -1), encoding="raw")
        sizes = np.diff(offsets[np.concatenate([[0], np.cumsum(counts)])])
    files = files_of({"images": spec})
    bytes_of = {
        name: sizes if name == file else (counts + each.more) * each.spec.row_bytes for name, each in files.items()
    }
    shards = tuple(
        ShardRecord(
            rows=count, files={name: FileRecord(bytes=int(of[k]), crc32="00000000") for name, of in bytes_of.items()}
        )
        for k, count in enumerate(rows)
    )
    record = SplitRecord(
        rows=int(counts.sum()), fields={"images": spec}, samples=samples, shard_samples=1, shards=shards
    )
    return Chunks("train", "images", record, offsets)


def check(chunks: Chunks, rows: list[int], lengths: np.ndarray, unit: int) -> None:
    """Checks that chunks divide the files at rows, and that each row lies in its chunk in both places."""
    shards = np.repeat(np.arange(len(rows)), rows)
    places = np.zeros(len(shards), ROW)
    places["file"], places["bytes"] = shards, lengths
    ends = np.cumsum(lengths)
    before = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(rows)])[shards]]
    places["offset"] = ends - lengths - before
    found = chunks.chunks_at(places)
    for place, number in zip(places, found.tolist(), strict=True):
        chunk = chunks.each[number]
        assert chunk.shard == place["file"]
        assert chunk.start <= place["offset"]
        assert place["offset"] + place["bytes"] <= chunk.start + chunk.length
        assert (chunk.place + place["offset"] - chunk.start) % unit == 0
    last = 0
    for chunk in chunks.each:
        assert chunk.place - chunk.padding >= last
        assert (chunk.place - chunk.padding) % mmap.PAGESIZE == 0
        last = -(-(chunk.place + chunk.length) // mmap.PAGESIZE) * mmap.PAGESIZE
    assert last <= -(-chunks.extent // mmap.PAGESIZE) * mmap.PAGESIZE
    for shard in range(len(rows)):
        own = [chunk for chunk in chunks.each if chunk.shard == shard]
        assert [chunk.number for chunk in own] == list(range(len(own)))
        assert sum(chunk.length for chunk in own) == lengths[shards == shard].sum()
        assert all(chunk.length >= LEAST for chunk in own[:-1])
        assert {chunk.start for chunk in own} <= set(places["offset"][shards == shard].tolist())
        assert chunks.counts[shard] == len(own)


@given(rows=st.lists(st.integers(1, 90), min_size=1, max_size=4), row_bytes=st.integers(1, 120_000))
def test_chunks_of_rows_of_one_size_are_whole_rows_with_places_of_their_own(rows: list[int], row_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_BYTES", LEAST)
        chunks = chunks_of(rows, row_bytes)
        check(chunks, rows, np.full(sum(rows), row_bytes), row_bytes)


@given(rows=st.lists(st.integers(1, 60), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_chunks_of_variable_size_rows_are_whole_rows_with_places_of_their_own(rows: list[int], seed: int) -> None:
    lengths = np.random.default_rng(seed).choice([1, 300, 5_000, 16_384, 90_000, 400_000], sum(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_BYTES", LEAST)
        chunks = chunks_of(rows, lengths.tolist())
        check(chunks, rows, lengths, 1)


def test_chunks_of_a_shard_do_not_depend_on_other_shards() -> None:
    alone, behind = chunks_of([700], 75_000), chunks_of([11, 700], 75_000)
    own = [chunk for chunk in behind.each if chunk.shard == 1]
    assert [(one.start, one.length, one.padding) for one in alone.each] == [
        (one.start, one.length, one.padding) for one in own
    ]
    assert len(own) > 2
