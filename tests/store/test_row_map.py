"""Rows where they lie in mapped files, and what happens when these change under their reader."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from forked_program import run_program
from variable_datasets import some_images, variable_dataset
from written_datasets import of_tensors

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.errors import MmloadError
from mmload.runtime import resident_pages
from mmload.runtime.resident_pages import SEGMENT_BYTES, can_populate, needs_reads
from mmload.store import dataset_folder
from mmload.store.dataset import Split
from mmload.store.dataset_folder import Places, PreparedRows, RowMap, map_over, reserved
from mmload.store.row_reader import Rows

pytestmark = pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps")

ROWS = 40


def squares(path: Path, side: int, shards: int = 1, rows: int = ROWS) -> list[Split]:
    """Datasets, each of one shard whose files are no whole pages."""
    images = torch.randint(1, 256, (rows, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = [of_tensors(path / f"part{k}", {"train": {"images": images[k::shards]}}) for k in range(shards)]
    return [mmload.open(part)["train"] for part in parts]


def mapped_images(split: Any, ranks: int = 1) -> tuple[Rows, RowMap]:
    """The images of a split, and their map."""
    rows = split.reader.field("images")
    mapped = rows.mapped(ranks)
    assert isinstance(mapped, RowMap)
    return rows, mapped


def evict(folder: Path) -> None:
    """Evicts the images of a dataset that no process has mapped from the page cache."""
    for path in folder.rglob("images.memmap"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def brought_in(mapped: RowMap, places: Places) -> PreparedRows:
    """Rows that are in memory."""
    prepared = mapped.prepare(places)
    mapped.wait(prepared, slice(None))
    return prepared


def missing(mapped: RowMap, places: Places) -> int:
    """How many of the rows have to be read; then they are used."""
    prepared = brought_in(mapped, places)
    mapped.release(prepared)
    return np.count_nonzero(prepared.absent)


def assert_rows(mapped: RowMap, prepared: PreparedRows, expected: np.ndarray) -> None:
    """Checks the bytes where the rows lie."""
    for start, row in zip(prepared.starts.tolist(), expected.reshape(len(expected), -1), strict=True):
        assert np.array_equal(mapped.memory[start : start + len(row)], row)


def evict_mapped(mapped: RowMap, folder: Path) -> None:
    """Evicts images that this process has mapped, whose pages would stay."""
    resident_pages.advise(mapped.memory.ctypes.data, len(mapped.memory), resident_pages.DONTNEED)
    evict(folder)


@pytest.mark.parametrize("side", [5, 32, 85, 130])
def test_rows_of_joined_splits_lie_where_they_are_located(tmp_path: Path, side: int) -> None:
    joined = mmload.Loader(torch.utils.data.ConcatDataset(squares(tmp_path, side, shards=3))).split
    order = np.random.default_rng(0).permutation(ROWS)
    rows, mapped = mapped_images(joined)
    for _ in range(2):
        prepared = brought_in(mapped, rows.located(order))
        assert (prepared.starts % (3 * side * side) == 0).all()
        assert_rows(mapped, prepared, joined.reader.array("images", order))
    assert not prepared.absent.any()


@pytest.mark.parametrize("batch_size", [1, 7])
def test_mapped_batches_equal_read_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    parts = torch.utils.data.ConcatDataset(squares(tmp_path, 45, shards=3))
    photographs = mmload.open(variable_dataset(tmp_path / "mixed", some_images(), encoding="mixed"))["train"]

    def batches() -> list[torch.Tensor]:
        found = []
        for rows, step in ((parts, RandomCrop(40)), (photographs, RandomResizedCrop(9))):
            loader = mmload.Loader(rows, batch_size=batch_size, shuffle=True, collate=[step], tier="disk")
            found += [batch.images for batch in loader]
        return found

    mapped = batches()
    monkeypatch.setattr(resident_pages, "can_populate", lambda: False)
    assert all(map(torch.equal, mapped, batches()))


def test_small_rows_come_with_their_neighbors(tmp_path: Path) -> None:
    count = 3 * SEGMENT_BYTES // (3 * 32 * 32)
    rows, mapped = mapped_images(*squares(tmp_path, 32, rows=count))
    for numbers, expected in (([0], 1), ([1, 2, count - 1], 1), ([0, 1, count - 1], 0)):
        assert missing(mapped, rows.located(np.array(numbers))) == expected


def test_evicted_rows_are_counted_and_come_back(tmp_path: Path) -> None:
    (split,) = squares(tmp_path, 200)
    evict(tmp_path)
    rows, mapped = mapped_images(split)
    places = rows.located(np.arange(ROWS))
    prepared = brought_in(mapped, places)
    if not prepared.absent.any():
        pytest.skip("this file system does not evict")
    assert_rows(mapped, prepared, split.reader.array("images", np.arange(ROWS)))
    assert not brought_in(mapped, places).absent.any()


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_are_read_again_and_again_are_evicted_at_once(tmp_path: Path, times: int) -> None:
    rows, mapped = mapped_images(*squares(tmp_path, 200))

    def epoch(is_evicted: bool = False) -> int:
        """Uses all rows, each so many times in succession; returns how many of them had to be read."""
        if is_evicted:
            evict_mapped(mapped, tmp_path)
        prepared = brought_in(mapped, rows.located(np.arange(ROWS).repeat(times)))
        mapped.release(prepared)
        return np.count_nonzero(prepared.absent.reshape(ROWS, times).any(1))

    if epoch(is_evicted=True) != ROWS:
        pytest.skip("this file system does not evict")
    assert [epoch() for _ in range(4)] == [0, 0, 0, 0]
    assert epoch(is_evicted=True) == ROWS
    assert epoch() == 0  # an eviction is forgiven then
    assert epoch(is_evicted=True) == ROWS
    absent = [epoch() for _ in range(33)]
    assert absent[0] == ROWS * 7 // 8 >= absent[1] >= absent[2] > 0
    assert absent[-1] == 0  # what is kept stays


@pytest.mark.parametrize(("ranks", "evicted"), [(1, 0), (4, 8)])
def test_ranks_that_read_a_part_each_evict_after_their_part(tmp_path: Path, ranks: int, evicted: int) -> None:
    rows, mapped = mapped_images(*squares(tmp_path, 200), ranks=ranks)
    part = rows.located(np.arange(ROWS // 4))
    for _ in range(2):
        evict_mapped(mapped, tmp_path)
        if missing(mapped, part) != len(part):
            pytest.skip("this file system does not evict")
    assert missing(mapped, part) == evicted


def test_windows_of_rows_that_grow_are_not_taken_for_evicted_rows(tmp_path: Path) -> None:
    (split,) = squares(tmp_path, 200)
    evict(tmp_path)
    rows, mapped = mapped_images(split)
    for share in (0.25, 0.5, 0.75, 1):
        places = rows.located(np.arange(ROWS))
        places["bytes"] = places["bytes"] * share
        if missing(mapped, places) != ROWS:
            pytest.skip("this file system does not evict, or reads more than it is asked to")
    assert missing(mapped, rows.located(np.arange(ROWS))) == 0


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder that is reached by FUSE; its files are in the folder "behind"."""
    if shutil.which("bindfs") is None or shutil.which("fusermount3") is None:
        pytest.skip("bindfs is not installed")
    behind, place = tmp_path / "behind", tmp_path / "mounted"
    behind.mkdir()
    place.mkdir()
    done = subprocess.run(["bindfs", str(behind), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["fusermount3", "-u", "-z", str(place)], capture_output=True, check=False)


@pytest.mark.parametrize("tier", ["disk", "memory"])
@pytest.mark.parametrize("side", [32, 256])
def test_rows_of_a_fuse_file_system_are_mapped(mounted: Path, tier: str, side: int) -> None:
    images = torch.randint(0, 256, (ROWS, 3, side, side), dtype=torch.uint8)
    of_tensors(mounted.with_name("behind") / "squares", {"train": {"images": images}})
    split = mmload.open(mounted / "squares")["train"]
    handle = os.open(next(mounted.rglob("images.memmap")), os.O_RDONLY)
    assert needs_reads(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    with mmload.Loader(split, batch_size=8, tier=tier) as loader:
        for _ in range(2):
            assert torch.equal(torch.cat([batch.images for batch in loader]), images)
    os.truncate(next(mounted.rglob("images.memmap")), 4096)
    with pytest.raises(MmloadError, match=r"images\.memmap"):
        for _ in mmload.Loader(split, batch_size=8, tier="disk"):
            pass


def test_a_fuse_file_system_that_ends_under_a_loader_is_an_error(mounted: Path) -> None:
    images = torch.randint(0, 256, (ROWS, 3, 200, 200), dtype=torch.uint8)
    of_tensors(mounted.with_name("behind") / "squares", {"train": {"images": images}})
    rows, mapped = mapped_images(mmload.open(mounted / "squares")["train"])
    places = rows.located(np.arange(ROWS))
    mapped.prepare(places[:1])
    words = ((process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    next(process for process, line in words if line[:1] == ["bindfs"] and str(mounted) in line).kill()
    with pytest.raises(MmloadError, match=r"images\.memmap"):
        brought_in(mapped, places)  # the state of the file is cached for a second, its bytes are not


def test_a_file_system_that_goes_is_an_error_of_mmload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def revision_of(state: os.stat_result) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    monkeypatch.setattr(dataset_folder, "_tells_residency", lambda _: False)
    rows, mapped = mapped_images(*squares(tmp_path, 200))
    prepared = mapped.prepare(rows.located(np.arange(ROWS)))
    os.truncate(next(tmp_path.rglob("images.memmap")), 4096)
    monkeypatch.setattr(dataset_folder, "revision_of", revision_of)
    for use in (lambda: mapped.wait(prepared, slice(None)), lambda: mapped.populate()):
        with pytest.raises(MmloadError, match=r"cannot read the state of .*images\.memmap \(Transport endpoint"):
            use()


def test_the_file_of_a_row_that_is_cut_off_is_named_in_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_folder, "_tells_residency", lambda _: False)
    rows, mapped = mapped_images(*squares(tmp_path, 200))
    prepared = mapped.prepare(rows.located(np.arange(ROWS)))
    os.truncate(next(tmp_path.rglob("images.memmap")), 12 * 120_000)
    mapped.wait(prepared, slice(8, 12))
    with pytest.raises(MmloadError, match=r"images\.memmap is damaged: it ends at byte 1440000"):
        mapped.wait(prepared, slice(10, 20))


def test_file_systems_that_are_not_known_are_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with open(tmp_path / "file", "rb") as file, open("/proc/self/stat", "rb") as other:
        assert needs_reads(other.fileno())
        monkeypatch.setattr(resident_pages, "_LOCAL", range(2**32))
        assert not needs_reads(file.fileno())
        monkeypatch.setattr(resident_pages, "_LOCAL", frozenset())
        assert needs_reads(file.fileno())
    assert needs_reads(-1)


@pytest.mark.parametrize("side", [32, 450])
def test_rows_that_are_read_by_ranges_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    (split,) = squares(tmp_path, side)
    expected = split.reader.array("images", np.arange(ROWS))
    monkeypatch.setattr(resident_pages, "_LOCAL", frozenset())
    for populates in (False, True):
        evict(tmp_path)
        rows, mapped = mapped_images(split)
        assert not populates or mapped.populate().startswith("populated")
        assert_rows(mapped, brought_in(mapped, rows.located(np.arange(ROWS))), expected)


def test_files_that_cannot_be_mapped_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (split,) = squares(tmp_path, 32)
    rows, _ = mapped_images(split)
    for name, value in (("MOST_FILES", 0), ("system_mmap", lambda: lambda *_: None)):
        with monkeypatch.context() as patch:
            patch.setattr(dataset_folder, name, value)
            assert rows.mapped() is None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_reserved_beyond_the_limit_of_address_space_names_it() -> None:
    limited = (
        "import resource; from mmload.store.dataset_folder import reserved; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); reserved(2**41)"
    )
    done = run_program(limited)
    assert done.returncode == 1
    assert "StoreError: rows of 2,048.0 GiB cannot be mapped" in done.stderr
    assert "ulimit -v" in done.stderr


def test_a_map_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    size = 2**42
    with open(tmp_path / "hole", "w+b") as file:
        try:
            file.truncate(size)
        except OSError as error:
            pytest.skip(f"no such large files here: {error}")
        memory = reserved(size)
        map_over(memory.ctypes.data, size, file.fileno(), file.name)
        assert memory[-1] == 0
