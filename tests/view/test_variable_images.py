"""What every command says of variable-size images: shown, exported, or refused with one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from building import make_pictures
from conftest import complaint, mmload, ran
from PIL import Image
from variable_datasets import some_images, variable_dataset

import mmload as package
from mmload.augment import RandomHorizontalFlip, RandomResizedCrop
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.export import to_huggingface
from mmload.store.dataset import cells_of_rows
from mmload.view.browse_pages import Pages
from mmload.view.duplicates import SIDE
from mmload.view.report import class_rows, report, thumbnails
from mmload.view.training import drawn_cells


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """15 pictures as variable-size images, and their source. Read-only."""
    place = tmp_path_factory.mktemp("whole")
    source, out = make_pictures(place / "photos"), place / "out"
    ran("build", "imagefolder", source, out, "--layout", "variable", "--size", 24, "--encode", "jpeg")
    return source, out


def test_variable_info_names_the_layout_and_what_verify_recorded(built: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(built[1], tmp_path / "out")
    ran("verify", tmp_path / "out", "--source", built[0], "--record")
    told = mmload("info", tmp_path / "out").stdout
    for line in (
        "images     uint8 [3, *, *], ",
        "stored     variable-size images, jpeg",
        "Shrink(size=24)",
        ": whole, and",
    ):
        assert line in told


def test_rows_are_shown_in_their_own_sizes(built: tuple[Path, Path], tmp_path: Path) -> None:
    split = package.open(built[1])["train"]
    for row, cell in zip((0, 4, 3), cells_of_rows(split, [0, 4, 3]), strict=True):
        assert (cell.image == split[row].images.numpy()).all()
    words = ("preview", built[1], "--grid", "2x4", "-o", tmp_path / "sheet.png")
    for more in ((), ("--augment", "RandomResizedCrop(24), RandomHorizontalFlip()")):
        ran(*words, *more)
    message = complaint(mmload(*words, "--augment", "RandomHorizontalFlip()"), 2)
    assert "these steps cannot render split 'train'" in message


def test_browse_variable_rows_shows_masks_and_boxes(tmp_path: Path) -> None:
    images = some_images(((30, 40), (50, 20), (30, 44)))
    masks = [np.full(image.shape[1:], number, np.uint8) for number, image in enumerate(images)]
    boxes = [[[1.0, 2, 10, 20], [0, 0, 0, 0]], [[0.0, 0, 9, 9], [4, 4, 19, 49]], [[2.0, 2, 8, 8]] * 2]
    fields = {
        "boxes": torch.tensor(boxes),
        "labels": torch.tensor([[1, -1], [0, 1], [0, 0]]),
        "counts": torch.tensor([1, 2, 2]),
    }
    path = variable_dataset(tmp_path / "out", images, encoding="jpeg", masks=masks, fields=fields)
    split, rows = package.open(path)["train"], [2, 0, 1]
    collate = package.Collate(RandomResizedCrop(24), RandomHorizontalFlip(), dtype=torch.uint8)
    with package.Loader(split, batch_size=3, order=rows, collate=collate, seed=5) as loader:
        epochs = [next(iter(loader)) for _ in range(2)]
    for number, line in enumerate(drawn_cells(split, collate, rows, draws=2, seed=5)):
        for cell, batch in zip(line, epochs, strict=True):  # each draw is what a loader gives in an epoch
            assert (cell.image == batch.images[number].numpy()).all()
            assert (cell.mask == batch.masks[number].numpy()).all()
    ran("report", path, "-o", tmp_path / "page.html")
    usual = "Letterbox(640), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4)"
    assert usual in (tmp_path / "page.html").read_text()
    pages = Pages(path, tmp_path / "marks.toml", augmentation="crops", collate_for=lambda classes: collate)
    for row, count in enumerate((1, 2, 2)):
        (stored,) = cells_of_rows(split, [row])

        assert (stored.mask == masks[row]).all()
        query = {"split": "train", "row": str(row)}
        told = json.loads(pages.get("api/row", query).body)
        assert (told["boxes"], told["mask"]) == (count, True)
        assert pages.get("image/stored", query).body != pages.get("image/stored", query | {"plain": "1"}).body
        assert pages.get("api/draws", query).status == 200


def test_thumbnails_are_those_of_squares_of_the_same_pixels(tmp_path: Path) -> None:
    source = tmp_path / "photos/a"
    source.mkdir(parents=True)
    for number, image in enumerate(some_images(((20, 20),) * 5)):
        Image.fromarray(image.transpose(1, 2, 0)).save(source / f"{number}.png")
    build(BuildRecipe(kind="imagefolder", root=source.parent, out=tmp_path / "squares", transforms=square(20)))
    ran("build", "imagefolder", source.parent, tmp_path / "whole", "--layout", "variable", "--size", 20)
    grays = np.empty((2, 5, SIDE, SIDE), np.float32)
    whole, squares = (
        thumbnails(package.open(tmp_path / name)["train"], into, lambda done, total: None)
        for name, into in zip(("whole", "squares"), grays, strict=True)
    )
    for name in ("mean", "std", "checksums"):
        assert (getattr(whole, name) == getattr(squares, name)).all()
    assert (grays[0] == grays[1]).all()


def test_copies_and_classes_of_masks_are_found(tmp_path: Path) -> None:
    images = some_images(((30, 40), (50, 20), (30, 40)))
    images[2] = images[0]
    masks = [np.full(image.shape[1:], number, np.uint8) for number, image in enumerate(images)]
    masks[1][0, 0] = 2
    dataset = package.open(variable_dataset(tmp_path / "out", images, masks=masks))
    assert [one.rows for one in report(dataset).copied] == [[("train", 0), ("train", 2)]]
    assert class_rows(dataset["train"]) == {"rows": [1, 1, 2], "pixels": [1200, 999, 1201]}


def test_export_of_variable_size_masks_keeps_their_sizes(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    images, masks = some_images(((30, 40), (7, 9))), [np.zeros((30, 40), np.uint8), np.ones((7, 9), np.uint8)]
    masked = variable_dataset(tmp_path / "masked", images, masks=masks)
    rows = to_huggingface(package.open(masked), cache_dir=tmp_path / "cache")["train"]
    assert [np.asarray(mask).tolist() for mask in rows["mask"]] == [mask.tolist() for mask in masks]
