"""The forms in which batches are given, by themselves and under torch's DataLoader."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from tensordict import TensorDict
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import tv_tensors
from torchvision.ops import box_convert

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, Views
from mmload.augment.collate import Collate
from mmload.augment.returns import Returns
from mmload.batch import Batch, make_batch
from mmload.store.dataset import Dataset


def detection_batch(rows: int = 2) -> Batch:
    """Images with a box each, and a field in extra."""
    fields = {
        "images": torch.randint(0, 256, (rows, 3, 16, 16), dtype=torch.uint8),
        "targets": torch.arange(rows),
        "boxes": torch.tensor([[1.0, 2, 9, 12]]).repeat(rows, 1, 1),
        "labels": torch.zeros(rows, 1, dtype=torch.int64),
        "counts": torch.ones(rows, dtype=torch.int64),
        "weight": torch.arange(rows) / 2,
    }
    return make_batch(fields, rows, ids=torch.arange(rows), seeds=torch.arange(rows) + 7)


def test_a_batch_stacks_splits_and_travels_as_before() -> None:
    batch = detection_batch(3)
    rows = batch.unbind(0)
    stacked: Any = torch.stack(rows)
    for same in (stacked, torch.cat(batch.split(2)), pickle.loads(pickle.dumps(batch)), batch.to("cpu"), batch[:]):
        assert isinstance(same, Batch)
        assert torch.equal(same.images, batch.images)
        assert same.extra["weight"].tolist() == [0, 0.5, 1]
    assert len(batch) == len(rows) == 3


def test_forms_of_a_batch() -> None:
    batch = detection_batch()
    images, weight = Returns(("images", "weight")).given(batch)
    assert images is batch.images
    assert weight.tolist() == [0, 0.5]
    assert [type(Returns(form).given(batch)) for form in (("ids",), ["ids"], {"x": "ids"})] == [tuple, list, dict]
    named = Returns({"pixel_values": "images", "labels": "targets", "again": "images"}).given(batch)
    assert list(named) == ["pixel_values", "labels", "again"]
    assert named["again"] is named["pixel_values"] is batch.images
    pictures, targets = Returns("torchvision").given(batch)
    assert [picture.shape for picture in pictures] == [(3, 16, 16)] * 2
    assert targets[1]["boxes"].tolist() == [[1, 2, 9, 12]]
    assert Returns(lambda made: made.ids.tolist()).given(batch) == [0, 1]


@pytest.mark.parametrize("form", ["numpy", "dlpack"])
def test_arrays_are_all_fields_without_a_copy(form: str) -> None:
    batch = detection_batch()
    arrays = Returns(form).given(batch)
    assert set(arrays) == {"images", "targets", "boxes", "labels", "counts", "weight", "ids", "seeds"}
    for name, array in arrays.items():
        field = batch.extra["weight"] if name == "weight" else getattr(batch, name)
        assert isinstance(array, np.ndarray) == (form == "numpy")
        shared = np.from_dlpack(array)
        assert shared.ctypes.data == field.data_ptr()
        assert np.array_equal(shared, field.numpy())
        assert torch.from_dlpack(array).data_ptr() == field.data_ptr()


def test_views_give_what_differs_as_a_tuple_and_what_they_share_once() -> None:
    crops = Collate(RandomCrop(9), RandomHorizontalFlip(), Normalize.imagenet())
    batch = detection_batch()
    views = Views(crops, crops)(batch)
    (first, second), targets = Returns(("images", "targets")).given(views)
    assert first is views[0].images
    assert second is views[1].images
    assert targets is batch.targets
    named = Returns({"boxes": "boxes", "weight": "weight", "seeds": "seeds"}, Views(crops, crops))(batch)
    assert [type(value) for value in named.values()] == [tuple, torch.Tensor, tuple]
    assert [array.shape for array in Returns("numpy").given(views)["images"]] == [(2, 3, 9, 9)] * 2
    assert Returns(len).given(views) == 2


def test_views_that_mix_have_targets_of_their_own() -> None:
    batch = detection_batch()
    mixed: Batch = batch.replace(targets=torch.rand(2, 4))
    _, targets = Returns(("images", "targets")).given((batch, mixed))
    assert isinstance(targets, tuple)
    assert torch.equal(targets[1], mixed.targets)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_takes_it_as_its_collate(dataset: Dataset, workers: int) -> None:
    split, crops = dataset["train"], Collate(RandomCrop(24), dtype=torch.uint8)
    seen = []
    returns: Callable[[Any], Any] = Returns(("images", "targets", "ids"), crops)
    for images, targets, ids in DataLoader(split, batch_size=4, num_workers=workers, collate_fn=returns):
        assert images.shape[1:] == (3, 24, 24)
        assert torch.equal(targets, split[ids].targets)
        seen += ids.tolist()
    assert seen == list(range(18))


def test_without_a_collate_it_gives_the_rows_as_they_are_stored(dataset: Dataset) -> None:
    split = dataset["train"]
    joined: ConcatDataset[Batch] = ConcatDataset([split, split])  # gives rows one by one
    images, targets = next(iter(DataLoader(joined, batch_size=4, collate_fn=Returns(("images", "targets")))))
    assert torch.equal(images, split[:4].images)
    assert torch.equal(targets, split[:4].targets)


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ((), ValueError),
        ({}, ValueError),
        ((1,), ValueError),
        ({"x": None}, ValueError),
        ("images", ValueError),
        (3, TypeError),
        ({"images"}, TypeError),
        pytest.param(Returns("numpy"), TypeError, id="Returns"),
    ],
    ids=str,
)
def test_other_forms_are_refused(form: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="returns is .* expected"):
        Returns(form)


def twice() -> Batch:
    return make_batch({"ids": torch.zeros(2)}, 2, ids=torch.arange(2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda batch: Returns(("imges",)).given(batch),
            "needs the field 'imges'; the batch has boxes, counts, ids, im",
        ),
        (lambda batch: Returns("torchvision").given(batch.replace(boxes=None)), "no boxes, labels and counts"),
        (lambda batch: Returns("numpy", Collate(dtype=torch.bfloat16)), "bfloat16"),
        (lambda batch: Returns("numpy").given(batch.replace(images=batch.images.bfloat16())), "bfloat16"),
        (lambda batch: Returns("torchvision", Views(*[Collate()] * 2)), "one view"),
        (lambda batch: Returns("torchvision").given((batch, batch)), "one view"),
        (lambda batch: Returns("numpy", Collate(device="cuda")), 'on cuda; use returns="dlpack"'),
        (lambda batch: Returns("numpy", Returns("numpy")), "collate is a Returns"),
        (lambda batch: Returns(("images",)).given(3), "needs a Batch"),
        (lambda batch: Returns(("images",)).given(()), "needs a Batch"),
        (lambda batch: Returns(("images",)).given((batch, 3)), "needs a Batch"),
        (lambda batch: Returns(("ids",)).given(twice()), "two fields 'ids'"),
        (
            lambda batch: batch.boxes_as("xyxyxyxy"),
            "box_format='xyxyxyxy' needs the field 'corners', which the batch does",
        ),
        (lambda batch: Returns(("boxes_xyxyxyxy",)).given(batch), "needs the field 'corners'"),
        (lambda batch: batch.boxes_as("yxyx"), "box_format is 'yxyx', expected one of xyxy, xywh, cxcywh, xyxyxyxy"),
    ],
)
def test_what_cannot_be_given_is_refused(given: Callable[[Batch], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        given(detection_batch())


def test_boxes_are_given_in_torchvisions_formats() -> None:
    batch = detection_batch()
    batch.boxes = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) * 16
    batch.boxes[..., 2:] += batch.boxes[..., :2]
    for box_format in ("xyxy", "xywh", "cxcywh"):
        wanted = box_convert(batch.boxes, "xyxy", box_format)
        assert torch.equal(batch.boxes_as(box_format), wanted)
        images, boxes = Returns(("images", f"boxes_{box_format}")).given(batch)
        assert images is batch.images
        assert torch.equal(boxes, wanted)
        _, targets = batch.to_torchvision(box_format)
        got = targets[1]["boxes"]
        assert got.format == tv_tensors.BoundingBoxFormat[box_format.upper()]
        same = tv.convert_bounding_box_format(got, new_format="XYXY")
        assert torch.allclose(same.as_subclass(torch.Tensor), batch.boxes[1, :1], atol=1e-5, rtol=0)
    assert set(Returns({"x": "boxes_cxcywh", "y": "boxes"}).given(batch)) == {"x", "y"}
    assert Returns(("boxes_xywh", "boxes")).fields == ("boxes", "boxes")


def test_corners_are_boxes_of_four_corners() -> None:
    batch = detection_batch()
    batch.extra["corners"] = torch.arange(16.0).view(2, 1, 4, 2)
    _, targets = batch.to_torchvision("xyxyxyxy")
    assert targets[1]["boxes"].tolist() == [list(range(8, 16))]
    assert targets[1]["boxes"].format == tv_tensors.BoundingBoxFormat.XYXYXYXY


@pytest.mark.parametrize(
    "name", ["boxes_xyxy", "boxes_xywh", "boxes_xyxyxyxy", "corners", "keypoints", "polygons", "rings", "runs", "area"]
)
def test_views_give_what_belongs_to_boxes_of_each_view_whatever_their_steps_are(name: str) -> None:
    batch = detection_batch()
    count, most = batch.boxes.shape[:2]
    shapes = {"corners": (most, 4, 2), "keypoints": (most, 2, 3), "area": (most,), "rings": (2, 2), "polygons": (6, 2)}
    fields: dict[str, Any] = {key: torch.zeros(count, *shape) for key, shape in shapes.items()}
    fields |= {
        "run_boxes": torch.zeros(count, 1, 2, dtype=torch.int32),
        "runs": torch.zeros(count, 1, dtype=torch.int32),
    }
    batch.extra = TensorDict(fields, batch_size=[count])
    for first in (Collate(), Collate(RandomHorizontalFlip(1.0))):
        each, targets = Returns((name, "targets"), Views(first, Collate()))(batch)
        assert isinstance(each, tuple)
        assert len(each) == 2
        assert len(targets) == 2


def test_views_give_boxes_of_a_format_of_each_view() -> None:
    form = Returns(("boxes_xywh", "targets"), Views(Collate(RandomHorizontalFlip(1.0)), Collate()))
    (first, second), targets = form(detection_batch())
    assert first[0, 0].tolist() == [7, 2, 8, 10]
    assert second[0, 0].tolist() == [1, 2, 8, 10]
    assert len(targets) == 2
