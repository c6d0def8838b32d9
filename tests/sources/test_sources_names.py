"""Listed names that differ from those of the files in their Unicode form or the case of the ending."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from source_cases import check, plant

from mmload.sources.files import LocalTree

COMPOSED = "M\u00fcll/\u00e4.JPG"
MIXED = "M\u00fcll/a\u0308.JPG"
LISTED = unicodedata.normalize("NFD", "M\u00fcll/\u00e4") + ".jpg"


def photo(level: int = 7) -> Image.Image:
    return Image.fromarray(np.full((8, 8, 3), level, np.uint8))


def listed(*names: str) -> str:
    return "\n".join(json.dumps({"path": name, "label": "cat"}) for name in names)


def level(number: int, name: str) -> dict[str, Any]:
    return {"images": np.full((3, 8, 8), number), "id": name}


FOUND = "files found by a name that differs in its Unicode form or the case of its ending"
HOME = "VOC2012/JPEGImages/\u00e4.png"
FILE = {"options": {"file": "list.jsonl"}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"list, {stored!r}": (
            "list",
            {
                "tree": {
                    "list.jsonl": listed(LISTED, "b.jpg", "c.jpg"),
                    **{stored: photo(1), "b.Jpg": photo(2), "c.jpg": photo(3)},
                },
                "rows": {"train": [level(1, LISTED), level(2, "b.jpg"), level(3, "c.jpg")]},  # as other lists name them
                "notes": [f"{FOUND}: 2 ({LISTED!a:.80} is {stored!a:.80}"],
                **FILE,
            },
        )
        for stored in (COMPOSED, MIXED)
    },
    "list with the exact names": (
        "list",
        {
            "tree": {
                "list.jsonl": listed("a.jpg", "a.JPG", "b.jpg"),
                **{name: photo(number) for number, name in enumerate(("a.jpg", "a.JPG", "b.JPG", "b.Jpg"))},
            },
            "rows": {"train": [level(0, "a.jpg"), level(1, "a.JPG"), "no such file: b.jpg"]},  # b.JPG or b.Jpg
            "notes": [],
            **FILE,
        },
    ),
    "list of two spellings": (
        "list",
        {
            "tree": {"list.jsonl": listed("a.jpg", "a.JPG"), "a.JPG": photo()},
            "rows": {"train": [{}, {}]},
            "notes": ["listed more than once", FOUND],
            **FILE,
        },
    ),
    "ids": (
        "list",
        {
            "tree": {
                "ids.json": {"partition": {"train": ["a\u0308"]}, "labels": {"a\u0308": 0}},
                "\u00e4.png": photo(),
            },
            "options": {"file": "ids.json"},
            "rows": {"train": [{"id": "a\u0308"}]},
            "notes": [FOUND],
        },
    ),
    "coco": (
        "coco",
        {
            "tree": {
                f"train/{COMPOSED}": photo(),
                "annotations/instances_train.json": {
                    "images": [{"id": 1, "file_name": LISTED}],
                    "categories": [{"id": 1, "name": "cat"}],
                },
            },
            "rows": {"train": [{"id": f"train/{COMPOSED}"}]},
            "notes": ["no image has an object", f"{FOUND}: 1 "],
        },
    ),
    "yolo": (
        "yolo",
        {
            "tree": {
                "images/a\u0308.jpg": photo(),
                "labels/\u00e4.TXT": "0 0.5 0.5 0.5 0.5\n",
                "data.yaml": "train: images\nnames: [cat]\n",
            },
            "rows": {"train": [{"labels": [0]}]},
            "notes": [f"{FOUND}: 1 "],
        },
    ),
    "voc": (
        "voc",
        {
            "tree": {
                HOME: photo(),
                "VOC2012/Annotations/\u00e4.XML": "<annotation><size/></annotation>",
                "VOC2012/ImageSets/Main/train.txt": "a\u0308\n",
            },
            "rows": {"train": [{"id": HOME}]},
            "notes": [f"{FOUND}: 2 "],
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_are_found_under_another_spelling_and_counted(tmp_path: Path, case: str) -> None:
    kind, values = CASES[case]
    check(kind, tmp_path, **values)


def test_find_beyond_a_link_out_of_the_root_refuses_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    plant(outside, {"a.JPG": photo()})
    root.mkdir()
    (root / "\u00e4").symlink_to(outside)
    with pytest.raises(Exception, match="leads out of"):
        LocalTree(root, False).find("a\u0308/a.jpg")
    assert LocalTree(root, True).find("a\u0308/a.jpg")[0] == "\u00e4/a.JPG"
