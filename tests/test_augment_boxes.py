"""Boxes and masks against torchvision's functional results for the same windows and flips."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor, nn
from torchvision import tv_tensors

from mmload.augment import (
    BoxRule,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    sample_seeds,
)
from mmload.augment.draws import Draws
from mmload.augment.plan import Plan
from mmload.augment.sampling import Window, windows
from mmload.augment.step import Step
from mmload.collate import Collate
from mmload.records import Batch

HEIGHT, WIDTH, MOST = 40, 52, 6


def batch_of(count: int) -> Batch:
    generator = torch.Generator().manual_seed(9)
    corners = torch.rand((count, MOST, 2, 2), generator=generator) * torch.tensor([WIDTH, HEIGHT])
    boxes = torch.cat((corners.amin(2), corners.amax(2)), dim=2)
    counts = torch.randint(0, MOST + 1, (count,), generator=generator)
    real = torch.arange(MOST) < counts[:, None]
    return Batch(
        images=torch.randint(0, 256, (count, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator),
        boxes=boxes * real[:, :, None],
        labels=torch.where(real, torch.arange(MOST), -1),
        difficult=(torch.arange(MOST) % 2 == 0) & real,
        counts=counts,
        masks=torch.randint(0, 256, (count, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator),
        seeds=sample_seeds(1, 0, torch.arange(count)),
        batch_size=[count],
    )


def plan_of(steps: list[Step], batch: Batch) -> Plan:
    plan = Plan.of(len(batch), (3, HEIGHT, WIDTH), 255.0, torch.device("cpu"))
    for place, step in enumerate(steps):
        plan = step.describe(plan, Draws(batch.seeds, place))
    return plan


def theirs(value: Tensor, window: Window, plan: Plan, fill: float = 0.0) -> Tensor:
    """torchvision's result for boxes or a mask, step by step."""
    value = (
        tv.crop(value, *window[:4]) if plan.padding is None or isinstance(value, tv_tensors.BoundingBoxes) else value
    )
    if plan.padding is not None and not isinstance(value, tv_tensors.BoundingBoxes):
        value = tv.crop(tv.pad(value, [20, 20, 20, 20], fill=fill), window.top + 20, window.left + 20, *window[2:4])
    if plan.resampling is not None:
        value = tv.resize(value, [plan.resampling.height, plan.resampling.width])
        value = tv.crop(value, window.part_top, window.part_left, plan.height, plan.width)
    value = tv.horizontal_flip(value) if -1 in window.flips else value
    return tv.vertical_flip(value) if -2 in window.flips else value


LISTS: list[list[Step]] = [
    [RandomCrop((24, 31)), RandomHorizontalFlip(), RandomVerticalFlip()],
    [RandomCrop((36, 50), padding=9, mask_fill=255), RandomHorizontalFlip()],
    [RandomResizedCrop((33, 27)), RandomHorizontalFlip()],
    [Resize((60, 70)), CenterCrop((48, 50)), RandomVerticalFlip()],
    [RandomHorizontalFlip(1.0)],
]


@pytest.mark.parametrize("steps", LISTS)
def test_boxes_and_masks_are_torchvisions(steps: list[Step]) -> None:
    batch = batch_of(16)
    plan = plan_of(steps, batch)
    got = Collate(*steps)(batch)
    assert got.images.shape[-2:] == (plan.height, plan.width)
    for k, window in enumerate(windows(plan)):
        count = int(batch.counts[k])
        boxes = tv_tensors.BoundingBoxes(batch.boxes[k, :count], format="XYXY", canvas_size=(HEIGHT, WIDTH))
        expected = theirs(boxes, window, plan).as_subclass(Tensor)
        stay = ((expected[:, 2:] - expected[:, :2]) >= 1).all(1)
        real = int(got.counts[k])
        assert real == int(stay.sum())
        assert torch.allclose(got.boxes[k, :real], expected[stay], atol=1e-4, rtol=0)
        assert got.labels[k].tolist() == batch.labels[k, :count][stay].tolist() + [-1] * (MOST - real)
        assert got.difficult[k, :real].tolist() == batch.difficult[k, :count][stay].tolist()
        assert not got.boxes[k, real:].any()
        mask = theirs(tv_tensors.Mask(batch.masks[k]), window, plan, fill=255.0)
        assert torch.equal(got.masks[k], mask.as_subclass(Tensor))


def test_whole_pixel_boxes_are_exact() -> None:
    batch = batch_of(16)
    batch = batch.replace(boxes=batch.boxes.round())
    steps = LISTS[0]
    got, plan = Collate(*steps)(batch), plan_of(LISTS[0], batch)
    for k, window in enumerate(windows(plan)):
        boxes = tv_tensors.BoundingBoxes(batch.boxes[k], format="XYXY", canvas_size=(HEIGHT, WIDTH))
        expected = theirs(boxes, window, plan).as_subclass(Tensor)[: int(batch.counts[k])]
        stay = ((expected[:, 2:] - expected[:, :2]) >= 1).all(1)
        assert torch.equal(got.boxes[k, : int(got.counts[k])], expected[stay])


def test_the_rule_weeds_what_keeps_too_little() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 40.0, 40.0], [18.0, 10.0, 30.0, 30.0], [16.5, 10.0, 17.0, 30.0]]])
    batch = Batch(
        images=torch.zeros((1, 3, HEIGHT, WIDTH), dtype=torch.uint8),
        boxes=boxes,
        labels=torch.tensor([[5, 6, 7]]),
        counts=torch.tensor([3]),
        batch_size=[1],
    )
    kept = {
        rule: Collate(CenterCrop((20, 20)), box_rule=rule)(batch).labels.tolist()[0]
        for rule in (None, BoxRule(min_visible=0.3), BoxRule(min_size=0.4), BoxRule(min_size=19))
    }
    assert list(kept.values()) == [[5, 6, -1], [6, -1, -1], [5, 6, 7], [5, -1, -1]]


def test_boxes_follow_a_second_pass() -> None:
    batch = batch_of(5)
    once = Collate(Resize((20, 26)), Resize((40, 52)), box_rule=BoxRule(min_size=0.0))(batch)
    assert torch.equal(once.counts, batch.counts)
    assert torch.allclose(once.boxes, batch.boxes, atol=1e-4)


def test_colours_alone_leave_them() -> None:
    batch = batch_of(3)
    got = Collate(nn.Identity())(batch)
    assert torch.equal(got.boxes, batch.boxes)
    assert torch.equal(got.masks, batch.masks)
