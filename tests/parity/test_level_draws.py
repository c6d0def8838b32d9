"""Draws of steps that change levels, warp or draw other steps, against torchvision's own."""

from __future__ import annotations

import pytest
import test_level_reference
from test_parity_load_faults import wrong_draws
from torch import Tensor, nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.parity.load import check_draws
from mmload.render.level_program import Program
from mmload.render.plan import Plan
from mmload.store.dataset import Dataset, Split


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


@pytest.mark.parametrize("step", test_level_reference.STEPS, ids=lambda step: type(step).__name__)
def test_draws_are_distributed_as_torchvisions(rows: Split, step: nn.Module) -> None:
    found = check_draws({"x": Collate(step)}, rows, seed=1, draws=1500)
    assert found
    assert {verdict.state for verdict in found} == {"pass"}, [one for one in found if one.state != "pass"]


class Doubled(augment.RandomInvert):
    def program(self, plan: Plan, draws: Draws) -> Program:
        return augment.RandomInvert(2 * self.p).program(plan, draws)


class Unsigned(augment.RandAugment):
    def changes(self, space, chosen: Tensor, negative: Tensor, *rest) -> Program:
        return super().changes(space, chosen, negative & False, *rest)


class Weaker(augment.TrivialAugmentWide):
    def changes(self, space, chosen: Tensor, negative: Tensor, plan: Plan, bins: Tensor, of: int) -> Program:
        return super().changes(space, chosen, negative, plan, bins * 9 // 10, of)


class Narrow(augment.RandomRotation):
    def program(self, plan: Plan, draws: Draws) -> Program:
        return augment.RandomRotation(0.8 * self.degrees[1]).program(plan, draws)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (Doubled(0.3), "Doubled: share changed"),
        (Unsigned(), "Unsigned: Rotate"),
        (Weaker(), "Weaker: Sharpness"),
        (Narrow(30), "Narrow: angle"),
    ],
)
def test_wrong_draws_are_caught(rows: Split, step: nn.Module, name: str) -> None:
    assert f"x, {name}" in wrong_draws(Collate(step), rows)
