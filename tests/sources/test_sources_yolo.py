"""YOLO's layout: boxes, polygons, keypoints and rotated boxes in pixels, and one line for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from encoding import encoded
from PIL import Image
from source_cases import check, picture, plant
from yolo_sets import YoloSet

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import RecipeError
from mmload.records import TURNED
from mmload.remote.opening import open as open_dataset
from mmload.sources import find_splits, make_source
from mmload.sources.decode import Decoder
from mmload.sources.yolo import read_description

DOG = "1 0.5 0.5 0.25 0.5"
IN_PIXELS = [15, 5, 25, 15]
NAMES = "names: [cat, dog]\n"
PHOTO = picture(20, 40)
TURNED_PHOTO = Image.Exif()
TURNED_PHOTO[274] = 6


def pets(*images: tuple[str, ...], more: str = "", size: tuple[int, int] = (20, 40)) -> dict[str, Any]:
    """Returns the tree of a data.yaml and of images a, b, ... with these lines of labels; () is no label file."""
    tree: dict[str, Any] = {
        "data.yaml": f"path: .\ntrain: images/train\nnames:\n  0: cat\n  1: dog # a comment\n{more}"
    }
    for name, lines in zip("abc", images, strict=False):
        tree[f"images/train/{name}.png"] = picture(*size)
        tree |= {f"labels/train/{name}.txt": "\n".join(lines)} if lines else {}
    return tree


def described(text: str, image: str = "images/train/a.png", labels: str = "labels/train/a.txt", **more: Any) -> Any:
    """Returns the tree of a description, and of one image with a dog and its row."""
    tree = {"data.yaml": text + NAMES, image: PHOTO, labels: DOG, **more}
    return {"tree": tree, "rows": {"train": [{"id": image, "labels": [1], "boxes": [IN_PIXELS]}]}}


POINTS, TWO_POINTS = "kpt_shape: [2, 3]\n", "0 0.5 0.5 0.5 0.5 1.5 0.5 2 0.5 0.5 2"
SQUARE = [[4, 2], [20, 2], [20, 18]]
BESIDE = "images have their labels in a file beside them: 1 ("
READ: dict[str, dict[str, Any]] = {
    "boxes in pixels, and an image without labels": {
        "tree": pets(("0 0.5 0.5 0.25 0.5", "", "1 0.1 0.2 0.2 0.4"), ()),
        "rows": {"train": [{"boxes": [IN_PIXELS, [0, 0, 8, 8]], "labels": [0, 1], "counts": 2}, {"counts": 0}]},
        "notes": ["images without a label file have no objects: 1 (images/train/b.png)"],
        "classes": ["cat", "dog"],
    },
    "polygons": {
        "tree": pets(("1 0.1 0.1 0.5 0.1 0.5 0.9", "0 0.5 0.5 0.75 0.5 0.75 1 0.5 1"), ()),
        "options": {"task": "instances"},
        "rows": {
            "train": [
                {
                    "boxes": [[4, 2, 20, 18], [20, 10, 30, 20]],
                    "rings": [[0, 3], [1, 4]],
                    "polygons": [*SQUARE, [20, 10], [30, 10], [30, 20], [20, 20]],
                },
                {"polygons": []},
            ]
        },
    },
    "boxes around polygons": {
        "tree": pets(("1 0.1 0.1 0.5 0.1 0.5 0.9", "0 0.5 0.5 0.75 0.5 0.75 1 0.5 1")),
        "rows": {"train": [{"boxes": [[4, 2, 20, 18], [20, 10, 30, 20]]}]},
    },
    "a triangle beside another polygon": {
        "tree": pets(("0 0.1 0.1 0.5 0.1 0.5 1", "0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5")),
        "rows": {"train": [{"boxes": [[4, 2, 20, 20], [4, 2, 20, 10]]}]},
    },
    "a triangle alone": {
        "tree": pets(("0 0.1 0.1 0.5 0.1 0.5 1",)),
        "options": {"task": "instances"},
        "rows": {"train": [{"polygons": [[4, 2], [20, 2], [20, 20]]}]},
    },
    "keypoints of three numbers": {
        "tree": pets(
            ("0 0.5 0.5 0.5 0.5 0.25 0.5 2 0 0 0 0.5 0.75 1",), more="kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n"
        ),
        "rows": {"train": [{"keypoints": [[[10, 10, 2], [0, 0, 0], [20, 15, 1]]], "keypoint_flips": [0, 2, 1]}]},
        "notes": [],
    },
    "keypoints of two numbers": {
        "tree": pets(("0 0.5 0.5 0.5 0.5 0.25 0.5 0 0 0.5 0.75",), more="kpt_shape: [3, 2]\n"),
        "rows": {"train": [{"keypoints": [[[10, 10, 2], [0, 0, 0], [20, 15, 2]]]}]},
        "notes": ["in flip_idx of data.yaml which ones change places"],
    },
    "keypoints without sides": {
        "tree": pets(("0 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5",), more="kpt_shape: [2, 2]\nkpt_names: {0: [seat, back]}\n"),
        "rows": {"train": [{}]},
        "notes": ["exchange none of the 2 keypoints"],
    },
    "rotated boxes": {
        "tree": pets(("1 0.5 0.1 0.75 0.5 0.5 0.9 0.25 0.5",)),
        "options": {"task": "rotated"},
        "rows": {"train": [{"corners": [[[20, 2], [30, 10], [20, 18], [10, 10]]], "boxes": [[10, 2, 30, 18]]}]},
    },
    "a byte order mark": {"tree": pets((f"\ufeff{DOG}\r",)), "rows": {"train": [{"labels": [1]}]}},
    "a box over the edge by less than 1%": {
        "tree": pets(("0 0.7545 0.5 0.5 0.5",), size=(20, 4000)),
        "rows": {"train": [{"boxes": [[2018, 5, 4000, 15]]}]},
    },
    "a box over the edge by more": {
        "tree": pets(("0 0.7655 0.5 0.5 0.5",), size=(20, 4000)),
        "rows": {"train": ["leaves the 4000 x 20 image"]},
    },
    "clipped boxes": {
        "tree": pets(("0 0.9 0.5 0.5 0.5", "0 0.5 0.5 0 0.5")),
        "options": {"clip_boxes": True},
        "rows": {"train": [{"boxes": [[26, 5, 40, 15]]}]},
    },
    "Roboflow's paths": {
        "tree": {
            "data.yaml": f"train: ../train/images\nval: ../valid/images\n\nnc: 2\n{NAMES}",
            **{f"{split}/images/a.png": PHOTO for split in ("train", "valid")},
            **{f"{split}/labels/a.txt": DOG for split in ("train", "valid")},
        },
        "rows": {"train": [{"id": "train/images/a.png", "labels": [1]}], "val": [{"id": "valid/images/a.png"}]},
    },
    **{
        f"val by the name {key}": {
            "tree": pets(())
            | {"data.yaml": f"train: images/train\nval:\n{key}: images/val\n{NAMES}", "images/val/b.png": PHOTO},
            "rows": {"train": [{"id": "images/train/a.png"}], "val": [{"id": "images/val/b.png"}]},
        }
        for key in ("validation", "valid")
    },
    **{
        f"labels of {image} in {labels}": {
            **described(f"train: {image.lower()}\n", f"{image}/x.png", f"{labels}/x.txt"),
            "notes": [BESIDE] if image == labels else [],
        }
        for image, labels in (
            *(("a/images", "a/images"), ("a", "a"), ("Images/train", "labels/train"), ("Images/train", "Labels/train")),
            ("images/a/images", "images/a/labels"),
        )
    },
    **{
        f"a list: {text}, {line}": described(f"{text}\n", **{"lists/train.txt": f"{line}\n"})
        for text, line in (
            ("train: lists/train.txt", "../images/train/a.png"),
            ("path: images\ntrain: ../lists/train.txt", "./train/a.png"),
            ("path: .\ntrain: lists/train.txt", "./images/train/a.png"),
            ("path: .\ntrain: lists\\train.txt", "images\\train\\a.png"),
            ("train: .\\Images\\Train", ""),
        )
    },
    "a list with an image that is missing": {
        "tree": pets((DOG,))
        | {"data.yaml": f"train: l.txt\n{NAMES}", "l.txt": "./images/train/a.png\nimages/gone.png\n"},
        "rows": {"train": [{"counts": 1}, "no such file"]},
    },
    "pictures of other endings, and similar classes": {
        "tree": pets((DOG,)) | {"data.yaml": "train: images/train\nnames: [cat, Cat]\n", "images/train/b.heic": b""},
        "rows": {"train": [{}]},
        "notes": ["in .heic", "'cat' and 'Cat' are classes of their own"],
    },
    "lines that occur twice": {
        "tree": pets(("0 0.5 0.5 0.5 0.5", DOG, "0 0.50 0.5 0.5 0.5")),
        "rows": {"train": [{"labels": [0, 1]}]},
    },
    "two images with one label file": {
        "tree": pets((DOG,), ()) | {"images/train/a.bmp": PHOTO},
        "rows": {"train": [{"labels": [1]}, {"labels": [1]}, {"counts": 0}]},
        "notes": [
            "images share their label file with another image: 1 (images/train/a.bmp and images/train/a.png)",
            "images without a label file have no objects: 1 (images/train/b.png)",
        ],
    },
}


@pytest.mark.parametrize("case", READ)
def test_yolo_sets_are_read(tmp_path: Path, case: str) -> None:
    check("yolo", tmp_path, **READ[case])


FAULTS: dict[str, str] = {
    "7 0.5 0.5 0.5 0.5": "class 7 does not exist; data.yaml has 2",
    "0.5 0.5 0.5 0.5 0.5": "class 0.5 does not exist",
    "0 0.5 0.5 0.5": "it has 4 numbers, expected 5 for detection",
    "0 0.5 0.5 0.5 x": "could not convert string to float",
    "0 15 5 25 15": "a number is no share",
    "0 0.5 0.5 0 0.5": "the box 20, 5, 20, 15 has no area in the 40 x 20 image",
    "0 0.9 0.5 0.5 0.5": "the box 26, 5, 46, 15 leaves the 40 x 20 image",
    "0 nan 0.5 0.5 0.5": "a number is no share",
    "0 0.684115 0.800463 0.153646 0.0935185 0.575787 1": "it has 7 numbers, expected 5",  # confidence and track
}
FAULTS_OF_POINTS: dict[str, str] = {
    "0 0.5 0.5 0.5 0.5 0.5 0.5 2": "it has 8 numbers, expected 11 for keypoints",
    "0 0.5 0.5 0.5 0.5 0.5 0.5 3 0 0 0": "a keypoint has another visibility than 0, 1 and 2",
    "0 0.5 0.5 0.5 0.5 0.5 nan 2 0 0 0": "a number is no share",
    "0 0.5 0.5 0.5 0.5 20 10 2 0 0 0": "a number is no share",
}


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        *((pets((DOG, "", line)), {}, f"line 3: {message}") for line, message in FAULTS.items()),
        *((pets((line,), more=POINTS), {}, f"line 1: {message}") for line, message in FAULTS_OF_POINTS.items()),
        (pets((DOG,)), {"task": "instances"}, "line 1: it has 5 numbers, expected 7"),
        (pets((" " * (2**23 + 1),)), {}, "at most 8,388,608"),
    ],
)
def test_yolo_faulty_line_is_named_by_its_number(
    tmp_path: Path, tree: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    check("yolo", tmp_path, {"train": [f"labels/train/a.txt.*{message}"]}, tree=tree, options=options)


DESCRIPTIONS: dict[str, str] = {
    "names: [cat]\n": "names no images",
    "train: images/train\n": "write names",
    "names: cat\n": "names is 'cat'",
    "names: {a: cat}\n": "'a' is not",
    "names: {0: a, 00: b}\n": "each once and without gaps",
    "names: {1: a, 2: b}\n": "from 0",
    "names: {0: a, 2: b}\n": "without gaps",
    "names: [a, b]\nnc: 3\n": "nc is 3",
    "names: [a, b, a]\n": "has 2 classes named 'a'",
    "names: [[a], b]\n": "write a list or a table",
    "nc: many\n": "nc is wrong",
    "a: &a [b, b]\nnames: [*a, *a]\n": "aliases are not read",
    "names: {0: cat, 1: dog, 1: bird}\n": "has a key twice among",
    "train: a\nnames: [cat]\ntrain: b\n": "has a key twice among",
    "- a\n": "is no table",
    "train: elsewhere\nnames: [cat]\n": "names 'elsewhere', which does not exist",
    "train: images/train\nnames: [cat\n": "no YAML that is read here",
    "train: images/train\nnames: [cat]\nkpt_shape: [3]\n": "kpt_shape is",
    "train: images/train\nnames: [cat]\nkpt_shape: [257, 3]\n": "keypoints, at most 256",
    "train: images/train\nnc: 1000001\n": "has 1,000,001 classes, at most 1,000,000",
    f"names: {'[' * 100_000}\n": "no YAML",
    "names: {[a]: b}\n": "unhashable",
    "train: images/train\nnames: [cat]\nkpt_shape: [3, 3]\nflip_idx: [0, 0, 1]\n": "flip_idx",
}


@pytest.mark.parametrize("text", DESCRIPTIONS, ids=range(len(DESCRIPTIONS)))
def test_yolo_description_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    check("yolo", tmp_path, f"data.yaml.*{DESCRIPTIONS[text]}", tree=pets(()) | {"data.yaml": text})


@pytest.mark.parametrize("task", ["detection", "instances", "rotated"])
def test_yolo_keypoints_are_not_read_as_polygons(tmp_path: Path, task: str) -> None:
    tree = pets(("0 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5",), more="kpt_shape: [3, 2]\n")
    check("yolo", tmp_path, f"boxes and keypoints, not {task}; leave task out", tree=tree, options={"task": task})


def test_yolo_losses_are_counted(tmp_path: Path) -> None:
    points = pets((TWO_POINTS, "0 0.5 0.5 0.5 0.5 0 0 0 1 1 1"), more=POINTS)
    doubles = pets((DOG, DOG))
    for name, tree, word in (("a", points, "keypoints"), ("b", doubles, "lines")):
        split = find_splits("yolo", plant(tmp_path / name, tree), Decoder(), {})["train"]
        assert [count for loss, count in split.read(0).losses.items() if word in loss] == [1]


def test_yolo_lists_outside_of_the_root_are_read_if_allowed(tmp_path: Path) -> None:
    tree = pets((DOG,)) | {"data.yaml": f"train: {tmp_path / 'train.txt'}\n{NAMES}"}
    plant(tmp_path, {"train.txt": "in/images/train/a.png\n"})
    check("yolo", tmp_path / "in", {"train": [{"counts": 1}]}, tree=tree, options={"allow_outside": True})
    plant(
        tmp_path / "in",
        {"data.yaml": f"train: train.txt\n{NAMES}", "train.txt": f"{tmp_path}/in/images/train/a.png\r\n"},
    )
    check("yolo", tmp_path / "in", {"train": [{"id": "images/train/a.png", "labels": [1]}]})
    plant(tmp_path / "in", {"train.txt": f"{tmp_path}/in2/a.png\n"})
    check("yolo", tmp_path / "in", "in2 leads out of .*allow_outside")
    plant(tmp_path / "in", {"train.txt": b"images/\xff.png\n"})
    check("yolo", tmp_path / "in", "train.txt is not UTF-8 text")
    with pytest.raises(RecipeError, match="task is"):
        make_source("yolo", tmp_path / "in", Decoder(), {"task": "segment"})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("{0: 01, 1: 02, 2: 1}", ("01", "02", "1")),
        ("[010, 1_000, 0x10]", ("010", "1_000", "0x10")),
        ("[true, false]", ("true", "false")),
        ("[null, ~]", ("null", "~")),
        ("[1.0, 2.10]", ("1.0", "2.10")),
        ("[no, 2020-01-01, 1e3]", ("no", "2020-01-01", "1e3")),
        ("{1: b, 0: a}", ("a", "b")),
        ("{'0': a, 1.0: b}", ("a", "b")),
        ("\n- a # a comment\n- it's\n- 'b, c'", ("a", "it's", "b, c")),
        ("&classes [a, b]", ("a", "b")),
    ],
)
def test_yolo_names_are_read_as_they_are_written(tmp_path: Path, names: str, expected: tuple[str, ...]) -> None:
    text = f"train: images/train\nval: ~\ntest:\nnc:\nnames: {names}\ndownload: |\n  import os\n  x: [\n"
    check("yolo", tmp_path, {"train": [{}]}, tree=pets(()) | {"data.yaml": text}, classes=expected)


@pytest.mark.parametrize(
    "name", ['a " # b', "it's # c", "tab\there\n", "caf\u00e9 \U0001f600", "\u2028 \x85 \\", "\x07\x1b\0"]
)
def test_yolo_names_in_quotes_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data.yaml"
    for text in (
        yaml.dump({"names": {0: name}}, width=1000),
        yaml.dump({"names": [name]}, width=1000, allow_unicode=True, default_style='"'),
    ):
        path.write_text(text, encoding="utf-8")
        assert read_description(path)["names"] in ([name], {"0": name})


def test_yolo_build_stores_what_was_read(tmp_path: Path) -> None:
    made = YoloSet(tmp_path / "yolo", "kpt_shape: [2, 3]\nflip_idx: [1, 0]\n")
    made.image("a", "0 0.5 0.5 0.5 0.5 0.5 0.5 2 0.25 0.25 1", "1 0.5 0.5 1 1 0 0 0 0.5 0.5 2")
    made.image("bb")
    transforms = ({"step": "Letterbox", "size": 80},)
    out = build(BuildRecipe(kind="yolo", root=made.root, out=tmp_path / "out", transforms=transforms)).out
    batch = open_dataset(out)["train"][:]
    assert batch.counts.tolist() == [2, 0]
    assert batch.boxes[0].tolist() == [[20, 30, 60, 50], [0, 20, 80, 60]]
    assert batch.extra["keypoints"][0].tolist() == [[[40, 40, 2], [20, 30, 1]], [[0, 0, 0], [40, 40, 2]]]
    assert (batch.extra["keypoints"][1] == 0).all()


def test_yolo_link_back_to_a_parent_is_not_followed(tmp_path: Path) -> None:
    plant(tmp_path, pets(()) | {"images/val/b.png": PHOTO})
    (tmp_path / "images" / "train" / "back").symlink_to("..")
    check("yolo", tmp_path, {"train": [{"id": "images/train/a.png"}]})


def test_yolo_orientation_that_is_not_applied_is_noted(tmp_path: Path) -> None:
    photo = encoded(PHOTO, "JPEG", exif=TURNED_PHOTO)
    plant(tmp_path, pets(()) | {"images/train/a.png": photo, "labels/train/a.txt": "0 0.25 0.5 0.5 1"})
    plain, turned = (
        find_splits("yolo", tmp_path, Decoder(exif_orient=on), {})["train"].read(0) for on in (False, True)
    )
    assert TURNED in plain.losses
    assert TURNED not in turned.losses
    assert (turned.size, turned.fields["boxes"].tolist()) == ((40, 20), [[0, 0, 10, 40]])
