"""Decoded pixels that processes share: decoded once, right after any death, never those of another dataset."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_process import OtherProcess
from torch.utils.data import DataLoader, IterableDataset
from variable_datasets import some_images, variable_dataset

import mmload
from mmload import Collate
from mmload.augment import CenterCrop
from mmload.batch import Batch
from mmload.errors import StoreError, bytes_text
from mmload.loader import Loader, arguments, shared_pixels, shared_segment
from mmload.loader.shared_segment import NotSharedError

CPU = torch.device("cpu")
ROWS, SIDE = 96, 32

shares = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system cannot share memory")


def of_one_value(path: Path, value: int) -> Path:
    """Writes a dataset of JPEGs whose pixels are all one gray, which a JPEG keeps as it is."""
    images = [np.full((3, SIDE, SIDE), value, np.uint8)] * ROWS
    return variable_dataset(path, images, encoding="jpeg", shard_rows=4)


def write_the_files_of(other: Path, path: Path) -> None:
    """Writes the rows of another dataset into the files of this one."""
    for file in path.rglob("images.bytes.memmap"):
        file.write_bytes((other / file.relative_to(path)).read_bytes())


def decoded(path: Path, **options: Any) -> Loader:
    """Returns a loader that keeps decoded pixels in memory."""
    collate = Collate(CenterCrop(SIDE), dtype=torch.uint8)
    return Loader(path, collate=collate, tier="memory", cache_pixels=True, **options)


def start(kept: dict[str, Any], path: Path, rank: int = 0, world_size: int = 1) -> None:
    kept["loader"] = decoded(path, batch_size=8, shuffle=True, threads=2, rank=rank, world_size=world_size)


def epoch(kept: dict[str, Any]) -> tuple[set[int], int, int, str]:
    """The values of all pixels of an epoch, the rows that were in memory, those that were read, and who shares them."""
    values: set[int] = set()
    for batch in kept["loader"]:
        values.update(batch.images.unique().tolist())
    stats = kept["loader"].stats()
    return values, stats["hits"], stats["misses"], stats["tier_reason"]


def die_between_rows_and_states(kept: dict[str, Any]) -> None:
    """Killed by the first batch, after a part of a row was written and none was marked."""
    written = shared_segment.Segment.write

    def half(self: shared_segment.Segment, data: memoryview, offset: int) -> None:
        written(self, data[: len(data) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)

    shared_segment.Segment.write = half  # type: ignore[method-assign]  # in this process only
    list(kept["loader"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return of_one_value(tmp_path / "sevens", 7)


@shares
def test_room_for_a_shared_copy_is_counted_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its segment, which other processes count, too."""
    monkeypatch.setattr(shared_segment, "unfilled_bytes", lambda: 1000)
    before, split = shared_pixels.unfilled_bytes(), mmload.open(path)["train"]
    copy = shared_pixels.shared_pixels(split)
    assert (copy.why_private, shared_pixels.unfilled_bytes()) == ("", before)


@shares
def test_processes_decode_each_row_once_and_see_who_shares_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = mmload.open(path)["train"]
    pixels = f"0.3 MiB of pixels, decoded from {bytes_text(arguments._stored_bytes(split))}"
    with OtherProcess() as first, OtherProcess() as second:
        first.do(start, path)
        reason = f"memory: as asked; {pixels}; "
        assert first.do(epoch) == ({7}, 0, ROWS, f"{reason}no other process reads this copy now")
        second.do(start, path)
        assert second.do(epoch) == ({7}, ROWS, 0, f"{reason}shared with 1 other process ({first.pid})")
        tier, reason, _ = arguments.choose_tier("auto", split, CPU, cache_pixels=True)
        numbers = ", ".join(map(str, sorted([first.pid, second.pid])))
        assert tier == "memory"
        assert reason == f"memory: {pixels}, which 2 other processes ({numbers}) here have already"
        monkeypatch.setattr(shared_pixels, "unfilled_bytes", lambda: 1001)
        monkeypatch.setattr(shared_pixels, "free_memory", lambda: 1000)
        assert arguments.choose_tier("auto", split, CPU, cache_pixels=True)[0] == "disk"  # what is missing does not fit
        first.kill()
        with decoded(path) as loader:
            assert all((batch.images == 7).all() for batch in loader)
            assert loader.stats()["misses"] == 0


@shares
def test_a_row_that_was_half_written_is_written_again(path: Path) -> None:
    with OtherProcess() as victim, OtherProcess() as other:
        other.do(start, path)
        victim.do(start, path)
        kept = shared_pixels.shared_pixels(mmload.open(path)["train"])
        with pytest.raises(EOFError):
            victim.do(die_between_rows_and_states)
        assert 0 < int((kept.memory == 7).sum()) < kept.memory.numel()  # it had begun
        assert other.do(epoch)[:3] == ({7}, 0, ROWS)


@shares
def test_kills_at_any_time_leave_no_wrong_pixel_and_nothing_in_memory(path: Path) -> None:
    with OtherProcess() as survivor:
        survivor.do(start, path, 0, 2)
        for delay in range(4):
            with OtherProcess() as victim:
                victim.do(start, path, 1, 2)
                victim._pipe.send((epoch, ()))
                victim._pipe.poll(delay * 0.005)
            assert survivor.do(epoch)[0] == {7}
    split = mmload.open(path)["train"]
    assert shared_pixels.holders(split) == []


@shares
@pytest.mark.parametrize("change", ["rebuilt", "repaired"])
def test_another_dataset_at_the_path_is_never_served_from_memory(path: Path, change: str) -> None:
    with OtherProcess() as holder:
        holder.do(start, path)
        assert holder.do(epoch)[0] == {7}
        if change == "rebuilt":
            shutil.rmtree(path)
            of_one_value(path, 9)
        else:  # the bytes that the first one read may have been the damaged ones
            write_the_files_of(of_one_value(path.with_name("other"), 9), path)
        with decoded(path, batch_size=8) as loader:
            assert {int(value) for batch in loader for value in batch.images.unique()} == {9}
            assert loader.stats()["hits"] == 0


@shares
def test_rows_of_a_file_that_was_written_to_do_not_reach_the_others(path: Path) -> None:
    kept = shared_pixels.shared_pixels(mmload.open(path)["train"])
    with decoded(path, batch_size=8, threads=1, prefetch=0, sampler=range(8)) as loader:
        list(loader)
        write_the_files_of(of_one_value(path.with_name("other"), 9), path)
        kept._states[:] = 0  # as another process sees it that looked before the rows were there
        with pytest.raises(StoreError, match="was written to or replaced"):
            list(loader)
        row = 3 * SIDE * SIDE
        assert (kept.memory[: 8 * row] == 7).all()
        assert not kept.memory[8 * row :].any()


class Epochs(IterableDataset[torch.Tensor]):
    """A loader inside of a DataLoader's workers."""

    def __init__(self, path: Path) -> None:
        self.loader = decoded(path, batch_size=ROWS, threads=1)

    def __iter__(self) -> Any:
        for batch in self.loader:
            assert (batch.images == 7).all()
            yield torch.tensor([self.loader.stats()["hits"], len(shared_pixels.holders(self.loader.split))])


@shares
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_data_loader_use_the_copy_of_their_parent(path: Path) -> None:
    loader = decoded(path)
    list(loader)
    workers = DataLoader(Epochs(path), batch_size=None, num_workers=2, multiprocessing_context="fork")
    hits = [row.tolist() for row in workers]
    assert [row[0] for row in hits] == [ROWS, ROWS]
    assert max(row[1] for row in hits) >= 2
    loader.close()


def test_shared_pixels_unavailable_divides_memory_among_ranks_and_warns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem() -> str:
        return "this system refuses it"

    split = mmload.open(path)["train"]
    pixels = f"0.3 MiB of pixels, decoded from {bytes_text(arguments._stored_bytes(split))}"
    monkeypatch.setattr(shared_segment, "_problem", problem)
    monkeypatch.setattr(shared_pixels, "unfilled_bytes", lambda: 0)
    monkeypatch.setattr(shared_pixels, "free_memory", lambda: 4 * ROWS * 3 * SIDE * SIDE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    reason = "not shared with other processes: this system refuses it"
    chosen = f"memory: {pixels}, 0.6 MiB of free memory for each of 2 ranks here; {reason}"
    assert arguments.choose_tier("auto", split, CPU, cache_pixels=True) == ("memory", chosen, True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    tier, text, _ = arguments.choose_tier("auto", split, CPU, cache_pixels=True)
    limit = "0.3 MiB of free memory for each of 4 ranks here"
    assert tier == "disk"
    assert text.endswith(f"mapped; not decoded: {pixels}, are more than 50% of {limit}; {reason}")
    with decoded(path, batch_size=6) as loader:
        for _ in range(2):
            for batch in loader:
                assert (batch.images == 7).all()
        assert loader.stats()["tier_reason"] == f"memory: as asked; {pixels}; {reason}"
        assert (loader.stats()["hits"], loader.stats()["misses"]) == (ROWS, ROWS)


@shares
def test_ranks_that_share_have_all_of_the_free_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pixels, "unfilled_bytes", lambda: 0)
    monkeypatch.setattr(shared_pixels, "free_memory", lambda: 2 * ROWS * 3 * SIDE * SIDE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert arguments.choose_tier("auto", mmload.open(path)["train"], CPU, cache_pixels=True)[0] == "memory"


def test_no_memory_left_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with (
        decoded(path, threads=1) as loader,
        pytest.raises(MemoryError, match="no memory left for decoded pixels .*; use cache_pixels=False"),
    ):
        list(loader)


def test_a_holder_that_may_not_be_asked_leaves_a_copy_of_ones_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise NotSharedError("process 12 keeps a copy that this process may not open")

    monkeypatch.setattr(shared_segment, "open_segment", refused)
    with decoded(path) as loader:
        assert all(bool((batch.images == 7).all()) for batch in loader if isinstance(batch, Batch))
        assert "not shared with other processes: process 12" in loader.stats()["tier_reason"]


def test_pixels_of_another_decoder_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments of one machine: they may differ in a level."""
    split = mmload.open(variable_dataset(tmp_path / "data", some_images(), encoding="jpeg"))["train"]
    before = shared_pixels._key_of(split)
    monkeypatch.setattr(shared_pixels, "version", lambda package: "0.0")
    assert before != shared_pixels._key_of(split)
