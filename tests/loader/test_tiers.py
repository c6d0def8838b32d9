"""The tiers: what auto takes, and what memory means for rows that lie in files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from loaded import begun, images_of
from written_datasets import of_tensors

import mmload
from mmload.bench.machine import make_cold
from mmload.errors import DamagedError
from mmload.loader import Loader, tiers
from mmload.runtime.resident_pages import can_populate
from mmload.store import dataset_folder
from mmload.store.dataset import Dataset

CPU = torch.device("cpu")

maps = pytest.mark.skipif(not can_populate(), reason="the system cannot populate maps")


def test_auto_takes_the_files(dataset: Dataset) -> None:
    loader = Loader(dataset, device=CPU)
    assert (loader.tier, loader.tier_reason) == ("disk", "disk: 0.1 MiB of images, mapped")


@maps
@pytest.mark.parametrize(("world_size", "ranks"), [(1, 1), (3, 1), (4, 2)])
def test_files_are_mapped_for_the_ranks_of_this_machine_that_read_a_part_each(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, world_size: int, ranks: int
) -> None:
    sizes: list[int] = []
    policy = dataset_folder.EvictionPolicy
    monkeypatch.setattr(dataset_folder, "EvictionPolicy", lambda size: sizes.append(size) or policy(size))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for _ in Loader(dataset, tier="disk", ranks=(0, world_size), fields=("images",)):
        pass
    assert sizes == [dataset["train"].fields["images"].row_bytes * len(dataset["train"]) // ranks]


@maps
@pytest.mark.parametrize(
    ("free", "note"), [(10, "not populated: 0.1 MiB of images, 10 B of memory free"), (2**30, "populated")]
)
def test_memory_is_populated_before_the_first_batch_or_it_is_said(
    dataset: Dataset, images: torch.Tensor, free: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_folder, "free_memory", lambda: free)
    loader = Loader(dataset, batch_size=6, tier="memory", threads=1)
    for epoch in (1, 2):
        assert all(torch.equal(image, images[row]) for row, image in images_of(loader).items())
        stats = loader.stats()
        assert stats["tier_reason"] == f"memory: as asked; {note}"
        if note == "populated":
            assert (stats["hits"], stats["misses"]) == (18 * epoch, 18)


@maps
@pytest.mark.parametrize(("tier", "used"), [("disk", 1), ("memory", 0)])
def test_a_truncated_file_is_an_error_that_names_it(copy: Path, tier: str, used: int) -> None:
    loader = Loader(copy, batch_size=2, tier=tier, prefetch=0, threads=1)
    batches = begun(loader, used) if used else loader  # which is not begun
    file = copy / "train" / "000002" / "images.memmap"
    os.truncate(file, 100)
    with pytest.raises(DamagedError, match=f"{re.escape(str(file))} is damaged: it ends at byte 100"):
        list(batches)


@maps
def test_rows_that_are_not_in_memory_arrive_while_they_are_rendered(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 3, 200, 200), dtype=torch.uint8)
    path = of_tensors(tmp_path / "squares", {"train": {"images": images}})
    if make_cold(path.rglob("*.memmap")):
        pytest.skip("this file system does not evict")
    tier = tiers.tier_of_files(mmload.open(path)["train"].reader.field("images"))
    for is_cold in (True, False):
        [part] = tier.parts(np.arange(40), at_once=False)
        lines = part.lines(at_once=False)
        assert (lines.arrival is not None) == is_cold
        whole = part.lines(at_once=True)
        assert whole.arrival is None
        stored, rows = whole.batch((3, 200, 200))
        assert np.array_equal(stored[rows], images)
