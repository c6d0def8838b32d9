"""What steps for detection refuse before a batch comes: lists of steps, and arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mmload.augment import (
    ColorJitter,
    Letterbox,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomShortestSize,
    RandomZoomOut,
    Resize,
    ScaleJitter,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([RandomZoomOut()], r"a batch has one size: put RandomResizedCrop, Resize\(\(height, width\)\), Letterbox, or"),
        ([RandomIoUCrop(), RandomHorizontalFlip()], "the images are variable-size, and a batch has one size"),
        ([RandomZoomOut(), Resize(30)], "the images are variable-size, and a batch has one size"),
        ([RandomIoUCrop(), nn.Identity(), Resize((3, 3))], "Identity needs fixed-size images, and these are variable"),
        ([RandomIoUCrop(), RandomZoomOut(), Resize((3, 3))], "RandomZoomOut cannot stand after RandomIoUCrop"),
        ([RandomIoUCrop(), ColorJitter(0.1), Resize((3, 3))], "ColorJitter needs fixed-size images"),
        (
            [RandomIoUCrop(), RandomHorizontalFlip(), Resize((3, 3), "nearest")],
            "Resize cannot stand after RandomIoUCrop, RandomHorizontalFlip",
        ),
    ],
)
def test_lists_that_give_no_batch_are_refused(steps: list[nn.Module], message: str) -> None:
    rows = Batch(images=torch.zeros(2, 3, 9, 9, dtype=torch.uint8), boxes=torch.zeros(2, 1, 4), batch_size=[2])
    with pytest.raises(ValueError, match=message):
        Collate(*steps).prepare(rows, (3, 9, 9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScaleJitter(20), "target_size is 20, expected"),  # type: ignore[arg-type]
        (lambda: ScaleJitter((20, 0)), r"target_size is \(20, 0\)"),
        (lambda: ScaleJitter((20, 20), (2, 1)), "scale_range is"),
        (lambda: ScaleJitter((20, 20), mask_fill=256), "mask_fill is 256"),
        (lambda: Letterbox((20, 0)), r"size is \(20, 0\)"),
        (lambda: Letterbox(20, scaleup=1), "scaleup is 1"),  # type: ignore[arg-type]
        (lambda: RandomShortestSize([]), "min_size is"),
        (lambda: RandomShortestSize((20, 0.5)), r"min_size is \(20, 0.5\)"),  # type: ignore[arg-type]
        (lambda: RandomShortestSize(20, 0), "max_size is 0"),
        (lambda: RandomZoomOut(side_range=(0.5, 2)), "side_range is"),
        (lambda: RandomIoUCrop(min_scale=0), "min_scale is 0"),
        (lambda: RandomIoUCrop(0.9, 0.5), r"\(min_scale, max_scale\) is \(0.9, 0.5\)"),
        (lambda: RandomIoUCrop(min_aspect_ratio=3), r"\(min_aspect_ratio, max_aspect_ratio\) is \(3.0, 2.0\)"),
        (lambda: RandomIoUCrop(sampler_options=[]), "sampler_options is"),
        (lambda: RandomIoUCrop(trials=0), "trials is 0"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_letterbox_shows_what_it_was_given() -> None:
    shown = repr(Letterbox(20, fill=3, scaleup=False, center=False))
    assert all(part in shown for part in ("(20, 20)", "fill=", "3", "scaleup=False", "center=False"))
