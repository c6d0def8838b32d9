"""Lists of several labels per image, lists of masks, and two folders of images and masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mmload
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import make_source
from mmload.sources.decode import Decoder


def picture(path: Path, size: tuple[int, int] = (4, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), len(path.name), np.uint8)).save(path)


def mask(path: Path, value: int = 1, size: tuple[int, int] = (4, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, value, np.uint8)).save(path)


def splits(root: Path, **options: Any) -> Any:
    return make_source("list", root, Decoder(), options).splits()


CELLS = ["cat|dog", "dog", " dog | ant ", ""]
NAMES = [["cat", "dog"], "dog", ["ant", "dog"], []]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_list_of_several_labels_gives_rows_of_zeros_and_ones(tmp_path: Path, form: str) -> None:
    for number in range(4):
        picture(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{cell}" for number, cell in enumerate(CELLS)]
    records = [json.dumps({"path": f"{number}.png", "label": names}) for number, names in enumerate(NAMES)]
    text = "\n".join(["path,label", *lines] if form == "csv" else records)
    (tmp_path / f"list.{form}").write_text(text + "\n")
    options = {"separator": "|"} if form == "csv" else {}
    split = splits(tmp_path, file=f"list.{form}", **options)["train"]
    assert split.classes == ("ant", "cat", "dog")
    assert split.targets.tolist() == [[0, 1, 1], [0, 0, 1], [1, 0, 1], [0, 0, 0]]
    assert split.read(0).fields["targets"].dtype == torch.float32
    own = splits(tmp_path, file=f"list.{form}", classes=["dog", "cat", "ant", "bee"], **options)["train"]
    assert own.targets[0].tolist() == [1, 1, 0, 0]
    with pytest.raises(SourceError, match="'ant' is not one of the classes: cat, dog"):
        splits(tmp_path, file=f"list.{form}", classes=["cat", "dog"], **options)


@pytest.mark.parametrize("labels", [[["cat"], 3], [3, ["cat"]], [["cat"], [1.0]], [["cat"], 0]])
def test_list_of_names_and_numbers_is_refused(tmp_path: Path, labels: list[object]) -> None:
    records = [json.dumps({"path": f"{number}.png", "label": label}) for number, label in enumerate(labels)]
    (tmp_path / "list.jsonl").write_text("\n".join(records))
    with pytest.raises(SourceError, match=r"others are names of classes"):
        splits(tmp_path, file="list.jsonl")


def test_list_of_several_labels_holds_out_the_same_share_of_each_combination(tmp_path: Path) -> None:
    lines = [f"{number}.png,{('a|b', 'b')[number % 2]}" for number in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    found = splits(tmp_path, file="list.csv", separator="|", val_fraction=0.2)
    assert found["val"].targets.sum(0).tolist() == [2, 4]


def test_list_with_a_column_of_masks_stores_them(tmp_path: Path) -> None:
    for name, value in (("a", 2), ("b", 255), ("c", 3)):
        picture(tmp_path / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png", value)
    lines = [f"{name}.png,masks/{name}.png" for name in "abc"]
    (tmp_path / "list.csv").write_text("\n".join(["path,mask", *lines]) + "\n")
    split = splits(tmp_path, file="list.csv", classes=["road", "car", "tree"])["train"]
    assert set(split.read(0).fields) == {"images", "masks"}
    assert split.read(0).fields["masks"].unique().tolist() == [2]
    assert split.read(1).fields["masks"].unique().tolist() == [255]
    with pytest.raises(SampleError, match="has the value 3; classes are 0 to 2, and 255 is void; name all in classes"):
        split.read(2)
    assert splits(tmp_path, file="list.csv")["train"].read(2).fields["masks"].unique().tolist() == [3]


def test_two_folders_of_images_and_masks_are_built_by_one_command(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for split, name in (("train", "a"), ("train", "sub/b"), ("val", "c")):
        picture(root / "images" / split / f"{name}.jpg", (24, 30))
        mask(root / "masks" / split / f"{name}.png", len(name), (24, 30))
    mmload.build(root, tmp_path / "out", kind="list", size=16, setting={"folder": "images", "masks": "masks"})
    opened = mmload.open(tmp_path / "out")
    assert {name: len(split) for name, split in opened.items()} == {"train": 2, "val": 1}
    assert opened["train"][1].masks.unique().tolist() == [5]
    assert opened["train"][0].images.shape == (3, 16, 16)
    assert opened["train"].source(1).id == "images/train/sub/b.jpg"


def test_folders_of_images_and_masks_note_what_has_no_partner(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        picture(tmp_path / "images" / name)
    for name in ("a_mask.png", "c.png", "d.png"):
        mask(tmp_path / "masks" / name)
    split = splits(tmp_path, folder="images", masks="masks")["train"]
    assert [split.id(index) for index in range(len(split))] == ["images/a.png", "images/c.png"]
    assert split.notes() == (
        "images without a mask of their name are left out: 1 (images/b.png)",
        "masks without an image of their name are left out: 1 (masks/d.png)",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "images", "masks": "masks", "file": "list.csv"}, "masks takes the place of a list"),
        ({"masks": 3}, "masks is 3; use a path"),
        ({"separator": ""}, "separator is ''; use a text"),
        ({"folder": "images", "masks": "../masks"}, "no folder below"),
        ({}, "is a folder; give the list in it as file"),
    ],
)
def test_list_options_that_contradict_each_other_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    picture(tmp_path / "images" / "a.png")
    with pytest.raises(RecipeError, match=message):
        splits(tmp_path, **options)


def test_folders_without_one_pair_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "b.png")
    with pytest.raises(SourceError, match=r"no image with a mask; images without .*images/a.png.*masks/b.png"):
        splits(tmp_path, folder="images", masks="masks")
