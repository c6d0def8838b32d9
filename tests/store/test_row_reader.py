"""Rows into memory: their places, and what the system is told before they are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from written_datasets import of_tensors

from mmload.errors import DamagedError
from mmload.remote.opening import open as open_dataset
from mmload.store import row_reader
from mmload.store.dataset import Dataset
from mmload.store.dataset_folder import OpenedFile
from mmload.store.row_reader import RowReader, memory_of

ROWS = np.array([17, 3, 4, 5, 6, 7, 0, 0, 12, 11])
ROW_BYTES = 3 * 32 * 32


@pytest.fixture
def reader(dataset: Dataset) -> RowReader:
    """Of 18 rows in shards of 5."""
    return dataset["train"].reader


def test_rows_go_to_their_places(reader: RowReader, images: Tensor) -> None:
    out = torch.zeros(18, 3, 32, 32, dtype=torch.uint8)
    places = torch.tensor([2, 3, 4, 5, 0, 17])
    field = reader.field("images")
    field.fill(field.located(np.array([3, 4, 5, 6, 9, 8])), memory_of(out), places.numpy() * ROW_BYTES)
    assert torch.equal(out[places], images[[3, 4, 5, 6, 9, 8]])
    assert not out[[1, *range(6, 17)]].any()


def test_every_kind_of_run_is_read(reader: RowReader, images: Tensor) -> None:
    field = reader.field("images")
    for rows in (ROWS, np.arange(18), np.arange(17, -1, -1), np.empty(0, np.int64)):
        assert torch.equal(reader.gather("images", rows), images[rows])
        for size in (1, 4, 40):
            scratch = torch.empty(size, 3, 32, 32, dtype=torch.uint8)
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                field.fill(field.located(part), memory_of(scratch), np.arange(len(part)) * ROW_BYTES)
                assert torch.equal(scratch[: len(part)], images[part])


def test_joined_requests_have_a_limit(reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    fill = OpenedFile.fill

    def counted(self: OpenedFile, out: memoryview, offset: int) -> None:
        sizes.append(len(out) // ROW_BYTES)
        fill(self, out, offset)

    monkeypatch.setattr(row_reader, "_MOST_BYTES", 2 * ROW_BYTES)
    monkeypatch.setattr(OpenedFile, "fill", counted)
    assert torch.equal(reader.gather("images", np.arange(9)), images[:9])
    assert sizes[:1] == [2]


def test_the_file_that_was_truncated_is_named(copy: Path) -> None:
    split = open_dataset(copy)["train"]
    os.truncate(split.files.opened("images", 1).path, 3 * ROW_BYTES + 5)
    with pytest.raises(DamagedError, match=r"000001/images.memmap is damaged: it ends at byte 9221, .*truncated"):
        split[:]


def test_a_batch_of_several_ranges_is_announced_and_a_single_range_is_not(
    reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system has no posix_fadvise")
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda handle, offset, size, advice: told.append((offset, size)))
    for rows, expected in (([1, 8, 4], [(3, 1), (4, 1)]), ([6, 7, 8], [])):
        told.clear()
        assert torch.equal(reader.gather("images", np.array(rows)), images[rows])
        assert told == [(offset * ROW_BYTES, count * ROW_BYTES) for offset, count in expected]


def test_a_system_without_hints_or_that_refuses_them_reads_the_same(
    reader: RowReader, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    assert torch.equal(reader.gather("images", ROWS), images[ROWS])
    monkeypatch.delattr(os, "posix_fadvise")
    assert torch.equal(reader.gather("images", ROWS), images[ROWS])


def test_arrays_are_the_tensors(dataset: Dataset, reader: RowReader) -> None:
    for name in dataset["train"].fields:
        array = reader.array(name, ROWS)
        assert torch.equal(torch.from_numpy(array), reader.gather(name, ROWS))


def test_arrays_of_bfloat16_are_the_same_values_as_float32(tmp_path: Path) -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    split = open_dataset(of_tensors(tmp_path, {"train": {"features": values}}))["train"]
    array = split.reader.array("features", np.array([3, 0, 0]))
    assert array.dtype == np.float32
    assert torch.equal(torch.from_numpy(array), values[[3, 0, 0]].float())
