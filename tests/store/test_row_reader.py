"""Rows into memory: their places, and what the system is told before they are read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from written_datasets import of_tensors

from mmload.errors import DamagedError
from mmload.loader import Loader
from mmload.remote.opening import open as open_dataset
from mmload.store import field_rows
from mmload.store.dataset import Dataset
from mmload.store.row_reader import RowReader, memory_of, read

ROWS = torch.tensor([17, 3, 4, 5, 6, 7, 0, 0, 12, 11])
ROW_BYTES = 3 * 32 * 32


@pytest.fixture
def reader(dataset: Dataset) -> RowReader:
    """Of 18 rows in shards of 5."""
    return dataset["train"].reader


Told = list[tuple[int, int]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the system is told of: (offset, bytes)."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system has no posix_fadvise")
    heard: Told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda handle, offset, size, advice: heard.append((offset, size)))
    return heard


def in_parts(reader: RowReader, rows: Tensor, most: int) -> list[Tensor]:
    """Images, as many at a time as fit into memory for ``most``."""
    scratch, field = torch.empty(most, 3, 32, 32, dtype=torch.uint8), reader.field("images")
    starts = np.arange(len(rows)) % most * ROW_BYTES
    stops = [*range(most, len(rows), most), len(rows)] if len(rows) else []
    arriving = field.arriving(rows.numpy(), field.located(rows.numpy()), memory_of(scratch), starts, stops)
    return [scratch[: (stop - 1) % most + 1].clone() for stop, _ in zip(stops, arriving, strict=True)]


def test_rows_go_to_their_places(reader: RowReader, images: Tensor) -> None:
    out = torch.zeros(18, 3, 32, 32, dtype=torch.uint8)
    places = torch.tensor([2, 3, 4, 5, 0, 17])
    read(reader.field("images"), np.array([3, 4, 5, 6, 9, 8]), memory_of(out), places.numpy() * ROW_BYTES)
    assert torch.equal(out[places], images[[3, 4, 5, 6, 9, 8]])
    assert not out[[1, *range(6, 17)]].any()


def test_every_kind_of_run_is_read(reader: RowReader, images: Tensor) -> None:
    for rows in (ROWS, torch.arange(18), torch.arange(17, -1, -1), torch.tensor([], dtype=torch.int64)):
        out = reader.gather("images", rows)
        assert torch.equal(out, images[rows])
        for size in (1, 4, 40):
            parts = in_parts(reader, rows, size)
            assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
            assert torch.equal(torch.cat([out[:0], *parts]), images[rows])


def test_joined_requests_have_a_limit(reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read_cached = field_rows._read_cached

    def counted(handle: int, out: memoryview, offset: int) -> int:
        sizes.append(len(out) // ROW_BYTES)
        return read_cached(handle, out, offset)

    monkeypatch.setattr(field_rows, "_MOST_BYTES", 2 * ROW_BYTES)
    monkeypatch.setattr(field_rows, "_read_cached", counted)
    assert torch.equal(reader.gather("images", torch.arange(9)), images[:9])
    assert sizes[:1] == [2]


def test_a_cold_batch_is_announced_from_its_first_missing_row(
    reader: RowReader, images: Tensor, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [ROW_BYTES, ROW_BYTES, 100]  # of the third row only a part is in memory, of the others nothing

    def cached(handle: int, out: memoryview, offset: int) -> int:
        size = left.pop(0) if left else 0
        return os.preadv(handle, [out[:size]], offset) if size else 0

    monkeypatch.setattr(field_rows, "_read_cached", cached)
    rows = torch.tensor([1, 8, 4, 12, 16])
    assert torch.equal(torch.cat(in_parts(reader, rows, 2)), images[rows])
    assert told == [(4 * ROW_BYTES, ROW_BYTES), (2 * ROW_BYTES, ROW_BYTES), (ROW_BYTES, ROW_BYTES)]


def test_the_row_that_cannot_be_read_is_named(dataset: Dataset, tmp_path: Path) -> None:
    shutil.copytree(dataset.path, tmp_path / "copy")
    split = open_dataset(tmp_path / "copy")["train"]
    os.truncate(split.files.opened("images", 1).path, 3 * ROW_BYTES + 5)  # of the fourth row of the second shard
    with pytest.raises(DamagedError, match=r"images of row 8 of split 'train' of .*000001/images.memmap ends at byte"):
        read(split.reader.field("images"), np.arange(18), memoryview(bytearray(18 * ROW_BYTES)))


def test_a_warm_batch_is_not_announced(dataset: Dataset, reader: RowReader, images: Tensor, told: Told) -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system cannot read without waiting")
    with open(dataset["train"].files.opened("images", 0).path, "rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(10)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"this file system cannot read without waiting: {error}")
    reader.gather("images", ROWS)
    told.clear()
    assert torch.equal(reader.gather("images", ROWS), images[ROWS])
    assert told == []


def test_a_system_without_hints_reads_the_same(
    reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert torch.equal(reader.gather("images", ROWS), images[ROWS])


def test_a_hint_that_is_refused_does_no_harm(
    reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    monkeypatch.setattr(field_rows, "_read_cached", lambda handle, out, offset: 0)
    assert torch.equal(reader.gather("images", ROWS), images[ROWS])


def test_tiers_read_cold_files_alike(dataset: Dataset, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_rows, "_read_cached", lambda handle, out, offset: 0)
    for tier in ("disk", "memory"):
        with Loader(dataset, batch_size=4, shuffle=True, tier=tier, threads=2) as loader:
            for batch in loader:
                assert torch.equal(batch.images, images[batch.ids])


def test_arrays_are_the_tensors(dataset: Dataset, reader: RowReader) -> None:
    for name in dataset["train"].fields:
        array = reader.array(name, ROWS.numpy())
        assert torch.equal(torch.from_numpy(array), reader.gather(name, ROWS))


def test_arrays_of_bfloat16_are_the_same_values_as_float32(tmp_path: Path) -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    split = open_dataset(of_tensors(tmp_path, {"train": {"features": values}}))["train"]
    array = split.reader.array("features", np.array([3, 0, 0]))
    assert array.dtype == np.float32
    assert torch.equal(torch.from_numpy(array), values[[3, 0, 0]].float())
