"""Presets of detectors: their steps against the published settings, and on batches with boxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from device_batches import batch_of

from mmload import Collate
from mmload.augment import BoxRule, Mosaic
from mmload.presets import detection

SHAPES: dict[str, tuple[Callable[[], Collate], tuple[int, int]]] = {
    "yolo": (partial(detection.yolo, size=64, mixup=0.5), (64, 64)),
    "rt_detr": (partial(detection.rt_detr, size=48), (48, 48)),
    "ssd": (partial(detection.ssd, size=50), (50, 50)),
    "ssdlite": (partial(detection.ssdlite, size=40), (40, 40)),
    "faster_rcnn": (partial(detection.faster_rcnn, sizes=(20, 30), max_size=70), (30, 30)),
    "lsj": (partial(detection.lsj, size=70), (70, 70)),
}


@pytest.mark.parametrize("name", detection.__all__)
def test_detection_presets_give_batches_of_their_size_with_boxes_inside(name: str) -> None:
    make, (height, width) = SHAPES[name]
    batch = batch_of(9).replace(masks=None)
    made = make()(batch)
    assert made.images.shape == (9, 3, height, width)
    assert made.images.dtype == torch.float32
    assert 0 <= made.images.min() <= made.images.max() <= 1
    real = torch.arange(made.boxes.shape[1]) < made.counts[:, None]
    assert real.any()
    assert (made.labels[real] >= 0).all()
    assert (made.labels[~real] == -1).all()
    boxes = made.boxes[real]
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (boxes >= 0).all()
    assert (boxes <= torch.tensor([width, height] * 2)).all()


def test_yolo_has_the_published_settings() -> None:
    collate = detection.yolo(epochs=100)
    assert repr(collate.steps[0]) == repr(Mosaic(640, translate=0.1, scale=0.5, stop_epoch=90))
    assert [repr(step) for step in list(collate.steps)[1:]] == [
        "RandomHSV(hue=0.015, saturation=0.7, value=0.4)",
        "RandomHorizontalFlip(p=0.5)",
    ]
    assert collate.box_rule == BoxRule(min_size=2, min_visible=0.1, max_aspect=100)
    assert detection.yolo(epochs=5).composer.stop_epoch == 0  # type: ignore[union-attr]
    assert detection.yolo(box_rule=BoxRule()).box_rule == BoxRule()
    assert detection.yolo().composer.stop_epoch is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 3, "close_mosaic": -1}, "close_mosaic is -1"),
        ({"close_mosaic": 5}, "close_mosaic is 5, but epochs is None; give epochs"),
        ({"close_mosaic": "x"}, "close_mosaic is 'x'"),
    ],
)
def test_yolo_of_an_impossible_end_of_mosaics_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        detection.yolo(**options)


def test_rt_detr_crops_four_images_in_five_by_an_overlap_of_torchvisions() -> None:
    options = detection.rt_detr().steps[2].sampler_options
    shares = {option: options.count(option) / len(options) for option in set(options)}
    assert shares == pytest.approx({**dict.fromkeys((0.0, 0.1, 0.3, 0.5, 0.7, 0.9), 0.8 / 7), 1.0: 0.2 + 0.8 / 7})


def test_box_rule_drops_boxes_by_their_aspect() -> None:
    rule = BoxRule(max_aspect=4)
    boxes = torch.tensor([[0.0, 0, 8, 2], [0, 0, 9, 2], [0, 0, 2, 9], [0, 0, 5, 5]])
    assert rule.permits(boxes.numpy()).tolist() == [True, False, False, True]
    assert rule.beyond_torchvision == "max_aspect, here 4"
    with pytest.raises(ValueError, match="max_aspect is 0.5"):
        BoxRule(max_aspect=0.5)


def test_lsj_pastes_objects_where_asked() -> None:
    assert not detection.lsj().has_partners
    paste = detection.lsj(copy_paste=0.5).steps[-1]
    assert repr(paste) == "CopyPaste(p=0.5)"
