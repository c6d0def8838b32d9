"""How the steps of detection recipes draw, beside torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distributions import ks
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import box_iou
from torchvision.transforms import v2

from mmload.augment import (
    RandomIoUCrop,
    RandomShortestSize,
    RandomZoomOut,
    ScaleJitter,
    sample_seeds,
)
from mmload.augment.draws import Draws
from mmload.render.plan import Plan


def draws_of(count: int) -> Draws:
    return Draws(sample_seeds(3, 0, torch.arange(count)).numpy(), 0)


def doubles(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers).double()


COUNT = 6000


def test_factors_and_places_are_distributed_as_torchvisions() -> None:
    blank = Plan.unchanged(COUNT, (3, 60, 80), 255.0)
    image = torch.empty(3, 60, 80)
    torch.manual_seed(0)
    jitter = ScaleJitter((50, 100)).describe(blank, draws_of(COUNT)).resampling.placement
    theirs = torch.tensor([v2.ScaleJitter((50, 100)).make_params([image])["size"] for _ in range(COUNT)])
    assert ks(doubles(jitter.rows), theirs[:, 0].double()) < 2
    assert ks(doubles(jitter.cols), theirs[:, 1].double()) < 2
    zoom = RandomZoomOut(p=1.0).describe(blank, draws_of(COUNT))
    padding = torch.tensor([v2.RandomZoomOut(p=1.0).make_params([image])["padding"] for _ in range(COUNT)]).double()
    for ours, other in (
        (zoom.cols - 80, padding[:, 0] + padding[:, 2]),
        (zoom.rows - 60, padding[:, 1] + padding[:, 3]),
        (-zoom.left, padding[:, 0]),
        (-zoom.top, padding[:, 1]),
    ):
        assert ks(doubles(ours), other) < 2
    on = RandomZoomOut(p=0.3, side_range=(2, 3)).describe(blank, draws_of(COUNT)).rows > 60
    assert abs(float(on.mean()) - 0.3) < 0.03
    sizes = RandomShortestSize((30, 40, 50)).describe(blank, draws_of(COUNT)).resampling.placement.rows
    assert all(abs(float((sizes == one).mean()) - 1 / 3) < 0.03 for one in (30, 40, 50))


def test_what_exceeds_a_canvas_is_cut_off_as_by_fixed_size_crop() -> None:
    """Of torchvision's references: one number says how much above and at the left."""
    blank = Plan.unchanged(COUNT, (3, 60, 80), 255.0)
    placed = ScaleJitter((50, 60)).describe(blank, draws_of(COUNT)).resampling.placement
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


@pytest.mark.slow
@pytest.mark.parametrize("options", [None, [0.1, 1.0], [0.4]])
def test_iou_crops_are_distributed_as_torchvisions(options: list[float] | None) -> None:
    count = 500
    step, transform = RandomIoUCrop(sampler_options=options), v2.RandomIoUCrop(sampler_options=options)
    boxes = BOXES.expand(count, 3, 4).numpy()
    real = np.ones((count, 3), np.bool_)
    seeds = sample_seeds(3, 0, torch.arange(count)).numpy()
    plan = step.describe(
        Plan.unchanged(count, (3, 60, 80), 255.0),
        Draws(seeds, 0, boxes=lambda plan: (boxes, real)),
    )
    given = [
        tv_tensors.Image(torch.empty(3, 60, 80)),
        tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(60, 80)),
    ]
    torch.manual_seed(0)
    theirs = [transform.make_params(given) for _ in range(count)]
    whole = (plan.rows == 60) & (plan.cols == 80)
    assert abs(float(whole.mean()) - sum(not one for one in theirs) / count) < 0.08
    params = [one for one in theirs if one]
    for name, values in (("top", plan.top), ("left", plan.left), ("height", plan.rows), ("width", plan.cols)):
        assert ks(doubles(values[~whole]), torch.tensor([one[name] for one in params]).double()) < 2
    within = torch.stack([one["is_within_crop_area"] for one in params]).double().mean(0)
    assert (doubles(~plan.dropped[~whole]).mean(0) - within).abs().max() < 0.09
    if options == [0.4]:
        window = np.stack((plan.left, plan.top, plan.left + plan.cols, plan.top + plan.rows), 1)
        overlaps = box_iou(doubles(window[~whole]), BOXES.double())
        reached = overlaps.masked_fill(torch.from_numpy(plan.dropped[~whole]), 0).amax(1)
        assert (reached >= 0.4).all()


@pytest.mark.parametrize("options", [None, [0.3, 0.7]])
def test_iou_crops_of_float64_boxes_are_those_of_float32(options: list[float] | None) -> None:
    count = 200
    seeds = sample_seeds(3, 0, torch.arange(count)).numpy()
    real = np.arange(3) < np.arange(count)[:, None] % 4
    blank, step, plans = Plan.unchanged(count, (3, 60, 80), 255.0), RandomIoUCrop(sampler_options=options), []
    for dtype in (torch.float32, torch.float64):
        boxes = BOXES.to(dtype).expand(count, 3, 4).numpy()
        plans.append(step.describe(blank, Draws(seeds, 0, boxes=lambda plan, boxes=boxes: (boxes, real))))
    for name in ("top", "left", "rows", "cols", "dropped"):
        found, expected = (getattr(plan, name) for plan in plans)
        assert (found == expected).all()
    assert 0 < (plans[0].rows < 60).sum() < count
    assert not (plans[0].dropped & ~real).any()
