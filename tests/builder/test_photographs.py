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
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
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


def test_mean_and_std_are_those_of_the_stored_pixels(built: tuple[Path, Dataset]) -> None:
    for split in built[1].values():
        pixels = split[:].images.double().div(255).transpose(0, 1).flatten(1)
        assert split.mean == pytest.approx(pixels.mean(1).tolist(), abs=1e-12)
        assert split.std == pytest.approx(pixels.std(1, correction=0).tolist(), abs=1e-12)


def test_batches_equal_torchvisions_functional_result(built: tuple[Path, Dataset]) -> None:
    """Each sample is some crop of its row, flipped or not; both end offsets come up; normalized within 1e-6."""
    split = next(iter(built[1].values()))
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    plain = mmload.Collate(RandomCrop(46), RandomHorizontalFlip(), dtype=torch.uint8)
    normal = mmload.Collate(RandomCrop(46), RandomHorizontalFlip(), Normalize(mean, std))
    offsets = set()
    for epoch in range(4):
        loaders = [mmload.Loader(split, batch_size=32, shuffle=True, seed=1, collate=c) for c in (plain, normal)]
        for loader in loaders:
            loader.set_epoch(epoch)
        for cut, batch in zip(*loaders, strict=True):
            expected = F.normalize(F.to_dtype(cut.images, torch.float32, scale=True), mean, std)
            assert (batch.images - expected).abs().max() < 1e-6
            for row, image in zip(cut.ids.tolist(), cut.images, strict=True):
                offsets.add(_offset(split[row].images, image))
    assert offsets == {(y, x) for y in range(3) for x in range(3)}


def _offset(stored: torch.Tensor, cut: torch.Tensor) -> tuple[int, int]:
    size = cut.shape[-1]
    for y in range(stored.shape[1] - size + 1):
        for x in range(stored.shape[2] - size + 1):
            window = stored[:, y : y + size, x : x + size]
            if torch.equal(window, cut) or torch.equal(window.flip(-1), cut):
                return y, x
    raise AssertionError("the sample is no crop of its row")


def test_a_crop_as_large_as_the_image_is_the_image(built: tuple[Path, Dataset]) -> None:
    split = next(iter(built[1].values()))
    batch = next(iter(mmload.Loader(split, batch_size=8, collate=mmload.Collate(RandomCrop(48), dtype=torch.uint8))))
    assert torch.equal(batch.images, split[:8].images)
