"""The tiers: who shares a copy in memory, and what auto takes."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import ConcatDataset

import mmload
from mmload.loader import Loader, kept_rows, tiers
from mmload.runtime import shared_segment
from mmload.store.dataset import Dataset

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_copies_of_other_tests() -> None:
    gc.collect()


@pytest.fixture(autouse=True)
def _no_copies_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program of this user may be filling a copy, which these tests must not see."""
    monkeypatch.setattr(shared_segment, "_NAME", f"mmload-test-{os.getpid()}")


def test_loaders_of_a_process_share_one_copy(dataset: Dataset, images: torch.Tensor) -> None:
    before = len(kept_rows._KEPT)
    loaders = [
        Loader(rows, batch_size=6, tier="memory")
        for rows in (dataset, mmload.open(dataset.path), dataset["train"], dataset["train"].subset(range(9)))
    ]
    for loader in loaders:
        for batch in loader:
            assert torch.equal(batch.images, images[batch.ids])
    assert len(kept_rows._KEPT) == before + 1
    assert [(loader.stats()["hits"], loader.stats()["misses"]) for loader in loaders] == [
        (0, 18),
        (18, 0),
        (18, 0),
        (9, 0),
    ]
    for loader in loaders:
        loader.close()
    gc.collect()
    assert len(kept_rows._KEPT) == before


def test_another_folder_is_another_copy(dataset: Dataset, tmp_path: Path) -> None:
    other = mmload.open(shutil.copytree(dataset.path, tmp_path / "other"))["train"]
    split = dataset["train"]
    assert split.key == mmload.open(dataset.path)["train"].key != other.key
    both = [ConcatDataset([split, other]), ConcatDataset([split, other]), ConcatDataset([other, split])]
    first, same, turned = (Loader(rows).split.key for rows in both)
    assert first == same != turned


def test_auto_says_what_is_free(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    split = dataset["train"]
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(tiers, "free_memory", lambda: 4 * 18 * 3 * 32 * 32)
    tier, reason = tiers.choose("auto", split, CPU)
    assert tier == "memory"
    assert reason.startswith("memory: 0.1 MiB of images, 0.2 MiB of memory free; ")
    monkeypatch.setattr(tiers, "free_memory", lambda: 18 * 3 * 32 * 32)
    tier, reason = tiers.choose("auto", split, CPU)
    assert tier == "disk"
    assert reason.startswith("disk: 0.1 MiB of images are more than 50% of 0.1 MiB of memory free")


def test_a_copy_that_is_there_costs_nothing(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loader(dataset, tier="memory") as loader:
        list(loader)
        monkeypatch.setattr(tiers, "free_memory", lambda: 0)
        stats = Loader(dataset).stats()
        assert stats["tier"] == "memory"
        assert "which another loader of this process keeps already" in stats["tier_reason"]
    assert Loader(dataset).tier == "disk"


def test_memory_that_a_copy_is_yet_to_take_is_not_free(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 18 * 3 * 32 * 32
    other = mmload.open(shutil.copytree(dataset.path, tmp_path / "other"))
    monkeypatch.setattr(tiers, "free_memory", lambda: 2 * size)
    with Loader(dataset, batch_size=2, tier="memory", threads=1, prefetch=0) as loader:
        iterator = iter(loader)
        next(iterator)
        assert Loader(other).tier == "disk"
        list(iterator)
        assert Loader(other).tier == "memory"
