"""VOC: samples against torchvision's own classes, annotations and devkits as tools write them, and what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from devkit import Devkit, thing
from encoding import encoded
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from source_cases import check, picture
from web_folder import serving

from mmload.errors import RecipeError, SourceError
from mmload.sources import find_splits, make_source
from mmload.sources.decode import Decoder, voc_colors
from mmload.sources.voc import PASCAL, parse_annotation

PHOTO = picture(6, 8)
HOME = "VOCdevkit/VOC2007"
CAT, DOG = PASCAL.index("cat"), PASCAL.index("dog")


def xml(*things: str, size: str = "<width>8</width>") -> str:
    return f"<annotation><size>{size}</size>{''.join(things)}</annotation>"


def kit(
    images: Mapping[str, Any], lists: Mapping[str, str | Sequence[str]] | None = None, home: str = HOME
) -> dict[str, Any]:
    """Returns the tree of a year: images of 8 x 6 with XML or a mask, None or bytes for neither, and lists by name.

    Without lists, ``train`` has all images, of masks in Segmentation.
    """
    tree: dict[str, Any] = {f"{home}/JPEGImages": None}
    masks = any(isinstance(each, Image.Image | np.ndarray | bytes) for each in images.values())
    lists = {"Segmentation/train" if masks else "Main/train": list(images)} if lists is None else lists
    for name, beside in images.items():
        tree[f"{home}/JPEGImages/{name}.jpg"] = PHOTO
        if isinstance(beside, str):
            tree[f"{home}/Annotations/{name}.xml"] = beside
        elif beside is not None:
            mask = Image.fromarray(beside) if isinstance(beside, np.ndarray) else beside
            tree[f"{home}/SegmentationClass/{name}.png"] = mask
    for name, lines in lists.items():
        tree[f"{home}/ImageSets/{name}.txt"] = (
            lines if isinstance(lines, str) else "".join(f"{each}\n" for each in lines)
        )
    return tree


def filled(devkit: Devkit, classes: list[str]) -> Path:
    """Fills a devkit: 4 images to train with, 3 to validate, of 1 to 4 things each, some difficult, with masks."""
    rng = np.random.default_rng(len(classes))
    for split, count in (("train", 4), ("val", 3)):
        names = [f"{split}{'x' * number}" for number in range(count)]
        for number, name in enumerate(names):
            corners = rng.uniform(1, 4, (number + 1, 2)).round(1)
            boxes = np.concatenate([corners, corners + 2], 1).tolist()
            things = [thing(classes[at % len(classes)], tuple(box), difficult=at % 2) for at, box in enumerate(boxes)]
            devkit.add(name, *things, mask=rng.choice(np.array([0, 1, 20, 255], np.uint8), (6, 8)))
        devkit.list(split, *names)
        devkit.list(split, *names, kind="Segmentation")
    return devkit.root


def plain_boxes(sample: dict, classes: list[str]) -> tuple[list, list, list]:
    """What torchvision's VOCDetection gives, by the definition: 1-based inclusive -> 0-based half-open."""
    boxes, labels, difficult = [], [], []
    for each in sample["annotation"]["object"]:
        side = {key: float(value) for key, value in each["bndbox"].items()}
        boxes.append([side["xmin"] - 1, side["ymin"] - 1, side["xmax"], side["ymax"]])
        labels.append(classes.index(each["name"]))
        difficult.append(each.get("difficult") == "1")
    return boxes, labels, difficult


@pytest.mark.parametrize(
    ("year", "classes"), [("2007", ["RBC", "WBC", "Platelets"]), ("2007", ["raccoon"]), ("2012", list(PASCAL))]
)
def test_detection_is_torchvisions(tmp_path: Path, year: str, classes: list[str]) -> None:
    root = filled(Devkit(tmp_path, year), classes)
    options = {} if year == "2012" else {"classes": classes}
    splits = find_splits("voc", root, Decoder(), options)
    assert list(splits) == ["train", "val"]
    for name, split in splits.items():
        plain = torchvision.datasets.VOCDetection(root, year=year, image_set=name)
        assert len(split) == len(plain)
        for index in range(len(plain)):
            image, annotation = plain[index]
            fields = split.read(index).fields
            boxes, labels, difficult = plain_boxes(annotation, classes)
            count = len(boxes)
            assert (fields["images"] == np.asarray(image).transpose(2, 0, 1)).all()
            assert int(fields["counts"]) == count
            torch.testing.assert_close(fields["boxes"], torch.tensor(boxes), rtol=0, atol=0)
            assert fields["labels"].tolist() == labels
            assert fields["difficult"].tolist() == difficult


def test_segmentation_is_torchvisions(tmp_path: Path) -> None:
    root = filled(Devkit(tmp_path, "2012"), list(PASCAL))
    split = find_splits("voc", root, Decoder(), {"task": "segmentation"})["train"]
    plain = torchvision.datasets.VOCSegmentation(root, year="2012", image_set="train")
    assert split.classes[:2] == ("background", "aeroplane")
    assert len(split) == len(plain) == 4
    for index in range(len(plain)):
        image, mask = plain[index]
        fields = split.read(index).fields
        assert (fields["images"] == np.asarray(image).transpose(2, 0, 1)).all()
        assert (fields["masks"].numpy() == np.asarray(mask)).all()
        assert fields["masks"].dtype == torch.uint8


PART = "<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>"
OVER = xml(thing("cat", (0, 0, 8, 6)), thing("cat", (4, 4, 9, 9)))
NUMBERS = np.array([[0, 1, 15, 255], [2, 20, 255, 0]] * 3, np.uint8).repeat(2, axis=1)
OPAQUE = np.full((6, 8, 1), 255, np.uint8)
SEGMENTATION = {"task": "segmentation"}
SINGLE = {"task": "single-label", "class_map": {"aeroplane": "airplane", "car": "automobile", "cat": "cat"}}
ONE = kit({"a": xml(thing("cat"))}, {"Main/trainval": "a"})
YEARS = {
    **kit({"old": xml(), "oldtest": xml()}, {"Main/trainval": ["old"], "Main/test": ["oldtest"]}),
    **kit(
        {"all": xml(), "own": xml(), "val": xml()},
        {"Main/trainval": ["all"], "Main/train": ["own"], "Main/val": ["val"]},
        "VOCdevkit/VOC2012",
    ),
}


def of_years(options: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Returns a case of both years; rows are names of images by split."""
    found = {"old": 2007, "oldtest": 2007, "all": 2012, "own": 2012, "val": 2012}
    if isinstance(rows, dict):
        rows = {
            split: [{"id": f"VOC{found[name]}/JPEGImages/{name}.jpg"} for name in names]
            for split, names in rows.items()
        }
    return {"tree": YEARS, "options": options, "rows": rows}


def paletted(numbers: np.ndarray) -> Image.Image:
    image = Image.fromarray(numbers)
    image.putpalette([level % 256 for level in range(768)])
    return image


def listed(line: str, name: str = "a") -> dict[str, Any]:
    """Returns a case of a list with this line, and of an image that it names."""
    rows = {"train": [{"id": f"VOC2007/JPEGImages/{name}.jpg", "counts": 1}]}
    return {"tree": kit({name: xml(thing("cat")), "scan": xml()}, {"Main/train": line}), "rows": rows}


def refused_line(line: str) -> dict[str, Any]:
    return {"tree": kit({"a": xml()}, {"Main/train": f"a\n{line}\n"}), "rows": "line 2"}


def masked(mask: Any, row: Any, **options: Any) -> dict[str, Any]:
    """Returns a case of one mask, read or wrong."""
    row = row if isinstance(row, str) else {"masks": row}
    return {"tree": kit({"a": mask}), "options": SEGMENTATION | options, "rows": {"train": [row]}}


def plain(images: str, annotations: str, split: str) -> dict[str, Any]:
    """Returns a case of XML beside images without a devkit."""
    tree = {
        f"{images}/a.jpg": PHOTO,
        f"{images}/unlabeled.jpg": PHOTO,
        f"{annotations}/a.xml": xml(thing("pigeon"), thing("crow", (2, 2, 5, 5))),
    }
    return {
        "tree": {name.lstrip("/"): content for name, content in tree.items()},
        "rows": {split: [{"id": f"{images}/a.jpg".lstrip("/"), "boxes": [[0, 0, 3, 4], [1, 1, 5, 5]]}]},
        "classes": ["crow", "pigeon"],
        "notes": ["images without an annotation (.xml) of their own are left out: 1 (unlabeled.jpg)"],
    }


READ: dict[str, dict[str, Any]] = {
    "detection": {
        "tree": kit(
            {"a": xml(thing("cat", (1, 2, 8, 6)), thing("dog", (2.5, 1, 3, 1), difficult=1, extra=PART)), "b": xml()},
            {"Main/train": ["a", "", "b"], "Main/trainval": "a"},
        ),
        "rows": {
            "train": [
                {"boxes": [[0, 1, 8, 6], [1.5, 0, 3, 1]], "labels": [CAT, DOG], "difficult": [False, True]},
                {"id": "VOC2007/JPEGImages/b.jpg", "counts": 0, "boxes": []},
            ]
        },
        "classes": PASCAL,
    },
    "zero-based boxes": {
        "tree": kit({"a": OVER}),
        "options": {"one_based": False},
        "rows": {"train": [r"object 2 \(cat\) of xmin, ymin, xmax, ymax = 4, 4, 9, 9: the box 4, 4, 9, 9 leaves"]},
    },
    "one-based boxes": {"tree": kit({"a": OVER}), "rows": {"train": ["leaves the 8 x 6 image"]}},
    "clipped boxes": {
        "tree": kit({"a": OVER}),
        "options": {"one_based": False, "clip_boxes": True},
        "rows": {"train": [{"boxes": [[0, 0, 8, 6], [4, 4, 8, 6]]}]},
    },
    "missing files": {
        "tree": kit({"b": None, "c": xml(thing("cat"))}, {"Main/train": ["a", "b", "c"]}),
        "rows": {
            "train": [
                "no such file: VOC2007/JPEGImages/a.jpg",
                "no such file: VOC2007/Annotations/b.xml",
                {"counts": 1},
            ]
        },
    },
    "classification by VOC's rule of difficult objects": {
        "tree": kit(
            {
                "a": xml(thing("cat", difficult=1), thing("dog", difficult=1), thing("dog"), thing("dog", None)),
                "b": xml(thing("gnu")),
            }
        ),
        "options": {"task": "classification"},
        "rows": {
            "train": [{"targets": np.eye(20)[DOG].tolist(), "ignored": (np.eye(20)[CAT] > 0).tolist()}, "gnu"],
        },
    },
    "classes of the annotations": {
        "tree": kit(
            {"a": xml(thing("gnu"), thing("ape")), "b": xml(thing("yak"))}, {"Main/train": "a", "Main/val": "b"}
        ),
        "options": {"classes": "auto"},
        "rows": {"train": [{"labels": [1, 0]}], "val": [{"labels": [2]}]},
        "classes": ["ape", "gnu", "yak"],
    },
    "classes of one's own": {
        "tree": kit({"a": xml(thing("gnu"), thing("ape"))}),
        "options": {"classes": ["yak", "gnu", "ape"]},
        "rows": {"train": [{"labels": [1, 2]}]},
    },
    **{
        f"other classes, {task}": {
            "tree": kit({"a": xml(thing("RBC"))}),
            "options": {"task": task},
            "rows": {"train": [r"'RBC' is not one of the classes: aeroplane, .*--set classes=auto"]},
        }
        for task in ("detection", "classification")
    },
    "single labels": {
        "tree": kit(
            {
                "plane": xml(thing("aeroplane")),
                "two": xml(thing("cat"), thing("cat")),
                "none": xml(),
                "sofa": xml(thing("sofa")),
                "car": xml(thing("car", None)),
                "bad": "<",
            }
        ),
        "options": {**SINGLE, "target_classes": ["airplane", "automobile", "bird", "cat"]},
        "rows": {
            "train": [
                {"id": "VOC2007/JPEGImages/plane.jpg", "targets": 0},
                {"id": "VOC2007/JPEGImages/car.jpg", "targets": 1},
                "malformed",
            ]
        },
        "classes": ["airplane", "automobile", "bird", "cat"],
        "notes": [
            "images dropped, several objects: 1 (VOC2007/JPEGImages/two.jpg)",
            "images dropped, no object: 1 (VOC2007/JPEGImages/none.jpg)",
            "images dropped, sofa is not in the class map: 1 (VOC2007/JPEGImages/sofa.jpg)",
        ],
    },
    "single labels of the map's classes": {
        "tree": kit({"car": xml(thing("car"))}),
        "options": SINGLE,
        "rows": {"train": [{"targets": 1}]},
        "classes": ["airplane", "automobile", "cat"],
    },
    "no single label": {
        "tree": kit({"two": xml(thing("cat"), thing("cat"))}),
        "options": SINGLE,
        "rows": r"has no samples; images dropped, several objects: 1",
    },
    "mask of a palette": masked(paletted(NUMBERS), NUMBERS),
    "gray mask": masked(NUMBERS, NUMBERS),
    "gray mask with alpha": masked(np.concatenate([NUMBERS[..., None], OPAQUE], 2), NUMBERS),
    "mask in colors": masked(voc_colors()[NUMBERS], NUMBERS),
    "mask in colors with alpha": masked(np.concatenate([voc_colors()[NUMBERS], OPAQUE], 2), NUMBERS),
    "transparent mask": masked(np.zeros((6, 8, 2), np.uint8), "transparent"),
    "lossy mask": masked(
        encoded(Image.fromarray(NUMBERS), "JPEG"),
        r"its mask VOC2007/SegmentationClass/a\.png .* JPEG, which does not keep",
    ),
    "mask of another value": masked(np.full((6, 8), 24, np.uint8), r"24; classes are 0 to 20, .*--set classes=auto"),
    "mask of another size": masked(np.zeros((8, 6), np.uint8), "its mask is 6 x 8, the image 8 x 6"),
    "mask of other colors": masked(
        np.full((6, 8, 3), 9, np.uint8), r"its color \(9, 9, 9\) is none of VOC's colors .*labelmap.txt"
    ),
    "deep mask": masked(np.zeros((6, 8), np.uint16), "of mode I;16"),
    "broken mask": masked(b"\x89PNG nonsense", "not an image"),
    "no mask": {
        "tree": kit({"a": None}, {"Segmentation/train": "a"}),
        "options": SEGMENTATION,
        "rows": {"train": ["no such file: VOC2007/SegmentationClass/a.png"]},
    },
    "classes of the masks": {
        "tree": kit({"a": np.full((6, 8), 24, np.uint8), "b": NUMBERS, "c": b"broken"}),
        "options": SEGMENTATION | {"classes": "auto"},
        "rows": {"train": [{"masks": np.full((6, 8), 24)}, {"masks": NUMBERS}, "not an image"]},
        "classes": ["background", *(f"class {number}" for number in range(1, 25))],
    },
    **{
        f"masks, {classes}": masked(np.full((6, 8), 2, np.uint8), np.full((6, 8), 2), classes=classes)
        | {"classes": [classes[0] if len(classes) == 3 else "background", "cell", "nucleus"]}
        for classes in (["background", "cell", "nucleus"], ["cell", "nucleus"], ["Background", "cell", "nucleus"])
    },
    "years: one": of_years({"year": 2012}, {"train": ["own"], "val": ["val"]}),
    "years: as text": of_years({"year": "2007"}, {"test": ["oldtest"]}),
    "years: two": of_years({"year": ["2007", 2012], "image_set": "trainval"}, {"trainval": ["old", "all"]}),
    "years: a table": of_years(
        {"year": [2007, 2012], "image_set": {"train": ["2007/trainval", "2012/trainval"], "test": "2007/test"}},
        {"train": ["old", "all"], "test": ["oldtest"]},
    ),
    "years: which": of_years({}, r"several years \(2007, 2012\)"),
    "years: another": of_years({"year": 2009}, "no year '2009'"),
    "years: a list of another": of_years({"year": 2012, "image_set": "2010/train"}, "no year '2010'"),
    "years: another list": of_years(
        {"year": 2012, "image_set": "test"}, "cannot read the list .*choose from train, trainval, val"
    ),
    **{
        f"root: {below}": {"tree": ONE, "below": below, "rows": {"train": [{"id": "VOC2007/JPEGImages/a.jpg"}]}}
        for below in ("", "VOCdevkit", HOME)
    },
    "a list of one class": {
        "tree": kit(dict.fromkeys("abcd", xml()), {"Main/cat_train": "a  1\nb -1\nc  0\n\nd  1\n"}),
        "options": {"image_set": "cat_train"},
        "rows": {"cat_train": [{"id": f"VOC2007/JPEGImages/{name}.jpg"} for name in "ad"]},
    },
    **{
        f"line {line!r}": listed(line)
        for line in (
            *("\ufeffa\r\n", "a.jpg", "a.JPG", "a.xml", "JPEGImages/a.jpg", "./JPEGImages/a"),
            *("/data/VOCdevkit/VOC2007/JPEGImages/a.jpg", "D:\\VOC2007\\JPEGImages\\a.jpg"),
            "JPEGImages/a.jpg Annotations/a.xml",
        )
    },
    **{f"line of {name!r}": listed(name, name) for name in ("scan 0", "scan_x", "photo (1)", "sub/2007.01")},
    **{
        f"wrong line {line!r}": refused_line(line)
        for line in ("../../etc/passwd", "a b", "a 1 2", "a 2", "..", "JPEGImages/../../a.jpg", "/a.jpg")
    },
    "a list that is no text": {"tree": ONE | {f"{HOME}/ImageSets/Main/train.txt": b"\xff\xfe"}, "rows": "UTF-8"},
    **{
        f"without a devkit: {images}, {annotations}": plain(images, annotations, split)
        for images, annotations, split in (
            *(("", "", "train"), ("train", "train", "train"), ("images", "annotations", "train")),
            *(("JPEGImages", "Annotations", "train"), ("images", "annotations/xmls", "train")),
            ("valid", "valid", "valid"),
        )
    },
    "without a devkit: a list": plain("images", "annotations", "train")
    | {"options": {"image_set": "train"}, "rows": "no lists"},
    "without a devkit: what is left out": {
        "tree": {
            **dict.fromkeys(
                ("train/a.jpg", "train/a.jpeg", "train/b.webp", "train/c.tiff", "valid/d.JPG", "test/e.jpg"), PHOTO
            ),
            **dict.fromkeys(("train/a.xml", "train/b.xml", "valid/d.XML"), xml(thing("pigeon"))),
        },
        "rows": {"train": [{"id": "train/a.jpg"}, {"id": "train/b.webp"}], "valid": [{"id": "valid/d.JPG"}]},
        "notes": [
            "images without an annotation (.xml) of their own are left out: 2 (a.jpeg, c.tiff)",
            "folders without annotations (.xml) are left out: 1 (test)",
            "'valid/d.jpg' is 'valid/d.JPG'",
        ],
    },
    "no devkit": {"rows": "not a VOCdevkit"},
    "no folder": {"below": "x", "rows": "no such folder"},
}


@pytest.mark.parametrize("case", READ)
def test_voc_devkits_are_read(tmp_path: Path, case: str) -> None:
    check("voc", tmp_path, **READ[case])


def test_voc_images_that_are_listed_twice_or_in_two_splits_are_noted(devkit: Devkit) -> None:
    devkit.list("train", "a", "b", "b")
    devkit.list("val", "b", "c")
    splits = devkit.splits()
    assert splits["train"].notes() == ("1 image listed more than once",)
    assert splits["val"].notes() == ("1 image also in split train",)


def test_voc_part_of_a_split_has_its_samples(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", (1, 2, 8, 6)))
    devkit.add("b", thing("dog", (1, 2, 8, 6)), thing("dog", (2, 2, 4, 4)))
    devkit.list("train", "a", "b")
    split = devkit.splits()["train"]
    part = pickle.loads(pickle.dumps(split.part([1])))
    assert (len(part), part.id(0), part.revision(0), part.classes) == (1, split.id(1), split.revision(1), split.classes)
    for name, tensor in split.read(1).fields.items():
        assert np.array_equal(part.read(0).fields[name], tensor)
        assert part.read(0).fields[name].dtype == tensor.dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "guess"}, "task is 'guess'"),
        ({"task": "single-label"}, "class_map"),
        ({"class_map": {"cat": "cat"}}, "class_map"),
        ({"task": "single-label", "class_map": {"cat": "cat"}, "target_classes": ["dog"]}, "target_classes is"),
        ({"task": "single-label", "class_map": {"cat": "c"}, "target_classes": "cat"}, "target_classes is 'cat'"),
        ({"task": "single-label", "class_map": {"cat": ["cat"]}}, "class_map is"),
        ({"task": "single-label", "class_map": {"cat": "x"}, "target_classes": ["x", "x"]}, "different names"),
        ({"classes": ["a", "a"]}, "different names"),
        ({"classes": []}, "different names"),
        ({"image_set": ["../x/.."]}, "image_set"),
        ({"image_set": []}, "image_set"),
        ({"image_set": 5}, "image_set is 5; use names of lists"),
        ({"image_set": {"train": "a", "size": 416}}, "image_set"),
        ({"image_set": {"train": {"a": "b"}}}, "image_set"),
        ({"color": 1}, "unexpected keyword"),
        ({**SEGMENTATION, "classes": ["background"]}, "classes"),
        *(
            ({**SEGMENTATION, "classes": ["cell", name]}, "background is class 0")
            for name in ("background", "Background", "BACKGROUND")
        ),
        ({**SEGMENTATION, "classes": ["background", "Background", "cell"]}, "background is class 0"),
    ],
)
def test_sources_voc_devkit_wrong_options(devkit: Devkit, options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        devkit.splits(**options)


def test_exif_orientation_is_refused_for_boxes(devkit: Devkit) -> None:
    with pytest.raises(RecipeError, match="exif_orient"):
        make_source("voc", devkit.root, Decoder(exif_orient=True), {})


def test_sources_voc_devkit_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Devkit(tmp_path / "made", "2007")
    made.add("a", thing("cat"))
    for name in ("train", "val"):
        made.list(name, "a")
    archive = tmp_path / "VOCtrainval_06-Nov-2007.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(made.root / "VOCdevkit", "VOCdevkit")
    known = torchvision.datasets.voc.DATASET_YEAR_DICT
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    with serving(tmp_path) as url:
        monkeypatch.setitem(known, "2007", {**known["2007"], "url": f"{url}/{archive.name}", "md5": md5})
        for _ in range(2):
            splits = find_splits("voc", tmp_path / "here", Decoder(), {"year": 2007, "download": True})
            assert list(splits) == ["train", "val"]
            splits["train"].read(0)
            archive.unlink(missing_ok=True)  # the second time nothing is fetched
    with pytest.raises(RecipeError, match="year"):
        find_splits("voc", tmp_path / "here", Decoder(), {"download": True})
    with pytest.raises(SourceError, match="cannot download PASCAL VOC 1999"):
        find_splits("voc", tmp_path / "z", Decoder(), {"year": 1999, "download": True})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object>", "malformed XML"),
        ("", "malformed XML"),
        ("<html></html>", "web page"),
        ("<annotation><object></object></annotation>", "object 1 has no name"),
        (f"<annotation>{thing('cat', None)}</annotation>", "no bndbox"),
        (f"<annotation>{thing('cat', ('a', 1, 2, 3))}</annotation>", "xmin is 'a'"),
        (f"<annotation>{thing('cat', (1, 1, 'nan', 3))}</annotation>", "xmax is 'nan'"),
        (f"<annotation>{thing('cat', (1, 1, 2))}</annotation>", r"ymax is \[\]"),
        (f"<annotation>{thing('cat', (4, 1, 3, 2))}</annotation>", "has no area"),
        (f"<annotation>{thing('cat', (0, 1, 0, 2))}</annotation>", "has no area"),
        (f"<annotation>{thing('cat', (20, 1, 30, 2))}</annotation>", "leaves the 8 x 6 image"),
        (f"<annotation>{thing('unicorn')}</annotation>", "'unicorn' is not one of the classes: aeroplane"),
        (f"<annotation>{thing('cat', difficult='x')}</annotation>", "difficult is 'x'"),
        (f"<annotation>{thing('cat', extra='<name>dog</name>')}</annotation>", "object 1 has the names 'cat', 'dog'"),
        ("<annotation><bndbox><xmin>1</xmin></bndbox></annotation>", "a bndbox is in no <object>"),
        ("<a></a>", "not an <annotation>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>", "document type"),
        ("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><annotation/>", "document type"),
        ("<annotation>&b;</annotation>", "malformed XML"),
    ],
)
def test_voc_wrong_annotation_fails_alone(tmp_path: Path, text: str, message: str) -> None:
    tree = kit({"bad": text, "good": xml(thing("cat"))})
    check("voc", tmp_path, {"train": [f"VOC2007/JPEGImages/bad.jpg: .*{message}", {"counts": 1}]}, tree=tree)


A_CAT = ("cat", False, (1, 1, 3, 4))
BOXES = "<bndbox>{}</bndbox><bndbox>{}</bndbox>".format(
    *("".join(f"<{side}>{value}</{side}>" for side in ("xmin", "ymin", "xmax", "ymax")) for value in (1, 2))
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<object><name>cat</name>{BOXES}</object>", [("cat", False, (1, 1, 1, 1)), ("cat", False, (2, 2, 2, 2))]),
        (f"<objects>{thing('cat')}</objects>{thing('dog')}", [A_CAT, ("dog", False, (1, 1, 3, 4))]),
        (thing("cat").replace("object", "Object").replace("name", "Name"), [A_CAT]),
        (thing("cat", ("1.0", " 1 ", "3e0", "+4"), difficult="1.0"), [("cat", True, (1, 1, 3, 4))]),
        (thing("cat", difficult=""), [A_CAT]),
        (thing("cat", extra="<name>cat</name>"), [A_CAT]),
        (thing("cat", extra="<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>"), [A_CAT]),
    ],
)
def test_annotation_as_other_tools_write_it_keeps_every_object(text: str, expected: list[object]) -> None:
    assert list(parse_annotation(f"<annotation>{text}</annotation>".encode()).objects) == expected


def test_billion_laughs_and_outside_files_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cat")
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    attacks = [
        f'<!DOCTYPE annotation [<!ENTITY l0 "ha">{laughs}]><annotation>&l11;</annotation>',
        f'<!DOCTYPE annotation [<!ENTITY s SYSTEM "{secret.as_uri()}">]>'
        "<annotation><object><name>&s;</name></object></annotation>",
        f'<!DOCTYPE annotation SYSTEM "{secret.as_uri()}"><annotation/>',
    ]
    for attack in attacks:
        with pytest.raises(ValueError, match="document type"):
            parse_annotation(attack.encode())


pieces = st.sampled_from(
    ["<annotation>", "</annotation>", "<object>", "</object>", "<name>", "</name>", "cat", "<bndbox>", "</bndbox>",
     "<xmin>", "1", "</xmin>", "&amp;", "&x;", "<!DOCTYPE a>", "<![CDATA[", "]]>", "<?x y?>", "\x00", "é"]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(pieces, max_size=14).map("".join).map(str.encode) | st.binary(max_size=60))
def test_any_xml_is_objects_or_a_clean_error(data: bytes) -> None:
    for text in (data, b"<annotation>" + data + b"</annotation>"):
        with contextlib.suppress(ValueError):
            assert isinstance(parse_annotation(text).objects, tuple)


names = st.text(st.characters(exclude_characters="<>&\r", exclude_categories=("Cs", "Cc")), min_size=1).filter(
    lambda text: text == text.strip()
)
sides = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(names, st.booleans(), st.tuples(sides, sides, sides, sides)), max_size=5))
def test_what_is_written_is_read(objects: list) -> None:
    text = "".join(thing(name, tuple(map(repr, box)), int(flag)) for name, flag, box in objects)
    assert list(parse_annotation(f"<annotation>{text}</annotation>".encode()).objects) == objects


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("<size><width>8</width><height>6</height><depth>3</depth></size>", (6, 8)),
        ("<size><width> 8.0 </width><height>6</height></size>", (6, 8)),
        ("<size><width>0</width><height>0</height></size>", None),
        ("<size><width>8</width></size>", None),
        ("<size><width>8</width><height>?</height></size>", None),
        ("<size><width>inf</width><height>nan</height></size>", None),
        ("<object><name>a</name><size><width>8</width><height>6</height></size></object>", None),
        ("", None),
    ],
)
def test_the_size_of_an_annotation_is_what_it_says_or_unknown(text: str, size: tuple[int, int] | None) -> None:
    assert parse_annotation(f"<annotation>{text}</annotation>".encode()).size == size
