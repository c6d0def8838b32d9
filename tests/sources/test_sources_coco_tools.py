"""COCO's layout as other tools write it: what is read all the same, what is noted, and what is an error of a sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coco_sets import CATEGORIES, CocoSet, arrays
from source_cases import check, picture, plant

from mmload.errors import SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.coco import CocoSplit
from mmload.sources.decode import Decoder

TRIANGLE = [1, 1, 9, 1, 1, 9]
Change = Callable[[dict[str, Any]], object]


def annotated(*objects: dict[str, Any], images: int = 1, **body: Any) -> dict[str, Any]:
    """Returns the content of an annotation file of images a, b, ... of 40 x 30; objects are of the first one."""
    return {
        "images": [{"id": 1 + n, "file_name": f"{'abc'[n]}.png", "height": 30, "width": 40} for n in range(images)],
        "annotations": [
            {"id": 100 + n, "image_id": 1, "category_id": 1, "bbox": [1, 2, 5, 5], "area": 25, "iscrowd": 0, **each}
            for n, each in enumerate(objects)
        ],
        "categories": CATEGORIES,
        **body,
    }


FILE, POINTS = "annotations/instances_train2017.json", "annotations/person_keypoints_train2017.json"
PHOTO = picture(30, 40)


def tree_of(*objects: dict[str, Any], file: str = FILE, **body: Any) -> dict[str, Any]:
    names = [f"train2017/{name}.png" for name in "abc"[: body.get("images", 1)]]
    return {file: annotated(*objects, **body), **dict.fromkeys(names, PHOTO)}


def faulty(change: dict[str, Any], task: str, message: str) -> dict[str, Any]:
    file = POINTS if task == "keypoints" else FILE
    rows = {"train": [f"{file}, image 1, annotation 100: .*{message}"]}
    return {"tree": tree_of(change, file=file), "options": {"task": task}, "rows": rows}


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "polygon of two points": ({"segmentation": [[1, 1, 5, 5]]}, "instances", r"its segmentation is \[\[1, 1, 5, 5\]\]"),
    "odd polygon": ({"segmentation": [[1, 1, 5, 5, 9, 1, 3]]}, "instances", "a polygon has 3.5 points"),
    "outside": ({"bbox": [30, 2, 20, 5]}, "detection", "the box 30, 2, 50, 7 leaves the 40 x 30 image"),
    "no area": ({"bbox": [3, 2, 5, 0]}, "detection", "the box 3, 2, 8, 2 has no area"),
    "no box": ({"bbox": None}, "detection", "required field `bbox`"),
    "three numbers": ({"bbox": [1, 2, 3]}, "detection", r"its bbox is \[1, 2, 3\]"),
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
    "keypoint over float32": ({"keypoints": [1e39, 5, 2] * 3}, "keypoints", r"its keypoints is \[1e\+39"),
    "keypoint under float32": ({"keypoints": [1, -1e39, 0] * 3}, "keypoints", r"its keypoints is \[1, -1e\+39"),
    "area over float32": ({"area": 1e39}, "detection", r"its area is 1e\+39"),
    "compressed": ({"segmentation": {"size": [30, 40], "counts": "oo"}}, "instances", "run lengths are damaged"),
}
SIDES = [5, 5, 2, 0, 0, 0, 9, 9, 1]
CHAIR = [{"id": 1, "name": "chair", "keypoints": ["seat", "back"]}]
OVER = ({"bbox": [30, 2, 20, 5]}, {"bbox": [3, 2, 5, 0]}, {})
BESIDE = "valid/_annotations.coco.json"
READ: dict[str, dict[str, Any]] = {
    **{name: faulty(*each) for name, each in FAULTS.items()},
    "missing image": {
        "tree": {FILE: annotated(), "train2017": None},
        "rows": {"train": ["no such file: train2017/a.png"]},
    },
    "no object": {"tree": tree_of(), "rows": {"train": [{"counts": 0}]}, "notes": ["no image has an object"]},
    "no annotations": {
        "tree": {
            FILE: {name: each for name, each in annotated().items() if name != "annotations"},
            "train2017/a.png": PHOTO,
        },
        "rows": {"train": [{"counts": 0}]},
        "notes": ["no image has an object"],
    },
    "a box over the edge by rounding": {
        "tree": tree_of({"bbox": [30.2, 2, 10.4, 28.5]}),
        "rows": {"train": [{"boxes": [[30.2, 2, 40, 30]]}]},
    },
    "clipped boxes": {
        "tree": tree_of(*({**each, "segmentation": [TRIANGLE]} for each in OVER)),
        "options": {"clip_boxes": True, "task": "instances"},
        "rows": {"train": [{"boxes": [[30, 2, 40, 7], [1, 2, 6, 7]], "rings": [[0, 3], [1, 3]]}]},
    },
    "objects without segmentation": {
        "tree": tree_of({"segmentation": []}, {"segmentation": None}, {"segmentation": [TRIANGLE]}),
        "options": {"task": "instances"},
        "rows": {"train": [{"rings": [[2, 3]]}]},
        "notes": ["objects without segmentation, to whose masks no pixel belongs: 2"],
    },
    "crowds left out": {
        "tree": tree_of({"iscrowd": 1}, {}),
        "options": {"crowds": False},
        "rows": {"train": [{"iscrowd": [False]}]},
    },
    "keypoints": {
        "tree": tree_of({"keypoints": SIDES}, file=POINTS),
        "options": {"task": "keypoints"},
        "rows": {"train": [{"keypoints": [[[5, 5, 2], [0, 0, 0], [9, 9, 1]]], "keypoint_flips": [0, 2, 1]}]},
        "notes": [],
    },
    "keypoints without sides": {
        "tree": tree_of({"keypoints": []}, file=POINTS, categories=CHAIR),
        "options": {"task": "keypoints"},
        "rows": {"train": [{"keypoints": [[[0, 0, 0], [0, 0, 0]]]}]},
        "notes": ["exchange none of the 2 keypoints"],
    },
    "ids that are long texts and begin equally": {
        "tree": tree_of(*({"id": "x" * 100 + end, "bbox": [1, 2, side, 5]} for end, side in (("a", 3), ("b", 4)))),
        "rows": {"train": [{"boxes": [[1, 2, 4, 7], [1, 2, 5, 7]]}]},
    },
    "too many keypoints": {
        "tree": tree_of(file=POINTS, categories=[{**CHAIR[0], "keypoints": list(map(str, range(257)))}]),
        "options": {"task": "keypoints"},
        "rows": "of up to 257 keypoints, at most",
    },
    "two splits": {
        "tree": tree_of() | {FILE.replace("train", "val"): annotated(), "val2017/a.png": PHOTO},
        "rows": {"train": [{"id": "train2017/a.png"}], "val": [{"id": "val2017/a.png"}]},
    },
    "two years": {
        "tree": tree_of() | {FILE.replace("2017", "2014"): annotated()},
        "rows": "both of split train; give annotations",
    },
    "one of two years": {
        "tree": tree_of() | {FILE.replace("2017", "2014"): annotated(), "train2014/a.png": PHOTO},
        "options": {"annotations": FILE.replace("2017", "2014")},
        "rows": {"train": [{"id": "train2014/a.png"}]},
    },
    "annotations beside images": {
        "tree": {BESIDE: annotated(), "valid/a.png": PHOTO},
        "rows": {"valid": [{"id": "valid/a.png"}]},
    },
    "no images": {"tree": tree_of() | {FILE: '{"images": null}'}, "rows": "split train of .* has no samples"},
    "annotations outside": {"tree": tree_of(), "options": {"annotations": "../a.json"}, "rows": "leads out of"},
}


@pytest.mark.parametrize("case", READ)
def test_coco_sets_are_read(tmp_path: Path, case: str) -> None:
    check("coco", tmp_path, **READ[case])


def test_coco_absolute_names_within_the_folder_are_read(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": str(tmp_path / "train2017/a.png")}
    check(
        "coco",
        tmp_path,
        {"train": [{"id": "train2017/a.png"}]},
        tree=tree_of() | {FILE: annotated() | {"images": [image]}},
    )


def test_coco_skeleton_and_losses_are_told(tmp_path: Path) -> None:
    split = find_splits(
        "coco", plant(tmp_path, tree_of(*OVER, file=POINTS)), Decoder(), {"task": "keypoints", "clip_boxes": True}
    )["train"]
    assert (split.objects().keypoints, split.objects().skeleton) == (
        ("nose", "left_eye", "right_eye"),
        ((0, 1), (0, 2)),
    )
    assert split.read(0).losses == {"boxes_clipped": 2}


def example(root: Path, prefix: str = "instances") -> CocoSet:
    """Returns a set of image 7 with a car (object 100), and of image 8 with a person and a car (101 and 102)."""
    made = CocoSet(root, prefix=prefix)
    for number, box, category in ((7, [1, 2, 5, 5], 3), (8, [2, 3, 8, 9], 1), (8, [0, 0, 40, 30], 3)):
        if number not in [image["id"] for image in made.body["images"]]:
            made.image(number)
        made.object(number, box, category, segmentation=[TRIANGLE])
    return made


def first(kind: str, **values: object) -> Change:
    """Returns a change of the first record of a kind."""
    return lambda body: body[kind][0].update(values)


def every(name: str, of: Callable[[Any], object]) -> Change:
    """Returns a change of the ids of all images or categories and of all references to them."""

    def change(body: dict[str, Any]) -> None:
        kind = "images" if name == "image_id" else "categories"
        body[kind] = [{**each, "id": of(each["id"])} for each in body[kind]]
        for each in body["annotations"]:
            each[name] = of(each[name])

    return change


def split_of(made: CocoSet, change: Change, **options: object) -> CocoSplit:
    made.body["categories"] = [dict(each) for each in made.body["categories"]]
    change(made.body)
    (split,) = made.splits(**options).values()
    assert isinstance(split, CocoSplit)
    return split


SPELLINGS: dict[str, Change] = {
    "category_id as text": first("annotations", category_id="3"),
    "image_id as text": first("annotations", image_id="7"),
    "image_id 7.0": first("annotations", image_id=7.0),
    "iscrowd 0.0": first("annotations", iscrowd=0.0),
    "iscrowd null": first("annotations", iscrowd=None),
    "iscrowd as text": first("annotations", iscrowd="0"),
    "iscrowd false": first("annotations", iscrowd=False),
    "area as text": first("annotations", area="25"),
    "bbox as texts": first("annotations", bbox=["1", "2.0", 5, "5"]),
    "id as text": first("annotations", id="100"),
    "category's skeleton of names": first("categories", skeleton=[["nose", "eye"]], keypoints=[{"name": "nose"}]),
    "category's supercategory 0": first("categories", supercategory=0),
    "height 30.0": first("images", height=30.0),
    "height as text": first("images", height="30"),
    "height null": first("images", height=None, width=None),
    "image's id as text": first("images", id="7"),
    "image's id 7.0": first("images", id=7.0),
    "backslash before": first("images", file_name=".\\000007.png"),
    "all category ids as texts": every("category_id", str),
    "all category ids as floats": every("category_id", float),
    "all image ids as texts": every("image_id", str),
    "skeleton of floats": first("categories", skeleton=[[1.0, 2.0]]),
    "keypoints null": first("categories", keypoints=None, skeleton=None),
    "supercategory null": first("categories", supercategory=None),
    "flat polygon": first("annotations", segmentation=TRIANGLE),
    "polygon of texts": first("annotations", segmentation=[list(map(str, TRIANGLE))]),
    "empty polygon beside": first("annotations", segmentation=[TRIANGLE, []]),
    "more keys": first("annotations", attributes={"occluded": False}, isbbox=False, metadata=None, score="x"),
    "licenses as texts": lambda body: body.update(licenses="none", info=[]),
    "annotations by id": lambda body: body.update(annotations={str(a["id"]): a for a in body["annotations"]}),
    "listed twice": lambda body: body["images"].append(body["images"][0]),
    "category twice": lambda body: body["categories"].append(body["categories"][0]),
}


@pytest.mark.parametrize("task", ["detection", "instances"])
@pytest.mark.parametrize("case", SPELLINGS)
def test_coco_record_in_another_spelling_is_read_as_in_the_usual_one(tmp_path: Path, case: str, task: str) -> None:
    usual = split_of(example(tmp_path / "a"), lambda body: None, task=task)
    other = split_of(example(tmp_path / "b"), SPELLINGS[case], task=task)
    assert (len(other), other.classes, other.objects()) == (len(usual), usual.classes, usual.objects())
    for index in range(len(usual)):
        fields, expected = arrays(other.read(index)), arrays(usual.read(index))
        assert {name: values.tolist() for name, values in fields.items()} == {
            name: values.tolist() for name, values in expected.items()
        }


def group_first(body: dict[str, Any]) -> None:
    body["categories"].insert(0, {"id": 0, "name": "things", "supercategory": "none"})
    for category in body["categories"][1:]:
        category["supercategory"] = "things"


NOTED: dict[str, tuple[Change, str, list[list[float]], list[int], str]] = {
    "group": (group_first, "detection", [[1, 2, 6, 7]], [1], "supercategory"),
    "no bbox": (first("annotations", bbox=[]), "detection", [[1, 1, 9, 9]], [1], "polygons: 1 (annotation 100)"),
    "bbox null": (first("annotations", bbox=None), "instances", [[1, 1, 9, 9]], [1], "around their polygons"),
    "segmentation {}": (first("annotations", segmentation={}), "instances", [[1, 2, 6, 7]], [1], "without"),
    "segmentation [[]]": (first("annotations", segmentation=[[]]), "instances", [[1, 2, 6, 7]], [1], "without"),
    "area NaN": (first("annotations", area=float("nan")), "detection", [[1, 2, 6, 7]], [1], "read as null: 1 (NaN)"),
    "area null": (first("annotations", area=None), "detection", [[1, 2, 6, 7]], [1], "without an area"),
    "id twice in an image": (
        lambda body: body["annotations"].append({**body["annotations"][0], "bbox": [3, 3, 4, 4], "category_id": 1}),
        "instances", [[3, 3, 7, 7]], [0], "a later one of the same id, as in pycocotools: 1 (annotation 100)",
    ),
    "id twice in two images": (first("annotations", id=102), "detection", [[1, 2, 6, 7]], [1], "another image"),
    "no ids": (
        lambda body: [each.pop("id") for each in body["annotations"]] and body["annotations"][0].update(area=None),
        "detection", [[1, 2, 6, 7]], [1], "(annotations[0])",
    ),
    "text against number": (
        lambda body: body["annotations"].append({**body["annotations"][0], "id": 5, "image_id": "img_7"}),
        "detection", [[1, 2, 6, 7]], [1], "of image 'img_7'",
    ),
    "unlisted image": (
        lambda body: body["annotations"].append({**body["annotations"][0], "id": 5, "image_id": 9}),
        "detection", [[1, 2, 6, 7]], [1], "left out: 1 (annotation 5 of image 9)",
    ),
    "no object": (lambda body: body["annotations"].append(None), "detection", [[1, 2, 6, 7]], [1], "annotations[3]"),
    "one name twice": (
        lambda body: body["categories"].append({"id": 95, "name": "car"}),
        "detection", [[1, 2, 6, 7]], [1], "share a name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_coco_record_that_is_guessed_merged_or_left_out_is_noted(tmp_path: Path, case: str) -> None:
    change, task, boxes, labels, note = NOTED[case]
    split = split_of(example(tmp_path), change, task=task)
    fields = arrays(split.read(0))
    assert (fields["boxes"].tolist(), fields["labels"].tolist()) == (boxes, labels)
    assert len([each for each in split.notes() if note in each]) == 1
    if task == "instances":
        assert [owner for owner, _ in fields["rings"].tolist()] in ([], [0])
    assert arrays(split.read(1))["boxes"].tolist() == [[2, 3, 10, 12], [0, 0, 40, 30]]


REFUSED: dict[str, tuple[Change, str]] = {
    "corners in place of a box": (
        first("annotations", bbox=[1, 1, 5, 1, 5, 5, 1, 5]),
        "annotation 100: its bbox is .1, 1, 5,",
    ),
    "box as text": (first("annotations", bbox="1,2,5,5"), "annotation 100: .*bbox"),
    "box of NaN": (first("annotations", bbox=[float("nan"), 2, 5, 5]), "annotation 100: .*null.*bbox"),
    "negative width": (first("annotations", bbox=[9, 2, -5, 5]), "annotation 100: .*no area"),
    "no box at all": (first("annotations", bbox=[], segmentation=[]), "annotation 100: .*required field `bbox`"),
    "iscrowd 2": (first("annotations", iscrowd=2), "annotation 100: 2 is neither 0 nor 1"),
    "no category": (first("annotations", category_id=None), "annotation 100: .*category_id"),
    "category by name": (first("annotations", category_id="car"), "category 'car' does not exist; the file has 3"),
    "height in words": (first("images", height="high"), r"images\[0\]: .*height"),
    "no name": (first("images", file_name=None), r"images\[0\]: .*file_name"),
    "no id": (first("images", id=None), r"images\[0\]: .*id"),
    "name out of the folder": (first("images", file_name="../../a.png"), "image 7: .*leaves the folder"),
    "runs without counts": (first("annotations", segmentation={"size": [30, 40]}), "annotation 100: .*counts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_coco_record_that_is_damaged_is_an_error_of_its_sample_alone(tmp_path: Path, case: str) -> None:
    change, message = REFUSED[case]
    made = example(tmp_path)
    split = split_of(made, change, task="instances")
    with pytest.raises(SampleError, match=message) as caught:
        split.read(0)
    assert str(made.file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(arrays(split.read(1))["boxes"]) == 2


def test_coco_images_of_one_id_and_two_names_are_errors_of_both(tmp_path: Path) -> None:
    split = split_of(example(tmp_path), lambda body: body["images"].append({**body["images"][1], "id": 7}))
    assert len(split) == 3
    for index in (0, 2):
        with pytest.raises(SampleError, match="'000007.png' and '000008.png' have this id"):
            split.read(index)


def test_coco_ids_that_are_texts_give_places_as_image_ids(tmp_path: Path) -> None:
    made = example(tmp_path)
    every("category_id", lambda own: f"cat_{own}")(made.body)
    split = split_of(made, every("image_id", lambda own: f"2008_{own:06d}"))
    assert [split.read(index).fields["image_ids"].item() for index in range(2)] == [0, 1]
    assert split.objects().category_ids == ()
    assert [split.classes[label] for label in split.read(1).fields["labels"]] == ["person", "car"]
    assert "image_ids are their places in the file: 1 ('2008_000007')" in split.notes()[0]


def test_coco_group_without_annotations_in_any_split_is_left_out_of_all(tmp_path: Path) -> None:
    made = {split: CocoSet(tmp_path, split) for split in ("train2017", "val2017")}
    for each in made.values():
        each.image(1)
        each.object(1, [1, 2, 5, 5], 90)
        each.body["categories"] = [dict(category) for category in each.body["categories"]]
        group_first(each.body)
        each.write()
    splits = made["train2017"].splits()
    assert {split.classes for split in splits.values()} == {("person", "car", "toothbrush")}
    assert {int(split.read(0).fields["labels"]) for split in splits.values()} == {2}
    made["val2017"].object(1, [1, 2, 5, 5], 0)
    made["val2017"].write()
    splits = made["train2017"].splits()
    assert {split.classes for split in splits.values()} == {("things", "person", "car", "toothbrush")}
    assert {int(split.read(0).fields["labels"][0]) for split in splits.values()} == {3}


@pytest.mark.parametrize("beside", [False, True])
def test_coco_files_of_lvis_name_images_by_their_url(tmp_path: Path, beside: bool) -> None:
    made = example(tmp_path)
    if beside:
        made.write()
    made.file = made.file.with_name("lvis_v1_train.json")
    for image in made.body["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
        image["neg_category_ids"] = [1]
    for each in made.body["annotations"]:
        del each["iscrowd"]
    (split,) = made.splits(annotations="annotations/lvis_v1_train.json").values() if beside else made.splits().values()
    assert split.id(0) == "train2017/000007.png"
    assert split.read(0).fields["boxes"].tolist() == [[1, 2, 6, 7]]
    assert split.notes() == ()
    if beside:
        assert len(make_splits(tmp_path)) == 1


def make_splits(root: Path) -> Any:
    return find_splits("coco", root, Decoder(), {})


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_coco_file_in_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    made = example(tmp_path)
    made.file.write_text(json.dumps(made.body), encoding=encoding)
    check("coco", tmp_path, {"train": [{"boxes": [[1, 2, 6, 7]]}, {}]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"images": [],}', "line 1 column"),
        ('{"images": []}\n{"images": []}', "line 2 column 1"),
        ('[{"image_id": 1}]', "no annotation file of COCO"),
        ('{"images": ' + "[" * 100_000, "is no JSON, or was cut off"),
        ('{"images": [{"id": 1, "file_name": "a"}, {"id"', "is no JSON, or was cut off"),
        ('{"images": [{"id": 1, "file_name": "a"}], "annotations": [{}]}', "no categories"),
        ('{"images": [], "categories": [{"id": 1}]}', r"categories\[0\]"),
        ('{"images": [], "categories": [{"id": 1, "name": "a"}, {"id": "1", "name": "b"}]}', "two categories"),
    ],
)
def test_coco_file_that_is_unreadable_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    check("coco", tmp_path, f"{FILE}.*{message}", tree=tree_of() | {FILE: content})


def test_boxes_that_are_all_shares_of_the_image_are_refused(tmp_path: Path) -> None:
    made = example(tmp_path)
    for each in made.body["annotations"]:
        each["bbox"] = [0.25, 0.25, 0.5, 0.5]
    with pytest.raises(SourceError, match="all boxes lie between 0 and 1"):
        made.splits()


def test_category_name_that_is_a_number_is_its_text(tmp_path: Path) -> None:
    made = example(tmp_path)
    assert "1" in split_of(made, first("categories", name=1)).classes
