"""Listed names that differ from those of the files in their Unicode form or the case of the ending."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmload.errors import SampleError
from mmload.sources import SourceSplit, make_source
from mmload.sources.decode import Decoder
from mmload.sources.files import LocalTree

COMPOSED = "M\u00fcll/\u00e4.JPG"
MIXED = "M\u00fcll/a\u0308.JPG"
LISTED = unicodedata.normalize("NFD", "M\u00fcll/\u00e4") + ".jpg"


def photo(path: Path, level: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(path, "PNG")


def listed(root: Path, *names: str) -> SourceSplit:
    lines = [json.dumps({"path": name, "label": "cat"}) for name in names]
    (root / "list.jsonl").write_text("\n".join(lines))
    return make_source("list", root, Decoder(), {"file": "list.jsonl"}).splits()["train"]


@pytest.mark.parametrize("stored", [COMPOSED, MIXED])
def test_list_of_names_in_another_spelling_finds_the_files_and_counts_them(tmp_path: Path, stored: str) -> None:
    photo(tmp_path / stored, 1)
    photo(tmp_path / "b.Jpg", 2)
    photo(tmp_path / "c.jpg", 3)
    split = listed(tmp_path, LISTED, "b.jpg", "c.jpg")
    assert [split.read(index).fields["images"][0, 0, 0] for index in range(3)] == [1, 2, 3]
    assert [split.id(index) for index in range(3)] == [LISTED, "b.jpg", "c.jpg"]  # as other lists name them
    (note,) = split.notes()
    assert re.match("files found by a name that differs.*: 2 ", note)
    assert ascii(stored) in note


def test_list_with_the_exact_name_reads_it_and_not_another_spelling(tmp_path: Path) -> None:
    for number, name in enumerate(("a.jpg", "a.JPG", "b.JPG", "b.Jpg")):
        photo(tmp_path / name, number)
    split = listed(tmp_path, "a.jpg", "a.JPG", "b.jpg")
    assert split.notes() == ()
    assert [int(split.read(index).fields["images"][0, 0, 0]) for index in range(2)] == [0, 1]
    with pytest.raises(SampleError, match="no such file: b.jpg"):  # b.JPG or b.Jpg
        split.read(2)


def test_list_of_two_spellings_of_one_file_notes_the_double(tmp_path: Path) -> None:
    photo(tmp_path / "a.JPG")
    assert any("listed more than once" in note for note in listed(tmp_path, "a.jpg", "a.JPG").notes())


def test_list_of_ids_in_another_unicode_form_finds_the_files(tmp_path: Path) -> None:
    photo(tmp_path / "\u00e4.png")
    name = "a\u0308"
    (tmp_path / "ids.json").write_text(json.dumps({"partition": {"train": [name]}, "labels": {name: 0}}))
    split = make_source("list", tmp_path, Decoder(), {"file": "ids.json"}).splits()["train"]
    assert split.read(0).id == name
    assert len(split.notes()) == 1


def test_coco_finds_images_under_another_spelling(tmp_path: Path) -> None:
    photo(tmp_path / "train" / COMPOSED)
    (tmp_path / "annotations").mkdir()
    body = {"images": [{"id": 1, "file_name": LISTED}], "categories": [{"id": 1, "name": "cat"}], "annotations": []}
    (tmp_path / "annotations" / "instances_train.json").write_text(json.dumps(body))
    split = make_source("coco", tmp_path, Decoder(), {}).splits()["train"]
    assert split.read(0).id == f"train/{COMPOSED}"
    assert re.match("files found by a name .*: 1 ", split.notes()[-1])


def test_yolo_finds_labels_under_another_spelling(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a\u0308.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "\u00e4.TXT").write_text("0 0.5 0.5 0.5 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat]\n")
    split = make_source("yolo", tmp_path, Decoder(), {}).splits()["train"]
    assert len(split.read(0).fields["boxes"]) == 1
    (note,) = split.notes()
    assert re.match("files found by a name .*: 1 ", note)


def test_voc_finds_images_and_annotations_under_another_spelling(tmp_path: Path) -> None:
    year = tmp_path / "VOC2012"
    photo(year / "JPEGImages" / "\u00e4.png")
    (year / "Annotations").mkdir()
    (year / "Annotations" / "\u00e4.XML").write_text("<annotation><size/></annotation>")
    (year / "ImageSets" / "Main").mkdir(parents=True)
    (year / "ImageSets" / "Main" / "train.txt").write_text("a\u0308\n")
    split = make_source("voc", tmp_path, Decoder(), {}).splits()["train"]
    assert split.read(0).id == "VOC2012/JPEGImages/\u00e4.png"
    assert re.match("files found by a name .*: 2 ", split.notes()[0])


def test_find_beyond_a_link_out_of_the_root_refuses_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    photo(outside / "a.JPG")
    root.mkdir()
    (root / "\u00e4").symlink_to(outside)
    with pytest.raises(Exception, match="leads out of"):
        LocalTree(root, False).find("a\u0308/a.jpg")
    assert LocalTree(root, True).find("a\u0308/a.jpg")[0] == "\u00e4/a.JPG"
