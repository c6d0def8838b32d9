"""Windows of variable-size images: anywhere in each; those of shrunk rows are those of their photographs."""

from __future__ import annotations

import numpy as np
import torch
from distributions import ks
from torch import Tensor
from torchvision.transforms import v2

from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.augment.step import Draws, Step, sample_seeds
from mmload.render.plan import Plan

SIZES = torch.tensor([(256, 341), (341, 256), (256, 256), (256, 900), (700, 60), (20, 31)]).repeat(500, 1)


def windows(step: Step, sizes: Tensor) -> Tensor:
    """Top, left, rows, cols: int64 [B, 4]."""
    seeds = sample_seeds(5, 0, torch.arange(len(sizes))).numpy()
    plan = step.describe(Plan.unchanged_sizes(sizes.numpy(), 3), Draws(seeds, 0))
    assert plan.top is not None
    assert plan.left is not None
    sides = plan.top, plan.left, plan.per_sample(plan.rows), plan.per_sample(plan.cols)
    return torch.from_numpy(np.stack(sides, 1))


def shares(window: Tensor, sizes: Tensor) -> dict[str, Tensor]:
    """Returns what windows cover of their images, as shares of their sides."""
    top, left, rows, cols = (window.double() / sizes.double().repeat(1, 2)).unbind(1)
    return {"area": rows * cols, "ratio": (cols / rows).log(), "across": left + cols / 2, "down": top + rows / 2}


def test_crops_of_shrunk_rows_are_those_of_their_photographs() -> None:
    """Within 2 pixels of a row's shorter side, for rounding; windows in squares of the middle are farther off."""
    side, sizes = 128, SIZES[(SIZES.amin(1) >= 200).nonzero()[:, 0]]
    short = sizes.amin(1, keepdim=True)
    stored = (sizes * side / short).long()
    torch.manual_seed(3)
    theirs = v2.RandomResizedCrop(16)
    drawn = [theirs.make_params([torch.empty(1, int(h), int(w), device="meta")]) for h, w in sizes]
    photographs = torch.tensor([[one["top"], one["left"], one["height"], one["width"]] for one in drawn])
    expected, found = shares(photographs, sizes), shares(windows(RandomResizedCrop(16), stored), stored)
    limit = 1.95 + 2 / side * (len(sizes) / 2) ** 0.5
    assert all(ks(found[name], expected[name]) < limit for name in expected)
    squares = windows(RandomResizedCrop(16), torch.full_like(stored, side))
    squares[:, :2] += (stored - side) // 2
    assert ks(shares(squares, stored)["area"], expected["area"]) > limit


def test_crops_are_anywhere_in_each_image() -> None:
    found = windows(RandomCrop(20), SIZES)
    assert (found[:, 2:] == 20).all()
    for axis in range(2):
        spare = SIZES[:, axis] - 20
        assert (found[:, axis] >= 0).all()
        assert (found[:, axis] <= spare).all()
        wide = spare > 100
        uniform = torch.rand(int(wide.sum()), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert ks((found[wide, axis] + 0.5) / (spare[wide] + 1), uniform) < 1.95
