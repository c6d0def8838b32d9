"""How the steps of detection recipes draw, beside torchvision's."""

from __future__ import annotations

import pytest
import torch
from distributions import ks
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
    return Draws(sample_seeds(3, 0, torch.arange(count)), 0)


COUNT = 6000


def test_factors_and_places_are_distributed_as_torchvisions() -> None:
    blank = Plan.unchanged(COUNT, (3, 60, 80), 255.0, torch.device("cpu"))
    image = torch.empty(3, 60, 80)
    torch.manual_seed(0)
    jitter = ScaleJitter((50, 100)).describe(blank, draws_of(COUNT)).resampling.placement
    theirs = torch.tensor([v2.ScaleJitter((50, 100)).make_params([image])["size"] for _ in range(COUNT)])
    assert ks(jitter.rows.double(), theirs[:, 0].double()) < 2
    assert ks(jitter.cols.double(), theirs[:, 1].double()) < 2
    zoom = RandomZoomOut(p=1.0).describe(blank, draws_of(COUNT))
    padding = torch.tensor([v2.RandomZoomOut(p=1.0).make_params([image])["padding"] for _ in range(COUNT)]).double()
    for ours, other in (
        (zoom.cols - 80, padding[:, 0] + padding[:, 2]),
        (zoom.rows - 60, padding[:, 1] + padding[:, 3]),
        (-zoom.left, padding[:, 0]),
        (-zoom.top, padding[:, 1]),
    ):
        assert ks(ours.double(), other) < 2
    on = RandomZoomOut(p=0.3, side_range=(2, 3)).describe(blank, draws_of(COUNT)).rows > 60
    assert abs(float(on.double().mean()) - 0.3) < 0.03
    sizes = RandomShortestSize((30, 40, 50)).describe(blank, draws_of(COUNT)).resampling.placement.rows
    assert all(abs(float((sizes == one).double().mean()) - 1 / 3) < 0.03 for one in (30, 40, 50))


def test_what_exceeds_a_canvas_is_cut_off_as_by_fixed_size_crop() -> None:
    """Of torchvision's references: one number says how much above and at the left."""
    blank = Plan.unchanged(COUNT, (3, 60, 80), 255.0, torch.device("cpu"))
    placed = ScaleJitter((50, 60)).describe(blank, draws_of(COUNT)).resampling.placement
    over, across = (placed.rows - 50).clamp(min=0), (placed.cols - 60).clamp(min=0)
    shares = torch.rand(COUNT, generator=torch.Generator().manual_seed(0))
    for start, spare in ((-placed.top, over), (-placed.left, across)):
        assert start.min() == 0
        assert (start <= spare).all()
        assert ks(start[spare > 0].double(), (spare * shares).long()[spare > 0].double()) < 2
    both = (over > 8) & (across > 8)
    assert both.sum() > 500
    apart = -placed.top[both] / over[both] + placed.left[both] / across[both]
    assert apart.abs().max() < 1 / 9


BOXES = torch.tensor([[5.0, 4, 25, 30], [40, 20, 70, 55], [10, 40, 14, 44]])


@pytest.mark.slow
@pytest.mark.parametrize("options", [None, [0.1, 1.0], [0.4]])
def test_iou_crops_are_distributed_as_torchvisions(options: list[float] | None) -> None:
    count = 1500
    step, transform = RandomIoUCrop(sampler_options=options), v2.RandomIoUCrop(sampler_options=options)
    boxes = BOXES.expand(count, 3, 4)
    real = torch.ones(count, 3, dtype=torch.bool)
    seeds = sample_seeds(3, 0, torch.arange(count))
    plan = step.describe(
        Plan.unchanged(count, (3, 60, 80), 255.0, torch.device("cpu")),
        Draws(seeds, 0, boxes=lambda plan: (boxes, real)),
    )
    given = [
        tv_tensors.Image(torch.empty(3, 60, 80)),
        tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(60, 80)),
    ]
    torch.manual_seed(0)
    theirs = [transform.make_params(given) for _ in range(count)]
    whole = (plan.rows == 60) & (plan.cols == 80)
    assert abs(float(whole.double().mean()) - sum(not one for one in theirs) / count) < 0.04
    params = [one for one in theirs if one]
    for name, values in (("top", plan.top), ("left", plan.left), ("height", plan.rows), ("width", plan.cols)):
        assert ks(values[~whole].double(), torch.tensor([one[name] for one in params]).double()) < 2
    within = torch.stack([one["is_within_crop_area"] for one in params]).double().mean(0)
    assert ((~plan.dropped[~whole]).double().mean(0) - within).abs().max() < 0.05
    if options == [0.4]:
        window = torch.stack((plan.left, plan.top, plan.left + plan.cols, plan.top + plan.rows), 1).double()
        reached = box_iou(window[~whole], BOXES.double()).masked_fill(plan.dropped[~whole], 0).amax(1)
        assert (reached >= 0.4).all()
