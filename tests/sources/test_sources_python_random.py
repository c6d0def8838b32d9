"""Datasets whose samples are random are refused: they change when they are read again, or draw numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from python_datasets import splits
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from mmload.errors import SourceError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(PIXELS).save(tmp_path / name / f"{number}.png")
    return tmp_path


def images(folder: Path, transform: Any) -> torchvision.datasets.ImageFolder:
    return torchvision.datasets.ImageFolder(folder, transform=transform)


@pytest.mark.parametrize(
    "transform",
    [
        v1.RandomHorizontalFlip(),
        v2.RandomHorizontalFlip(0.001),
        v1.Compose([v1.Resize(4), v1.Compose([v1.RandomCrop(3)])]),
        v2.Compose([v2.RandomChoice([v2.CenterCrop(3)])]),
        torch.nn.Sequential(v2.PILToTensor(), v2.RandAugment()),
        v1.GaussianBlur(3),
        lambda image: image if random.random() < 1 else None,
        lambda image: image if np.random.random() < 1 else None,
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_transforms_that_draw_are_refused_however_rarely_they_act(folder: Path, transform: Any, wrapped: bool) -> None:
    dataset: Any = images(folder, transform)
    if wrapped:
        dataset = ConcatDataset([images(folder, None), Subset(dataset, [0])])
    with pytest.raises(SourceError, match=r"sample \d is random.*Collate"):
        splits(dataset)


def seeded_crop(image: Image.Image) -> Image.Image:
    """The same crop each time, by a generator that it seeds itself."""
    torch.manual_seed(3)
    return v1.RandomCrop(3)(image)


@pytest.mark.parametrize(
    "transform", [v2.Compose([v2.Resize(4), v2.CenterCrop(3)]), v1.Grayscale(3), seeded_crop, None]
)
def test_sources_python_random_what_draws_nothing_is_taken(folder: Path, transform: Any) -> None:
    assert len(splits(images(folder, transform))["train"]) == 8


class Drawn(Dataset):
    """Twenty samples, of which those from ``start`` on draw from a generator that the whole process shares."""

    def __init__(self, draw: Any, start: int = 15) -> None:
        self.draw, self.start = draw, start

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return Image.fromarray(PIXELS), int(self.draw() * 1000) if index >= self.start else index


@pytest.mark.parametrize(
    "draw", [random.random, np.random.random, lambda: float(torch.rand(())), np.random.default_rng(0).random]
)
def test_samples_that_differ_when_they_are_read_again_are_refused(draw: Any) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(SourceError, match=r"sample \d+ is random, it changes each time .*Collate"):
        splits(Drawn(draw))
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_samples_that_fail_are_left_to_the_build() -> None:
    class Failing(Drawn):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return Image.fromarray(PIXELS), 1 if index == 0 else 1 // 0

    assert len(splits(Failing(None))["train"]) == 20
