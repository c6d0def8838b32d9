"""Rows in memory that processes share: read once, right after any death, never those of another dataset."""

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
from whole_datasets import some_images, whole_dataset
from written_datasets import ROWS, of_one_value

import mmload
from mmload.batch import Batch
from mmload.errors import StoreError
from mmload.loader import Loader, kept_rows, tiers
from mmload.runtime import shared_segment
from mmload.runtime.shared_segment import NotSharedError
from mmload.store.dataset import Dataset

CPU = torch.device("cpu")

shares = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system cannot share memory")


def start(kept: dict[str, Any], path: Path, rank: int = 0, world_size: int = 1) -> None:
    kept["loader"] = Loader(
        path, batch_size=8, shuffle=True, tier="memory", threads=2, rank=rank, world_size=world_size
    )


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
    before, split = kept_rows.unfilled_bytes(), mmload.open(path)["train"]
    copy = kept_rows.kept_rows(split)
    assert (copy.why_private, kept_rows.unfilled_bytes()) == ("", before)


@shares
def test_processes_read_each_row_once_and_see_who_shares_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OtherProcess() as first, OtherProcess() as second:
        first.do(start, path)
        assert first.do(epoch) == ({7}, 0, ROWS, "memory: as asked; no other process reads this copy now")
        second.do(start, path)
        reason = f"memory: as asked; shared with 1 other process ({first.pid})"
        assert second.do(epoch) == ({7}, ROWS, 0, reason)
        tier, reason = tiers.choose("auto", mmload.open(path)["train"], CPU)
        numbers = ", ".join(map(str, sorted([first.pid, second.pid])))
        assert tier == "memory"
        assert reason == f"memory: 0.3 MiB of images, which 2 other processes ({numbers}) here keep already"
        monkeypatch.setattr(tiers, "unfilled_bytes", lambda: 1001)
        monkeypatch.setattr(tiers, "free_memory", lambda: 1000)
        assert tiers.choose("auto", mmload.open(path)["train"], CPU)[0] == "disk"  # what is missing does not fit
        first.kill()
        with Loader(path, tier="memory") as loader:
            assert all((batch.images == 7).all() for batch in loader)
            assert loader.stats()["misses"] == 0


@shares
def test_a_row_that_was_half_written_is_written_again(path: Path) -> None:
    with OtherProcess() as victim, OtherProcess() as other:
        other.do(start, path)
        victim.do(start, path)
        kept = kept_rows.kept_rows(mmload.open(path)["train"])
        with pytest.raises(EOFError):
            victim.do(die_between_rows_and_states)
        assert 0 < int((kept.rows == 7).sum()) < kept.rows.numel()  # it had begun
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
    assert kept_rows.kept_by(split) == []


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
            for file in path.rglob("images.memmap"):
                np.full(file.stat().st_size, 9, np.uint8).tofile(file)
        with Loader(path, tier="memory", batch_size=8) as loader:
            assert {int(value) for batch in loader for value in batch.images.unique()} == {9}
            assert loader.stats()["hits"] == 0


@shares
def test_rows_of_a_file_that_was_written_to_do_not_reach_the_others(path: Path) -> None:
    kept = kept_rows.kept_rows(mmload.open(path)["train"])
    with Loader(path, tier="memory", batch_size=8, threads=1, prefetch=0, sampler=range(8)) as loader:
        list(loader)
        for file in path.rglob("images.memmap"):
            np.full(file.stat().st_size, 9, np.uint8).tofile(file)
        kept._states[:] = 0  # as another process sees it that looked before the rows were there
        with pytest.raises(StoreError, match="was written to or replaced"):
            list(loader)
        assert (kept.rows[:8] == 7).all()
        assert not kept.rows[8:].any()


class Epochs(IterableDataset[torch.Tensor]):
    """A loader inside of a DataLoader's workers."""

    def __init__(self, path: Path) -> None:
        self.loader = Loader(path, batch_size=ROWS, tier="memory", threads=1)

    def __iter__(self) -> Any:
        for batch in self.loader:
            assert (batch.images == 7).all()
            yield torch.tensor([self.loader.stats()["hits"], len(kept_rows.kept_by(self.loader.split))])


@shares
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_data_loader_use_the_copy_of_their_parent(path: Path) -> None:
    loader = Loader(path, tier="memory")
    list(loader)
    workers = DataLoader(Epochs(path), batch_size=None, num_workers=2, multiprocessing_context="fork")
    hits = [row.tolist() for row in workers]
    assert [row[0] for row in hits] == [ROWS, ROWS]
    assert max(row[1] for row in hits) >= 2
    loader.close()


def test_where_nothing_is_shared_ranks_get_a_part_each_and_are_told(
    dataset: Dataset, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem() -> str:
        return "this system refuses it"

    split = dataset["train"]
    monkeypatch.setattr(shared_segment, "_problem", problem)
    monkeypatch.setattr(tiers, "unfilled_bytes", lambda: 0)
    monkeypatch.setattr(tiers, "free_memory", lambda: 4 * 18 * 3 * 32 * 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    reason = "not shared with other processes: this system refuses it"
    chosen = "memory: 0.1 MiB of images, 0.1 MiB of free memory for each of 2 ranks here"
    assert tiers.choose("auto", split, CPU) == ("memory", f"{chosen}; {reason}")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    tier, text = tiers.choose("auto", split, CPU)
    limit = "0.1 MiB of free memory for each of 4 ranks here"
    assert (tier, text) == ("disk", f"disk: 0.1 MiB of images are more than 50% of {limit}; {reason}")
    with Loader(dataset, batch_size=6, tier="memory") as loader:
        for _ in range(2):
            for batch in loader:
                assert torch.equal(batch.images, images[batch.ids])
        assert loader.stats()["tier_reason"] == f"memory: as asked; {reason}"
        assert (loader.stats()["hits"], loader.stats()["misses"]) == (18, 18)


@shares
def test_ranks_that_share_have_all_of_the_free_memory(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "unfilled_bytes", lambda: 0)
    monkeypatch.setattr(tiers, "free_memory", lambda: 2 * 18 * 3 * 32 * 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert tiers.choose("auto", dataset["train"], CPU)[0] == "memory"


def test_no_memory_left_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with (
        Loader(path, tier="memory", threads=1) as loader,
        pytest.raises(MemoryError, match="no memory left for images .*; use tier='disk'"),
    ):
        list(loader)


def test_a_holder_that_may_not_be_asked_leaves_a_copy_of_ones_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise NotSharedError("process 12 keeps a copy, but may not be asked for it")

    monkeypatch.setattr(shared_segment, "opened", refused)
    with Loader(path, tier="memory") as loader:
        assert all(bool((batch.images == 7).all()) for batch in loader if isinstance(batch, Batch))
        assert "not shared with other processes: process 12" in loader.stats()["tier_reason"]


def test_pixels_of_another_decoder_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments of one machine: they may differ in a level. The stored bytes are the same in both."""
    split = mmload.open(whole_dataset(tmp_path / "data", some_images(), encoding="jpeg"))["train"]
    before = [kept_rows._key_of(split, decoded) for decoded in (False, True)]
    monkeypatch.setattr(kept_rows, "version", lambda package: "0.0")
    after = [kept_rows._key_of(split, decoded) for decoded in (False, True)]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
