"""The tiers: who shares a copy in memory, and what auto takes."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import ConcatDataset

import mmload
from mmload.loader import Loader, tiers
from mmload.store.dataset import Dataset

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_copies_of_other_tests() -> None:
    gc.collect()


def test_loaders_of_a_process_share_one_copy(dataset: Dataset, images: torch.Tensor) -> None:
    before = len(tiers._COPIES)
    loaders = [
        Loader(rows, batch_size=6, tier="memory")
        for rows in (dataset, mmload.open(dataset.path), dataset["train"], dataset["train"].subset(range(9)))
    ]
    for loader in loaders:
        for batch in loader:
            assert torch.equal(batch.images, images[batch.ids])
    assert len(tiers._COPIES) == before + 1
    assert [(loader.stats()["hits"], loader.stats()["misses"]) for loader in loaders] == [
        (0, 18),
        (18, 0),
        (18, 0),
        (9, 0),
    ]
    for loader in loaders:
        loader.close()
    gc.collect()
    assert len(tiers._COPIES) == before


def test_another_folder_is_another_copy(dataset: Dataset, tmp_path: Path) -> None:
    other = mmload.open(shutil.copytree(dataset.path, tmp_path / "other"))["train"]
    split = dataset["train"]
    assert split.key == mmload.open(dataset.path)["train"].key != other.key
    both = [ConcatDataset([split, other]), ConcatDataset([split, other]), ConcatDataset([other, split])]
    first, same, turned = (Loader(rows).split.key for rows in both)
    assert first == same != turned


def test_auto_leaves_each_rank_its_share(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    split = dataset["train"]
    monkeypatch.setattr(tiers, "free_memory", lambda: 4 * 18 * 3 * 32 * 32)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert tiers.choose("auto", split, CPU) == ("memory", "memory: 0.1 MiB of images, 0.2 MiB of memory free")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert tiers.choose("auto", split, CPU)[0] == "memory"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    tier, reason = tiers.choose("auto", split, CPU)
    assert (tier, reason) == (
        "disk",
        "disk: 0.1 MiB of images are more than 50% of 0.1 MiB of free memory for each of 4 ranks here",
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert tiers.local_ranks() == 1


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
