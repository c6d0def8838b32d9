"""ImageNet as Kaggle ships it, Tiny ImageNet, and other folders that are no plain ImageFolder."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
from picture_folders import folder_of
from torchvision.datasets import ImageFolder

from mmload.errors import SourceError
from mmload.sources import SourceSplit, find_splits
from mmload.sources.decode import Decoder

INNER = "ILSVRC/Data/CLS-LOC"
IMAGES = (
    *("train/n01/n01_1.png", "train/n02/n02_1.png", "train/n02/n02_2.png"),
    *("val/ILSVRC2012_val_1.png", "val/ILSVRC2012_val_2.png", "val/ILSVRC2012_val_3.png", "test/t_1.png"),
)
TABLE = (
    "ImageId,PredictionString\nILSVRC2012_val_2,n01 85 1 499 272 n01 1 1 2 2 \n"
    "ILSVRC2012_val_1,n02 1 2 3 4 \nILSVRC2012_val_3,n01 1 2 3 4 \n"
)


def splits_of(root: Path, **options: object) -> dict[str, SourceSplit]:
    return dict(find_splits("imagefolder", root, Decoder(), options))


def classes_of(split: SourceSplit) -> dict[str, str]:
    """The class of each sample, by its id and in order."""
    return {split.id(index): split.classes[int(split.read(index).fields["targets"])] for index in range(len(split))}


def kaggle(root: Path, table: str = TABLE) -> Path:
    folder_of(root, *(f"{INNER}/{name}" for name in IMAGES), "ILSVRC/Annotations/CLS-LOC/val/no.png")
    (root / "LOC_val_solution.csv").write_text(table)
    return root


@pytest.mark.parametrize("inner", ["", INNER])
def test_imagefolder_of_kaggles_imagenet_takes_the_classes_of_val_from_its_table(tmp_path: Path, inner: str) -> None:
    splits = splits_of(kaggle(tmp_path) / inner)
    prefix = "" if inner else f"{INNER}/"
    assert list(splits) == ["train", "val"]
    assert splits["train"].classes == splits["val"].classes == ("n01", "n02")
    assert list(classes_of(splits["train"]).values()) == ["n01", "n02", "n02"]
    assert classes_of(splits["val"]) == {
        f"{prefix}val/ILSVRC2012_val_2.png": "n01",
        f"{prefix}val/ILSVRC2012_val_3.png": "n01",
        f"{prefix}val/ILSVRC2012_val_1.png": "n02",
    }
    assert "LOC_val_solution.csv" in splits["val"].notes()[0]
    assert "(test)" in splits["train"].notes()[0]


def test_imagefolder_of_kaggles_imagenet_has_the_order_of_class_folders(tmp_path: Path) -> None:
    read = classes_of(splits_of(kaggle(tmp_path / "kaggle"))["val"])
    sorted_root = folder_of(tmp_path / "sorted", *(f"{name}/{Path(file).name}" for file, name in read.items()))
    assert [Path(file).name for file in read] == [Path(file).name for file, _ in ImageFolder(sorted_root).samples]


@pytest.mark.parametrize("table", [TABLE.replace("n02", "n03"), TABLE.replace("val_3", "val_4")])
def test_imagefolder_of_kaggles_imagenet_with_another_table_refuses_it(tmp_path: Path, table: str) -> None:
    with pytest.raises(SourceError, match=r"LOC_val_solution\.csv gives .*val_\d\.png the class .*train does not have"):
        splits_of(kaggle(tmp_path, table))


def test_imagefolder_of_imagenets_val_alone_says_where_its_classes_are(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no class folders .* whose classes LOC_val_solution.csv lists"):
        splits_of(kaggle(tmp_path) / INNER / "val")


def test_imagefolder_of_tiny_imagenet_takes_the_classes_of_val_from_its_table(tmp_path: Path) -> None:
    train = ("train/n01/images/n01_0.png", "train/n02/images/n02_0.png")
    root = folder_of(tmp_path, *train, "val/images/val_0.png", "val/images/val_1.png", "test/images/test_0.png")
    (root / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t9\t9\nval_1.png\tn01\t0\t0\t9\t9\n")
    splits = splits_of(root)
    assert list(splits) == ["train", "val"]
    assert classes_of(splits["val"]) == {"val/images/val_1.png": "n01", "val/images/val_0.png": "n02"}
    assert "(test)" in splits["train"].notes()[0]


LAYOUTS = MappingProxyType(
    {
        "splits without classes": ("train/1.png", "valid/2.png"),
        "one split without classes": ("train/1.png",),
        "splits by other names": ("Training/a/1.png", "Training/b/1.png", "Testing/a/2.png", "Testing/b/2.png"),
        "a split by another name": ("Train/a/1.png", "raw/2.png"),
    }
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_imagefolder_whose_classes_would_be_splits_refuses_it(tmp_path: Path, layout: str) -> None:
    root = folder_of(tmp_path, *LAYOUTS[layout])
    with pytest.raises(SourceError, match="named as splits and not as classes .*split_folders"):
        splits_of(root)
    assert splits_of(root, split_folders=[])["train"].classes == tuple(sorted(path.name for path in root.iterdir()))


def test_imagefolder_with_a_folder_around_its_classes_notes_it(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "data/a/1.png", "data/b/2.png")
    assert splits_of(root)["train"].notes()[0].startswith("all images are of one class, data")
    assert splits_of(root / "data")["train"].notes() == ()
    assert splits_of(folder_of(tmp_path / "one", "a/1.png"))["train"].notes() == ()
