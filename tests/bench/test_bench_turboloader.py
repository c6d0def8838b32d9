"""TurboLoader as a contender: what it gives is what was stored, with its label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmload.bench.contenders import Contender, entries
from mmload.bench.task import Task
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import MmloadError
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow

pytest.importorskip("turboloader", reason="TurboLoader is not installed: pip install turboloader")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """12 JPEGs of one color each, one of them gray, in two classes that their colors tell apart."""
    root = tmp_path_factory.mktemp("plain")
    rng = np.random.default_rng(0)
    for number in range(12):
        level = rng.integers(0, 100, 3) + 140 * (number % 2)
        picture = Image.new("RGB", (48, 40), tuple(level.tolist()))
        folder = root / "photos" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (picture.convert("L") if number == 5 else picture).save(folder / f"{number}.jpg", quality=95)
    build(BuildRecipe(kind="imagefolder", root=root / "photos", out=root / "out", transforms=square(32)), threads=1)
    return Task(
        dataset=root / "out", split="train", source=root / "photos", crop=24, batch_size=5, images=24, workers=(0,)
    )


def made(task: Task, name: str, scratch: Path) -> Contender:
    entry = next(entry for entry in entries(task) if entry.name == name)
    assert not entry.missing
    return entry.make(task, scratch)


def levels(images: Tensor, task: Task) -> Tensor:
    """The images before they were normalized, in levels."""
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (task.mean, task.std))
    return (images * std + mean) * 255


def test_a_random_crop_of_the_raw_rows_is_cut_out_unchanged(folder: Path, dataset: Dataset, tmp_path: Path) -> None:
    """Noise: each crop is a part of one row, or its mirror image, to the level, and has that row's label."""
    task = Task(dataset=dataset.path, split="train", source=folder, crop=24, batch_size=5, images=9, workers=(0,))
    rows = task.rows.reader.gather("images", torch.arange(len(task.rows)))
    windows = rows.unfold(2, 24, 1).unfold(3, 24, 1).permute(0, 2, 3, 1, 4, 5)
    found = {
        part.numpy().tobytes(): (row, y, x)
        for row in range(len(rows))
        for y in range(9)
        for x in range(9)
        for part in [windows[row, y, x].contiguous()]
    }
    contender, places = made(task, "TurboLoader, raw .tbl", tmp_path), []
    for images, labels in contender.epoch():
        for image, label in zip(levels(images, task).round().to(torch.uint8), labels.tolist(), strict=True):
            both = image.numpy().tobytes(), image.flip(-1).contiguous().numpy().tobytes()
            row, y, x = next(found[part] for part in both if part in found)
            assert task.targets[row] == label
            places.append((row, y, x, both[0] in found))
    contender.close()
    assert sorted(row for row, *_ in places) == list(range(len(rows)))
    assert {len({place[axis] for place in places}) > 1 for axis in (1, 2, 3)} == {True}


@pytest.mark.parametrize("name", ["TurboLoader, raw .tbl", "TurboLoader, tar of JPEGs"])
def test_resized_crops_keep_their_labels(task: Task, tmp_path: Path, name: str) -> None:
    contender = made(replace(task, augment="resized-crop"), name, tmp_path)
    for _ in range(2):
        batches = list(contender.epoch())
        labels = torch.cat([label for _, label in batches])
        assert torch.bincount(labels).tolist() == [12, 12]
        light = torch.cat([levels(images, task).mean((1, 2, 3)) for images, _ in batches]) > 120
        assert torch.equal(light.long(), labels)
    contender.close()


@pytest.mark.filterwarnings("ignore:turboloader. 1 sample.s. failed to decode:RuntimeWarning")
def test_images_of_zeros_are_no_result(task: Task, tmp_path: Path) -> None:
    """It cannot decode PNGs, and gives zeros in their place."""
    root = tmp_path / "photos"
    (root / "dark").mkdir(parents=True)
    Image.new("RGB", (40, 40), (1, 2, 3)).save(root / "dark" / "a.png")
    build(BuildRecipe(kind="imagefolder", root=root, out=tmp_path / "out", transforms=square(32)), threads=1)
    png = replace(task, dataset=tmp_path / "out", source=root, augment="resized-crop", images=1)
    contender = made(png, "TurboLoader, tar of JPEGs", tmp_path)
    with pytest.raises(MmloadError, match="it gives zeros for 1 image that it cannot decode"):
        list(contender.epoch())
    contender.close()


def test_what_it_does_less_is_said(task: Task) -> None:
    said = {
        (entry.name, interpolation): entry.differs
        for interpolation in ("bilinear", "bicubic")
        for entry in entries(
            replace(task, augment="resized-crop", interpolation=interpolation, scale=(0.2, 1.0), left_out="MixUp")
        )
    }
    assert "not antialiased" in said["TurboLoader, raw .tbl", "bilinear"]
    assert "bilinear, not bicubic antialiased" in said["TurboLoader, raw .tbl", "bicubic"]
    assert "of 0.08 to 1 of the area, not 0.2 to 1" in said["TurboLoader, tar of JPEGs", "bilinear"]
    assert all("does less: no MixUp" in text for (name, _), text in said.items() if name.startswith("TurboLoader"))
