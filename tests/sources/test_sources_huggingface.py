"""Datasets of Hugging Face give the rows of the same files as a folder; columns are told by their features."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_sets import noise
from parity_stores import check
from PIL import Image

import mmload
from mmload.builder.pipeline import update
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of datasets


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def photo(seed: int, kind: str = "JPEG", size: tuple[int, int] = (30, 40)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(noise(*size, seed)).save(file, kind)
    return file.getvalue()


def dataset(features: dict[str, Any], **columns: list[Any]) -> Any:
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def labeled(count: int = 6, first: int = 0) -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    images = [{"bytes": photo(first + number), "path": None} for number in range(count)]
    return dataset(features, image=images, label=[number * 2 // count for number in range(count)])


def splits(root: Path | str, **options: Any) -> Any:
    return find_splits("huggingface", Path(root), Decoder(), options)


@pytest.mark.parametrize("encode", [None, "source"])
def test_rows_and_statistics_are_those_of_the_folder(tmp_path: Path, encode: str | None) -> None:
    labeled().save_to_disk(tmp_path / "hf")
    for number in range(6):
        path = tmp_path / "folder" / ("ant", "bee")[number * 2 // 6] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(number))
    layout = {} if encode is None else {"layout": "variable", "encode": encode, "size": "original"}
    options: dict[str, Any] = {"size": 16, "processes": 1, **layout}
    mmload.build(tmp_path / "folder", tmp_path / "a", **options)
    mmload.build(tmp_path / "hf", tmp_path / "b", kind="huggingface", **options)
    a, b = (mmload.open(tmp_path / name)["train"] for name in "ab")
    assert (b.classes, b.mean, b.std, b.record.class_counts) == (a.classes, a.mean, a.std, a.record.class_counts)
    for file in sorted((tmp_path / "a" / "train" / "000000").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / "train" / "000000" / file.name).read_bytes(), file.name


def test_splits_of_a_dict_and_of_parquet_are_opened(tmp_path: Path) -> None:
    datasets.DatasetDict(train=labeled(), test=labeled(2)).save_to_disk(tmp_path / "hf")
    assert {name: len(split) for name, split in splits(tmp_path / "hf").items()} == {"train": 6, "test": 2}
    assert list(splits(tmp_path / "hf", split="test")) == ["test"]
    (tmp_path / "data").mkdir()
    labeled().to_parquet(tmp_path / "data" / "train.parquet")
    for root in (tmp_path / "data", tmp_path / "data" / "train.parquet"):
        assert len(splits(root, split="train[:50%]")["train"]) == 3


@pytest.mark.parametrize("nested", [True, False])
def test_boxes_and_their_labels_are_recognized(tmp_path: Path, nested: bool) -> None:
    names = datasets.ClassLabel(names=["cat", "dog"])
    boxes, categories = [[[1, 2, 10, 8]], []], [[1], []]
    inner = {"bbox": datasets.List(datasets.List(datasets.Value("float32"))), "category": datasets.List(names)}
    if not nested:  # a list of tables
        inner = datasets.List({"bbox": datasets.List(datasets.Value("float32")), "category": names})
    tables: list[Any] = [{"bbox": each, "category": own} for each, own in zip(boxes, categories, strict=True)]
    rows = [[{"bbox": boxes[0][0], "category": 1}], []]
    features = {"image": datasets.Image(), "objects": inner, "caption": datasets.Value("string")}
    images = [{"bytes": photo(number, "PNG"), "path": None} for number in range(2)]
    dataset(features, image=images, objects=tables if nested else rows, caption=["a", "b"]).save_to_disk(
        tmp_path / "hf"
    )
    with pytest.raises(RecipeError, match=r"objects.bbox are boxes; say how they are written: --set box_format=xywh"):
        splits(tmp_path / "hf")
    split = splits(tmp_path / "hf", box_format="xywh")["train"]
    assert (split.classes, split.has_boxes()) == (("cat", "dog"), True)
    assert split.notes() == ("columns that are not stored: caption; name those to store in fields",)
    assert [split.read(row).fields["boxes"].tolist() for row in range(2)] == [[[1, 2, 11, 10]], []]
    assert [split.read(row).fields["labels"].tolist() for row in range(2)] == [[1], []]
    assert split.read(0).checksum == split.checksum(0) != split.checksum(1)
    with pytest.raises(SampleError, match="the box 1, 2, 10, 8|is empty or leaves"):
        splits(tmp_path / "hf", box_format="cxcywh")["train"].read(0)
    own = splits(tmp_path / "hf", fields={"text": "caption"})["train"]
    assert bytes(own.read(1).fields["text"].tolist()) == b"b"


def test_masks_are_read_as_numbers_of_classes(tmp_path: Path) -> None:
    mask = io.BytesIO()
    Image.fromarray(np.full((30, 40), 3, np.uint8)).save(mask, "PNG")
    features = {"image": datasets.Image(), "annotation": datasets.Image()}
    cells = {"image": [{"bytes": photo(0), "path": None}], "annotation": [{"bytes": mask.getvalue(), "path": None}]}
    dataset(features, **cells).save_to_disk(tmp_path / "hf")
    split = splits(tmp_path / "hf", fields={"masks": "annotation"})["train"]
    assert split.read(0).fields["masks"].unique().tolist() == [3]


def test_broken_rows_are_errors_of_their_own(tmp_path: Path) -> None:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    images = [{"bytes": photo(0), "path": None}, {"bytes": b"no image", "path": None}, None]
    dataset(features, image=[*images, images[0]], label=[0, 1, 1, -1]).save_to_disk(tmp_path / "hf")
    split = splits(tmp_path / "hf")["train"]
    assert int(split.read(0).fields["targets"]) == 0
    for row, message in ((1, "not an image"), (2, "has neither bytes nor a file"), (3, "target -1 is not a class")):
        with pytest.raises(SampleError, match=message):
            split.read(row)
    report = mmload.build(tmp_path / "hf", tmp_path / "out", kind="huggingface", size=8, on_error="skip")
    assert report.skipped == 3


def test_parquet_that_was_cut_off_is_one_line(tmp_path: Path) -> None:
    labeled().to_parquet(tmp_path / "train.parquet")
    content = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match="datasets cannot open") as caught:
        splits(tmp_path / "train.parquet")
    assert "\n" not in str(caught.value)


def test_parquet_with_broken_bytes_loses_no_row_in_silence(tmp_path: Path) -> None:
    labeled().to_parquet(tmp_path / "train.parquet")
    content = bytearray((tmp_path / "train.parquet").read_bytes())
    place = content.index(photo(2)[:200])
    content[place : place + 200] = bytes(200)
    (tmp_path / "train.parquet").write_bytes(content)
    report = mmload.build(
        tmp_path / "train.parquet", tmp_path / "out", kind="huggingface", size=8, on_error="skip", processes=1
    )
    assert (report.stored, report.skipped) == (5, 1)


def test_update_builds_what_is_new(tmp_path: Path) -> None:
    labeled(4).save_to_disk(tmp_path / "hf")
    recipe = BuildRecipe(kind="huggingface", root=tmp_path / "hf", out=tmp_path / "out", transforms=square(8))
    mmload.build(recipe, processes=1)
    assert mmload.build(recipe).built == 0
    features = labeled().features
    rows = [labeled(4)[row] for row in range(4)]
    more = [{"bytes": photo(number), "path": None} for number in (0, 1, 77, 3, 9)]
    changed = dataset(features, image=more, label=[row["label"] for row in rows] + [1])
    changed.save_to_disk(tmp_path / "new")
    report = update(BuildRecipe(kind="huggingface", root=tmp_path / "new", out=tmp_path / "out", transforms=square(8)))
    assert (report.added, report.changed, report.removed) == (1, 1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box_format": "yxyx"}, "box_format is 'yxyx'"),
        ({"fields": {"targets": "lable"}}, "fields names 'lable' for targets; .* has image, label"),
        ({"split": 3}, "split is 3; use a split"),
    ],
)
def test_huggingface_options_that_are_wrong_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    labeled(1).save_to_disk(tmp_path / "hf")
    with pytest.raises(RecipeError, match=message):
        splits(tmp_path / "hf", **options)


def test_what_is_no_dataset_is_one_line(tmp_path: Path) -> None:
    dataset({"text": datasets.Value("string")}, text=["a"]).save_to_disk(tmp_path / "texts")
    with pytest.raises(SourceError, match="has no column of images; it has text"):
        splits(tmp_path / "texts")
    with pytest.raises(SourceError, match="datasets cannot open .*nothing"):
        splits(tmp_path / "nothing")


def test_parity_of_columns_holds(tmp_path: Path) -> None:
    labeled().save_to_disk(tmp_path / "hf")
    mmload.build(tmp_path / "hf", tmp_path / "out", kind="huggingface", size=16, processes=1)
    report = check(tmp_path / "out", tmp_path / "hf", rows=6)
    assert report.passed
