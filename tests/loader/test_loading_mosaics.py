"""Mosaics in a Loader: rows of the whole split, the same for any threads, batches, ranks, tiers and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import variable_datasets
from devkits import voc_dataset
from torch.utils.data import Subset
from variable_datasets import jpeg_of, some_images, variable_dataset

from mmload import Collate, Loader
from mmload.augment import BoxRule, Mosaic, RandomHorizontalFlip, RandomHSV, sample_seeds
from mmload.batch import Batch
from mmload.loader import tiers
from mmload.remote.opening import open as open_dataset
from mmload.runtime.turbojpeg import turbojpeg_library
from mmload.store import row_reader
from mmload.store.dataset import Split

ROWS, MOST, SEED = 14, 3, 5
SIZES = [(40, 30), (25, 50), (33, 41), (17, 23), (64, 48), (25, 25), (16, 16)] * 2


def collate_of() -> Collate:
    steps = [Mosaic(32, degrees=5, mixup=0.4), RandomHSV(), RandomHorizontalFlip()]
    return Collate(*steps, dtype=torch.uint8, box_rule=BoxRule(min_size=2, min_visible=0.1))


def boxes_of() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(0, MOST + 1, (ROWS,), generator=generator)
    real = torch.arange(MOST) < counts[:, None]
    sides = torch.tensor([(width, height) for height, width in SIZES])
    corners = torch.rand((ROWS, MOST, 2, 2), generator=generator) * sides[:, None, None]
    boxes = torch.cat((corners.amin(2), corners.amax(2)), 2)
    labels = torch.where(real, torch.arange(ROWS * MOST).view(ROWS, MOST), -1)
    return {"boxes": boxes * real[:, :, None], "labels": labels, "counts": counts}


@pytest.fixture(scope="module", params=["raw", "jpeg", "mixed"])
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Split:
    path = tmp_path_factory.mktemp("mosaics") / request.param
    return open_dataset(variable_dataset(path, some_images(SIZES), encoding=request.param, fields=boxes_of()))["train"]


@pytest.fixture(scope="module")
def fixed_size(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return open_dataset(voc_dataset(tmp_path_factory.mktemp("voc"), "detection"))["train"]


def expected(split: Split, collate: Collate, epoch: int = 0) -> Batch:
    """All rows as one batch, from which their partners come."""
    seeds = sample_seeds(SEED, epoch, torch.arange(len(split)))
    return collate([row.replace(seeds=seed) for row, seed in zip(split[:].unbind(0), seeds, strict=True)])


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
    loader = Loader(split, shuffle=True, seed=SEED, collate=collate, **options)
    for epoch in range(2):
        every = expected(split, collate, epoch)
        for batch in loader:
            assert_same(batch, every)


def test_mosaics_of_a_subset_are_composed_of_its_rows(split: Split) -> None:
    chosen = [1, 3, 4, 8]
    labels = {int(label) for row in chosen for label in split[row].labels.tolist()}
    collate = Collate(Mosaic(32), dtype=torch.uint8)
    loader = Loader(Subset(split, chosen), seed=SEED, batch_size=4, collate=collate)
    found = {int(label) for _ in range(8) for batch in loader for label in batch.labels.unique()}
    assert found <= labels | {-1}


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


@pytest.mark.skipif(turbojpeg_library() is None, reason="TurboJPEG's library is not installed")
def test_mosaics_go_on_at_a_row_that_turbojpeg_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "row_map", lambda *_: None)
    monkeypatch.setattr(tiers, "PART_BYTES", 20_000)  # parts of a few tiles, which end within a sample
    images = some_images(SIZES)
    modes = {id(images[5]): "CMYK"}
    monkeypatch.setattr(variable_datasets, "jpeg_of", lambda image: jpeg_of(image, mode=modes.get(id(image))))
    split = open_dataset(variable_dataset(tmp_path / "data", images, encoding="jpeg", fields=boxes_of()))["train"]

    def batches() -> list[torch.Tensor]:
        return [batch.images for batch in Loader(split, seed=SEED, batch_size=7, collate=collate_of())]

    found = batches()
    monkeypatch.setattr(tiers, "turbojpeg_library", lambda: None)
    assert all(map(torch.equal, found, batches()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ["images"]}, "Mosaic needs boxes, and the batches have none"),
        ({"tier": "device"}, "tier='device', but Mosaic is rendered on a CPU; leave tier out"),
    ],
)
def test_mosaics_that_no_loader_can_make_are_refused(fixed_size: Split, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(fixed_size, collate=Collate(Mosaic(32)), **options)


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_mosaics_of_rows_of_one_size_are_those_of_all_rows_at_once(fixed_size: Split, tier: str) -> None:
    collate = collate_of()
    seeds = sample_seeds(SEED, 0, torch.arange(len(fixed_size)))
    every = collate(fixed_size[:].replace(seeds=seeds))
    for batch in Loader(fixed_size, shuffle=True, seed=SEED, batch_size=1, collate=collate, tier=tier):
        assert_same(batch, every)
