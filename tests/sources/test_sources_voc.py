"""VOC samples against torchvision's own classes, and by the rules of the four tasks."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from devkit import Devkit, thing
from PIL import Image

from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import make_source
from mmload.sources.decode import Decoder
from mmload.sources.masks import voc_colors
from mmload.sources.voc import PASCAL


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
    splits = make_source("voc", root, Decoder(), options).splits()
    assert list(splits) == ["train", "val"]
    for name, split in splits.items():
        plain = torchvision.datasets.VOCDetection(root, year=year, image_set=name)
        assert len(split) == len(plain)
        for index in range(len(plain)):
            image, annotation = plain[index]
            fields = split.read(index).fields
            boxes, labels, difficult = plain_boxes(annotation, classes)
            count = len(boxes)
            assert (fields["images"].numpy() == np.asarray(image).transpose(2, 0, 1)).all()
            assert int(fields["counts"]) == count
            torch.testing.assert_close(fields["boxes"], torch.tensor(boxes), rtol=0, atol=0)
            assert fields["labels"].tolist() == labels
            assert fields["difficult"].tolist() == difficult


def test_segmentation_is_torchvisions(tmp_path: Path) -> None:
    root = filled(Devkit(tmp_path, "2012"), list(PASCAL))
    split = make_source("voc", root, Decoder(), {"task": "segmentation"}).splits()["train"]
    plain = torchvision.datasets.VOCSegmentation(root, year="2012", image_set="train")
    assert split.classes[:2] == ("background", "aeroplane")
    assert len(split) == len(plain) == 4
    for index in range(len(plain)):
        image, mask = plain[index]
        fields = split.read(index).fields
        assert (fields["images"].numpy() == np.asarray(image).transpose(2, 0, 1)).all()
        assert (fields["masks"].numpy() == np.asarray(mask)).all()
        assert fields["masks"].dtype == torch.uint8


def test_sources_voc_detection(devkit: Devkit) -> None:
    part = "<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>"
    devkit.add("a", thing("cat", (1, 2, 8, 6)), thing("dog", (2.5, 1, 3, 1), difficult=1, extra=part))
    devkit.add("b")
    devkit.list("train", "a", "", "b")
    devkit.list("trainval", "a")
    split = devkit.splits()["train"]
    fields = split.read(0).fields
    assert fields["boxes"].tolist() == [[0, 1, 8, 6], [1.5, 0, 3, 1]]
    assert fields["labels"].tolist() == [7, 11]
    assert fields["difficult"].tolist() == [False, True]
    assert (fields["boxes"].dtype, fields["labels"].dtype) == (torch.float32, torch.int64)
    empty = split.read(1)
    assert (empty.id, empty.size) == ("VOC2007/JPEGImages/b.jpg", (6, 8))
    assert int(empty.fields["counts"]) == 0
    assert empty.fields["boxes"].shape == (0, 4)
    assert split.classes == PASCAL
    assert torch.equal(pickle.loads(pickle.dumps(split)).read(0).fields["boxes"], fields["boxes"])


def test_sources_voc_a_part_is_the_samples_asked_for(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", (1, 2, 8, 6)))
    devkit.add("b", thing("dog", (1, 2, 8, 6)), thing("dog", (2, 2, 4, 4)))
    devkit.list("train", "a", "b")
    split = devkit.splits()["train"]
    part = pickle.loads(pickle.dumps(split.part([1])))
    assert (len(part), part.id(0), part.revision(0), part.classes) == (1, split.id(1), split.revision(1), split.classes)
    for name, tensor in split.read(1).fields.items():
        assert torch.equal(part.read(0).fields[name], tensor)


def test_zero_based_boxes_and_clipping(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", (0, 0, 8, 6)), thing("cat", (4, 4, 9, 9)))
    devkit.list("train", "a")
    with pytest.raises(SampleError, match="leaves the 8 x 6 image"):
        devkit.splits()["train"].read(0)
    with pytest.raises(
        SampleError, match=r"object 2 \(cat\) of xmin, ymin, xmax, ymax = 4, 4, 9, 9: the box 4, 4, 9, 9 leaves"
    ):
        devkit.splits(one_based=False)["train"].read(0)
    boxes = devkit.splits(one_based=False, clip_boxes=True)["train"].read(0).fields["boxes"]
    assert boxes.tolist() == [[0, 0, 8, 6], [4, 4, 8, 6]]


def test_missing_files_fail_alone(devkit: Devkit) -> None:
    for name in ("a", "b", "c"):
        devkit.add(name, thing("cat"))
    devkit.list("train", "a", "b", "c")
    (devkit.home / "JPEGImages" / "a.jpg").unlink()
    (devkit.home / "Annotations" / "b.xml").unlink()
    split = devkit.splits()["train"]
    with pytest.raises(SampleError, match=r"a.jpg: no such file: VOC2007/JPEGImages/a.jpg"):
        split.read(0)
    with pytest.raises(SampleError, match=r"b.jpg: no such file: VOC2007/Annotations/b.xml"):
        split.read(1)
    split.read(2)


def test_classification_follows_vocs_difficult_rule(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", difficult=1), thing("dog", difficult=1), thing("dog"), thing("dog", None))
    devkit.list("train", "a")
    fields = devkit.splits(task="classification")["train"].read(0).fields
    assert fields["targets"].nonzero().flatten().tolist() == [PASCAL.index("dog")]
    assert fields["ignored"].nonzero().flatten().tolist() == [PASCAL.index("cat")]
    assert fields["targets"].dtype == torch.float32
    devkit.add("b", thing("gnu"))
    devkit.list("train", "b")
    with pytest.raises(SampleError, match="gnu"):
        devkit.splits(task="classification")["train"].read(0)


def test_classes_of_ones_own(devkit: Devkit) -> None:
    devkit.add("a", thing("gnu"), thing("ape"))
    devkit.add("b", thing("yak"))
    devkit.list("train", "a")
    devkit.list("val", "b")
    splits = devkit.splits(classes="auto")
    assert splits["train"].classes == splits["val"].classes == ("ape", "gnu", "yak")
    assert splits["train"].read(0).fields["labels"].tolist() == [1, 0]
    assert devkit.splits(classes=["yak", "gnu", "ape"])["train"].read(0).fields["labels"].tolist() == [1, 2]


@pytest.mark.parametrize("palette", [True, False])
def test_segmentation_masks(devkit: Devkit, palette: bool) -> None:
    mask = np.array([[0, 1, 2, 20, 255, 0, 0, 0]] * 6, dtype=np.uint8)
    devkit.add("a", mask=mask, palette=palette)
    devkit.list("train", "a", kind="Segmentation")
    (devkit.home / "Annotations" / "a.xml").unlink()
    fields = devkit.splits(task="segmentation")["train"].read(0).fields
    assert (fields["masks"].numpy() == mask).all()
    assert set(fields) == {"images", "masks"}


def test_a_list_that_begins_with_the_background_has_it_once(devkit: Devkit) -> None:
    devkit.add("a", mask=np.full((6, 8), 2, np.uint8))
    devkit.list("train", "a", kind="Segmentation")
    for classes in (["background", "cell", "nucleus"], ["cell", "nucleus"], ["Background", "cell", "nucleus"]):
        split = devkit.splits(task="segmentation", classes=classes)["train"]
        assert split.classes in (("background", "cell", "nucleus"), tuple(classes))
        assert int(split.read(0).fields["masks"].max()) == 2
    for name in ("background", "Background", "BACKGROUND"):
        with pytest.raises(RecipeError, match="background is class 0"):
            devkit.splits(task="segmentation", classes=["cell", name])
        with pytest.raises(RecipeError, match="classes"):
            devkit.splits(task="segmentation", classes=[name])
    with pytest.raises(RecipeError, match="background is class 0"):
        devkit.splits(task="segmentation", classes=["background", "Background", "cell"])


def test_segmentation_takes_the_numbers_in_the_masks_as_classes(devkit: Devkit) -> None:
    for name, value in (("a", 24), ("bb", 2)):
        devkit.add(name, mask=np.array([[0, 255, value, value]] * 6, np.uint8).repeat(2, axis=1))
    devkit.add("ccc", mask=np.zeros((6, 8), np.uint8))
    (devkit.home / "SegmentationClass" / "ccc.png").write_bytes(b"broken")
    devkit.list("train", "a", "bb", "ccc", kind="Segmentation")
    split = devkit.splits(task="segmentation", classes="auto")["train"]
    assert split.classes == ("background", *(f"class {number}" for number in range(1, 25)))
    assert set(split.read(0).fields["masks"].unique().tolist()) <= {0, 24, 255}
    with pytest.raises(SampleError, match=r"24; classes are 0 to 20, .*--set classes=auto"):
        devkit.splits(task="segmentation")["train"].read(0)
    with pytest.raises(SampleError, match="not an image"):
        split.read(2)


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_voc_other_class_names_raise_and_advise_auto(devkit: Devkit, task: str) -> None:
    devkit.add("a", thing("RBC"))
    devkit.list("train", "a")
    with pytest.raises(SampleError, match=r"'RBC' is not one of the classes: aeroplane, .*--set classes=auto"):
        devkit.splits(task=task)["train"].read(0)
    assert devkit.splits(task=task, classes="auto")["train"].classes == ("RBC",)


def test_wrong_masks_are_named(devkit: Devkit) -> None:
    masks = {
        "value": (np.full((6, 8), 21, np.uint8), "its mask has the value 21; classes are 0 to 20"),
        "size": (np.zeros((8, 6), np.uint8), "its mask is 6 x 8, the image 8 x 6"),
        "color": (np.full((6, 8, 3), 9, np.uint8), r"its color \(9, 9, 9\) is none of VOC's colors .*labelmap.txt"),
        "deep": (np.zeros((6, 8), np.uint16), "of mode I;16"),
        "none": (None, "no such file: VOC2007/SegmentationClass/none.png"),
    }
    for name, (mask, _) in masks.items():
        devkit.add(name, mask=mask, palette=False)
    devkit.add("broken")
    (devkit.home / "SegmentationClass" / "broken.png").write_bytes(b"\x89PNG nonsense")
    devkit.list("train", *masks, "broken", kind="Segmentation")
    split = devkit.splits(task="segmentation")["train"]
    for index, message in enumerate([*(message for _, message in masks.values()), "not an image"]):
        with pytest.raises(SampleError, match=message):
            split.read(index)


@pytest.mark.parametrize("mode", ["P", "L", "LA", "RGB", "RGBA"])
def test_masks_of_each_mode_give_the_numbers_of_the_classes(devkit: Devkit, mode: str) -> None:
    numbers = np.array([[0, 1, 15, 255], [2, 20, 255, 0]] * 3, np.uint8).repeat(2, axis=1)
    devkit.add("a", mask=numbers)
    opaque = np.full((6, 8, 1), 255, np.uint8)
    colors = np.array([(0, 0, 0), (128, 0, 0), (0, 128, 0)], np.uint8)  # of the first classes, as VOC's devkit has them
    assert voc_colors()[:3].tolist() == colors.tolist()
    pixels = {
        "L": numbers,
        "LA": np.concatenate([numbers[..., None], opaque], 2),
        "RGB": voc_colors()[numbers],
        "RGBA": np.concatenate([voc_colors()[numbers], opaque], 2),
    }
    if mode in pixels:
        Image.fromarray(pixels[mode]).save(devkit.home / "SegmentationClass" / "a.png")
    devkit.list("train", "a", kind="Segmentation")
    read = devkit.splits(task="segmentation")["train"].read(0).fields["masks"]
    assert read.numpy().tolist() == numbers.tolist()


def test_masks_with_transparent_pixels_are_refused(devkit: Devkit) -> None:
    devkit.add("a", mask=np.zeros((6, 8), np.uint8))
    Image.fromarray(np.zeros((6, 8, 2), np.uint8)).save(devkit.home / "SegmentationClass" / "a.png")
    devkit.list("train", "a", kind="Segmentation")
    with pytest.raises(SampleError, match="transparent"):
        devkit.splits(task="segmentation")["train"].read(0)


def test_masks_of_a_lossy_format_are_refused(devkit: Devkit) -> None:
    devkit.add("a")
    Image.fromarray(np.zeros((6, 8), np.uint8)).save(devkit.home / "SegmentationClass" / "a.png", "JPEG")
    devkit.list("train", "a", kind="Segmentation")
    with pytest.raises(SampleError, match=r"its mask VOC2007/SegmentationClass/a\.png .* JPEG, which does not keep"):
        devkit.splits(task="segmentation")["train"].read(0)


def test_single_label_keeps_lone_objects_of_mapped_classes(devkit: Devkit) -> None:
    devkit.add("plane", thing("aeroplane"))
    devkit.add("two", thing("cat"), thing("cat"))
    devkit.add("none")
    devkit.add("sofa", thing("sofa"))
    devkit.add("car", thing("car", None))
    devkit.add("bad")
    devkit.annotate("bad", "<")
    devkit.list("train", "plane", "two", "none", "sofa", "car", "bad")
    target = ["airplane", "automobile", "bird", "cat"]
    options = {"task": "single-label", "class_map": {"aeroplane": "airplane", "car": "automobile", "cat": "cat"}}
    split = devkit.splits(**options, target_classes=target)["train"]
    assert split.classes == tuple(target)
    assert [split.id(i)[19:-4] for i in range(len(split))] == ["plane", "car", "bad"]
    assert [int(split.read(i).fields["targets"]) for i in range(2)] == [0, 1]
    with pytest.raises(SampleError, match="malformed"):
        split.read(2)
    assert split.notes() == (
        "images dropped, several objects: 1 (VOC2007/JPEGImages/two.jpg)",
        "images dropped, no object: 1 (VOC2007/JPEGImages/none.jpg)",
        "images dropped, sofa is not in the class map: 1 (VOC2007/JPEGImages/sofa.jpg)",
    )
    assert devkit.splits(**options)["train"].classes == ("airplane", "automobile", "cat")
    devkit.list("train", "two")
    with pytest.raises(SourceError, match=r"has no image; images dropped, several objects: 1"):
        devkit.splits(**options)
