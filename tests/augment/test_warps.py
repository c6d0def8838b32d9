"""Rotations, affine and perspective warps: pixels, masks and boxes are torchvision's for the numbers drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from batches import detections
from level_expected import batch_of
from parity_stores import expect_torchvisions
from torch import nn

from mmload.augment import (
    AugMix,
    AutoAugment,
    BoxRule,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.batch import Batch
from mmload.render.plan import Plan

COUNT, HEIGHT, WIDTH, MOST = 8, 31, 42, 4
VOID = 255


def detection(count: int = COUNT) -> Batch:
    """Smooth images with boxes and masks."""
    smooth: Batch = batch_of(count, height=HEIGHT, width=WIDTH)
    return detections(count, (3, HEIGHT, WIDTH), MOST, images=smooth.images, seeds=smooth.seeds)


WARPS: list[Any] = [
    RandomRotation(35),
    RandomRotation((80, 100), "bilinear", center=(3, 9.5), fill=(1, 20, 30)),
    RandomRotation((90, 90), "bilinear", fill=None),
    RandomRotation((180, 180)),
    RandomAffine(20),
    RandomAffine(0, (0.3, 0.5)),
    RandomAffine((10, 50), (0.1, 0.2), (0.4, 1.9), (5, 20, -10, 30), "bilinear", 9, (11, 2)),
    RandomAffine(0, None, (0.5, 0.5), 40, fill=None),
    RandomPerspective(0.7, 1.0, fill=(7,)),
    RandomPerspective(0.4, 1.0, "nearest", fill=(1, 2, 3)),
    RandomApply([RandomHorizontalFlip(1.0), RandomVerticalFlip(0.5)], 0.5),
    RandomChoice([RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0), RandomInvert(1.0)]),
    RandomOrder([RandomHorizontalFlip(), RandomVerticalFlip(), RandomInvert()]),
]


@pytest.mark.parametrize("step", WARPS, ids=lambda step: str(step)[:70])
def test_a_step_that_moves_pixels_as_an_operation_is_torchvisions(step: Any) -> None:
    batch, collate = detection(24), Collate(step, dtype=torch.uint8, box_rule=BoxRule(min_size=0))
    expect_torchvisions(collate, batch)
    assert torch.equal(collate(batch).images, step(batch.images, seeds=batch.seeds))


def test_a_warp_then_a_flip_then_a_hole_is_one_pass_and_a_crop_another() -> None:
    batch = detection()
    warp, flip, hole = RandomAffine(30, (0.2, 0.2)), RandomHorizontalFlip(1.0), RandomErasing(1.0, value=200)
    crop = RandomCrop((20, 30))
    warped = warp(batch.images, seeds=batch.seeds)
    together = Collate(warp, flip, hole, dtype=torch.uint8)(batch)
    holes = Collate(RandomInvert(0.0), RandomInvert(0.0), hole, dtype=torch.uint8)
    assert torch.equal(together.images, holes(batch.replace(images=warped.flip(3))).images)
    assert torch.equal(together.masks, Collate(warp, dtype=torch.uint8)(batch).masks.flip(2))
    cropped = Collate(warp, flip, crop, dtype=torch.uint8)(batch)
    alone = Collate(RandomInvert(0.0), RandomInvert(0.0), crop, dtype=torch.uint8)
    flipped = Collate(warp, flip, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    later = alone(flipped)
    assert torch.equal(cropped.images, later.images)
    assert torch.equal(cropped.masks, later.masks)
    for k in range(COUNT):  # a box that a crop shows less than a pixel of is judged once
        real = int(cropped.counts[k])
        assert set(cropped.labels[k, :real].tolist()) <= set(later.labels[k].tolist())


def test_the_box_rule_counts_what_a_warp_cuts_off() -> None:
    batch = detection(32)
    warp = RandomAffine(0, (0.5, 0.5))
    strict = Collate(warp, box_rule=BoxRule(min_visible=0.6))(batch)
    for k in range(32):
        across, down = Draws(batch.seeds.numpy(), 0).uniform(6)[k, 1:3].tolist()
        translate = [round((across - 0.5) * WIDTH), round((down - 0.5) * HEIGHT)]
        moved = batch.boxes[k, : int(batch.counts[k])] + torch.tensor(translate * 2)
        inside = torch.minimum(moved.clamp(min=0), torch.tensor([WIDTH, HEIGHT] * 2))
        area, left = ((one[:, 2:] - one[:, :2]).clamp(min=0).prod(1) for one in (moved, inside))
        stays = (left >= 0.6 * area) & ((inside[:, 2:] - inside[:, :2]).amin(1) >= 1)  # all, as the image is cut
        if any(translate):
            assert strict.labels[k, : int(strict.counts[k])].tolist() == stays.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "step",
    [
        RandomPerspective(1.0, 1.0),
        RandomPerspective(1.0, 1.0, "nearest", fill=None),
        RandomAffine(1e6, (1, 1), (1e-3, 1e3), (-89.99, 89.99, -89.99, 89.99), "bilinear"),
        RandomAffine(0, (1.0, 1.0), (1e-3, 1e-3)),
        RandomRotation(1e6, center=(-65535, 65535)),
    ],
    ids=lambda part: str(part)[:50],
)
@pytest.mark.parametrize(("height", "width"), [(2, 2), (3, 5), (30, 20)])
def test_extreme_warps_have_no_nan(step: nn.Module, dtype: torch.dtype, height: int, width: int) -> None:
    """Corners that fall together, and pixels on the horizon."""
    count = 64
    frame = torch.tensor([[0.0, 0.0, width, height], [0.0, 0.0, 1.0, 1.0]])
    batch = batch_of(
        count,
        height=height,
        width=width,
        boxes=frame.repeat(count, 1, 1),
        masks=torch.zeros((count, height, width), dtype=torch.uint8),
    )
    batch = batch if dtype == torch.uint8 else batch.replace(images=batch.images / 255)
    got = Collate(step)(batch)
    assert got.images.isfinite().all()
    assert got.images.min() >= 0
    assert got.images.max() <= 1.0001
    assert got.boxes.isfinite().all()
    assert set(got.masks.unique().tolist()) <= {0, VOID}


@pytest.mark.parametrize("made", [partial(RandomRotation, 5), RandomPerspective, RandAugment, AutoAugment, AugMix])
def test_warps_a_fill_that_images_cannot_have_is_refused_before_a_pixel_is_read(made: Any) -> None:
    rows = batch_of(2).replace(images=None)
    for step in (lambda fill: made(fill=fill), lambda fill: RandomApply([made(fill=fill)])):
        with pytest.raises(ValueError, match="fill has 2 numbers and the images 3 channels"):
            Collate(step((1, 2))).prepare(rows, (3, 9, 9))
        for fill in (0.5, 256, -1):
            with pytest.raises(ValueError, match=f"fill is {fill}, and the images are uint8"):
                Collate(step(fill)).prepare(rows, (3, 9, 9))
        for fill in (9, -0.5, 1.5):
            with pytest.raises(ValueError, match=f"fill is {fill} and the images are floats from 0 to 1"):
                Collate(step(fill)).prepare(rows, (3, 9, 9), source=torch.float32)
        Collate(step(0.5)).prepare(rows, (3, 9, 9), source=torch.float32)


def test_images_of_more_pixels_than_a_warp_can_count_are_refused() -> None:
    plan = Plan.unchanged(1, (1, 46_400, 46_400), 255.0)
    for step in (RandomRotation(5), RandAugment()):
        with pytest.raises(ValueError, match="46400 x 46400 are too large"):
            step.describe(plan, Draws(np.zeros(1, np.int64), 0))
