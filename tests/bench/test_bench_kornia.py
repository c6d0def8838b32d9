"""kornia as a contender: each of torchvision's steps becomes kornia's, with the same arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench_training_recipes import recipe_task
from torch import nn
from torchvision.transforms import v2

from mmload import presets
from mmload.augment import Normalize, RandomEqualize, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.bench.contender_server import ContenderServer
from mmload.bench.contenders import entries
from mmload.bench.contenders.entry import ContenderEntry
from mmload.bench.contenders.kornia import Some, kornia_entries, made, named
from mmload.bench.task import Task
from mmload.store.dataset import Dataset

pytest.importorskip("kornia", reason="kornia is not installed: pip install kornia")


def entry_of(task: Task) -> ContenderEntry:
    (entry,) = kornia_entries(task)
    return entry


@pytest.mark.parametrize("recipe", ["deit3", "rsb_a2", "simclr", "torchvision_reference"])
def test_a_training_recipe_gives_what_the_task_asks_for(
    recipe: str, dataset: Dataset, folder: Path, tmp_path: Path
) -> None:
    task = recipe_task(dataset, folder, recipe)
    assert not entry_of(task).missing
    server = ContenderServer(entry_of(task), task, tmp_path)
    server.make()
    assert server.epoch(least=0.0, most=60.0, check=True).images == 18  # every batch is checked
    server.close()


@pytest.mark.parametrize(
    ("step", "away"),
    [
        (v2.RandomHorizontalFlip(1.0), 0.0),
        (v2.RandomGrayscale(1.0), 2.0),
        (v2.ColorJitter((0.7, 0.7), 0, 0, 0), 1.0),
        (v2.ColorJitter(0, (0.6, 0.6), 0, 0), 2.0),
        (v2.ColorJitter(0, 0, (0.6, 0.6), 0), 2.0),
        (v2.ColorJitter(0, 0, 0, (0.1, 0.1)), 2.0),
        (v2.GaussianBlur(5, (1.2, 1.2)), 1.0),
        (v2.RandomSolarize(128, 1.0), 0.0),
        (v2.RandomApply([v2.RandomSolarize(100, 1.0)], p=1.0), 0.0),
        (v2.RandomChoice([v2.RandomHorizontalFlip(1.0)]), 0.0),
        (v2.RandomResizedCrop(24, scale=(1.0, 1.0), ratio=(1.0, 1.0), antialias=False), 1.0),
        (v2.RandomCrop(32, padding=0), 0.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else f"by {value:g}",
)
def test_a_step_of_kornia_is_torchvisions(step: nn.Module, away: float) -> None:
    """Levels that a pixel is off at most: kornia does not round."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    got = made(named(step))(images / 255) * 255
    assert (got - step(images)).abs().max() <= away + 1e-3


def test_a_share_of_the_samples_gets_one_of_several() -> None:
    torch.manual_seed(0)
    images = torch.rand(4000, 1, 1, 1)
    changed = Some([nn.Threshold(2.0, 2.0), nn.Threshold(3.0, 3.0)], p=0.6)(images).flatten()
    for value, share in ((2.0, 0.3), (3.0, 0.3)):
        assert (changed == value).float().mean().item() == pytest.approx(share, abs=0.03)
    kept = changed < 1
    assert torch.equal(changed[kept], images.flatten()[kept])


def test_what_it_does_differently_is_said(dataset: Dataset, folder: Path, monkeypatch: Any) -> None:
    simclr = entry_of(recipe_task(dataset, folder, "simclr"))
    assert simclr.differs.startswith("steps on floats; crops not antialiased; one order of a jitter's parts a batch")
    reference = entry_of(recipe_task(dataset, folder, "torchvision_reference"))
    assert "one operation for all of a batch" in reference.differs
    assert "MixUp's shares are uniform" in reference.differs
    lacking = Collate(RandomResizedCrop(24), RandomEqualize(), Normalize.imagenet())
    monkeypatch.setattr(presets, "mae", lambda size=24: lacking)
    assert entry_of(recipe_task(dataset, folder, "mae")).missing == "kornia has no RandomEqualize here"


def test_it_is_there_for_training_recipes_alone(dataset: Dataset, folder: Path) -> None:
    plain = Task(dataset=dataset.path, split="train", source=folder, crop=24, images=9, workers=(0,))
    assert not [entry for entry in entries(plain) if entry.name.startswith("kornia")]
