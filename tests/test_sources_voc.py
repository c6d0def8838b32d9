"""VOC against torchvision's own classes, the four tasks, and what is wrong with devkits."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import pickle
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmload.decode import Decoder
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import make_source
from mmload.sources.voc import PASCAL
from mmload.sources.voc_devkit import read_list
from mmload.sources.voc_xml import parse_annotation

SHARED = (Path(__file__).parents[2] / "shared" / "data").resolve()
CELLS = ["RBC", "WBC", "Platelets"]


def thing(name: str, box: tuple[float, ...] | None = (1, 1, 3, 4), difficult: object = 0, extra: str = "") -> str:
    sides = "".join(f"<{s}>{v}</{s}>" for s, v in zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False))
    bndbox = f"<bndbox>{sides}</bndbox>" if box else ""
    return f"<object><name>{name}</name><difficult>{difficult}</difficult>{extra}{bndbox}</object>"


class Devkit:
    """A VOCdevkit that a test fills; images are 8 wide and 6 high."""

    def __init__(self, root: Path, year: str = "2007") -> None:
        self.root = root
        self.home = root / "VOCdevkit" / f"VOC{year}"
        for name in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
            (self.home / name).mkdir(parents=True)

    def add(self, name: str, *things: str, mask: np.ndarray | None = None, palette: bool = True) -> None:
        pixels = np.random.default_rng(len(name)).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(self.home / "JPEGImages" / f"{name}.jpg")
        self.annotate(name, f"<annotation><size><width>8</width></size>{''.join(things)}</annotation>")
        if mask is not None:
            image = Image.fromarray(mask)
            if palette:
                image.putpalette([i % 256 for i in range(768)])
            image.save(self.home / "SegmentationClass" / f"{name}.png")

    def annotate(self, name: str, xml: str) -> None:
        (self.home / "Annotations" / f"{name}.xml").write_text(xml)

    def list(self, name: str, *images: str, kind: str = "Main") -> None:
        (self.home / "ImageSets" / kind / f"{name}.txt").write_text("".join(f"{image}\n" for image in images))

    def splits(self, **options):
        return make_source("voc", self.root, Decoder(), options).splits()


@pytest.fixture
def devkit(tmp_path: Path) -> Devkit:
    return Devkit(tmp_path)


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
    ("folder", "year", "classes"),
    [("bccd_voc", "2007", CELLS), ("raccoon_voc", "2007", ["raccoon"]), ("labelme_voc_mini", "2012", list(PASCAL))],
)
def test_real_detection_is_torchvisions(folder: str, year: str, classes: list[str]) -> None:
    root = SHARED / folder
    if not root.is_dir():
        pytest.skip("no sample devkits on this machine")
    options = {} if year == "2012" else {"classes": classes}
    splits = make_source("voc", root, Decoder(), options).splits()
    assert list(splits) == ["train", "val"]
    for name, split in splits.items():
        plain = torchvision.datasets.VOCDetection(root, year=year, image_set=name)
        most = 0
        assert len(split) == len(plain)
        for index in range(len(plain)):
            image, annotation = plain[index]
            fields = split.read(index).fields
            boxes, labels, difficult = plain_boxes(annotation, classes)
            count = len(boxes)
            assert (fields["images"].numpy() == np.asarray(image).transpose(2, 0, 1)).all()
            assert int(fields["counts"]) == count
            torch.testing.assert_close(fields["boxes"][:count], torch.tensor(boxes), rtol=0, atol=0)
            assert fields["labels"].tolist() == labels + [-1] * (len(fields["labels"]) - count)
            assert fields["difficult"][:count].tolist() == difficult
            assert not fields["boxes"][count:].any()
            assert not fields["difficult"][count:].any()
            most = max(most, count)
        assert len(split.read(0).fields["boxes"]) == most


def test_real_segmentation_is_torchvisions() -> None:
    root = SHARED / "labelme_voc_mini"
    if not root.is_dir():
        pytest.skip("no sample devkits on this machine")
    split = make_source("voc", root, Decoder(), {"task": "segmentation"}).splits()["train"]
    plain = torchvision.datasets.VOCSegmentation(root, year="2012", image_set="train")
    assert split.classes[:2] == ("background", "aeroplane")
    for index in range(len(plain)):
        image, mask = plain[index]
        fields = split.read(index).fields
        assert (fields["images"].numpy() == np.asarray(image).transpose(2, 0, 1)).all()
        assert (fields["masks"].numpy() == np.asarray(mask)).all()
        assert fields["masks"].dtype == torch.uint8


def test_detection(devkit: Devkit) -> None:
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
    assert empty.fields["boxes"].shape == (2, 4)
    assert split.classes == PASCAL
    assert torch.equal(pickle.loads(pickle.dumps(split)).read(0).fields["boxes"], fields["boxes"])


def test_a_part_is_the_samples_asked_for(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", (1, 2, 8, 6)))
    devkit.add("b", thing("dog", (1, 2, 8, 6)), thing("dog", (2, 2, 4, 4)))
    devkit.list("train", "a", "b")
    split = devkit.splits()["train"]
    part = pickle.loads(pickle.dumps(split.part([1])))
    assert (len(part), part.id(0), part.stamp(0), part.classes) == (1, split.id(1), split.stamp(1), split.classes)
    for name, tensor in split.read(1).fields.items():
        assert torch.equal(part.read(0).fields[name], tensor)


def test_zero_based_boxes_and_clipping(devkit: Devkit) -> None:
    devkit.add("a", thing("cat", (0, 0, 8, 6)), thing("cat", (4, 4, 9, 9)))
    devkit.list("train", "a")
    with pytest.raises(SampleError, match="leaves the 8 x 6 image"):
        devkit.splits()["train"].read(0)
    with pytest.raises(SampleError, match=r"object 2 \(cat\): the box xmin, ymin, xmax, ymax = 4, 4, 9, 9 leaves"):
        devkit.splits(one_based=False)["train"].read(0)
    boxes = devkit.splits(one_based=False, clip_boxes=True)["train"].read(0).fields["boxes"]
    assert boxes.tolist() == [[0, 0, 8, 6], [4, 4, 8, 6]]


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<annotation><object>", "malformed XML"),
        ("", "malformed XML"),
        ("<html></html>", "not an <annotation>"),
        ("<annotation><object></object></annotation>", "object 1 has no name"),
        (f"<annotation>{thing('cat', None)}</annotation>", "no bndbox"),
        (f"<annotation>{thing('cat', ('a', 1, 2, 3))}</annotation>", "xmin is 'a', expected a number"),
        (f"<annotation>{thing('cat', (1, 1, 'nan', 3))}</annotation>", "xmax is 'nan'"),
        (f"<annotation>{thing('cat', (1, 1, 2))}</annotation>", "ymax is ''"),
        (f"<annotation>{thing('cat', (4, 1, 3, 2))}</annotation>", "is empty"),
        (f"<annotation>{thing('cat', (20, 1, 30, 2))}</annotation>", "leaves the 8 x 6 image"),
        (f"<annotation>{thing('unicorn')}</annotation>", "'unicorn' is not one of the classes: aeroplane"),
        (f"<annotation>{thing('cat', difficult='x')}</annotation>", "difficult is 'x'"),
        ("<a>" * 40, "not an <annotation>"),
        ("<annotation>" + "<a>" * 40, "deep"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>", "document type"),
        ("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><annotation/>", "document type"),
        ("<annotation>&b;</annotation>", "malformed XML"),
    ],
)
def test_a_wrong_annotation_fails_alone(devkit: Devkit, xml: str, message: str) -> None:
    devkit.add("bad")
    devkit.annotate("bad", xml)
    devkit.add("good", thing("cat"))
    devkit.list("train", "bad", "good")
    split = devkit.splits()["train"]
    with pytest.raises(SampleError, match=message) as caught:
        split.read(0)
    assert caught.value.sample == "VOC2007/JPEGImages/bad.jpg"
    assert int(split.read(1).fields["counts"]) == 1


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


def test_wrong_masks_are_named(devkit: Devkit) -> None:
    masks = {
        "value": (np.full((6, 8), 21, np.uint8), "its mask has the value 21; classes are 0 to 20"),
        "size": (np.zeros((8, 6), np.uint8), "its mask is 6 x 8, the image 8 x 6"),
        "colour": (np.zeros((6, 8, 3), np.uint8), "of mode RGB"),
        "deep": (np.zeros((6, 8), np.uint16), "of mode I;16"),
        "none": (None, "no such file: VOC2007/SegmentationClass/none.png"),
    }
    for name, (mask, _) in masks.items():
        devkit.add(name, mask=mask, palette=False)
    devkit.add("broken")
    (devkit.home / "SegmentationClass" / "broken.png").write_bytes(b"\x89PNG nonsense")
    devkit.list("train", *masks, "broken", kind="Segmentation")
    split = devkit.splits(task="segmentation")["train"]
    for index, message in enumerate([*(message for _, message in masks.values()), "is no image"]):
        with pytest.raises(SampleError, match=message):
            split.read(index)


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
        "dropped 1 of 6 images: several objects",
        "dropped 1 of 6 images: no object",
        "dropped 1 of 6 images: sofa is not in the class map",
    )
    assert devkit.splits(**options)["train"].classes == ("airplane", "automobile", "cat")
    devkit.list("train", "two")
    with pytest.raises(SourceError, match=r"has no image; dropped 1 of 1 images: several objects"):
        devkit.splits(**options)


def test_years_and_lists(tmp_path: Path) -> None:
    for year, lists in (("2007", ("trainval", "test")), ("2012", ("trainval", "train", "val"))):
        devkit = Devkit(tmp_path, year)
        for name in lists:
            devkit.add(f"{year}{name}", thing("cat"))
            devkit.list(name, f"{year}{name}")

    def names(**options: object) -> dict[str, list[str]]:
        found = devkit.splits(**options)
        return {name: [split.id(i).split("/")[-1][:-4] for i in range(len(split))] for name, split in found.items()}

    assert names(year=2012) == {"train": ["2012train"], "val": ["2012val"]}
    assert names(year="2007") == {"test": ["2007test"]}
    assert names(year=["2007", 2012], image_set="trainval") == {"trainval": ["2007trainval", "2012trainval"]}
    both = {"train": ["2007/trainval", "2012/trainval"], "test": "2007/test"}
    assert names(year=[2007, 2012], image_set=both) == {"train": ["2007trainval", "2012trainval"], "test": ["2007test"]}
    with pytest.raises(RecipeError, match=r"several years \(2007, 2012\)"):
        names()
    with pytest.raises(SourceError, match="no year '2009'"):
        names(year=2009)
    with pytest.raises(SourceError, match="there is no year '2010'"):
        names(year=2012, image_set="2010/train")
    with pytest.raises(SourceError, match="cannot read the list .*there are train, trainval, val"):
        names(year=2012, image_set="test")


def test_the_root_may_be_the_devkit_or_a_year(devkit: Devkit) -> None:
    devkit.add("a", thing("cat"))
    devkit.list("trainval", "a")
    for root in (devkit.root, devkit.root / "VOCdevkit", devkit.home):
        split = make_source("voc", root, Decoder(), {}).splits()["train"]
        assert split.id(0) == "VOC2007/JPEGImages/a.jpg"
        assert split.read(0).size == (6, 8)


def test_lists_of_one_class_and_wrong_lines(devkit: Devkit) -> None:
    path = devkit.home / "ImageSets" / "Main" / "cat_train.txt"
    path.write_text("a  1\nb -1\nc  0\n\nd  1\n")
    assert read_list(path) == ["a", "d"]
    for line in ("../../etc/passwd", "a b", "a 1 2", "a 2", ".."):
        path.write_text(f"a\n{line}\n")
        with pytest.raises(SourceError, match="line 2"):
            read_list(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="UTF-8"):
        read_list(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "guess"}, "task is 'guess'"),
        ({"task": "single-label"}, "class_map"),
        ({"class_map": {"cat": "cat"}}, "class_map"),
        ({"task": "single-label", "class_map": {"cat": "cat"}, "target_classes": ["dog"]}, "leads to 'cat'"),
        ({"classes": ["a", "a"]}, "different names"),
        ({"classes": []}, "different names"),
        ({"task": "segmentation", "classes": "auto"}, "auto"),
        ({"image_set": ["../x/.."]}, "image_set"),
        ({"image_set": []}, "image_set"),
        ({"colour": 1}, "unexpected keyword"),
    ],
)
def test_wrong_options(devkit: Devkit, options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        devkit.splits(**options)


def test_exif_orientation_is_refused_for_boxes(devkit: Devkit) -> None:
    with pytest.raises(RecipeError, match="exif_orient"):
        make_source("voc", devkit.root, Decoder(exif_orient=True), {})


def test_no_devkit(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no VOCdevkit"):
        make_source("voc", tmp_path, Decoder(), {}).splits()
    with pytest.raises(SourceError, match="no such folder"):
        make_source("voc", tmp_path / "x", Decoder(), {}).splits()


def test_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Devkit(tmp_path / "made", "2007")
    made.add("a", thing("cat"))
    for name in ("train", "val"):
        made.list(name, "a")
    served = tmp_path / "served"
    served.mkdir()
    archive = served / "VOCtrainval_06-Nov-2007.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(made.root / "VOCdevkit", "VOCdevkit")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(served))

        def log_message(self, *args: object) -> None:
            pass

    root = tmp_path / "here"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{web.server_address[1]}/{archive.name}"
        entry = {**torchvision.datasets.voc.DATASET_YEAR_DICT["2007"], "url": url}
        monkeypatch.setitem(
            torchvision.datasets.voc.DATASET_YEAR_DICT,
            "2007",
            {**entry, "md5": hashlib.md5(archive.read_bytes()).hexdigest()},
        )
        try:
            splits = make_source("voc", root, Decoder(), {"year": 2007, "download": True}).splits()
            assert list(splits) == ["train", "val"]
            splits["train"].read(0)
        finally:
            web.shutdown()
            thread.join()
    assert list(make_source("voc", root, Decoder(), {"year": 2007, "download": True}).splits()) == ["train", "val"]
    with pytest.raises(RecipeError, match="year"):
        make_source("voc", root, Decoder(), {"download": True}).splits()
    with pytest.raises(SourceError, match="cannot download PASCAL VOC 1999"):
        make_source("voc", tmp_path / "z", Decoder(), {"year": 1999, "download": True}).splits()


pieces = st.sampled_from(
    ["<annotation>", "</annotation>", "<object>", "</object>", "<name>", "</name>", "cat", "<bndbox>", "</bndbox>",
     "<xmin>", "1", "</xmin>", "&amp;", "&x;", "<!DOCTYPE a>", "<![CDATA[", "]]>", "<?x y?>", "\x00", "é"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=14).map("".join).map(str.encode) | st.binary(max_size=60))
def test_any_xml_is_objects_or_a_clean_error(data: bytes) -> None:
    for text in (data, b"<annotation>" + data + b"</annotation>"):
        with contextlib.suppress(ValueError):
            assert isinstance(parse_annotation(text), tuple)


names = st.text(st.characters(exclude_characters="<>&\r", exclude_categories=("Cs", "Cc")), min_size=1).filter(
    lambda text: text == text.strip()
)
sides = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(names, st.booleans(), st.tuples(sides, sides, sides, sides)), max_size=5))
def test_what_is_written_is_read(objects: list) -> None:
    xml = "".join(thing(name, tuple(map(repr, box)), int(flag)) for name, flag, box in objects)
    assert list(parse_annotation(f"<annotation>{xml}</annotation>".encode())) == objects
