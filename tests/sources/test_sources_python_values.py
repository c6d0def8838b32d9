"""Nested samples, texts, and sequences whose length differs: rows of one shape that give every value back."""

from __future__ import annotations

import io
import json
import pickle
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from python_datasets import MADE, splits
from torch.utils.data import ConcatDataset
from torchvision.tv_tensors import BoundingBoxes

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import SampleError, SourceError

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8))
Target = namedtuple("Target", ["label", "points"])
Nested = namedtuple("Nested", ["image", "target"])


@dataclass
class Item:
    image: Any
    label: int
    caption: str


def rows(samples: list[Any], **options: Any) -> list[dict[str, torch.Tensor]]:
    split = splits(samples, **options)["train"]
    return [split.read(index).fields for index in range(len(split))]


def test_named_tuples_in_named_tuples() -> None:
    read = rows([Nested(IMAGE, Target(3, (1.0, 2.0))), Nested(IMAGE, Target(4, (5.0, 6.0)))])
    assert set(read[0]) == {"images", "targets", "points", "points_count"}
    assert [int(row["targets"]) for row in read] == [3, 4]
    assert read[1]["points"].tolist() == [5, 6]
    chosen = rows([Nested(IMAGE, Target(3, (1.0,)))], fields={"images": "image", "targets": "target.label"})
    assert int(chosen[0]["targets"]) == 3


def test_dataclasses_and_texts_of_any_length() -> None:
    said = ["a cat", "", "zwölf Bären 🐻"]
    read = rows([Item(IMAGE, index, text) for index, text in enumerate(said)])
    assert set(read[0]) == {"images", "targets", "caption", "caption_count"}
    back = [bytes(row["caption"].tolist()).decode() for row in read]
    assert back == said
    assert [int(row["caption_count"]) for row in read] == [len(text.encode()) for text in said]


def test_boxes_that_a_dataset_pads_itself_are_refused() -> None:
    sample = {"images": IMAGE, "boxes": torch.tensor([[1.0, 1, 3, 3], [0, 0, 0, 0]]), "counts": 1}
    with pytest.raises(SourceError, match="boxes needs the field counts for its length: give boxes without padding"):
        splits([sample])


def test_detection_targets_of_torchvision() -> None:
    counts = [2, 0, 3]
    samples = [
        (IMAGE, {"boxes": torch.rand(count, 4).sort(1).values, "labels": torch.arange(count) + 1}) for count in counts
    ]
    read = rows(samples)
    assert set(read[0]) == {"images", "boxes", "labels", "counts"}
    for row, (_, target), count in zip(read, samples, counts, strict=True):
        assert row["boxes"].shape == (count, 4)
        assert (row["boxes"].dtype, row["labels"].dtype) == (torch.float32, torch.int64)
        assert int(row["counts"]) == count
        assert torch.equal(row["boxes"], target["boxes"])
        assert row["labels"].tolist() == target["labels"].tolist()


def test_lists_as_hugging_face_gives_them(tmp_path: Path) -> None:
    MADE["it"] = [
        {"image": IMAGE, "boxes": [[0, 0, 1, 1]] * n, "labels": [7] * n, "caption": "x" * n, "tokens": [1, 2] * n}
        for n in (1, 3, 0, 2)
    ]
    recipe = BuildRecipe(
        kind="python",
        root=Path(__file__).parent,
        out=tmp_path / "out",
        options={"dataset": "python_datasets:made", "arguments": {"name": "it"}},
        shard_bytes=300,
    )
    build(recipe, threads=2)
    train = mmload.open(tmp_path / "out")["train"]
    assert train.fields["boxes"].shape == (3, 4)
    batch = train[:]
    assert batch.counts.tolist() == [1, 3, 0, 2]
    assert batch.extra["tokens_count"].tolist() == [2, 6, 0, 4]
    assert batch.labels[3].tolist() == [7, 7, -1]
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["splits"]["train"]["rows"] == 4


def test_tensors_whose_length_differs_are_found_by_looking_at_several() -> None:
    read = rows([(IMAGE, 1, torch.ones(2, 3)), (IMAGE, 2, torch.ones(5, 3)), (IMAGE, 3, torch.ones(0, 3))])
    assert [row["features"].shape for row in read] == [(2, 3), (5, 3), (0, 3)]
    assert [int(row["features_count"]) for row in read] == [2, 5, 0]


def test_texts_of_each_split_survive_pickling() -> None:
    made = splits({"train": [(IMAGE, "abc")], "val": [(IMAGE, "abcdef")]})
    assert [made[name].read(0).fields["text"].shape[0] for name in made] == [3, 6]
    copy = pickle.loads(pickle.dumps(made["val"]))
    assert torch.equal(copy.read(0).fields["text"], made["val"].read(0).fields["text"])


def test_sources_python_values_what_does_not_go_together_is_refused() -> None:
    boxes = [[0.0, 0.0, 1.0, 1.0]]
    with pytest.raises(SourceError, match="score has one value per box"):
        splits([{"image": IMAGE, "boxes": boxes * n, "labels": [1] * n, "score": [1.0] * n} for n in (1, 2)])
    uneven = splits([{"boxes": boxes, "labels": [1]}, {"boxes": boxes, "labels": [1, 2]}])["train"]
    with pytest.raises(SampleError, match="each box needs its label"):
        uneven.read(1)
    more = splits([{"image": IMAGE, "label": 1}, {"image": IMAGE, "label": 1, "weight": 2}])["train"]
    with pytest.raises(SampleError, match="'weight', which the first sample does not have"):
        more.read(1)
    with pytest.raises(SourceError, match="targets is of type str"):
        splits([{"image": IMAGE, "label": "cat"}])
    floats = splits([(IMAGE, [1, 2]), (IMAGE, [1.5])])["train"]
    with pytest.raises(SampleError, match="float32"):
        floats.read(1)
    with pytest.raises(SourceError, match="regular list"):
        splits([(IMAGE, [[1], [2, 3]])])
    with pytest.raises(SourceError, match="embedding is bfloat16 of any length, which is not stored; give float32"):
        splits([{"image": IMAGE, "embedding": torch.ones(count, dtype=torch.bfloat16)} for count in (1, 2)])


class Classed(list):
    """A list with the class names that torchvision's datasets have."""

    def __init__(self, samples: list[Any], **names: Any) -> None:
        super().__init__(samples)
        vars(self).update(names)


def test_class_names_are_the_datasets_own() -> None:
    pair = [(IMAGE, 0), (IMAGE, 1)]
    assert splits(Classed(pair, class_to_idx={"b": 1, "a": 0}))["train"].classes == ("a", "b")
    assert splits(Classed(pair, classes=["b", "a"]))["train"].classes == ("b", "a")
    with pytest.raises(SourceError, match="class_to_idx"):
        splits(Classed(pair, classes=["b", "a"], class_to_idx={"a": 0, "b": 1}))
    joined = ConcatDataset([Classed(pair, classes=["a", "b"]), Classed(pair, classes=["b", "a"])])
    with pytest.raises(SourceError, match="different classes"):
        splits(joined)
    with pytest.raises(SourceError, match="split val and split train have different classes"):
        splits({"train": Classed(pair, classes=["a", "b"]), "val": Classed(pair, classes=["a", "c"])})


def test_targets_that_are_no_class_are_named() -> None:
    split = splits(Classed([(IMAGE, 0), (IMAGE, 2), (IMAGE, -1)], classes=["a", "b"]))["train"]
    for index, target in ((1, 2), (2, -1)):
        with pytest.raises(SampleError, match=f"target {target} is not a class; classes are 0 to 1"):
            split.read(index)


class ClassLabel:
    """As of Hugging Face's datasets: a feature that knows its names."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Listed:
    """As their Sequence and List: a feature that each entry of a list has."""

    def __init__(self, feature: Any) -> None:
        self.feature = feature


class Columns(list):  # type: ignore[type-arg]
    """As their Dataset: rows as dicts, and features by column."""

    def __init__(self, rows: list[Any], features: dict[str, Any]) -> None:
        super().__init__(rows)
        self.features = features


def test_class_names_of_hugging_face_datasets() -> None:
    columns = {"image": object(), "label": ClassLabel("cat", "dog"), "coarse": ClassLabel("pet")}
    rows_of = [{"image": IMAGE, "label": label, "coarse": 0} for label in (0, 1, -1)]
    data = Columns(rows_of, columns)
    split = splits(data)["train"]
    assert split.classes == ("cat", "dog")
    assert split.read(1).fields["images"].shape == (3, 4, 6)
    with pytest.raises(SampleError, match="target -1 is not a class; classes are 0 to 1"):
        split.read(2)
    assert splits(data, fields={"images": "image", "targets": "coarse"})["train"].classes == ("pet",)
    assert splits(ConcatDataset([data, data]))["train"].classes == ("cat", "dog")
    assert splits(Columns(rows_of, {}))["train"].classes == ()
    unnamed: Any = Columns(rows_of, {})
    unnamed.features = torch.zeros(3)
    assert splits(unnamed)["train"].classes == ()


@pytest.mark.parametrize(
    "inner", [lambda label: {"category": Listed(label)}, lambda label: Listed({"category": label})]
)
def test_class_names_of_boxes_are_those_of_their_labels(inner: Any) -> None:
    objects = [{"boxes": [[0.0, 0, 2, 2]] * count, "category": [0, 2][:count]} for count in (1, 2)]
    data = Columns([{"image": IMAGE, "objects": each} for each in objects], {"objects": inner(ClassLabel("x", "y"))})
    fields = {"images": "image", "boxes": "objects.boxes", "labels": "objects.category"}
    split = splits(data, fields=fields)["train"]
    assert split.classes == ("x", "y")
    with pytest.raises(SampleError, match="label 2 is not a class; classes are 0 to 1"):
        split.read(1)


def test_hugging_face_itself() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    made = datasets.Dataset.from_dict({"image": [IMAGE, IMAGE], "label": [1, 0]}, features=features)
    split = splits(made)["train"]
    assert split.classes == ("cat", "dog")
    assert split.read(0).fields["targets"] == 1


GRAY = np.arange(24, dtype=np.uint8).reshape(4, 6)


def as_jpeg(mask: np.ndarray) -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "JPEG")
    return Image.open(file)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((Image.fromarray(GRAY.astype(np.uint16) * 2000), 0), "of mode I;16, over 8 bits"),
        ((Image.fromarray(GRAY.astype(np.int32)), 0), "of mode I, over 8 bits"),
        ((Image.fromarray(GRAY.astype(np.float32) / 255), 0), "of mode F, over 8 bits"),
        ((torch.zeros(8, 9, 3, dtype=torch.uint8), 0), r"\[8, 9, 3\], and a tensor \[C, H, W\] is expected"),
        ((np.zeros((3, 8, 9), np.uint8), 0), r"\[3, 8, 9\], and an array \[H, W, C\] is expected"),
        ({"image": IMAGE, "mask": as_jpeg(GRAY)}, "masks: it is a JPEG, which does not keep class numbers"),
        ({"image": IMAGE, "boxes": [[5.0, 3, 1, 1]], "labels": [0]}, "the box 5, 3, 1, 1 is empty or leaves"),
        ({"image": IMAGE, "boxes": [[0.0, 0, 2, 2], [1, 1, 7, 2]], "labels": [0, 1]}, "the box 1, 1, 7, 2 .* 6 x 4"),
        ({"image": IMAGE, "boxes": [[-1.0, 0, 2, 2]], "labels": [0]}, "the box -1, 0, 2, 2"),
        ({"image": IMAGE, "boxes": [[0.0, 0, float("nan"), 2]], "labels": [0]}, "the box 0, 0, nan, 2"),
    ],
)
def test_pixels_masks_and_boxes_that_would_be_others_are_refused(sample: Any, message: str) -> None:
    with pytest.raises((SampleError, SourceError), match=message):
        splits([sample, sample])


def test_small_images_and_boxes_at_the_edge_are_taken() -> None:
    assert splits([(torch.zeros(3, 8, 1, dtype=torch.uint8), 0)])["train"].read(0).fields["images"].shape == (3, 8, 1)
    assert splits([(np.zeros((8, 9), np.uint8), 0)])["train"].read(0).fields["images"].shape == (1, 8, 9)
    edge = {"image": IMAGE, "boxes": [[0.0, 0, 6, 4]], "labels": [0]}
    assert splits([edge])["train"].read(0).fields["boxes"].tolist() == [[0, 0, 6, 4]]


@pytest.mark.parametrize("form", ["XYWH", "CXCYWH"])
def test_boxes_of_torchvision_in_another_format_are_refused(form: str) -> None:
    boxes = BoundingBoxes([[1, 1, 3, 2]], format=form, canvas_size=(4, 6))
    samples = [(IMAGE, {"boxes": boxes.as_subclass(torch.Tensor)}), (IMAGE, {"boxes": boxes})]
    assert rows(samples[:1])[0]["boxes"].tolist() == [[1, 1, 3, 2]]
    with pytest.raises((SampleError, SourceError), match=f"boxes is BoundingBoxes of format {form}; convert them to"):
        rows(samples)


@pytest.mark.parametrize("value", [1e39, [2.0, -1e39], np.float64(1e39)])
def test_numbers_that_float32_cannot_hold_are_errors_of_their_sample(value: Any) -> None:
    sound = [2.0, 1.0] if isinstance(value, list) else 2.0
    split = splits([(IMAGE, sound), (IMAGE, value)])["train"]
    with pytest.raises(SampleError, match="targets has -?1e\\+39"):
        split.read(1)


def test_values_beside_boxes_stay_with_them(tmp_path: Path) -> None:
    corners = [[0.0, 0.0, 1.0, 1.0], [2.0, 1.0, 6.0, 4.0]]
    MADE["it"] = [
        {"image": IMAGE, "boxes": corners[:n], "labels": [4, 5][:n], "iscrowd": [False, True][:n]} for n in (2, 0, 1)
    ]
    recipe = BuildRecipe(
        kind="python",
        root=Path(__file__).parent,
        out=tmp_path / "out",
        options={"dataset": "python_datasets:made", "arguments": {"name": "it"}},
        transforms=({"step": "CenterCrop", "size": 2},),
    )
    build(recipe, processes=1)
    first = mmload.open(tmp_path / "out")["train"][0]
    assert int(first.counts) == 1
    assert (first.labels.tolist(), first.extra["iscrowd"].tolist()) == ([5], [True])
    uneven = splits([{"boxes": corners, "area": [1.0, 2.0]}, {"boxes": corners, "area": [1.0]}])["train"]
    with pytest.raises(SampleError, match="boxes and area are not of one length"):
        uneven.read(1)
