"""Parity of datasets made from COCO and YOLO: torchvision moves boxes, keypoints and polygons to the same places."""

from __future__ import annotations

import pytest
from coco_sets import coco_dataset
from yolo_sets import YoloSet

from mmload import parity
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.remote.opening import open as open_dataset

pytestmark = pytest.mark.slow


def failed(report):
    return [(each.part, each.name, each.text) for each in report.verdicts if each.state == "fail"]


@pytest.mark.parametrize("task", ["instances", "keypoints"])
def test_parity_of_coco_holds(tmp_path, task):
    dataset = coco_dataset(tmp_path, task)
    assert failed(parity.run(dataset, tmp_path / "coco")) == []


def test_parity_of_a_crop_of_yolo_holds(tmp_path):
    made = YoloSet(tmp_path / "yolo", "kpt_shape: [2, 3]\nflip_idx: [1, 0]\n")
    made.image("a", "0 0.5 0.5 0.5 0.5 0.5 0.5 2 0.05 0.25 1", "1 0.1 0.5 0.1 1 0 0 0 0.5 0.5 2")
    made.image("bb")
    crop = ({"step": "Resize", "size": 30}, {"step": "CenterCrop", "size": 30})
    out = build(BuildRecipe(kind="yolo", root=made.root, out=tmp_path / "out", transforms=crop)).out
    assert open_dataset(out)["train"][:].counts.tolist() == [1, 0]
    assert failed(parity.run(out, made.root)) == []
