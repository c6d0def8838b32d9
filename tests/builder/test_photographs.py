"""The whole way on photographs, against torchvision's own ImageFolder, transforms and functional results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from parity_stores import make_photos
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.store.dataset import Dataset


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    place = tmp_path_factory.mktemp("photographs")
    root, out = place / "photos", place / "out"
    for name in ("train", "val"):
        make_photos(root / name)
    build(BuildRecipe(kind="imagefolder", root=root, out=out, transforms=square(48)))
    return root, mmload.open(out)


def test_rows_labels_and_classes_are_those_of_torchvision(built: tuple[Path, Dataset]) -> None:
    root, dataset = built
    assert set(dataset) == {path.name for path in root.iterdir()}
    for name, split in dataset.items():
        folder = ImageFolder(str(root / name))
        assert len(split) == len(folder)
        assert list(split.classes) == folder.classes
        assert split[:].targets.tolist() == folder.targets
        assert split.record.class_counts == tuple(np.bincount(folder.targets))


def test_pixels_are_torchvisions(built: tuple[Path, Dataset]) -> None:
    """The stored JPEG rows equal v2.Resize + CenterCrop of what Pillow decodes."""
    root, dataset = built
    reference = v2.Compose([v2.PILToTensor(), v2.Resize(48, antialias=True), v2.CenterCrop(48)])
    for name, split in dataset.items():
        folder = ImageFolder(str(root / name), reference)
        for index in range(0, len(split), 7):
            expected = folder[index][0].to(torch.int16)
            assert (split[index].images.to(torch.int16) - expected).abs().max() <= 1


def test_a_png_row_is_exact(photos: Path, tmp_path: Path) -> None:
    source = next(photos.glob("*/*.jpg"))
    (tmp_path / "png" / "one").mkdir(parents=True)
    Image.open(source).convert("RGB").save(tmp_path / "png" / "one" / "a.png")
    build(BuildRecipe(kind="imagefolder", root=tmp_path / "png", out=tmp_path / "out", transforms=square(48)))
    pixels = torch.from_numpy(np.array(Image.open(tmp_path / "png" / "one" / "a.png"))).permute(2, 0, 1)
    expected = F.center_crop(F.resize(pixels, [48], antialias=True), [48])
    assert torch.equal(mmload.open(tmp_path / "out")["train"][0].images, expected)
