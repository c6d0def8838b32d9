"""How the steps of detection recipes draw, beside torchvision's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from distributions import ks
from torch import Tensor
from torchvision.ops import box_iou

from mmload.augment import (
    RandomIoUCrop,
    ScaleJitter,
    sample_seeds,
)
from mmload.augment.boxes import boxes_in
from mmload.augment.step import Draws
from mmload.render.plan import Plan


def draws_of(count: int) -> Draws:
    return Draws(sample_seeds(3, 0, torch.arange(count)).numpy(), 0)


def doubles(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers).double()


COUNT = 6000


def test_what_exceeds_a_canvas_is_cut_off_as_by_fixed_size_crop() -> None:
    """Of torchvision's references: one number says how much above and at the left."""
    blank = Plan.unchanged(COUNT, (3, 60, 80), 255.0)
    placed = ScaleJitter((50, 60)).describe(blank, draws_of(COUNT)).resampling
    over, across = np.maximum(placed.rows - 50, 0), np.maximum(placed.cols - 60, 0)
    shares = torch.rand(COUNT, generator=torch.Generator().manual_seed(0)).numpy()
    for start, spare in ((-placed.top, over), (-placed.left, across)):
        assert start.min() == 0
        assert (start <= spare).all()
        assert ks(doubles(start[spare > 0]), doubles((spare * shares).astype(np.int64)[spare > 0])) < 2
    both = (over > 8) & (across > 8)
    assert both.sum() > 500
    apart = -placed.top[both] / over[both] + placed.left[both] / across[both]
    assert np.abs(apart).max() < 1 / 9


BOXES = torch.tensor([[5.0, 4, 25, 30], [40, 20, 70, 55], [10, 40, 14, 44]])


@pytest.mark.parametrize("options", [None, [0.3, 0.7]])
def test_iou_crops_of_float64_boxes_are_those_of_float32(options: list[float] | None) -> None:
    count = 200
    seeds = sample_seeds(3, 0, torch.arange(count)).numpy()
    counts = torch.arange(count) % 4
    blank, step, plans = Plan.unchanged(count, (3, 60, 80), 255.0), RandomIoUCrop(sampler_options=options), []
    for dtype in (torch.float32, torch.float64):
        fields = {"boxes": BOXES.to(dtype).repeat(count, 1, 1).numpy(), "counts": counts.numpy()}
        plans.append(step.describe(blank, Draws(seeds, 0, boxes=partial(boxes_in, fields, trail=None))))
    for name in ("top", "left", "rows", "cols", "dropped"):
        found, expected = (getattr(plan, name) for plan in plans)
        assert (found == expected).all()
    plan = plans[0]
    cropped, real = plan.rows < 60, np.arange(3) < counts.numpy()[:, None]
    assert 0 < cropped.sum() < count
    assert not (plan.dropped & ~real).any()
    if options is not None:
        window = np.stack((plan.left, plan.top, plan.left + plan.cols, plan.top + plan.rows), 1)
        overlaps = box_iou(doubles(window[cropped]), BOXES.double())
        reached = overlaps.masked_fill(torch.from_numpy(plan.dropped | ~real)[cropped], 0).amax(1)
        assert (reached >= 0.3).all()
