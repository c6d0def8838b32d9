"""COCO's layout: what is read of it, compared with pycocotools, and what is wrong with it, in one line each."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from coco_sets import CocoSet, arrays, coco_dataset, example, fault, uncompressed

from mmload.errors import RecipeError, SourceError
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


def test_coco_keypoints_are_read_with_visibility_skeleton_and_flip(tmp_path):
    made = example(tmp_path, prefix="person_keypoints")
    train = train_of(made, task="keypoints")
    assert train.objects().keypoints == ("nose", "left_eye", "right_eye")
    assert train.objects().skeleton == ((0, 1), (0, 2))
    assert train.objects().flip == (0, 2, 1)
    expected = [each["keypoints"] for each in made.body["annotations"] if each["image_id"] == 3]
    np.testing.assert_array_equal(
        train.read(2).fields["keypoints"].reshape(len(expected), -1), np.array(expected, np.float32)
    )


def test_coco_without_crowds_leaves_them_out(tmp_path):
    (train,) = example(tmp_path).splits(crowds=False).values()
    assert not any(train.read(index).fields["iscrowd"].any() for index in range(len(train)))


def test_coco_part_reads_the_same_samples(tmp_path):
    (train,) = example(tmp_path).splits(task="instances").values()
    part = train.part([4, 0, 1])
    for place, index in enumerate((4, 0, 1)):
        assert part.revision(place) == train.revision(index)
        for name, tensor in train.read(index).fields.items():
            assert torch.equal(part.read(place).fields[name], tensor), name


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


def test_coco_splits_are_named_without_their_year(tmp_path):
    for split in ("val2017", "train2017"):
        made = CocoSet(tmp_path, split)
        made.image(1)
        made.write()
    assert list(made.splits()) == ["train", "val"]


def test_coco_two_years_have_to_be_chosen(tmp_path):
    for split in ("train2014", "train2017"):
        made = CocoSet(tmp_path, split)
        made.image(1)
        made.write()
    with pytest.raises(RecipeError, match="both of split train; give annotations"):
        made.splits()
    assert list(made.splits(annotations="annotations/instances_train2014.json")) == ["train"]


def test_coco_annotations_beside_images_are_found(tmp_path):
    made = CocoSet(tmp_path, "valid")
    made.image(1)
    made.file = tmp_path / "valid" / "_annotations.coco.json"
    assert list(made.splits()) == ["valid"]


FAULTS = {
    "polygon of two points": ({"segmentation": [[1, 1, 5, 5]]}, "instances", "its segmentation is [[1, 1, 5, 5]]"),
    "odd polygon": ({"segmentation": [[1, 1, 5, 5, 9, 1, 3]]}, "instances", "a polygon has 3.5 points"),
    "outside": ({"bbox": [30, 2, 20, 5]}, "detection", "the box 30, 2, 50, 7 leaves the 40 x 30 image"),
    "no area": ({"bbox": [3, 2, 5, 0]}, "detection", "the box 3, 2, 8, 2 has no area"),
    "no box": ({"bbox": None}, "detection", "required field `bbox`"),
    "three numbers": ({"bbox": [1, 2, 3]}, "detection", "its bbox is [1, 2, 3]"),
    "category": ({"category_id": 7}, "detection", "category 7 does not exist"),
    "keypoints": ({"keypoints": [1, 2, 2] * 4}, "keypoints", "it has 4 keypoints, the category with most has 3"),
    "visibility": ({"keypoints": [1, 2, 5] * 3}, "keypoints", "another visibility"),
    "runs": ({"segmentation": {"size": [30, 40], "counts": [5, 6]}}, "instances", "do not cover an image of 40 x 30"),
    "runs of another size": (
        {"segmentation": {"size": [40, 30], "counts": [1200]}},
        "instances",
        "of an image of 30 x 40, listed is 40 x 30",
    ),
    "far point": ({"segmentation": [[1, 1, 5, 5, 1e9, 3]]}, "instances", "<= 1000000"),
    "keypoint over float32": ({"keypoints": [1e39, 5, 2] * 3}, "keypoints", "its keypoints is [1e+39"),
    "keypoint under float32": ({"keypoints": [1, -1e39, 0] * 3}, "keypoints", "its keypoints is [1, -1e+39"),
    "area over float32": ({"area": 1e39}, "detection", "its area is 1e+39"),
    "compressed": ({"segmentation": {"size": [30, 40], "counts": "oo"}}, "instances", "run lengths are damaged"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_coco_faulty_object_is_named_by_file_image_and_annotation(tmp_path, case):
    change, task, expected = FAULTS[case]
    prefix = "person_keypoints" if task == "keypoints" else "instances"
    made = set_of(tmp_path, [1, 2, 5, 5], prefix=prefix, **change)
    message = fault(made, task=task)
    assert expected in message
    assert f"{made.file}, image 1, annotation 100: " in message


def test_coco_missing_image_is_an_error_of_its_sample(tmp_path):
    made = CocoSet(tmp_path)
    made.image(17, write=False)
    assert f"{made.file}, image 17: no such file: {tmp_path / 'train2017' / '000017.png'}" in fault(made)


def test_coco_file_that_was_cut_off_is_one_line(tmp_path):
    made = example(tmp_path)
    made.write()
    content = made.file.read_bytes()
    made.file.write_bytes(content[: len(content) // 2])
    made.write = lambda: None
    with pytest.raises(SourceError, match="is no JSON, or was cut off") as caught:
        made.splits()
    assert str(made.file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_coco_clip_boxes_cuts_and_leaves_out(tmp_path):
    boxes = [30, 2, 20, 5], [3, 2, 5, 0], [1, 2, 5, 5]
    made = set_of(tmp_path, *boxes, segmentation=[[1, 1, 9, 1, 1, 9]])
    sample = train_of(made, clip_boxes=True, task="instances").read(0)
    assert sample.fields["boxes"].tolist() == [[30, 2, 40, 7], [1, 2, 6, 7]]
    assert sample.fields["rings"].tolist() == [[0, 3], [1, 3]]
    assert sample.losses == {"boxes_clipped": 2}


def test_coco_box_over_the_edge_by_rounding_is_cut(tmp_path):
    train = train_of(set_of(tmp_path, [30.2, 2, 10.4, 28.5]))
    assert train.read(0).fields["boxes"].tolist() == [[pytest.approx(30.2), 2, 40, 30]]


def test_coco_annotations_of_unlisted_images_are_a_note(tmp_path):
    made = set_of(tmp_path)
    made.object(2, [1, 2, 3, 4])
    train = train_of(made)
    assert train.notes() == (
        "annotations of images that the file does not list are left out: 1 (annotation 100 of image 2)",
        "no image has an object",
    )


def test_coco_objects_without_segmentation_are_a_note(tmp_path):
    made = CocoSet(tmp_path)
    triangle = [[1, 1, 9, 1, 1, 9]]
    for image, segmentation in ((1, triangle), (2, []), (2, None), (2, triangle)):
        if image > len(made.body["images"]):
            made.image(image)
        made.object(image, [1, 2, 3, 4], segmentation=segmentation)
    train = train_of(made, task="instances")
    assert train.notes() == ("2 objects without segmentation: no pixel belongs to such a mask",)
    assert train.read(1).fields["rings"].tolist() == [[2, 3]]
    train = train_of(made)
    assert train.notes() == ()


def test_coco_paths_that_leave_the_root_are_refused(tmp_path):
    made = CocoSet(tmp_path / "coco")
    made.image(1)
    with pytest.raises(RecipeError, match="leaves the root"):
        made.splits(annotations="../a.json")
    name = made.body["images"][0]["file_name"]
    made.body["images"][0]["file_name"] = str(tmp_path / "coco" / "train2017" / name)  # some tools write absolute paths
    assert made.splits()["train"].id(0) == f"train2017/{name}"
    made.body["images"][0]["file_name"] = "../../a.png"
    assert "leaves the folder; name a file in " in fault(made)


def test_decoded_runs_are_those_of_pycocotools():
    mask_functions = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for _ in range(100):
        mask = random.random(random.integers(1, 90, 2)) < random.choice([0.0, 0.02, 0.5, 0.98, 1.0])
        text = mask_functions.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
        assert decoded_runs(text) == uncompressed(mask)["counts"]


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


def test_coco_keypoints_without_sides_are_a_note(tmp_path):
    made = set_of(tmp_path, [1, 2, 5, 5], prefix="person_keypoints", keypoints=[])
    made.body["categories"] = [{"id": 1, "name": "chair", "keypoints": ["seat", "back"]}]
    train = train_of(made, task="keypoints")
    assert train.read(0).fields["keypoints"].tolist() == [[[0, 0, 0], [0, 0, 0]]]
    assert "exchange none of the 2 keypoints" in train.notes()[0]


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


def test_coco_keypoints_beyond_the_limit_are_refused(tmp_path):
    made = set_of(tmp_path, prefix="person_keypoints")
    made.body["categories"] = [{"id": 1, "name": "mesh", "keypoints": list(map(str, range(257)))}]
    with pytest.raises(SourceError, match="of up to 257 keypoints, at most"):
        made.splits(task="keypoints")


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
    from mmload.sources import make_source
    from mmload.sources.decode import Decoder

    return make_source("coco", root, Decoder(), {"task": "instances"}).splits()


def test_coco_file_with_a_byte_order_mark_is_read(tmp_path):
    made = example(tmp_path)
    (plain,) = made.splits().values()
    made.file.write_text(made.file.read_text(), encoding="utf-8-sig")
    made.write = lambda: None
    (marked,) = made.splits().values()
    assert [marked.id(index) for index in range(len(marked))] == [plain.id(index) for index in range(len(plain))]


@pytest.mark.parametrize("change", [lambda body: body["annotations"].clear(), lambda body: body.pop("annotations")])
def test_coco_file_without_objects_is_told(tmp_path, change):
    made = set_of(tmp_path, [1, 2, 9, 12])
    assert train_of(made).notes() == ()
    change(made.body)
    assert train_of(made).notes() == ("no image has an object",)
