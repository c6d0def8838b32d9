"""YOLO's layout: boxes, polygons, keypoints and rotated boxes in pixels, and one line for what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from coco_sets import noise
from PIL import Image
from yolo_sets import YoloSet

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.records import TURNED
from mmload.remote.opening import open as open_dataset
from mmload.sources import make_source
from mmload.sources.decode import Decoder
from mmload.sources.yolo_labels import read_description


def train_of(root, *lines, more="", size=(20, 40), **options):
    """Returns the split of an image with these lines."""
    made = YoloSet(root, more)
    made.image("a", *lines, size=size)
    return made.splits(**options)["train"]


def test_yolo_boxes_are_read_in_pixels(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.5 0.5 0.25 0.5", "", "1 0.1 0.2 0.2 0.4")
    made.image("b")
    (train,) = made.splits().values()
    assert (train.classes, len(train), train.id(0)) == (("cat", "dog"), 2, "images/train/a.png")
    sample = train.read(0)
    np.testing.assert_allclose(sample.fields["boxes"], [[15, 5, 25, 15], [0, 0, 8, 8]], rtol=1e-6)
    assert sample.fields["labels"].tolist() == [0, 1]
    assert sample.lists == {"boxes", "labels"}
    assert train.read(1).fields["counts"] == 0
    assert train.notes() == ("images without a label file have no objects: 1 (images/train/b.png)",)


def test_yolo_polygons_are_instances_or_boxes_around_them(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "1 0.1 0.1 0.5 0.1 0.5 0.9", "0 0.5 0.5 0.75 0.5 0.75 1 0.5 1")
    made.image("bb")
    (train,) = made.splits(task="instances").values()
    fields = train.read(0).fields
    np.testing.assert_allclose(fields["boxes"], [[4, 2, 20, 18], [20, 10, 30, 20]], rtol=1e-6)
    assert fields["rings"].tolist() == [[0, 3], [1, 4]]
    np.testing.assert_allclose(fields["polygons"][:3], [[4, 2], [20, 2], [20, 18]], rtol=1e-6)
    assert train.read(1).fields["polygons"].shape == (0, 2)
    (boxes,) = made.splits().values()
    assert boxes.read(0).fields["boxes"].tolist() == fields["boxes"].tolist()


@pytest.mark.parametrize("numbers", [2, 3])
def test_yolo_keypoints_have_visibility_and_flip(tmp_path, numbers):
    made = YoloSet(tmp_path, f"kpt_shape: [3, {numbers}]\nflip_idx: [0, 2, 1]\n")
    points = "0.25 0.5 2 0 0 0 0.5 0.75 1" if numbers == 3 else "0.25 0.5 0 0 0.5 0.75"
    made.image("a", f"0 0.5 0.5 0.5 0.5 {points}")
    (train,) = made.splits().values()
    assert train.objects().flip == (0, 2, 1)
    shown = train.read(0).fields["keypoints"].tolist()
    assert shown == [[[10, 10, 2], [0, 0, 0], [20, 15, 1 if numbers == 3 else 2]]]


def test_yolo_rotated_boxes_are_corners_and_the_box_around_them(tmp_path):
    train = train_of(tmp_path, "1 0.5 0.1 0.75 0.5 0.5 0.9 0.25 0.5", task="rotated")
    fields = train.read(0).fields
    np.testing.assert_allclose(fields["corners"], [[[20, 2], [30, 10], [20, 18], [10, 10]]], rtol=1e-6)
    np.testing.assert_allclose(fields["boxes"], [[10, 2, 30, 18]], rtol=1e-6)


POINTS = "kpt_shape: [2, 3]\n"
LINES = {
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


@pytest.mark.parametrize(
    ("more", "options", "lines", "message"),
    [
        *(("", {}, ("0 0.5 0.5 0.5 0.5", "", line), f"line 3: {message}") for line, message in LINES.items()),
        ("", {"task": "instances"}, ("0 0.5 0.5 0.5 0.5",), "line 1: it has 5 numbers, expected 7"),
        (
            POINTS,
            {},
            ("0 0.5 0.5 0.5 0.5 0.5 0.5 2",),
            "line 1: it has 8 numbers, expected 11 for keypoints",
        ),
        (
            POINTS,
            {},
            ("0 0.5 0.5 0.5 0.5 0.5 0.5 3 0 0 0",),
            "line 1: a keypoint has another visibility than 0, 1 and 2",
        ),
        (POINTS, {}, ("0 0.5 0.5 0.5 0.5 0.5 nan 2 0 0 0",), "line 1: a number is no share"),
        (POINTS, {}, ("0 0.5 0.5 0.5 0.5 20 10 2 0 0 0",), "line 1: a number is no share"),
        ("", {}, (" " * (2**23 + 1),), "at most 8,388,608"),
    ],
)
def test_yolo_faulty_line_is_named_by_its_number(tmp_path, more, options, lines, message):
    with pytest.raises(SampleError) as caught:
        train_of(tmp_path, *lines, more=more, **options).read(0)
    assert message in str(caught.value)
    assert "labels/train/a.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yolo_keypoints_are_not_read_as_polygons(tmp_path):
    made = YoloSet(tmp_path, "kpt_shape: [3, 2]\n")
    made.image("a", "0 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5")
    for task in ("detection", "instances", "rotated"):
        with pytest.raises(SourceError, match=f"boxes and keypoints, not {task}; leave task out"):
            made.splits(task=task)


def test_yolo_keypoints_outside_of_their_image_are_noted(tmp_path):
    train = train_of(
        tmp_path, "0 0.5 0.5 0.5 0.5 1.5 0.5 2 0.5 0.5 2", "0 0.5 0.5 0.5 0.5 0 0 0 1 1 1", more="kpt_shape: [2, 3]\n"
    )
    assert [count for name, count in train.read(0).losses.items() if "keypoints" in name] == [1]


def test_yolo_keypoints_without_sides_are_a_note(tmp_path):
    train = train_of(
        tmp_path, "0 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5", more="kpt_shape: [2, 2]\nkpt_names: {0: [seat, back]}\n"
    )
    assert "exchange none of the 2 keypoints" in train.notes()[0]


def test_yolo_list_of_images_that_is_no_text_is_one_line(tmp_path):
    made = YoloSet(tmp_path)
    (tmp_path / "train.txt").write_bytes(b"images/\xff.png\n")
    made.describe("train: train.txt\nnames: [cat, dog]\n")
    with pytest.raises(SourceError, match="train.txt is not UTF-8 text"):
        made.splits()


def test_yolo_list_of_images_outside_of_the_root_is_read_if_allowed(tmp_path):
    made = YoloSet(tmp_path / "in")
    made.image("a", "0 0.5 0.5 0.5 0.5")
    (tmp_path / "train.txt").write_text("in/images/train/a.png\n")
    made.describe(f"train: {tmp_path / 'train.txt'}\nnames: [cat, dog]\n")
    (train,) = made.splits(allow_outside=True).values()
    assert train.read(0).fields["counts"] == 1


def test_yolo_image_of_a_list_that_is_missing_is_an_error_of_its_sample(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.5 0.5 0.5 0.5")
    (tmp_path / "train.txt").write_text("./images/train/a.png\nimages/train/gone.png\n")
    made.describe("train: train.txt\nnames: [cat, dog]\n")
    (train,) = made.splits().values()
    assert train.read(0).fields["counts"] == 1
    with pytest.raises(SampleError, match="no such file"):
        train.read(1)


def test_yolo_description_of_roboflow_is_read(tmp_path):
    YoloSet(tmp_path)
    for split in ("train", "valid"):
        (tmp_path / split / "images").mkdir(parents=True)
        (tmp_path / split / "labels").mkdir()
        made = YoloSet(tmp_path)
        made.image("a", "1 0.5 0.5 0.5 0.5")
        (tmp_path / "images/train/a.png").rename(tmp_path / split / "images/a.png")
        (tmp_path / "labels/train/a.txt").rename(tmp_path / split / "labels/a.txt")
    made.describe("train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['cat', 'dog']\n")
    splits = made.splits()
    assert {name: split.id(0) for name, split in splits.items()} == {
        "train": "train/images/a.png",
        "val": "valid/images/a.png",
    }
    assert splits["val"].read(0).fields["labels"].tolist() == [1]


def test_yolo_description_errors_name_the_file(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a")
    for text, expected in (
        ("names: [cat]\n", "names no images"),
        ("train: images/train\n", "write names"),
        ("names: cat\n", "names is 'cat'"),
        ("names: {a: cat}\n", "'a' is not"),
        ("names: {0: a, 00: b}\n", "each once and without gaps"),
        ("names: {1: a, 2: b}\n", "from 0"),
        ("names: {0: a, 2: b}\n", "without gaps"),
        ("names: [a, b]\nnc: 3\n", "nc is 3"),
        ("names: [a, b, a]\n", "has 2 classes named 'a'"),
        ("names: [[a], b]\n", "write a list or a table"),
        ("nc: many\n", "nc is wrong"),
        ("a: &a [b, b]\nnames: [*a, *a]\n", "aliases are not read"),
        ("names: {0: cat, 1: dog, 1: bird}\n", "has a key twice among"),
        ("train: a\nnames: [cat]\ntrain: b\n", "has a key twice among"),
        ("- a\n", "is no table"),
        ("train: elsewhere\nnames: [cat]\n", "names 'elsewhere', which does not exist"),
        ("train: images/train\nnames: [cat\n", "no YAML that is read here"),
        ("train: images/train\nnames: [cat]\nkpt_shape: [3]\n", "kpt_shape is"),
        ("train: images/train\nnames: [cat]\nkpt_shape: [257, 3]\n", "keypoints, at most 256"),
        ("train: images/train\nnc: 1000001\n", "has 1,000,001 classes, at most 1,000,000"),
        (f"names: {'[' * 100_000}\n", "no YAML"),
        ("names: {[a]: b}\n", "unhashable"),
        ("train: images/train\nnames: [cat]\nkpt_shape: [3, 3]\nflip_idx: [0, 0, 1]\n", "flip_idx"),
    ):
        made.describe(text)
        with pytest.raises(SourceError, match="data.yaml") as caught:
            made.splits()
        assert expected in str(caught.value)
    with pytest.raises(RecipeError, match="task is"):
        made.splits(task="segment")


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
def test_yolo_names_are_read_as_they_are_written(tmp_path, names, expected):
    made = YoloSet(tmp_path)
    made.image("a")
    made.describe(f"train: images/train\nval: ~\ntest:\nnc:\nnames: {names}\ndownload: |\n  import os\n  x: [\n")
    assert list(made.splits()) == ["train"]
    assert made.splits()["train"].classes == expected


@pytest.mark.parametrize(
    "name", ['a " # b', "it's # c", "tab\there\n", "caf\u00e9 \U0001f600", "\u2028 \x85 \\", "\x07\x1b\0"]
)
def test_yolo_names_in_quotes_are_read_as_they_were_written(tmp_path, name):
    path = tmp_path / "data.yaml"
    for text in (
        yaml.dump({"names": {0: name}}, width=1000),
        yaml.dump({"names": [name]}, width=1000, allow_unicode=True, default_style='"'),
    ):
        path.write_text(text, encoding="utf-8")
        assert read_description(path)["names"] in ([name], {"0": name})


def test_yolo_build_stores_what_was_read(tmp_path):
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


def test_yolo_labels_with_a_byte_order_mark_are_read(tmp_path):
    train = train_of(tmp_path, "\ufeff1 0.5 0.5 0.25 0.5\r")
    assert train.read(0).fields["labels"].tolist() == [1]


def test_yolo_list_has_absolute_paths_within_the_root_and_refuses_others(tmp_path):
    made = YoloSet(tmp_path / "pets")
    made.image("a", "1 0.5 0.5 0.25 0.5")
    made.describe("train: train.txt\nnames: [cat, dog]\n")
    (tmp_path / "pets/train.txt").write_text(f"{tmp_path}/pets/images/train/a.png\r\n")
    (train,) = made.splits().values()
    assert (train.id(0), train.read(0).fields["labels"].tolist()) == ("images/train/a.png", [1])
    (tmp_path / "pets/train.txt").write_text(f"{tmp_path}/pets2/a.png\n")
    with pytest.raises(SourceError, match="line 1: .* leaves .*; set allow_outside to follow it"):
        made.splits()


@pytest.mark.parametrize("key", ["validation", "valid"])
def test_yolo_val_is_read_under_its_other_names(tmp_path, key):
    made = YoloSet(tmp_path)
    made.image("a")
    (tmp_path / "images" / "val").mkdir()
    made.image("b", split="val")
    made.describe(f"train: images/train\nval:\n{key}: images/val\nnames: [cat]\n")
    assert {name: split.id(0) for name, split in made.splits().items()} == {
        "train": "images/train/a.png",
        "val": "images/val/b.png",
    }


def test_yolo_link_back_to_a_parent_is_not_followed(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a")
    (tmp_path / "images" / "val").mkdir()
    made.image("b", split="val")
    (tmp_path / "images" / "train" / "back").symlink_to("..")
    (train,) = made.splits().values()
    assert [train.id(index) for index in range(len(train))] == ["images/train/a.png"]


def test_yolo_triangle_beside_other_polygons_is_a_polygon(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.1 0.1 0.5 0.1 0.5 1", "0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5")
    boxes = made.splits()["train"].read(0).fields["boxes"]
    np.testing.assert_allclose(boxes, [[4, 2, 20, 20], [4, 2, 20, 10]], rtol=1e-6)
    made.image("b", "0 0.1 0.1 0.5 0.1 0.5 1")
    fields = made.splits(task="instances")["train"].read(1).fields
    np.testing.assert_allclose(fields["polygons"], [[4, 2], [20, 2], [20, 20]], rtol=1e-6)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("a/images", "a/images"),
        ("a", "a"),
        ("Images/train", "labels/train"),
        ("Images/train", "Labels/train"),
        ("images/a/images", "images/a/labels"),
    ],
)
def test_yolo_labels_are_found_where_tools_put_them(tmp_path, images, labels):
    for folder in (images, labels):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(20, 40, 0)).save(tmp_path / images / "x.png")
    (tmp_path / labels / "x.txt").write_text("1.0 0.5 0.5 0.5 0.5")
    (tmp_path / "data.yaml").write_text(f"train: {images.lower()}\nnames: [cat, dog]\n")
    (train,) = make_source("yolo", tmp_path, Decoder(), {}).splits().values()
    assert train.read(0).fields["labels"].tolist() == [1]
    beside = ("images have their labels in a file beside them: 1 (" + f"{images}/x.png)",)
    assert train.notes() == (beside if images == labels else ())


def test_yolo_pictures_of_other_endings_and_similar_classes_are_noted(tmp_path):
    made = YoloSet(tmp_path)
    made.describe("train: images/train\nnames: [cat, Cat]\n")
    made.image("a", "0 0.5 0.5 0.5 0.5")
    (tmp_path / "images/train/b.heic").write_bytes(b"")
    other, similar = made.splits()["train"].notes()
    assert "in .heic" in other
    assert "'cat' and 'Cat' are classes of their own" in similar


def test_yolo_orientation_that_is_not_applied_is_noted(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.25 0.5 0.5 1")
    exif = Image.Exif()
    exif[274] = 6
    (tmp_path / "images/train/a.png").unlink()
    Image.fromarray(noise(20, 40, 0)).save(tmp_path / "images/train/a.jpg", exif=exif)
    assert TURNED in made.splits()["train"].read(0).losses
    (turned,) = make_source("yolo", tmp_path, Decoder(exif_orient=True), {}).splits().values()
    sample = turned.read(0)
    assert (sample.size, sample.fields["boxes"].tolist()) == ((40, 20), [[0, 0, 10, 40]])
    assert TURNED not in sample.losses


def test_yolo_images_that_share_a_label_file_are_noted(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.5 0.5 0.5 0.5")
    Image.fromarray(noise(20, 40, 1)).save(tmp_path / "images/train/a.jpg")
    made.image("b")
    (train,) = made.splits().values()
    assert train.notes() == (
        "images share their label file with another image: 1 (images/train/a.jpg and images/train/a.png)",
        "images without a label file have no objects: 1 (images/train/b.png)",
    )


def test_yolo_lines_that_occur_twice_are_one_object_and_noted(tmp_path):
    made = YoloSet(tmp_path)
    made.image("a", "0 0.5 0.5 0.5 0.5", "1 0.5 0.5 0.5 0.5", "0 0.50 0.5 0.5 0.5")
    sample = made.splits()["train"].read(0)
    assert sample.fields["labels"].tolist() == [0, 1]
    assert list(filter(None, sample.losses.values())) == [1]


@pytest.mark.parametrize("size", [(20, 40), (20, 4000)])
@pytest.mark.parametrize(("x", "is_read"), [(0.7545, True), (0.7655, False)])
def test_yolo_box_may_reach_over_the_edge_by_a_share_of_the_image(tmp_path, size, x, is_read):
    train = train_of(tmp_path, f"0 {x} 0.5 0.5 0.5", size=size)
    if is_read:
        np.testing.assert_allclose(train.read(0).fields["boxes"][0, 2], size[1])
    else:
        with pytest.raises(SampleError, match="leaves the"):
            train.read(0)


@pytest.mark.parametrize(
    ("description", "line"),
    [
        ("train: lists/train.txt", "../images/train/a.png"),
        ("path: images\ntrain: ../lists/train.txt", "./train/a.png"),
        ("path: .\ntrain: lists/train.txt", "./images/train/a.png"),
        ("path: .\ntrain: lists\\train.txt", "images\\train\\a.png"),
        ("train: .\\Images\\Train", ""),
    ],
)
def test_yolo_paths_are_relative_to_path_or_to_the_list(tmp_path, description, line):
    made = YoloSet(tmp_path)
    made.image("a", "1 0.5 0.5 0.5 0.5")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_text(f"{line}\n")
    made.describe(f"{description}\nnames: [cat, dog]\n")
    (train,) = made.splits().values()
    assert (train.id(0), train.read(0).fields["labels"].tolist()) == ("images/train/a.png", [1])
