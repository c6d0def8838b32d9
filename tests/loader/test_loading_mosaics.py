"""Mosaics in a Loader: rows of the whole split, the same for any threads, batches, ranks, tiers and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devkits import voc_dataset
from torch.utils.data import Subset
from variable_datasets import some_images, variable_dataset

from mmload import Collate, Loader
from mmload.augment import BoxRule, Mosaic, Normalize, RandomHorizontalFlip, RandomHSV, sample_seeds
from mmload.batch import Batch
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Split

ROWS, MOST, SEED = 14, 3, 5
SIZES = [(40, 30), (25, 50), (33, 41), (17, 23), (64, 48), (25, 25), (16, 16)] * 2


def collate_of(dtype: torch.dtype = torch.uint8) -> Collate:
    steps = [Mosaic(32, degrees=5, mixup=0.4), RandomHSV(), RandomHorizontalFlip()]
    normalize = [] if dtype == torch.uint8 else [Normalize.imagenet()]
    return Collate(*steps, *normalize, dtype=dtype, box_rule=BoxRule(min_size=2, min_visible=0.1))


def boxes_of() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(0, MOST + 1, (ROWS,), generator=generator)
    real = torch.arange(MOST) < counts[:, None]
    corners = (
        torch.rand((ROWS, MOST, 2, 2), generator=generator) * torch.tensor([w for _, w in SIZES])[:, None, None, None]
    )
    corners[..., 1] = (
        torch.rand((ROWS, MOST, 2), generator=generator) * torch.tensor([h for h, _ in SIZES])[:, None, None]
    )
    boxes = torch.cat((corners.amin(2), corners.amax(2)), 2)
    labels = torch.where(real, torch.arange(ROWS * MOST).view(ROWS, MOST), -1)
    return {"boxes": boxes * real[:, :, None], "labels": labels, "counts": counts}


@pytest.fixture(scope="module", params=["raw", "jpeg", "mixed"])
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Split:
    path = tmp_path_factory.mktemp("mosaics") / request.param
    return open_dataset(variable_dataset(path, some_images(SIZES), encoding=request.param, fields=boxes_of()))["train"]


def expected(split: Split, collate: Collate, epoch: int = 0) -> Batch:
    """All rows as one batch, from which their partners come."""
    seeds = sample_seeds(SEED, epoch, torch.arange(len(split)))
    rows = [row.replace(seeds=seed) for row, seed in zip(split[:].unbind(0), seeds, strict=True)]
    return collate(rows)


def assert_same(got: Batch, every: Batch) -> None:
    assert torch.equal(got.images, every.images[got.ids])
    assert torch.equal(got.counts, every.counts[got.ids])
    for k, row in enumerate(got.ids.tolist()):
        count = int(got.counts[k])
        assert torch.equal(got.boxes[k, :count], every.boxes[row, :count])
        assert torch.equal(got.labels[k, :count], every.labels[row, :count])
        assert (got.labels[k, count:] == -1).all()


@pytest.mark.parametrize("options", [
    {"threads": 1, "batch_size": 14}, {"threads": 3, "batch_size": 3}, {"threads": 2, "batch_size": 1},
    {"threads": 2, "batch_size": 4, "tier": "memory"}, {"threads": 2, "batch_size": 4, "ranks": (1, 2)},
])  # fmt: skip
def test_mosaics_are_the_same_however_they_are_loaded(split: Split, options: dict[str, Any]) -> None:
    collate = collate_of()
    with Loader(split, shuffle=True, seed=SEED, collate=collate, **options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            every = expected(split, collate, epoch)
            for batch in loader:
                assert_same(batch, every)


def test_mosaics_of_a_subset_are_composed_of_its_rows(split: Split) -> None:
    chosen = [1, 3, 4, 8]
    labels = {int(label) for row in chosen for label in split[row].labels.tolist()}
    with Loader(
        Subset(split, chosen), seed=SEED, batch_size=4, collate=Collate(Mosaic(32), dtype=torch.uint8)
    ) as loader:
        for _ in range(8):
            for batch in loader:
                assert set(batch.labels.unique().tolist()) <= labels | {-1}


def test_mosaics_of_scaled_jpegs_are_near(tmp_path: Path) -> None:
    sizes = [(200, 160)] * ROWS
    path = variable_dataset(tmp_path / "large", some_images(sizes), encoding="jpeg", fields=boxes_of())
    split, collate = open_dataset(path)["train"], Collate(Mosaic(32, scale=0.2), dtype=torch.uint8)
    whole, scaled = (
        [batch.images for batch in Loader(split, seed=SEED, batch_size=7, collate=collate, decode=decode)]
        for decode in ("cpu", "scaled")
    )
    apart = (torch.cat(whole).int() - torch.cat(scaled).int()).abs().float()
    assert apart.mean() < 3
    assert (apart > 0).any()


def test_mosaics_what_no_loader_can_do_is_refused(split: Split) -> None:
    with pytest.raises(ValueError, match="Mosaic needs boxes, and the batches have none"):
        Loader(split, collate=Collate(Mosaic(32)), fields=["images"])


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
def test_mosaics_of_rows_of_one_size_are_those_of_all_rows_at_once(tmp_path: Path, tier: str) -> None:
    split = open_dataset(voc_dataset(tmp_path, "detection"))["train"]
    collate = collate_of()
    if tier == "device":
        with pytest.raises(ValueError, match="tier='device', but Mosaic is rendered on a CPU; leave tier out"):
            Loader(split, collate=collate, tier=tier)
        return
    seeds = sample_seeds(SEED, 0, torch.arange(len(split)))
    every = collate(split[:].replace(seeds=seeds))
    for batch in Loader(split, shuffle=True, seed=SEED, batch_size=1, collate=collate, tier=tier):
        assert_same(batch, every)
