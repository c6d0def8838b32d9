"""Rows where they lie in mapped files, and what happens when these change under their reader."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_program import run_program
from variable_datasets import some_images, variable_dataset
from written_datasets import of_tensors

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.errors import MmloadError
from mmload.loader import tiers
from mmload.runtime import resident_pages
from mmload.runtime.resident_pages import SEGMENT_BYTES, can_populate, file_type, needs_reads
from mmload.store import dataset_folder
from mmload.store import row_reader as row_map_module
from mmload.store.dataset import Dataset
from mmload.store.row_reader import Places, PreparedRows, RowMap, row_map

pytestmark = pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps")

ROWS = 40


def squares(path: Path, side: int, shards: int = 3, rows: int = ROWS) -> Dataset:
    """A dataset in shards whose files are no whole pages."""
    images = torch.randint(1, 256, (rows, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = [of_tensors(path / f"part{k}", {"train": {"images": images[k::shards]}}) for k in range(shards)]
    return [mmload.open(part) for part in parts]  # type: ignore[return-value]


def evict(folder: Path) -> None:
    """Evicts the images of a dataset that no process has mapped from the page cache."""
    for path in folder.rglob("images.memmap"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def brought_in(mapped: RowMap, places: Places) -> PreparedRows:
    """Rows that are in memory."""
    prepared = mapped.prepare(places, lambda _, error: error)
    mapped.wait(prepared, slice(None))
    return prepared


@pytest.mark.parametrize("side", [5, 32, 85, 130])
def test_rows_of_joined_splits_lie_where_they_are_located(tmp_path: Path, side: int) -> None:
    parts = [part["train"] for part in squares(tmp_path, side)]  # type: ignore[call-overload]
    joined = mmload.Loader(torch.utils.data.ConcatDataset(parts)).split
    rows = np.random.default_rng(0).permutation(ROWS)
    row_bytes = 3 * side * side
    mapped = row_map(joined.reader.field("images"))
    assert mapped is not None
    for _ in range(2):
        prepared = brought_in(mapped, joined.reader.field("images").located(rows))
        starts, absent = prepared.starts, prepared.absent
        assert (starts % row_bytes == 0).all()
        found = np.stack([mapped.memory[start : start + row_bytes] for start in starts.tolist()])
        expected = joined.reader.gather("images", rows).reshape(ROWS, -1)
        assert np.array_equal(found, expected.numpy())
    assert not absent.any()


@pytest.mark.parametrize("batch_size", [1, 7])
def test_mapped_batches_equal_read_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    parts = torch.utils.data.ConcatDataset([part["train"] for part in squares(tmp_path, 45)])  # type: ignore[call-overload]
    photographs = mmload.open(variable_dataset(tmp_path / "mixed", some_images(), encoding="mixed"))["train"]

    def batches() -> list[torch.Tensor]:
        found = []
        for rows, collate in (
            (parts, mmload.Collate(RandomCrop(40))),
            (photographs, mmload.Collate(RandomResizedCrop(9))),
        ):
            with mmload.Loader(rows, batch_size=batch_size, shuffle=True, collate=collate, tier="disk") as loader:
                found += [batch.images for batch in loader]
        return found

    mapped = batches()
    monkeypatch.setattr(tiers, "row_map", lambda *_: None)
    read = batches()
    assert all(torch.equal(one, other) for one, other in zip(mapped, read, strict=True))


def test_small_rows_come_with_their_neighbors(tmp_path: Path) -> None:
    count = 3 * SEGMENT_BYTES // (3 * 32 * 32)
    split = squares(tmp_path, 32, shards=1, rows=count)[0]["train"]  # type: ignore[index]
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None

    def prepare(rows: list[int]) -> int:
        """How many of the rows had to be read."""
        places = split.reader.field("images").located(np.array(rows))
        return np.count_nonzero(brought_in(mapped, places).absent)

    assert prepare([0]) == 1
    assert prepare([1, 2, count - 1]) == 1
    assert prepare([0, 1, count - 1]) == 0


def test_evicted_rows_are_counted_and_come_back(tmp_path: Path) -> None:
    split = squares(tmp_path, 200, shards=1)[0]["train"]  # type: ignore[index]
    evict(tmp_path)
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    places = split.reader.field("images").located(np.arange(ROWS))
    prepared = brought_in(mapped, places)
    if not prepared.absent.any():
        pytest.skip("this file system does not evict")
    expected = split.reader.array("images", np.arange(ROWS)).reshape(ROWS, -1)
    assert all(
        np.array_equal(mapped.memory[s : s + 120_000], row)
        for s, row in zip(prepared.starts.tolist(), expected, strict=True)
    )
    assert not brought_in(mapped, places).absent.any()


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_are_read_again_and_again_are_evicted_at_once(tmp_path: Path, times: int) -> None:
    rows = squares(tmp_path, 200, shards=1)[0]["train"].reader.field("images")  # type: ignore[index]
    mapped = row_map(rows)
    assert mapped is not None

    def epoch(is_evicted: bool = False) -> int:
        """Uses all rows, each so many times in succession; returns how many of them had to be read."""
        if is_evicted:
            resident_pages.advise(mapped.memory.ctypes.data, len(mapped.memory), resident_pages.DONTNEED)
            evict(tmp_path)  # pages that are mapped would stay
        prepared = brought_in(mapped, rows.located(np.arange(ROWS).repeat(times)))
        mapped.release(prepared)
        return np.count_nonzero(prepared.absent.reshape(ROWS, times).any(1))

    if epoch(is_evicted=True) != ROWS:
        pytest.skip("this file system does not evict")
    assert [epoch() for _ in range(4)] == [0, 0, 0, 0]
    assert epoch(is_evicted=True) == ROWS
    assert epoch() == 0  # an eviction is forgiven then
    assert epoch(is_evicted=True) == ROWS
    missing = [epoch() for _ in range(3)]
    assert missing[0] == ROWS * 7 // 8
    assert missing == sorted(missing, reverse=True)
    assert missing[-1] > 0
    found = [epoch() for _ in range(30)]
    assert found[-1] == 0  # what is kept stays


def test_ranks_that_read_a_part_each_evict_after_their_part(tmp_path: Path) -> None:
    rows = squares(tmp_path, 200, shards=1)[0]["train"].reader.field("images")  # type: ignore[index]
    for ranks, missing in ((1, 0), (4, 8)):
        mapped = row_map(rows, ranks)
        assert mapped is not None
        for _ in range(2):
            resident_pages.advise(mapped.memory.ctypes.data, len(mapped.memory), resident_pages.DONTNEED)
            evict(tmp_path)
            prepared = brought_in(mapped, rows.located(np.arange(ROWS // 4)))
            if not prepared.absent.all():
                pytest.skip("this file system does not evict")
            mapped.release(prepared)
        assert np.count_nonzero(brought_in(mapped, rows.located(np.arange(ROWS // 4))).absent) == missing


def test_windows_of_rows_that_grow_are_not_taken_for_evicted_rows(tmp_path: Path) -> None:
    rows = squares(tmp_path, 200, shards=1)[0]["train"].reader.field("images")  # type: ignore[index]
    evict(tmp_path)
    mapped = row_map(rows)
    assert mapped is not None
    for share in (0.25, 0.5, 0.75, 1):
        places = rows.located(np.arange(ROWS))
        places["bytes"] = places["bytes"] * share
        prepared = brought_in(mapped, places)
        if not prepared.absent.all():
            pytest.skip("this file system does not evict, or reads more than it is asked to")
        mapped.release(prepared)
    assert not brought_in(mapped, rows.located(np.arange(ROWS))).absent.any()


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
    split = mmload.open(mounted / "squares")["train"]
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    places = split.reader.field("images").located(np.arange(ROWS))
    mapped.prepare(places[:1], lambda _, error: error)
    os.kill(_server_of(mounted), signal.SIGKILL)
    with pytest.raises(MmloadError, match=r"images\.memmap"):
        brought_in(mapped, places)  # the state of the file is cached for a second, its bytes are not


def test_a_file_system_that_goes_is_an_error_of_mmload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def revision_of(state: os.stat_result) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    split = squares(tmp_path, 200, shards=1)[0]["train"]  # type: ignore[index]
    monkeypatch.setattr(row_map_module, "_tells_residency", lambda _: False)
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    prepared = mapped.prepare(split.reader.field("images").located(np.arange(ROWS)), lambda _, error: error)
    os.truncate(next(tmp_path.rglob("images.memmap")), 4096)
    monkeypatch.setattr(dataset_folder, "revision_of", revision_of)
    for use in (lambda: mapped.wait(prepared, slice(None)), lambda: mapped.populate()):
        with pytest.raises(MmloadError, match=r"cannot read the state of .*images\.memmap \(Transport endpoint"):
            use()


def test_a_row_that_is_cut_off_is_named_in_a_later_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = squares(tmp_path, 200, shards=1)[0]["train"]  # type: ignore[index]
    monkeypatch.setattr(row_map_module, "_tells_residency", lambda _: False)
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    places = split.reader.field("images").located(np.arange(ROWS))
    prepared = mapped.prepare(places, lambda row, error: MmloadError(f"row {row}: {error}"))
    os.truncate(next(tmp_path.rglob("images.memmap")), 12 * 120_000)
    mapped.wait(prepared, slice(8, 12))
    with pytest.raises(MmloadError, match=r"^row 12: .*images\.memmap is damaged: it ends at byte 1440000"):
        mapped.wait(prepared, slice(10, 20))


def _server_of(mounted: Path) -> int:
    """Returns the process that serves a mounted folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[:1] == [b"bindfs"] and str(mounted).encode() in path.read_bytes():
                return int(path.parent.name)
    raise RuntimeError("bindfs does not run")


def test_file_systems_that_are_not_known_are_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with open(tmp_path / "file", "rb") as file, open("/proc/self/stat", "rb") as other:
        assert needs_reads(other.fileno())
        expected = file_type(file.fileno()) not in resident_pages._LOCAL
        assert needs_reads(file.fileno()) == expected
        monkeypatch.setattr(resident_pages, "_LOCAL", frozenset({file_type(file.fileno())}))
        assert not needs_reads(file.fileno())
        monkeypatch.setattr(resident_pages, "_LOCAL", frozenset())
        assert needs_reads(file.fileno())
    assert needs_reads(-1)


@pytest.mark.parametrize("side", [32, 450])
def test_rows_that_are_read_by_ranges_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    split = squares(tmp_path, side, shards=1)[0]["train"]  # type: ignore[index]
    expected = split.reader.array("images", np.arange(ROWS)).reshape(ROWS, -1)
    monkeypatch.setattr(resident_pages, "_LOCAL", frozenset())
    for populates in (False, True):
        evict(tmp_path)
        mapped = row_map(split.reader.field("images"))
        assert mapped is not None
        assert not populates or mapped.populate().startswith("populated")
        starts = brought_in(mapped, split.reader.field("images").located(np.arange(ROWS))).starts
        for start, row in zip(starts.tolist(), expected, strict=True):
            assert np.array_equal(mapped.memory[start : start + len(row)], row)


def test_files_that_cannot_be_mapped_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = squares(tmp_path, 32, shards=1)[0]["train"]  # type: ignore[index]
    monkeypatch.setattr(row_map_module, "MOST_FILES", 0)
    assert row_map(split.reader.field("images")) is None
    monkeypatch.setattr(row_map_module, "MOST_FILES", 9)
    assert row_map(split.reader.field("images")) is not None
    with monkeypatch.context() as patch:
        patch.setattr(row_map_module, "system_mmap", lambda: lambda *_: row_map_module._FAILED)
        assert row_map(split.reader.field("images")) is None
    os.truncate(next(tmp_path.rglob("images.memmap")), 100)
    assert row_map(split.reader.field("images")) is None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_reserved_beyond_the_limit_of_address_space_names_it() -> None:
    limited = (
        "import resource; from mmload.store.row_reader import reserved; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); reserved(2**41)"
    )
    done = run_program(limited)
    assert done.returncode == 1
    assert "StoreError: rows of 2,048.0 GiB cannot be mapped" in done.stderr
    assert "ulimit -v" in done.stderr
