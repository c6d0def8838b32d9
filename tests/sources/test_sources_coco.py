"""COCO's layout: what is read of it, compared with pycocotools, and what is wrong with it, in one line each."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from coco_sets import CocoSet, arrays, coco_dataset, example, uncompressed

from mmload.errors import SourceError
from mmload.pictures.instance_masks import mask_of_runs, of_boxes, parts_of, runs_of_mask
from mmload.records import mirrored_names
from mmload.remote.opening import open as open_dataset
from mmload.sources.coco import decoded_runs


def set_of(root, *boxes, prefix="instances", **more):
    """Returns a set of image 1, 40 x 30, with these boxes, each with more values of its annotation."""
    made = CocoSet(root, prefix=prefix)
    made.image(1)
    for box in boxes:
        made.object(1, box, **more)
    return made


def train_of(made, **options):
    return made.splits(**options)["train"]


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of pycocotools
def test_coco_split_reads_what_pycocotools_reads(tmp_path):
    coco = pytest.importorskip("pycocotools.coco")
    made = example(tmp_path)
    train = train_of(made, task="instances")
    theirs = coco.COCO(made.file)
    assert train.classes == ("person", "car", "toothbrush")
    assert train.objects().category_ids == (1, 3, 90)
    for index, image in enumerate(made.body["images"]):
        sample = train.read(index)
        fields, expected = arrays(sample), theirs.imgToAnns[image["id"]]
        assert train.id(index) == sample.id == f"train2017/{image['file_name']}"
        boxes = np.array([each["bbox"] for each in expected], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_array_equal(fields["boxes"], boxes.astype(np.float32))
        assert fields["counts"] == len(expected)
        assert fields["image_ids"] == image["id"]
        assert [(1, 3, 90)[label] for label in fields["labels"]] == [each["category_id"] for each in expected]
        assert fields["iscrowd"].tolist() == [bool(each["iscrowd"]) for each in expected]
        np.testing.assert_allclose(fields["area"], [each["area"] for each in expected], rtol=1e-6)
        polygons = parts_of(fields, "rings", "polygons")
        runs = dict(parts_of(fields, "run_boxes", "runs"))
        for number, each in enumerate(expected):
            if each["iscrowd"]:
                np.testing.assert_array_equal(mask_of_runs(runs[number], *sample.size), theirs.annToMask(each))
                continue
            own = [points.reshape(-1) for box, points in polygons if box == number]
            assert len(own) == len(each["segmentation"])
            for points, polygon in zip(own, each["segmentation"], strict=True):
                np.testing.assert_array_equal(points, np.array(polygon))


def test_coco_part_reads_the_same_samples(tmp_path):
    (train,) = example(tmp_path).splits(task="instances").values()
    part = train.part([4, 0, 1])
    for place, index in enumerate((4, 0, 1)):
        assert part.revision(place) == train.revision(index)
        for name, tensor in train.read(index).fields.items():
            assert np.array_equal(part.read(place).fields[name], tensor), name


def test_coco_objects_in_any_order_are_grouped_by_image(tmp_path):
    made = example(tmp_path / "a")
    (ordered,) = made.splits(task="instances").values()
    expected = [arrays(ordered.read(index)) for index in range(len(ordered))]
    made.body["annotations"].sort(key=lambda each: -each["image_id"])  # stable: the order within an image stays
    (mixed,) = made.splits(task="instances").values()
    for index, fields in enumerate(expected):
        for name, values in fields.items():
            np.testing.assert_array_equal(arrays(mixed.read(index))[name], values)


def test_coco_revision_changes_with_a_label(tmp_path):
    made = example(tmp_path)
    (before,) = made.splits().values()
    made.body["annotations"][0]["category_id"] = 90 if made.body["annotations"][0]["category_id"] != 90 else 1
    (after,) = made.splits().values()
    changed = [before.revision(index) != after.revision(index) for index in range(len(before))]
    assert changed == [True, *[False] * 5]


def test_decoded_runs_are_those_of_pycocotools():
    mask_functions = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for _ in range(100):
        mask = random.random(random.integers(1, 90, 2)) < random.choice([0.0, 0.02, 0.5, 0.98, 1.0])
        text = mask_functions.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
        assert decoded_runs(text).tolist() == uncompressed(mask)["counts"]


def test_runs_of_a_mask_give_the_mask():
    random = np.random.default_rng(0)
    for _ in range(100):
        mask = random.random(random.integers(1, 20, 2)) < random.choice([0.0, 0.1, 0.5, 1.0])
        assert runs_of_mask(mask).tolist() == uncompressed(mask)["counts"]
        np.testing.assert_array_equal(mask_of_runs(runs_of_mask(mask), *mask.shape), mask)


def test_masks_of_remaining_boxes_have_their_new_numbers():
    fields = {"rings": np.array([[0, 2], [2, 1], [1, 3]], np.int32), "polygons": np.arange(12).reshape(6, 2)}
    remaining = of_boxes(fields, np.array([True, False, True]))
    assert remaining["rings"].tolist() == [[0, 2], [1, 1]]
    assert remaining["polygons"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_mirrored_names_exchange_sides():
    assert mirrored_names(("nose", "left_eye", "right_eye")) == (0, 2, 1)
    assert mirrored_names(("L ear", "nose")) == (0, 1)
    assert mirrored_names(("l_ear", "r_ear", "bleft")) == (1, 0, 2)
    assert mirrored_names(("Left_Eye", "Right_Eye", "L_Ankle", "R_Ankle")) == (1, 0, 3, 2)
    assert mirrored_names(("leftHip", "rightHip", "kneeLeft", "kneeRight", "LEFT", "RIGHT")) == (1, 0, 3, 2, 5, 4)
    assert mirrored_names(("Lid", "Rid", "light", "right")) == (0, 1, 2, 3)


def test_coco_splits_of_different_categories_are_refused(tmp_path):
    for split in ("train2017", "val2017"):
        made = CocoSet(tmp_path, split)
        made.image(1)
        made.object(1, [1, 2, 5, 5])
        if split == "val2017":
            made.body["categories"] = made.body["categories"][1:]
        made.write()
    with pytest.raises(SourceError, match="split val and split train have different classes .3, car"):
        made.splits()
    made.body["annotations"].clear()
    assert list(made.splits()) == ["train", "val"]


def test_coco_ids_beyond_int64_are_texts(tmp_path):
    made = CocoSet(tmp_path)
    made.image(2**70)
    made.object(2**70, [1, 2, 5, 5], 2**71, id=2**72)
    made.body["categories"] = [{"id": 2**71, "name": "car"}]
    train = train_of(made)
    assert train.read(0).fields["labels"].tolist() == [0]
    assert train.read(0).fields["image_ids"] == 0


def test_coco_build_stores_lists_without_padding(tmp_path):
    out = coco_dataset(tmp_path)
    body = json.loads((out / "dataset.json").read_text())
    record = body["splits"]["train"]
    assert record["fields"]["boxes"] == {"dtype": "float32", "shape": [-1, 4], "encoding": "list", "version": 0}
    assert record["objects"]["category_ids"] == [1, 3, 90]
    offsets = np.fromfile(out / "train" / "000000" / "boxes.offsets.memmap", "<i8")
    counts = np.fromfile(out / "train" / "000000" / "counts.memmap", "<i8")
    np.testing.assert_array_equal(np.diff(offsets), 16 * counts)
    assert (out / "train" / "000000" / "boxes.bytes.memmap").stat().st_size == 16 * counts.sum()


@pytest.mark.parametrize("size", [64, None])
def test_coco_build_gives_padded_batches(tmp_path, size):
    split = open_dataset(coco_dataset(tmp_path, size=size))["train"]
    (source,) = (each for name, each in splits_at(tmp_path / "coco").items() if name == "train")
    most = int(split[:].counts.max()) if size else max(int(split[row].counts) for row in range(len(split)))
    assert split.fields["boxes"].shape == (most, 4)
    for row in range(len(split)):
        fields, own = source.read(row).fields, split[row]
        count = int(own.counts)
        assert count == fields["counts"]
        assert own.labels[:count].tolist() == fields["labels"].tolist()
        assert (own.labels[count:] == -1).all()
        assert (own.boxes[count:] == 0).all()
        height, width = fields["images"].shape[1:]
        scale = 1.0 if size is None else min(size / height, size / width)
        sides = own.boxes[:count, 2:] - own.boxes[:count, :2]
        expected = fields["boxes"][:, 2:] - fields["boxes"][:, :2]
        assert torch.allclose(sides, expected * scale, rtol=0.05, atol=0.5)


def splits_at(root):
    from mmload.sources import find_splits
    from mmload.sources.decode import Decoder

    return find_splits("coco", root, Decoder(), {"task": "instances"})
