"""Updates where only the description of a source has changed: a row is kept only if a fresh build would make it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from coco_sets import CocoSet
from devkit import Devkit, thing
from PIL import Image
from updating import make_old
from yolo_sets import YoloSet

import mmload
from mmload.builder.pipeline import build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import verify
from mmload.errors import BuildError, SampleError
from mmload.records import FIELD_NAMES

LETTERBOX = ({"step": "Letterbox", "size": 16},)
POSE = "kpt_shape: [2, 3]\nflip_idx: [0, 1]\n"
LINE = "0 0.5 0.5 0.5 0.5 0.25 0.5 2 0.5 0.75 1"


@pytest.fixture
def built(tmp_path):
    """Builds a source; at the end of the test its dataset has the rows and the description of a fresh build."""
    recipes = []

    def build_it(source, kind, **options):
        make_old(source.root)
        made = BuildRecipe(kind=kind, root=source.root, out=tmp_path / "out", options=options, transforms=LETTERBOX)
        build(made)
        recipes.append(made)
        return made

    yield build_it
    for made in recipes:
        expected = build(replace(made, out=tmp_path / "fresh")).out
        assert described(made.out) == described(expected)
        assert verify(made.out) == []


def described(path):
    """Returns the description and all values of each split, where they can be compared."""
    return {
        name: (
            [getattr(split.record, key) for key in ("fields", "classes", "objects", "class_counts")],
            [(split.source(row).id, values_of(split[row], split.fields)) for row in range(len(split))],
        )
        for name, split in mmload.open(path).items()
    }


def values_of(row, fields):
    values = {field: getattr(row, field) if field in FIELD_NAMES else row.extra[field] for field in fields}
    return {field: torch.as_tensor(value).tolist() for field, value in values.items()}


def yolo_set(root, more):
    """Returns two images with a box, and one without."""
    made = YoloSet(root, more)
    for name in ("a", "bb"):
        made.image(name, LINE if "kpt_shape" in more else "0 0.5 0.5 0.5 0.5")
    made.image("empty")
    return made


@pytest.mark.parametrize("options", [UpdateOptions(), UpdateOptions(checksum=True)], ids=["times", "checksum"])
@pytest.mark.parametrize("added", [False, True])
def test_another_flip_of_yolo_builds_all_rows(tmp_path, built, options, added):
    source = yolo_set(tmp_path / "yolo", POSE)
    made = built(source, "yolo")
    source.__init__(source.root, POSE.replace("[0, 1]", "[1, 0]"))
    if added:
        source.image("another", LINE)
    assert update(made, replace(options, dry_run=True)).changed == 3
    report = update(made, options)
    assert (report.added, report.changed, report.removed) == (int(added), 3, 0)


@pytest.mark.parametrize(
    ("before", "now"), [("", POSE), (POSE, ""), (POSE, POSE.replace("[2, 3]", "[3, 2]").replace("[0, 1]", "[0, 2, 1]"))]
)
def test_another_number_of_keypoints_of_yolo_builds_all_rows(tmp_path, built, before, now):
    made = built(yolo_set(tmp_path / "yolo", before), "yolo")
    make_old(yolo_set(tmp_path / "yolo", now).root)
    assert update(made).changed == 3


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (POSE, POSE.replace("[2, 3]", "[2, 2]"), r"keypoints .data.yaml has 2."),
        ("  2: owl\n", "", "class 2 does not exist"),
    ],
    ids=["visibility", "class"],
)
def test_rows_that_do_not_suit_the_description_of_yolo_any_more_are_read_again(tmp_path, before, now, message):
    source = yolo_set(tmp_path / "yolo", before)
    source.image("last", LINE if before == POSE else "2 0.5 0.5 0.5 0.5")
    make_old(source.root)
    made = BuildRecipe(kind="yolo", root=source.root, out=tmp_path / "out", transforms=LETTERBOX)
    build(made)
    YoloSet(source.root, now)
    with pytest.raises(SampleError, match=message):
        update(made)


def test_an_appended_class_of_yolo_keeps_all_rows(tmp_path, built):
    source = yolo_set(tmp_path / "yolo", "")
    made = built(source, "yolo")
    source.__init__(source.root, "  2: owl\n")
    report = update(made)
    assert (report.added, report.changed, report.removed, report.manifest.version) == (0, 0, 0, 2)


def coco_set(root, images=1, prefix="instances", **person):
    """Returns images, the first of which has a person."""
    made = CocoSet(root, prefix=prefix)
    made.body["categories"] = [{"id": 1, "name": "person", **person}]
    for number in range(1, images + 1):
        made.image(number)
    made.object(1, [2, 3, 10, 12], **({"keypoints": [3, 4, 2, 5, 6, 1]} if person else {}))
    made.write()
    return made


@pytest.mark.parametrize(
    ("names", "changed"), [(["left_eye", "right_eye"], 2), (["tail", "nose"], 0)], ids=["flipped", "renamed"]
)
def test_renamed_keypoints_of_coco_build_all_rows_if_their_flip_changes(tmp_path, built, names, changed):
    source = coco_set(tmp_path / "coco", 2, "person_keypoints", keypoints=["nose", "tail"])
    made = built(source, "coco", task="keypoints")
    source.body["categories"][0]["keypoints"] = names
    source.write()
    assert update(made).changed == changed


def test_an_added_field_outlives_rows_that_are_all_built_again(tmp_path):
    source = yolo_set(tmp_path / "yolo", POSE)
    made = BuildRecipe(kind="yolo", root=source.root, out=tmp_path / "out", transforms=LETTERBOX)
    build(made)
    mmload.add_field(made.out, "score", torch.arange(3.0).numpy())
    yolo_set(made.root, "")
    assert update(made).manifest.card["warnings"]["train"]
    split = mmload.open(made.out)["train"]
    assert "keypoints" not in split.fields
    assert split[:].extra["score"].isnan().all()
    assert verify(made.out) == []


@pytest.mark.parametrize("number", [1795639530696830050, 12])
def test_another_image_id_of_coco_is_a_change(tmp_path, built, number):
    source = CocoSet(tmp_path / "coco")
    source.image(1)
    source.body["images"][0]["id"] = number
    source.write()
    made = built(source, "coco")
    source.body["images"][0]["id"] = number + 1
    source.write()
    assert update(made).changed == 1


def test_other_ids_of_the_same_categories_are_a_change(tmp_path, built):
    source = coco_set(tmp_path / "coco")
    made = built(source, "coco")
    source.body["categories"][0]["id"] = source.body["annotations"][0]["category_id"] = 101
    source.write()
    with pytest.raises(BuildError, match="its source has changed"):
        build(made)
    (record,) = update(made).manifest.splits.values()
    assert record.objects.category_ids == (101,)


def test_a_source_that_lists_its_samples_in_another_order_gives_that_order(tmp_path, built):
    source = coco_set(tmp_path / "coco", 3)
    made = built(source, "coco")
    source.body["images"].reverse()
    source.write()
    report = update(made)
    assert (report.added, report.changed, report.removed, report.manifest.version) == (0, 0, 0, 2)
    assert mmload.open(made.out)["train"][:].extra["image_ids"].tolist() == [3, 2, 1]


def test_exchanged_numbers_of_panoptic_segments_are_a_change(tmp_path, built):
    source = CocoSet(tmp_path / "coco", prefix="panoptic")
    source.image(1)
    picture = Image.new("RGB", (40, 30), (1, 0, 0))
    picture.paste((2, 0, 0), (0, 0, 20, 30))
    folder = source.file.with_suffix("")
    folder.mkdir()
    picture.save(folder / "1.png")
    segments = [{"id": each, "category_id": 1, "bbox": [0, 0, 40, 30], "area": 600} for each in (1, 2)]
    source.body["annotations"] = [{"image_id": 1, "file_name": "1.png", "segments_info": segments}]
    source.write()
    made = built(source, "coco", task="panoptic")
    segments[0]["id"], segments[1]["id"] = 2, 1
    source.file.write_text(json.dumps(source.body))
    assert update(made).changed == 1


@pytest.mark.parametrize("more", [True, False])
def test_another_number_of_classes_builds_all_rows_of_a_number_for_each(tmp_path, built, more):
    source, names = Devkit(tmp_path / "voc"), ("a", "bb", "ccc")
    for name, animal in zip(names, ("cat", "dog", "owl"), strict=True):
        source.add(name, thing(animal))
    source.list("train", *names[: 2 if more else 3])
    made = built(source, "voc", task="classification", classes="auto")
    source.list("train", *names[: 3 if more else 2])
    assert update(made).changed == 2
