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
from mmload.store.dataset_folder import ROW
from mmload.store.manifest import FileRecord, ShardRecord, SplitRecord, files_of

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


def check(rows: list[int], row_bytes: int | list[int], unit: int) -> None:
    """Checks that a chunk has as few rows as have enough bytes, and that it and its rows have places of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_BYTES", LEAST)
        chunks = chunks_of(rows, row_bytes)
    expected: list[list[int]] = []  # shard, number, first byte, and bytes of each chunk
    owners, places = [], []
    for shard, lengths in enumerate(np.split(np.broadcast_to(row_bytes, sum(rows)), np.cumsum(rows)[:-1])):
        number, start, size = 0, 0, 0
        for length in lengths.tolist():
            if size >= LEAST:
                expected.append([shard, number, start, size])
                number, start, size = number + 1, start + size, 0
            owners.append(len(expected))
            places.append((shard, start + size, length))
            size += length
        expected.append([shard, number, start, size])
    located = np.zeros(len(places), ROW)
    located["file"], located["offset"], located["bytes"] = np.array(places).T
    assert [[chunk.shard, chunk.number, chunk.start, chunk.length] for chunk in chunks.each] == expected
    assert chunks.chunks_at(located).tolist() == owners
    assert list(chunks.counts) == [sum(shard == chunk[0] for chunk in expected) for shard in range(len(rows))]
    moved = np.array([chunk.place - chunk.start for chunk in chunks.each])
    assert ((moved[owners] + located["offset"]) % unit == 0).all()
    starts = np.array([chunk.place - chunk.padding for chunk in chunks.each])
    ends = np.array([chunk.place + chunk.length for chunk in chunks.each])
    assert (starts % mmap.PAGESIZE == 0).all()
    assert (ends[:-1] <= starts[1:]).all()  # as starts are pages', no page has two chunks
    assert ends[-1] <= -(-chunks.extent // mmap.PAGESIZE) * mmap.PAGESIZE


@given(rows=st.lists(st.integers(1, 90), min_size=1, max_size=4), row_bytes=st.integers(1, 120_000))
def test_chunks_of_rows_of_one_size_are_whole_rows_with_places_of_their_own(rows: list[int], row_bytes: int) -> None:
    check(rows, row_bytes, row_bytes)


@given(rows=st.lists(st.integers(1, 60), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_chunks_of_variable_size_rows_are_whole_rows_with_places_of_their_own(rows: list[int], seed: int) -> None:
    lengths = np.random.default_rng(seed).choice([1, 300, 5_000, 16_384, 90_000, 400_000], sum(rows))
    check(rows, lengths.tolist(), 1)


def test_chunks_of_a_shard_do_not_depend_on_other_shards() -> None:
    alone, behind = (
        [(one.start, one.length, one.padding) for one in chunks.each if one.shard == shard]
        for shard, chunks in ((0, chunks_of([700], 75_000)), (1, chunks_of([11, 700], 75_000)))
    )
    assert alone == behind
    assert len(alone) > 2
