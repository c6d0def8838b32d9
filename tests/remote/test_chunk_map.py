"""Chunks that are mapped while they are in use: rows are right, and no map outlives its use for long."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_datasets import map_of
from variable_datasets import some_images, variable_dataset
from waiting import until
from written_datasets import of_tensors

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.errors import DamagedError, StoreError
from mmload.remote import chunk_map as chunk_map_module
from mmload.remote.chunk_map import ChunkMap
from mmload.remote.copies import push
from mmload.runtime.resident_pages import can_populate
from mmload.store import dataset_folder
from mmload.store.dataset import Split
from mmload.store.dataset_folder import PreparedRows

pytest.importorskip("obstore", reason="object storage needs obstore")

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps"),
]

ROWS = 40
LAYOUTS = ("one row", "some rows", "many rows", "raw", "mixed")


def dataset(path: Path, layout: str) -> tuple[Split, mmload.Collate]:
    """A dataset whose chunks have two rows, or more, and what makes its images one size."""
    if layout in ("raw", "mixed"):
        images = some_images([(150 + 31 * k % 90, 150) if k % 4 > 1 else (20 + k // 2, 60) for k in range(ROWS)])
        built = variable_dataset(path, images, encoding=layout, shard_rows=11)
        return mmload.open(built)["train"], mmload.Collate(RandomResizedCrop(24))
    side, count = {"one row": (165, ROWS), "some rows": (80, ROWS), "many rows": (12, 700)}[layout]
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    return mmload.open(of_tensors(path, {"train": {"images": images}}))["train"], mmload.Collate(RandomCrop(side - 3))


def remote(tmp_path: Path, limit: int | None = None) -> Split:
    """The dataset in a folder, through a cache."""
    return mmload.open(f"file://{tmp_path}/pushed", cache=tmp_path / "cache", cache_limit=limit)["train"]


def mapped_chunks(cache: Path) -> int:
    """How many files of chunks of a cache this process has mapped."""
    return sum(str(cache) in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())


def prepared(rows: ChunkMap, split: Split, numbers: list[int]) -> tuple[PreparedRows, list[np.ndarray]]:
    """Prepared rows, and their bytes where they lie."""
    places = split.reader.field("images").located(np.array(numbers))
    found = rows.prepare(places)
    rows.wait(found, slice(None))
    sizes = places["bytes"].tolist()
    return found, [rows.memory[start : start + size] for start, size in zip(found.starts.tolist(), sizes, strict=True)]


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ChunkMap, Split, Split]:
    """The map of a dataset whose chunks stay mapped for two more, the same dataset as it is read, and locally."""
    monkeypatch.setattr(chunk_map_module, "MOST_IDLE", 2)
    local, _ = dataset(tmp_path / "local", "one row")
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    split = remote(tmp_path)
    return map_of({"train": split}), split, local  # type: ignore[arg-type]  # it is only asked for


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_limited", [False, True])
def test_chunk_map_batches_are_those_of_the_local_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, is_limited: bool
) -> None:
    monkeypatch.setattr(chunk_map_module, "MOST_IDLE", 1)
    local, collate = dataset(tmp_path / "local", layout)
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    size = sum(path.stat().st_size for path in (tmp_path / "local").rglob("*.memmap"))
    through = remote(tmp_path, size // 2 if is_limited else None)
    plain = [] if layout in ("raw", "mixed") else [(7, None)]
    for batch_size, chosen in [(7, collate), (600, collate), *plain]:
        options = {"batch_size": batch_size, "shuffle": True, "threads": 2, "collate": chosen, "tier": "disk"}
        found = []
        for split in (local, through):
            with mmload.Loader(split, **options) as loader:  # type: ignore[arg-type]  # of mixed types
                found.append(torch.cat([batch.images.flatten(1) for _ in range(2) for batch in loader]))
        assert torch.equal(*found)
    assert mapped_chunks(tmp_path) <= 2


def test_what_a_batch_uses_stays_mapped_until_it_is_released(
    mapped: tuple[ChunkMap, Split, Split], tmp_path: Path
) -> None:
    rows, split, local = mapped
    held = [(numbers, *prepared(rows, split, numbers)) for numbers in ([3, 1, 4, 1], [5], list(range(ROWS)), [39, 0])]
    for path in tmp_path.rglob("*.chunk"):
        path.unlink()  # as another process may
    for numbers, batch, found in held:
        for number, row in zip(numbers, found, strict=True):
            assert np.array_equal(row, local[number].images.flatten().numpy())
        assert mapped_chunks(tmp_path) >= 2
        rows.release(batch)
    assert mapped_chunks(tmp_path) == 2
    _, (row,) = prepared(rows, split, [20])
    assert np.array_equal(row, local[20].images.flatten().numpy())


def test_a_batch_that_was_given_up_is_let_go_of(mapped: tuple[ChunkMap, Split, Split], tmp_path: Path) -> None:
    rows, split, _ = mapped
    prepared(rows, split, list(range(20)))
    rows.release(prepared(rows, split, [39])[0])
    assert mapped_chunks(tmp_path) == 2


def test_a_batch_is_given_up_without_the_lock_of_the_map(mapped: tuple[ChunkMap, Split, Split]) -> None:
    """The garbage collector does so in any thread, also while another one has the lock and waits for that thread."""
    rows, split, _ = mapped
    given_up = [prepared(rows, split, [3, 9])]
    with rows._lock:
        thread = threading.Thread(target=given_up.clear, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()


def test_a_damaged_chunk_is_an_error_of_each_batch_and_others_are_read(
    mapped: tuple[ChunkMap, Split, Split], tmp_path: Path
) -> None:
    rows, split, local = mapped
    with open(next((tmp_path / "pushed").rglob("images.memmap")), "r+b") as file:
        file.seek(5 * 81675)
        file.write(bytes(100))
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"images.memmap is damaged after byte 326,700"):
            prepared(rows, split, [30, 4])
        batch, (row,) = prepared(rows, split, [30])
        assert np.array_equal(row, local[30].images.flatten().numpy())
        rows.release(batch)


def test_prefetch_stays_a_window_ahead_and_ends(
    mapped: tuple[ChunkMap, Split, Split], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows, split, _ = mapped
    monkeypatch.setattr(chunk_map_module, "CHUNKS_OF_WINDOW", 3)
    coming = (chunk for chunk in range(20))
    rows.begin_epoch(coming)
    for used in range(5):
        rows.release(prepared(rows, split, [2 * used])[0])
    assert rows.files.fetched_bytes <= 9 * 2 * 81675
    del coming
    rows.begin_epoch(chunk for chunk in ())  # what was fetched ahead is in use no longer, once that ends
    until(lambda: not rows._arriving)
    rows.release(prepared(rows, split, [39])[0])
    assert mapped_chunks(tmp_path) <= 2
    assert rows.files.fetched_bytes <= 13 * 2 * 81675


def test_a_chunk_that_cannot_be_unmapped_is_an_error_and_no_wait(
    mapped: tuple[ChunkMap, Split, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the system's limit of maps."""
    rows, split, local = mapped
    real = chunk_map_module.map_over

    def failing(address: int, size: int, handle: int, path: Path) -> None:
        if handle == dataset_folder.NO_HANDLE:
            raise StoreError("no more maps")
        real(address, size, handle, path)

    with monkeypatch.context() as patch:
        patch.setattr(chunk_map_module, "map_over", failing)
        batch, _ = prepared(rows, split, list(range(10)))
        with pytest.raises(StoreError, match="no more maps"):
            rows.release(batch)
        rows.begin_epoch(coming := (chunk for chunk in range(10, 20)))
        until(lambda: not rows._threads)
    for numbers in ([0, 39], list(range(ROWS))):
        batch, found = prepared(rows, split, numbers)
        for number, row in zip(numbers, found, strict=True):
            assert np.array_equal(row, local[number].images.flatten().numpy())
        rows.release(batch)
    del coming


def test_threads_end_after_an_error_of_an_order(mapped: tuple[ChunkMap, Split, Split]) -> None:
    rows, split, _ = mapped
    rows.begin_epoch(coming := (chunk // 0 for chunk in range(9)))
    until(lambda: not rows._threads)
    prepared(rows, split, [3])
    assert coming is not None


def test_a_prefetch_that_fails_stays_a_window_ahead(
    mapped: tuple[ChunkMap, Split, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not have the rest of an epoch downloaded."""
    rows, split, local = mapped
    monkeypatch.setattr(chunk_map_module, "CHUNKS_OF_WINDOW", 3)
    rows.release(prepared(rows, split, [39])[0])  # and the checksums are there
    fetched = rows.files.fetched_bytes
    with monkeypatch.context() as patch:
        patch.setattr(rows.files.cache, "write", lambda *given, **options: 1 / 0)
        rows.begin_epoch(coming := (chunk for chunk in range(20)))
        until(lambda: not rows._threads)
    assert rows.files.fetched_bytes == fetched + 3 * 2 * 81675
    for number in range(ROWS):
        batch, (row,) = prepared(rows, split, [number])
        assert np.array_equal(row, local[number].images.flatten().numpy())
        rows.release(batch)
    del coming


def test_an_interrupted_batch_ends_no_use_by_another(
    mapped: tuple[ChunkMap, Split, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, split, local = mapped

    class Interrupted:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *error: object) -> None:
            pass

    batch, (row,) = prepared(rows, split, [4])
    with monkeypatch.context() as patch:
        patch.setattr(rows, "_lock", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            rows.prepare(split.reader.field("images").located(np.array([4])))
    rows.release(prepared(rows, split, list(range(6, ROWS)))[0])
    assert np.array_equal(row, local[4].images.flatten().numpy())
    rows.release(batch)
