"""The tiers: what auto takes, and what memory means for rows that lie in files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from written_datasets import of_tensors

import mmload
from mmload.bench.machine import make_cold
from mmload.errors import DamagedError
from mmload.loader import Loader, tiers
from mmload.runtime import resident_pages
from mmload.runtime.resident_pages import can_populate
from mmload.store import row_reader
from mmload.store.dataset import Dataset

CPU = torch.device("cpu")

maps = pytest.mark.skipif(not can_populate(), reason="the system cannot populate maps")


def test_auto_takes_the_files(dataset: Dataset) -> None:
    assert tiers.choose_tier("auto", dataset["train"], CPU) == ("disk", "disk: 0.1 MiB of images, mapped")


@maps
def test_memory_is_populated_before_the_first_batch(dataset: Dataset, images: torch.Tensor) -> None:
    with Loader(dataset, batch_size=6, tier="memory", threads=1) as loader:
        for epoch in range(2):
            for batch in loader:
                assert torch.equal(batch.images, images[batch.ids])
            stats = loader.stats()
            assert (stats["hits"], stats["misses"]) == (18 * (epoch + 1), 18)
            assert stats["tier_reason"] == "memory: as asked; populated"


@maps
@pytest.mark.parametrize(("world_size", "ranks"), [(1, 1), (3, 1), (4, 2)])
def test_files_are_mapped_for_the_ranks_of_this_machine_that_read_a_part_each(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, world_size: int, ranks: int
) -> None:
    sizes: list[int] = []
    policy = resident_pages.EvictionPolicy
    monkeypatch.setattr(resident_pages, "EvictionPolicy", lambda size: sizes.append(size) or policy(size))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for _ in Loader(dataset, tier="disk", ranks=(0, world_size), fields=("images",)):
        pass
    assert sizes == [dataset["train"].fields["images"].row_bytes * len(dataset["train"]) // ranks]


@maps
@pytest.mark.parametrize(
    ("free", "note"), [(10, "not populated: 0.1 MiB of images, 10 B of memory free"), (2**30, "populated")]
)
def test_what_memory_could_not_do_is_said(
    dataset: Dataset, images: torch.Tensor, free: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_reader, "free_memory", lambda: free)
    with Loader(dataset, batch_size=6, tier="memory") as loader:
        for batch in loader:
            assert torch.equal(batch.images, images[batch.ids])
        assert loader.stats()["tier_reason"] == f"memory: as asked; {note}"


@maps
def test_a_truncated_file_cannot_be_populated(dataset: Dataset, tmp_path: Path) -> None:
    place = tmp_path / "other"
    shutil.copytree(dataset.path, place)
    loader = Loader(place, tier="memory", threads=1)
    file = next((place / "train").glob("*/images.memmap"))
    with file.open("r+b") as opened:
        opened.truncate(100)
    with loader, pytest.raises(DamagedError, match=f"^{re.escape(str(file))} is damaged: it ends at byte 100"):
        list(loader)


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
        assert (lines.arrival.address != 0) == is_cold
        whole = part.lines(at_once=True)
        assert whole.arrival.address == 0
        stored, rows = whole.batch((3, 200, 200))
        assert np.array_equal(stored[rows], images)
