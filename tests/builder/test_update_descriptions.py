"""Updates where only the description of a source has changed: a row is kept only if a fresh build would make it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from coco_sets import CocoSet
from devkit import Devkit, thing
from updating import make_old
from yolo_sets import YoloSet

import mmload
from mmload.builder.pipeline import build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import verify
from mmload.errors import SampleError
from mmload.records import FIELD_NAMES

LETTERBOX = ({"step": "Letterbox", "size": 16},)
POSE = "kpt_shape: [2, 3]\nflip_idx: [0, 1]\n"
LINE = "0 0.5 0.5 0.5 0.5 0.25 0.5 2 0.5 0.75 1"


def built(kind, root, tmp_path, **options):
    make_old(root)
    made = BuildRecipe(kind=kind, root=root, out=tmp_path / "out", options=options, transforms=LETTERBOX)
    build(made)
    return made


def rows_of(dataset):
    """Returns the id and all values of each row of each split."""
    return {name: [(split.source(row).id, split[row]) for row in range(len(split))] for name, split in dataset.items()}


def assert_is_fresh(made, tmp_path):
    """Checks that a dataset has the rows and the description of a fresh build."""
    found = mmload.open(made.out)
    expected = mmload.open(build(replace(made, out=tmp_path / "fresh"), overwrite=True).out)
    ours, theirs = rows_of(found), rows_of(expected)
    assert ours.keys() == theirs.keys()
    for name, split in expected.items():
        assert [each for each, _ in ours[name]] == [each for each, _ in theirs[name]]
        for (_, own), (_, other) in zip(ours[name], theirs[name], strict=True):
            for field in split.fields:
                values, wanted = (
                    getattr(row, field) if field in FIELD_NAMES else row.extra[field] for row in (own, other)
                )
                assert torch.equal(torch.as_tensor(values), torch.as_tensor(wanted)), field
        for key in ("fields", "classes", "objects", "class_counts"):
            assert getattr(found[name].record, key) == getattr(split.record, key), key
    assert verify(made.out) == []


def yolo_set(root, more):
    made = YoloSet(root, more)
    for name in ("a", "bb"):
        made.image(name, LINE if "kpt_shape" in more else "0 0.5 0.5 0.5 0.5")
    made.image("empty")
    return made


@pytest.mark.parametrize("options", [UpdateOptions(), UpdateOptions(checksum=True)], ids=["times", "checksum"])
@pytest.mark.parametrize("added", [False, True])
def test_another_flip_of_yolo_builds_all_rows(tmp_path, options, added):
    source = yolo_set(tmp_path / "yolo", POSE)
    made = built("yolo", source.root, tmp_path)
    source.__init__(source.root, POSE.replace("[0, 1]", "[1, 0]"))
    if added:
        source.image("another", LINE)
    assert update(made, replace(options, dry_run=True)).changed == 3
    report = update(made, options)
    assert (report.added, report.changed, report.removed) == (int(added), 3, 0)
    assert_is_fresh(made, tmp_path)


@pytest.mark.parametrize(
    ("before", "now"), [("", POSE), (POSE, ""), (POSE, POSE.replace("[2, 3]", "[3, 2]").replace("[0, 1]", "[0, 2, 1]"))]
)
def test_another_number_of_keypoints_of_yolo_builds_all_rows(tmp_path, before, now):
    source = yolo_set(tmp_path / "yolo", before)
    made = built("yolo", source.root, tmp_path)
    yolo_set(source.root, now)
    make_old(source.root)
    assert update(made).changed == 3
    assert_is_fresh(made, tmp_path)


def test_keypoints_of_yolo_without_visibility_are_read_again(tmp_path):
    source = yolo_set(tmp_path / "yolo", POSE)
    made = built("yolo", source.root, tmp_path)
    YoloSet(source.root, POSE.replace("[2, 3]", "[2, 2]"))
    with pytest.raises(SampleError, match="keypoints .data.yaml has 2."):
        update(made)


def test_a_class_that_is_gone_from_the_description_of_yolo_is_missed_by_its_boxes(tmp_path):
    source = yolo_set(tmp_path / "yolo", "")
    source.image("dog", "1 0.5 0.5 0.5 0.5")
    made = built("yolo", source.root, tmp_path)
    source.describe("path: .\ntrain: images/train\nnames: [cat]\n")
    with pytest.raises(SampleError, match="class 1 does not exist"):
        update(made)


def test_an_appended_class_of_yolo_keeps_all_rows_and_is_said(tmp_path):
    source = yolo_set(tmp_path / "yolo", "")
    made = built("yolo", source.root, tmp_path)
    source.describe("path: .\ntrain: images/train\nnames: [cat, dog, owl]\n")
    notes = []
    report = update(made, on_note=notes.append)
    assert (report.added, report.changed, report.removed) == (0, 0, 0)
    assert "no row is built again" in "".join(notes)
    assert_is_fresh(made, tmp_path)


def coco_set(root, names):
    made = CocoSet(root, prefix="person_keypoints")
    made.body["categories"] = [{"id": 1, "name": "person", "keypoints": names}]
    for number in (1, 2):
        made.image(number)
    made.object(1, [2, 3, 10, 12], keypoints=[3, 4, 2, 5, 6, 1])
    made.write()
    return made


@pytest.mark.parametrize(
    ("names", "changed"), [(["left_eye", "right_eye"], 2), (["tail", "nose"], 0)], ids=["flipped", "renamed"]
)
def test_renamed_keypoints_of_coco_build_all_rows_if_their_flip_changes(tmp_path, names, changed):
    source = coco_set(tmp_path / "coco", ["nose", "tail"])
    made = built("coco", source.root, tmp_path, task="keypoints")
    source.body["categories"][0]["keypoints"] = names
    source.write()
    notes = []
    assert update(made, on_note=notes.append).changed == changed
    assert ("all rows are" if changed else "no row is built again") in "".join(notes)
    assert_is_fresh(made, tmp_path)


def test_an_added_field_outlives_rows_that_are_all_built_again(tmp_path):
    made = built("yolo", yolo_set(tmp_path / "yolo", POSE).root, tmp_path)
    mmload.add_field(made.out, "score", torch.arange(3.0).numpy())
    yolo_set(made.root, "")
    assert update(made).manifest.card["warnings"]["train"]
    split = mmload.open(made.out)["train"]
    assert "keypoints" not in split.fields
    assert split[:].extra["score"].isnan().all()
    assert verify(made.out) == []


@pytest.mark.parametrize("number", [1795639530696830050, 12])
def test_another_image_id_of_coco_is_a_change(tmp_path, number):
    source = CocoSet(tmp_path / "coco")
    source.image(1)
    source.body["images"][0]["id"] = number
    source.write()
    made = built("coco", source.root, tmp_path)
    source.body["images"][0]["id"] = number + 1
    source.write()
    assert update(made).changed == 1
    assert_is_fresh(made, tmp_path)


def test_exchanged_numbers_of_panoptic_segments_are_a_change(tmp_path):
    from PIL import Image

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
    made = built("coco", source.root, tmp_path, task="panoptic")
    segments[0]["id"], segments[1]["id"] = 2, 1
    source.file.write_text(json.dumps(source.body))
    assert update(made).changed == 1
    assert_is_fresh(made, tmp_path)


@pytest.mark.parametrize("more", [True, False])
def test_another_number_of_classes_builds_all_rows_of_a_number_for_each(tmp_path, more):
    source = Devkit(tmp_path / "voc")
    source.add("a", thing("cat"))
    source.add("bb", thing("dog"))
    source.add("ccc", thing("owl"))
    source.list("train", *(("a", "bb") if more else ("a", "bb", "ccc")))
    made = built("voc", source.root, tmp_path, task="classification", classes="auto")
    source.list("train", *(("a", "bb", "ccc") if more else ("a", "bb")))
    assert update(made).changed == 2
    assert_is_fresh(made, tmp_path)
