"""VOC devkits: years, lists, roots, options, downloads, and what is wrong with them."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

import pytest
import torchvision
from devkit import Devkit, thing
from web_folder import serving

from mmload.errors import RecipeError, SourceError
from mmload.sources import make_source
from mmload.sources.decode import Decoder
from mmload.sources.voc import read_list


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
    with pytest.raises(SourceError, match="no year '2010'"):
        names(year=2012, image_set="2010/train")
    with pytest.raises(SourceError, match="cannot read the list .*choose from train, trainval, val"):
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
    assert read_list(path, devkit.home / "JPEGImages") == ["a", "d"]
    path.write_text("a\r\nb\r\n", encoding="utf-8-sig", newline="")
    assert read_list(path, devkit.home / "JPEGImages") == ["a", "b"]
    for line in ("../../etc/passwd", "a b", "a 1 2", "a 2", "..", "JPEGImages/../../a.jpg", "/a.jpg"):
        path.write_text(f"a\n{line}\n")
        with pytest.raises(SourceError, match="line 2"):
            read_list(path, devkit.home / "JPEGImages")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="UTF-8"):
        read_list(path, devkit.home / "JPEGImages")


@pytest.mark.parametrize(
    "line",
    [
        "a.jpg",
        "a.JPG",
        "a.xml",
        "JPEGImages/a.jpg",
        "./JPEGImages/a",
        "/data/VOCdevkit/VOC2007/JPEGImages/a.jpg",
        "D:\\VOC2007\\JPEGImages\\a.jpg",
        "JPEGImages/a.jpg Annotations/a.xml",
    ],
)
def test_list_of_paths_names_the_images(devkit: Devkit, line: str) -> None:
    devkit.add("a", thing("cat"))
    devkit.list("train", line)
    sample = devkit.splits()["train"].read(0)
    assert (sample.id, int(sample.fields["counts"])) == ("VOC2007/JPEGImages/a.jpg", 1)


def test_list_of_names_with_spaces_finds_the_images(devkit: Devkit) -> None:
    for name in ("scan 0", "scan_x", "photo (1)", "scan"):
        devkit.add(name, thing("cat"))
    devkit.list("train", "scan 0", "scan_x", "photo (1)")
    split = devkit.splits()["train"]
    names = ["scan 0", "scan_x", "photo (1)"]
    assert [split.id(index) for index in range(len(split))] == [f"VOC2007/JPEGImages/{name}.jpg" for name in names]


def test_images_and_folders_that_are_left_out_without_a_devkit_are_noted(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("pigeon"))
    root = tmp_path / "plain"
    for folder in ("train", "valid", "test"):
        (root / folder).mkdir(parents=True)
    image, annotation = devkit.home / "JPEGImages/a.jpg", devkit.home / "Annotations/a.xml"
    for name in ("train/a.jpg", "train/a.jpeg", "train/b.webp", "train/c.tiff", "valid/d.JPG", "test/e.jpg"):
        shutil.copy(image, root / name)
    for name in ("train/a.xml", "train/b.xml", "valid/d.XML"):
        shutil.copy(annotation, root / name)
    splits = make_source("voc", root, Decoder(), {}).splits()
    assert {name: [split.id(index) for index in range(len(split))] for name, split in splits.items()} == {
        "train": ["train/a.jpg", "train/b.webp"],
        "valid": ["valid/d.JPG"],
    }
    *noted, respelled = splits["train"].notes()
    assert "'valid/d.jpg' is 'valid/d.JPG'" in respelled
    assert noted == [
        "images without an annotation (.xml) of their own are left out: 2 (a.jpeg, c.tiff)",
        "folders without annotations (.xml) are left out: 1 (test)",
    ]


def test_list_of_names_with_dots_and_folders_finds_the_images(devkit: Devkit) -> None:
    (devkit.home / "JPEGImages" / "sub").mkdir()
    (devkit.home / "Annotations" / "sub").mkdir()
    devkit.add("sub/2007.01", thing("cat"))
    devkit.list("train", "sub/2007.01")
    sample = devkit.splits()["train"].read(0)
    assert (sample.id, int(sample.fields["counts"])) == ("VOC2007/JPEGImages/sub/2007.01.jpg", 1)


@pytest.mark.parametrize(
    ("images", "annotations", "splits"),
    [
        ("", "", ["train"]),
        ("train", "train", ["train"]),
        ("images", "annotations", ["train"]),
        ("JPEGImages", "Annotations", ["train"]),
        ("images", "annotations/xmls", ["train"]),
        ("valid", "valid", ["valid"]),
    ],
)
def test_xml_beside_images_is_read_without_a_devkit(
    devkit: Devkit, tmp_path: Path, images: str, annotations: str, splits: list[str]
) -> None:
    devkit.add("a", thing("pigeon"), thing("crow", (2, 2, 5, 5)))
    root = tmp_path / "plain"
    for folder, file in ((images, devkit.home / "JPEGImages/a.jpg"), (annotations, devkit.home / "Annotations/a.xml")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / folder / file.name)
    shutil.copy(devkit.home / "JPEGImages/a.jpg", root / images / "unlabeled.jpg")
    found = make_source("voc", root, Decoder(), {}).splits()
    assert list(found) == splits
    split = found[splits[0]]
    assert (split.id(0), len(split)) == (f"{images}/a.jpg".lstrip("/"), 1)
    assert split.classes == ("crow", "pigeon")
    assert split.read(0).fields["boxes"].tolist() == [[0, 0, 3, 4], [1, 1, 5, 5]]
    assert split.notes() == ("images without an annotation (.xml) of their own are left out: 1 (unlabeled.jpg)",)
    with pytest.raises(SourceError, match="no lists"):
        make_source("voc", root, Decoder(), {"image_set": "train"}).splits()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "guess"}, "task is 'guess'"),
        ({"task": "single-label"}, "class_map"),
        ({"class_map": {"cat": "cat"}}, "class_map"),
        ({"task": "single-label", "class_map": {"cat": "cat"}, "target_classes": ["dog"]}, "target_classes is"),
        ({"task": "single-label", "class_map": {"cat": "c"}, "target_classes": "cat"}, "target_classes is 'cat'"),
        ({"task": "single-label", "class_map": {"cat": ["cat"]}}, "class_map is"),
        ({"task": "single-label", "class_map": {"cat": "x"}, "target_classes": ["x", "x"]}, "leads to once"),
        ({"classes": ["a", "a"]}, "different names"),
        ({"classes": []}, "different names"),
        ({"image_set": ["../x/.."]}, "image_set"),
        ({"image_set": []}, "image_set"),
        ({"image_set": 5}, "image_set is 5; use names of lists"),
        ({"image_set": {"train": "a", "size": 416}}, "image_set"),
        ({"image_set": {"train": {"a": "b"}}}, "image_set"),
        ({"color": 1}, "unexpected keyword"),
    ],
)
def test_sources_voc_devkit_wrong_options(devkit: Devkit, options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        devkit.splits(**options)


def test_exif_orientation_is_refused_for_boxes(devkit: Devkit) -> None:
    with pytest.raises(RecipeError, match="exif_orient"):
        make_source("voc", devkit.root, Decoder(exif_orient=True), {})


def test_no_devkit(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a VOCdevkit"):
        make_source("voc", tmp_path, Decoder(), {}).splits()
    with pytest.raises(SourceError, match="no such folder"):
        make_source("voc", tmp_path / "x", Decoder(), {}).splits()


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
            splits = make_source("voc", tmp_path / "here", Decoder(), {"year": 2007, "download": True}).splits()
            assert list(splits) == ["train", "val"]
            splits["train"].read(0)
            archive.unlink(missing_ok=True)  # the second time nothing is fetched
    with pytest.raises(RecipeError, match="year"):
        make_source("voc", tmp_path / "here", Decoder(), {"download": True}).splits()
    with pytest.raises(SourceError, match="cannot download PASCAL VOC 1999"):
        make_source("voc", tmp_path / "z", Decoder(), {"year": 1999, "download": True}).splits()
