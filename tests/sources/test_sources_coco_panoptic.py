"""Panoptic segments of COCO: the maps, the file that lists them, and what is wrong between the two."""

from __future__ import annotations

import numpy as np
import pytest
from coco_sets import CocoSet, arrays, fault
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.pictures.instance_masks import mask_of_runs, parts_of
from mmload.remote.opening import open as open_dataset


def panoptic(root, change=lambda numbers, segments: None):
    """Writes one image of three segments, of which one has a number over 65,536, and unlabeled pixels."""
    made = CocoSet(root, prefix="panoptic")
    made.image(7)
    numbers = np.zeros((30, 40), np.int64)
    numbers[:10], numbers[12:20, 5:15], numbers[20:, 20:] = 70_001, 300, 9
    segments = [
        {"id": number, "category_id": category, "bbox": box, "area": int((numbers == number).sum()), "iscrowd": 0}
        for number, category, box in ((9, 3, [20, 20, 20, 10]), (300, 90, [5, 12, 10, 8]), (70_001, 1, [0, 0, 40, 10]))
    ]
    change(numbers, segments)
    made.body["annotations"] = [{"image_id": 7, "file_name": "000007.png", "segments_info": segments}]
    folder = made.file.with_suffix("")
    folder.mkdir()
    colors = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 2).astype(np.uint8)
    Image.fromarray(colors).save(folder / "000007.png")
    return made, numbers


def test_coco_panoptic_without_crowds_leaves_their_segments_out(tmp_path):
    made, _ = panoptic(tmp_path, lambda numbers, segments: segments[1].update(iscrowd=1))
    (train,) = made.splits(task="panoptic", crowds=False).values()
    for split in (train, train.part([0])):
        assert split.read(0).fields["labels"].tolist() == [1, 0]


def test_coco_panoptic_map_of_another_size_is_refused(tmp_path):
    made, _ = panoptic(tmp_path)
    Image.new("RGB", (40, 31)).save(made.file.with_suffix("") / "000007.png")
    assert "it has another size than the image" in fault(made, task="panoptic")


def test_coco_panoptic_segments_are_masks_of_boxes(tmp_path):
    made, numbers = panoptic(tmp_path / "coco")
    (train,) = made.splits(task="panoptic").values()
    fields = arrays(train.read(0))
    assert fields["labels"].tolist() == [1, 2, 0]
    for (box, runs), number in zip(parts_of(fields, "run_boxes", "runs"), (9, 300, 70_001), strict=True):
        np.testing.assert_array_equal(mask_of_runs(runs, 30, 40), numbers == number, err_msg=str(box))
    part = arrays(train.part([0]).read(0))
    assert all(np.array_equal(part[name], values) for name, values in fields.items())
    recipe = {"kind": "coco", "root": tmp_path / "coco", "out": tmp_path / "out", "options": {"task": "panoptic"}}
    built = build(BuildRecipe(**recipe, transforms=({"step": "Letterbox", "size": 80},))).out
    (masks,) = open_dataset(built)["train"][:].instance_masks()
    assert masks.flatten(1).sum(1).tolist() == [4 * int((numbers == number).sum()) for number in (9, 300, 70_001)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda numbers, segments: segments.pop(), "annotation 70001: the segment is in its map, but not in the file"),
        (lambda numbers, segments: numbers.__setitem__(numbers == 9, 0), "annotation 9: the segment has no pixel"),
        (lambda numbers, segments: segments[0].update(category_id=4), "annotation 9: category 4 does not exist"),
    ],
)
def test_coco_panoptic_map_and_file_have_to_agree(tmp_path, change, expected):
    made, _ = panoptic(tmp_path, change)
    message = fault(made, task="panoptic")
    assert f"{made.file}, image 7, {expected}" in message


def test_coco_panoptic_map_that_is_missing_is_an_error_of_its_sample(tmp_path):
    made, _ = panoptic(tmp_path)
    (made.file.with_suffix("") / "000007.png").unlink()
    assert "no such file: annotations/panoptic_train2017/000007.png" in fault(made, task="panoptic")
