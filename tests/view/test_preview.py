"""``mmload preview``, ``split.preview()`` and ``batch.preview()``: what they show, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import complaint, mmload, ran
from devkits import voc_dataset
from PIL import Image

from mmload import presets
from mmload.augment import CenterCrop, MixUp, Normalize, RandomHorizontalFlip, Views
from mmload.augment.collate import Collate
from mmload.errors import UsageError
from mmload.records import FieldSpec
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset, class_field, first_rows, members_of
from mmload.view.training import augmented_sheet, steps_of


def contains(sheet: Image.Image, image: torch.Tensor, factor: int) -> bool:
    """Whether an image [3, H, W], grown by a factor, is somewhere in a sheet, exactly."""
    grown = image.repeat_interleave(factor, 1).repeat_interleave(factor, 2).permute(1, 2, 0).numpy()
    shown = np.asarray(sheet)
    height, width = grown.shape[:2]
    places = np.argwhere((shown[: -height + 1, : -width + 1] == grown[0, 0]).all(2))
    return any((shown[y : y + height, x : x + width] == grown).all() for y, x in places)


def test_a_preview_shows_the_stored_pixels(dataset: Dataset, tmp_path: Path) -> None:
    split, out = dataset["train"], tmp_path / "sheet.png"
    done = ran("preview", dataset.path, "-o", out, "--row", 3, "--row", 17, "--grid", "1x2")
    sheet = Image.open(out).convert("RGB")
    assert done.stdout == f"{out}: {sheet.width} x {sheet.height} pixels\n"
    assert contains(sheet, split[3].images, 4)
    assert contains(sheet, split[17].images, 4)
    assert not contains(sheet, split[4].images, 4)
    assert np.array_equal(np.asarray(sheet), np.asarray(split.preview([3, 17], columns=2)))
    assert contains(split[[4, 5]].preview(split.classes), split[5].images, 4)


def test_only_a_class(dataset: Dataset, tmp_path: Path) -> None:
    split, out = dataset["train"], tmp_path / "sheet.png"
    ran("preview", dataset.path, "-o", out, "--class", "bee")
    sheet = Image.open(out).convert("RGB")
    shown = [contains(sheet, split[row].images, 4) for row in range(18)]
    assert shown == [split.classes[int(split[row].targets)] == "bee" for row in range(18)]


def test_rows_of_a_class_are_those_with_a_box_of_it(tmp_path: Path) -> None:
    split = open_dataset(voc_dataset(tmp_path, "detection"))["train"]
    assert first_rows(split, 4, of_class="dog").tolist() == [0, 1]
    assert first_rows(split, 4, of_class="bus").tolist() == []
    masks = open_dataset(voc_dataset(tmp_path / "masks", "segmentation"))["train"]
    with pytest.raises(UsageError, match="rows of .*2 rows of images, masks, have no classes"):
        first_rows(masks, 4, of_class="dog")


def test_rows_of_a_class_leave_out_what_a_dataset_padded_itself() -> None:
    columns = {"labels": np.array([[1, 0, 0], [0, 2, 0], [2, 2, 0]]), "counts": np.array([1, 2, 0])}
    fields = {"labels": FieldSpec(dtype="int64", shape=(3,)), "counts": FieldSpec(dtype="int64", shape=())}
    reader = SimpleNamespace(array=lambda name, rows: columns[name][rows])
    record = SimpleNamespace(rows=3, fields=fields, classes=("a", "b", "c"))
    found = [members_of(reader, record, class_field(record), index).tolist() for index in range(3)]
    assert found == [[1], [0], [1]]


def test_what_training_sees_is_what_the_collate_draws_without_its_normalization(dataset: Dataset) -> None:
    split = dataset["train"]
    steps = (RandomHorizontalFlip(), Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    sheet = augmented_sheet(split, Collate(*steps), [2, 9], draws=5)
    for row in (2, 9):
        image = split[row].images
        assert contains(sheet, image, 4)
        assert contains(sheet, image.flip(2), 4)
    mixed = augmented_sheet(split, Collate(MixUp(num_classes=3)), [2, 9], draws=1)
    assert not contains(mixed, split[9].images.flip(2), 4)


def test_views_are_shown_beside_each_other(dataset: Dataset) -> None:
    split = dataset["train"]
    sheet = augmented_sheet(split, Views(Collate(CenterCrop(16)), Collate(CenterCrop(24))), [0], draws=1)
    assert contains(sheet, split[0].images[:, 8:24, 8:24], 8)
    assert contains(sheet, split[0].images[:, 4:28, 4:28], 5)


def test_steps_are_written_as_in_python(dataset: Dataset, tmp_path: Path) -> None:
    text = "RandomCrop(24, padding=4), RandomApply([ColorJitter(0.4, hue=(-0.1, 0.1))], p=0.5)"
    assert [type(step).__name__ for step in steps_of(text)] == ["RandomCrop", "RandomApply"]
    ran("preview", dataset.path, "-o", tmp_path / "a.png", "--augment", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "RandomCrop",
        "3",
        "open('x')",
        "__import__('os')",
        "RandomCrop(__import__('os'))",
        "RandomCrop(size=x)",
        "Step()",
        "AfterStep()",
        "RandomCrop(-1)",
        "RandomCrop(24, nothing=1)",
        "RandomCrop(**{'size': 3})",
        "Views(3)",
        "sample_seeds(1, 2)",
        "torch.nn.Flatten()",
        "(RandomCrop(4))()",
        "lambda: 3",
        "[RandomCrop(4)]",
        "(" * 500,
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--augment is "):
        steps_of(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--grid", "0x4"], "--grid is '0x4'; give lines x columns, as in 6x8, of at most 1,024"),
        (["--grid", "6"], "--grid is '6'"),
        (["--row", "x"], "--row is 'x': "),
        (["--row", "18"], "--row: row 18 does not exist: split 'train' has 18 rows"),
        (["--class", "wasp"], "has no class 'wasp'; it has ant, bee, cat"),
        (["--class", "bee", "--row", "1"], "--row and --class are both given"),
        (["--augment", "RandomCrop(64)"], "these steps cannot render split 'train'"),
        (["--augment", "MixUp()"], "these steps cannot render split 'train'"),
        (["--augment", "nothing"], "--augment is 'nothing': "),
        (["--augment", "RandomCorp(24)"], "Did you mean RandomCrop?"),
        (["--split", "test"], "has no split 'test'; it has train"),
        (["--seed", "-1"], "--seed is '-1'"),
        (["-o", "sheet.txt"], "--out is sheet.txt; give a name that ends in .png"),
        (["-o", "no/such/a.png"], "the folder no/such does not exist"),
    ],
    ids=str,
)
def test_what_cannot_be_shown_is_one_line(
    words: list[str], expected: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in complaint(mmload("preview", dataset.path, *words), 2)
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_names_escaped_and_rows(dataset: Dataset) -> None:
    html = dataset._repr_html_()
    assert html.count("<img") == 1
    assert "data:image/png;base64," in html
    assert "&#x27;train&#x27;" in html


@pytest.mark.parametrize("name", presets.__all__)
def test_preview_of_every_preset_is_drawn(name: str, dataset: Dataset, tmp_path: Path) -> None:
    ran("preview", dataset.path, "-o", tmp_path / "a.png", "--augment", name, "--grid", "2x2")


def test_views_share_the_columns_of_the_grid(dataset: Dataset, tmp_path: Path) -> None:
    ran("preview", dataset.path, "-o", tmp_path / "a.png", "--augment", "simclr", "--grid", "1x5")
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.width == 2 * 12 + 5 * (192 + 8) - 8  # as it is stored, and two draws of two views


def test_preview_shows_mosaics_of_the_rows_that_are_drawn(tmp_path: Path) -> None:
    built, out = voc_dataset(tmp_path, "detection"), tmp_path / "drawn.png"
    ran("preview", built, "-o", out, "--split", "train", "--augment", "Mosaic(48), RandomHSV()")
    assert out.stat().st_size > 0
