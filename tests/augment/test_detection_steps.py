"""The steps for detection: torchvision's with the draws that they made, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import NOT_BOXED, detections
from parity_stores import expect_torchvisions
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from mmload.augment import (
    BoxRule,
    CenterCrop,
    Letterbox,
    Normalize,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.render.plan import Plan

FILL = (123, 117, 104)
MODES = [("bilinear", True), ("bilinear", False), ("nearest", True), ("bicubic", True), ("nearest-exact", True)]
ZOOM = RandomZoomOut(FILL, (1.0, 3.0), mask_fill=3)
SMALLER, LARGER = (3, 30, 30), (3, 40, 52)


@pytest.mark.parametrize("shape", [SMALLER, LARGER])
@pytest.mark.parametrize(("mode", "antialias"), MODES)
@pytest.mark.parametrize("make", [
    lambda mode, antialias: [ScaleJitter((36, 44), (0.2, 2.0), mode, antialias, FILL, mask_fill=7)],
    lambda mode, antialias: [RandomShortestSize((20, 31, 47), 55, mode, antialias, FILL)],
    lambda mode, antialias: [ZOOM, Resize((30, 41), mode, antialias=antialias)],
])  # fmt: skip
def test_random_sizes_are_torchvisions(make: Any, mode: str, antialias: bool, shape: tuple[int, int, int]) -> None:
    expect_torchvisions(Collate(*make(mode, antialias), dtype=torch.uint8), detections(24, shape))


@pytest.mark.parametrize("shape", [SMALLER, LARGER, (3, 31, 200), (3, 2, 3)])
@pytest.mark.parametrize(("mode", "scaleup", "center"), [
    ("bilinear", True, True), ("bicubic", False, True), ("nearest", True, False), ("bilinear", False, False),
])  # fmt: skip
def test_a_letterbox_is_torchvisions_resize_and_pad(
    shape: tuple[int, int, int], mode: str, scaleup: bool, center: bool
) -> None:
    step = Letterbox((36, 44), FILL, mode, mask_fill=7, scaleup=scaleup, center=center)
    expect_torchvisions(Collate(step, dtype=torch.uint8), detections(5, shape))


@pytest.mark.parametrize("steps", [
    [ZOOM, CenterCrop((33, 31))],
    [RandomIoUCrop(), RandomHorizontalFlip(), Resize((30, 30)), Normalize.imagenet()],
    [RandomZoomOut(FILL), RandomIoUCrop(), RandomHorizontalFlip(), Resize((30, 30))],
    [RandomPhotometricDistort(), RandomZoomOut(FILL), RandomIoUCrop(), RandomHorizontalFlip(), Resize((30, 30))],
])  # fmt: skip
def test_lists_of_references_detection_are_torchvisions(steps: list[nn.Module]) -> None:
    """Of references/detection/presets.py; then the size that the model takes."""
    expect_torchvisions(Collate(*steps), detections(40))


def test_a_zoom_out_and_a_crop_of_the_shorter_side_are_torchvisions() -> None:
    batch, size = detections(24), [33, 31]
    got = Collate(ZOOM, Resize(40), CenterCrop(size), dtype=torch.uint8)(batch)
    zoom = ZOOM.describe(Plan.unchanged(24, LARGER, 255.0), Draws(batch.seeds.numpy(), 0))
    for k in range(24):
        left, top = -int(zoom.left[k]), -int(zoom.top[k])
        borders = [left, top, int(zoom.cols[k]) - 52 - left, int(zoom.rows[k]) - 40 - top]
        boxes = tv_tensors.BoundingBoxes(batch.boxes[k, : batch.counts[k]], format="XYXY", canvas_size=(40, 52))
        given = ((batch.images[k], list(FILL)), (tv_tensors.Mask(batch.masks[k]), 3), (boxes, 0))
        made = [F.center_crop(F.resize(F.pad(item, borders, fill), [40]), size) for item, fill in given]
        image, mask, boxes = (item.as_subclass(Tensor) for item in made)
        assert torch.equal(got.images[k], image)
        assert torch.equal(got.masks[k], mask)
        kept = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
        torch.testing.assert_close(got.boxes[k, : got.counts[k]], boxes[kept], rtol=0, atol=1e-3)


def test_a_canvas_after_normalize_has_its_own_fill() -> None:
    """torchvision's ScaleJitter and pad would put 0 beside normalized values, not what black becomes."""
    images = torch.full((2, 3, 20, 30), 200, dtype=torch.uint8)
    made = Collate(Normalize.imagenet(), ScaleJitter((20, 20), (0.5, 0.5), fill=0))(images)
    assert made[0, :, -1, -1].tolist() == [0, 0, 0]
    gray = Collate(RandomGrayscale(1.0), Letterbox((40, 20), FILL), dtype=torch.uint8)(images)
    assert gray[0, :, 0, 0].tolist() == list(FILL)
    with pytest.raises(ValueError, match="fill is 114, a level of uint8 images, but these images are floats"):
        Collate(Letterbox(20))(images / 255)
    assert Collate(Letterbox((40, 20), 0.5))(images / 255)[0, 0, 0, 0] == 0.5


@pytest.mark.parametrize("step", [ScaleJitter((36, 44), fill=9), RandomShortestSize((20, 40), fill=9)])
def test_what_follows_a_canvas_is_as_in_passes_of_their_own(step: nn.Module) -> None:
    batch, identity = detections(16), nn.Identity()
    later = [RandomHorizontalFlip(), CenterCrop((18, 20)), RandomVerticalFlip()]
    first = Collate(step, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    mirrored = batch.replace(**NOT_BOXED | {"images": batch.images.flip(-1), "masks": batch.masks.flip(-1)})
    for steps, apart, given in (
        ([step, *later], [identity, *later], first),
        ([RandomHorizontalFlip(1.0), step], [identity, step], mirrored),
    ):
        got, expected = Collate(*steps, dtype=torch.uint8)(batch), Collate(*apart, dtype=torch.uint8)(given)
        assert torch.equal(got.images, expected.images)
        assert torch.equal(got.masks, expected.masks)


def test_iou_crop_sees_no_boxes_beyond_the_count() -> None:
    """Whatever stands there; a batch of one's own need not be padded by zeros."""
    batch, collate = detections(24), Collate(RandomIoUCrop(trials=8), Resize((32, 32)))
    beyond = torch.arange(5) >= batch.counts[:, None]
    middle = torch.tensor([10.0, 10.0, 40.0, 30.0]).expand_as(batch.boxes)
    other = batch.replace(boxes=torch.where(beyond[:, :, None], middle, batch.boxes))
    got, expected = collate(other), collate(batch)
    assert torch.equal(got.images, expected.images)
    assert torch.equal(got.counts, expected.counts)


def test_iou_crop_leaves_samples_without_boxes_and_those_that_nothing_fits() -> None:
    batch = detections(12)
    none = batch.replace(counts=torch.zeros(12, dtype=torch.int64))
    expected = Collate(Resize((20, 20)), dtype=torch.uint8)(none)
    got = Collate(RandomIoUCrop(sampler_options=[0.1]), Resize((20, 20)), dtype=torch.uint8)(none)
    assert torch.equal(got.images, expected.images)
    impossible = RandomIoUCrop(min_scale=0.9, min_aspect_ratio=9, max_aspect_ratio=10)
    got = Collate(impossible, Resize((20, 20)), dtype=torch.uint8)(batch)
    assert torch.equal(got.counts, batch.counts)
