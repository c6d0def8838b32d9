"""Batches as they leave: for torchvision's detection models."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

from mmload.batch import Batch, make_batch
from mmload.records import FieldSpec


def detection_batch() -> Batch:
    fields = {
        "images": torch.rand(2, 3, 64, 64),
        "boxes": torch.tensor([[[1.0, 2, 30, 40], [5, 5, 20, 20]], [[3, 3, 9, 9], [0, 0, 0, 0]]]),
        "labels": torch.tensor([[0, 4], [2, -1]]),
        "counts": torch.tensor([2, 1]),
    }
    return make_batch(fields, 2)


def test_a_detection_model_of_torchvision_trains_on_the_real_boxes_and_labels_from_one() -> None:
    images, targets = detection_batch().to_torchvision()
    assert [tuple(image.shape) for image in images] == [(3, 64, 64)] * 2
    assert targets[0]["labels"].tolist() == [1, 5]
    assert targets[1]["boxes"].tolist() == [[3, 3, 9, 9]]
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=6)
    assert all(torch.isfinite(loss) for loss in model(images, targets).values())


def test_without_boxes_it_says_so() -> None:
    with pytest.raises(ValueError, match="no boxes, labels and counts"):
        make_batch({"images": torch.rand(1, 3, 4, 4)}, 1).to_torchvision()


@pytest.mark.parametrize(("dtype", "shape"), [("float8", (1,)), ("uint8", (0,)), ("uint8", (2.5,))])
def test_a_field_that_cannot_be_stored_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="dtype is|shape is"):
        FieldSpec(dtype=dtype, shape=shape)
