"""Exports in COCO's and YOLO's layouts build the same rows again, and pycocotools finds them equal."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache

import numpy as np
import pytest
from coco_sets import CocoSet, coco_dataset
from yolo_sets import YoloSet

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, load
from mmload.errors import UsageError
from mmload.export import Choice, to_coco, to_yolo
from mmload.remote.opening import open as open_dataset


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Opens the dataset of a task and a size, which is built once."""
    return cache(lambda task, size: open_dataset(coco_dataset(tmp_path_factory.mktemp("coco"), task, size)))


def rebuilt(folder, recipe, out):
    from dataclasses import replace

    return open_dataset(build(replace(load(folder / recipe), root=folder, out=out)).out)


def assert_equal(ours, theirs, rounding=()):
    assert list(ours) == list(theirs)
    for name, split in ours.items():
        other = theirs[name]
        assert split.record.fields == other.record.fields
        assert split.classes == other.classes
        assert split.record.objects == other.record.objects
        assert len(split) == len(other)
        for field in split.record.fields:
            pairs = zip(*(each.reader.rows(field, np.arange(len(split))) for each in (split, other)), strict=True)
            for row, (first, second) in enumerate(pairs):
                limit = dict(rounding).get(field, 0)
                np.testing.assert_allclose(first, second, rtol=0, atol=limit, err_msg=f"{field} of row {row}")


@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("task", ["detection", "instances", "keypoints"])
def test_coco_export_builds_the_same_rows(built, tmp_path, task, size):
    dataset = built(task, size)
    made = to_coco(dataset, tmp_path / "again")
    assert made.notes == []
    assert_equal(dataset, rebuilt(tmp_path / "again", "coco.toml", tmp_path / "built again"))


def average_precision(truth, kind):
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    found = json.loads(truth.read_text())["annotations"]
    with contextlib.redirect_stdout(io.StringIO()):
        ours = coco.COCO(truth)
        shown = [each for each in found if not each["iscrowd"] and each.get("num_keypoints", 1)]
        theirs = ours.loadRes([{**each, "score": 1.0} for each in shown])
        run = evaluation.COCOeval(ours, theirs, kind)
        run.params.maxDets = [100]
        if kind == "keypoints":
            run.params.maxDets, run.params.kpt_oks_sigmas = [20], np.full(3, 0.05)
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][..., 0, 0]  # of all sizes
    return float(precision[precision > -1].mean())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools
@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
def test_coco_export_of_ground_truth_has_an_average_precision_of_1(built, tmp_path, kind):
    task = {"bbox": "detection", "segm": "instances", "keypoints": "keypoints"}[kind]
    to_coco(built(task, 64), tmp_path / "again")
    assert average_precision(tmp_path / "again" / "annotations" / "instances_train.json", kind) == 1.0


LINES = {
    "detection": ("0 0.5 0.5 0.25 0.5", "1 0.123456789 0.3 0.2 0.4"),
    "instances": ("1 0.1 0.1 0.5 0.123456789 0.5 0.9", "0 0.5 0.5 0.75 0.5 0.75 1 0.5 1"),
    "keypoints": ("0 0.5 0.5 0.5 0.5 0.3 0.5 2 0 0 0 0.51234567 0.75 1",),
    "rotated": ("1 0.5 0.1 0.75 0.512345678 0.5 0.9 0.25 0.5",),
}


@pytest.mark.parametrize("task", LINES)
def test_yolo_export_builds_the_same_rows(tmp_path, task):
    made = YoloSet(tmp_path / "yolo", "kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n" if task == "keypoints" else "")
    made.image("bb", *LINES[task])
    made.image("a")
    transforms = ({"step": "Letterbox", "size": 64},)
    recipe = BuildRecipe(
        kind="yolo", root=made.root, out=tmp_path / "built", options={"task": task}, transforms=transforms
    )
    dataset = open_dataset(build(recipe).out)
    exported = to_yolo(dataset, tmp_path / "again")
    assert exported.notes == []
    rounding = {"polygons": 1e-9, "boxes": 1e-5} if task == "instances" else {}
    assert_equal(dataset, rebuilt(tmp_path / "again", "yolo.toml", tmp_path / "built again"), rounding)


def test_yolo_export_joins_the_polygons_of_an_object(tmp_path):
    made, random = CocoSet(tmp_path / "coco"), np.random.default_rng(0)
    made.image(1, 200, 240)
    for _ in range(30):
        angles = np.sort(random.uniform(0, 2 * np.pi, (4, 9)))
        places = np.array([[60, 50], [180, 50], [60, 150], [180, 150]])[: random.integers(2, 5), None]
        stars = (
            places
            + random.uniform(10, 40, (4, 9, 1))[: len(places)]
            * np.stack([np.cos(angles), np.sin(angles)], 2)[: len(places)]
        )
        polygons = stars.round(2).reshape(len(stars), -1).tolist()
        made.object(1, [0, 0, 240, 200], segmentation=random.permutation(polygons).tolist())
    recipe = BuildRecipe(
        kind="coco", root=made.write(), out=tmp_path / "built", options={"task": "instances"},
        transforms=({"step": "Letterbox", "size": 240},),
    )  # fmt: skip
    dataset = open_dataset(build(recipe).out)
    to_yolo(dataset, tmp_path / "yolo")
    ours, theirs = (
        each["train"][:].instance_masks()[0].bool()
        for each in (dataset, rebuilt(tmp_path / "yolo", "yolo.toml", tmp_path / "again"))
    )
    overlap = (ours & theirs).flatten(1).sum(1) / (ours | theirs).flatten(1).sum(1)
    assert overlap.min() > 0.999, overlap


def test_yolo_export_notes_what_it_cannot_write(built, tmp_path):
    exported = to_yolo(built("instances", 64), tmp_path / "yolo")
    notes = "\n".join(exported.notes)
    for note in (
        "YOLO has no place for area, image_ids, iscrowd, run_boxes, runs: left out",
        "objects have no polygon: their boxes are written",
        "objects have several polygons: they are joined to one",
    ):
        assert note in notes


def test_coco_export_of_a_class_keeps_the_rows_that_have_it(built, tmp_path):
    dataset = built("instances", 64)
    made = to_coco(dataset, tmp_path / "cars", Choice(split="train", of_class="car"))
    labels = dataset["train"][:].labels
    assert made.rows == int((labels == 1).any(1).sum())


def test_coco_export_without_boxes_is_refused(dataset, tmp_path):
    with pytest.raises(UsageError, match="have no boxes; export them to imagefolder or huggingface"):
        to_coco(dataset, tmp_path / "coco")


@pytest.mark.parametrize(("names", "said"), [("", True), ("kpt_names: {0: [nose, left_eye, right_eye]}\n", False)])
def test_coco_export_says_that_names_of_keypoints_lose_their_flip(tmp_path, names, said):
    made = YoloSet(tmp_path / "yolo", f"kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n{names}")
    made.image("a", *LINES["keypoints"])
    built = build(BuildRecipe(kind="yolo", root=made.root, out=tmp_path / "built")).out
    notes = to_coco(open_dataset(built), tmp_path / "again").notes
    assert [("which ones a flip exchanges" in note) for note in notes] == [True] * said
