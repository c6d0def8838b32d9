"""Blocks of object storage that are mapped for a batch: the rows are right, and no map outlives its batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cached_datasets import end_all
from variable_datasets import some_images, variable_dataset
from written_datasets import of_tensors

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.errors import DamagedError, StoreError
from mmload.remote import block_map as block_map_module
from mmload.remote.block_map import BlockMap, block_map
from mmload.remote.copies import push
from mmload.runtime.resident_pages import can_populate
from mmload.store.dataset import Split
from mmload.store.row_map import PreparedRows

pytest.importorskip("obstore", reason="object storage needs obstore")

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps"),
]

ROWS = 40
LAYOUTS = ("one row", "some rows", "many rows", "raw", "mixed")


def dataset(path: Path, layout: str) -> tuple[Split, mmload.Collate]:
    """A dataset whose blocks are one row, or some, and what makes its images one size."""
    if layout in ("raw", "mixed"):
        images = some_images([(150 + 31 * k % 90, 150) if k % 4 > 1 else (20 + k // 2, 60) for k in range(ROWS)])
        built = variable_dataset(path, images, encoding=layout, shard_rows=11)
        return mmload.open(built)["train"], mmload.Collate(RandomResizedCrop(24))
    side, count = {"one row": (160, ROWS), "some rows": (80, ROWS), "many rows": (12, 700)}[layout]
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    return mmload.open(of_tensors(path, {"train": {"images": images}}))["train"], mmload.Collate(RandomCrop(side - 3))


def remote(tmp_path: Path, limit: int | None = None) -> Split:
    """The dataset in a folder, through a cache."""
    return mmload.open(f"file://{tmp_path}/pushed", cache=tmp_path / "cache", cache_limit=limit)["train"]


def mapped_blocks() -> int:
    """How many files of blocks this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(line.endswith((".block", ".block (deleted)")) for line in lines)


def prepared(rows: BlockMap, split: Split, numbers: list[int]) -> tuple[PreparedRows, list[np.ndarray]]:
    """Prepared rows, and their bytes where they lie."""
    places = split.reader.field("images").located(np.array(numbers))
    found = rows.prepare(places, lambda _, error: error)
    sizes = places["bytes"].tolist()
    return found, [rows.memory[start : start + size] for start, size in zip(found.starts.tolist(), sizes, strict=True)]


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[BlockMap, Split, Split]:
    """The map of a dataset through a cache, and the same dataset as it is read, and locally."""
    local, _ = dataset(tmp_path / "local", "one row")
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    split = remote(tmp_path)
    rows = block_map(split.reader.field("images"))
    assert rows is not None
    return rows, split, local


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_limited", [False, True])
def test_block_map_batches_are_those_of_the_local_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, is_limited: bool
) -> None:
    monkeypatch.setattr(block_map_module, "SMALLEST_ROW", 0)
    local, collate = dataset(tmp_path / "local", layout)
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    size = sum(path.stat().st_size for path in (tmp_path / "local").rglob("*.memmap"))
    through = remote(tmp_path, size // 2 if is_limited else None)
    assert block_map(through.reader.field("images")) is not None
    for batch_size, collates in ((7, collate), (600, collate), (7, None)):
        if collates is None and layout in ("raw", "mixed"):
            continue
        found = []
        for split in (local, through):
            options = {"batch_size": batch_size, "shuffle": True, "threads": 2, "collate": collates, "tier": "disk"}
            with mmload.Loader(split, **options) as loader:
                found.append(torch.cat([batch.images.flatten(1) for _ in range(2) for batch in loader]))
        assert torch.equal(*found)
    assert mapped_blocks() == 0


def test_maps_of_a_batch_end_with_it(mapped: tuple[BlockMap, Split, Split], tmp_path: Path) -> None:
    rows, split, local = mapped
    for numbers in ([3, 1, 4, 1], [5], list(range(ROWS))):
        of_batch, found = prepared(rows, split, numbers)
        assert mapped_blocks() <= len(set(numbers))  # fewer: what had gone was fetched, and comes from memory
        for path in tmp_path.rglob("*.block"):
            path.unlink()  # as an eviction does
        for number, row in zip(numbers, found, strict=True):
            assert np.array_equal(row, local[number].images.flatten().numpy())
        rows.release(of_batch)
        assert mapped_blocks() == 0


def test_a_batch_that_was_given_up_is_let_go_of(mapped: tuple[BlockMap, Split, Split]) -> None:
    rows, split, _ = mapped
    for _ in range(2):
        prepared(rows, split, list(range(10)))
    prepared(rows, split, [0])
    assert mapped_blocks() == 1


def test_a_block_that_is_written_to_while_it_is_in_use_is_an_error(
    mapped: tuple[BlockMap, Split, Split], tmp_path: Path
) -> None:
    rows, split, local = mapped
    for _ in range(2):
        batch, (row,) = prepared(rows, split, [7])
    for path in tmp_path.rglob("*.block"):
        path.write_bytes(bytes(path.stat().st_size + 3))
    assert not row.any()
    with pytest.raises(StoreError, match=r"a block of .*cache.* was written to.* while it was in use"):
        rows.release(batch)
    batch, (row,) = prepared(rows, split, [7])
    assert np.array_equal(row, local[7].images.flatten().numpy())
    rows.release(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_that_were_written_anew_with_another_length_are_fetched_again(tmp_path: Path, layout: str) -> None:
    local, collate = dataset(tmp_path / "local", layout)
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    found, through = [], remote(tmp_path)
    for _ in range(2):
        for split in (local, through):
            with mmload.Loader(split, batch_size=8, shuffle=True, threads=1, collate=collate) as loader:
                found.append(torch.cat([batch.images for batch in loader]))
        for path in tmp_path.rglob("*.block"):
            path.write_bytes(bytes(path.stat().st_size + 1))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_damaged_block_names_its_row(tmp_path: Path) -> None:
    dataset(tmp_path / "local", "one row")
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    with open(next((tmp_path / "pushed").rglob("images.memmap")), "r+b") as file:
        file.seek(5 * 76800)
        file.write(bytes(100))
    with (
        mmload.Loader(remote(tmp_path), batch_size=4, tier="disk", threads=1) as loader,
        pytest.raises(DamagedError, match=r"images of row \d+ of split 'train' of file://.*is damaged at byte 384,000"),
    ):
        list(loader)


def test_rows_that_are_read_faster_are_not_mapped(tmp_path: Path) -> None:
    for layout in ("some rows", "mixed"):
        (tmp_path / layout).mkdir()
        local, _ = dataset(tmp_path / layout / "local", layout)
        push(tmp_path / layout / "local", f"file://{tmp_path / layout}/pushed")
        assert block_map(remote(tmp_path / layout).reader.field("images")) is None
        assert block_map(local.reader.field("images")) is None
        end_all()
    with mmload.Loader(remote(tmp_path / "some rows"), batch_size=4, tier="memory") as loader:
        list(loader)
        assert "not in memory" in loader.stats()["tier_reason"]
