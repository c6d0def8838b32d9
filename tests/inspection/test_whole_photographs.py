"""What every command says of whole photographs: shown, exported, or refused with one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import make_pictures
from conftest import complaint, mmload
from PIL import Image
from whole_datasets import some_images, whole_dataset

import mmload as package
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.inspection.class_rows import class_rows
from mmload.inspection.report import report
from mmload.inspection.thumbnails import thumbnails
from mmload.store.row_cells import cells_of_rows


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """15 pictures as whole photographs, and their source. Read-only."""
    place = tmp_path_factory.mktemp("whole")
    source, out = make_pictures(place / "photos"), place / "out"
    done = mmload("build", "imagefolder", source, out, "--layout", "whole", "--size", 24, "--encode", "jpeg")
    assert done.returncode == 0, done.stderr
    return source, out


def test_info_where_verify_and_repair(built: tuple[Path, Path]) -> None:
    source, out = built
    told = mmload("info", out).stdout
    assert "images     uint8 [3, *, *], " in told
    assert "stored     whole photographs, jpeg" in told
    assert "Shrink(size=24)" in told
    row = package.open(out)["train"].row_of("class1/2.jpg")
    assert f"{row}" in mmload("where", out, "--file", source / "class1/2.jpg").stdout
    assert "is whole" in mmload("verify", out, "--source", source).stdout
    assert mmload("repair", out, "--source", source).returncode == 0


def test_rows_are_shown_in_their_own_sizes(built: tuple[Path, Path], tmp_path: Path) -> None:
    split = package.open(built[1])["train"]
    for row, cell in enumerate(cells_of_rows(split, [0, 4, 3])):
        assert (cell.image == split[(0, 4, 3)[row]].images.numpy()).all()
    done = mmload("preview", built[1], "-o", tmp_path / "sheet.png", "--grid", "2x4")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 100
    assert "whole photographs" in complaint(
        mmload("preview", built[1], "-o", tmp_path / "drawn.png", "--augment", "RandomHorizontalFlip()"), 2
    )


def test_a_report_looks_at_every_row(built: tuple[Path, Path], tmp_path: Path) -> None:
    done = mmload("report", built[1], "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "RandomResizedCrop(224)" in (tmp_path / "page.html").read_text()


def test_thumbnails_are_those_of_squares_of_the_same_pixels(tmp_path: Path) -> None:
    source = tmp_path / "photos/a"
    source.mkdir(parents=True)
    for number, image in enumerate(some_images(((20, 20),) * 5)):
        Image.fromarray(image.transpose(1, 2, 0)).save(source / f"{number}.png")
    build(BuildRecipe(kind="imagefolder", root=source.parent, out=tmp_path / "squares", transforms=square(20)))
    done = mmload("build", "imagefolder", source.parent, tmp_path / "whole", "--layout", "whole", "--size", 20)
    assert done.returncode == 0, done.stderr
    whole, squares = (thumbnails(package.open(tmp_path / name)["train"]) for name in ("whole", "squares"))
    for name in ("grays", "mean", "std", "checksums"):
        assert (getattr(whole, name) == getattr(squares, name)).all()


def test_copies_and_classes_of_masks_are_found(tmp_path: Path) -> None:
    images = some_images(((30, 40), (50, 20), (30, 40)))
    images[2] = images[0]
    masks = [np.full(image.shape[1:], number, np.uint8) for number, image in enumerate(images)]
    masks[1][0, 0] = 2
    dataset = package.open(whole_dataset(tmp_path / "out", images, masks=masks))
    assert [one.rows for one in report(dataset).copied.first] == [[("train", 0), ("train", 2)]]
    counts = class_rows(dataset["train"])
    assert counts is not None
    assert counts.amounts is not None
    assert counts.amounts.tolist() == [1200, 999, 1201]
    assert counts.rows.tolist() == [1, 1, 2]


def test_an_export_builds_to_the_same_rows(built: tuple[Path, Path], tmp_path: Path) -> None:
    done = mmload("export", built[1], tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    words = ["--layout", "whole", "--size", "original"]
    again = mmload("build", "imagefolder", tmp_path / "exported", tmp_path / "again", *words)
    assert again.returncode == 0, again.stderr
    first, second = package.open(built[1])["train"], package.open(tmp_path / "again")["train"]
    pixels = {split[row].images.numpy().tobytes() for split in (first,) for row in range(15)}
    assert pixels == {second[row].images.numpy().tobytes() for row in range(15)}
    images, masks = some_images(((30, 40), (7, 9))), [np.zeros((30, 40), np.uint8), np.ones((7, 9), np.uint8)]
    masked = whole_dataset(tmp_path / "masked", images, masks=masks)
    done = mmload("export", masked, tmp_path / "voc", "--to", "voc")
    assert done.returncode == 0, done.stderr
    found = sorted((tmp_path / "voc").rglob("SegmentationClass/*.png"))
    shapes = []
    for file in found:
        with Image.open(file) as mask:
            shapes.append(np.asarray(mask).shape)
    assert shapes == [(30, 40), (7, 9)]


@pytest.mark.parametrize(
    "words",
    [("browse", "--no-open", "--source")],
    ids=lambda words: words[0],
)
def test_what_needs_rows_of_one_size_says_so(built: tuple[Path, Path], words: tuple[str, ...]) -> None:
    message = complaint(mmload(words[0], built[1], *words[1:], built[0]), 2)
    assert f"are whole photographs, each of its own size, and mmload {words[0]} needs rows of one size" in message
