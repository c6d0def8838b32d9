"""Parity of steps that change levels, warp and draw other steps: right ones pass, and planted faults fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from every_step import made
from parity_stores import by_name, equal_failures
from test_parity_load import boxed as boxed  # a fixture
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import LevelStep
from mmload.parity import replay
from mmload.parity.load import check_equal
from mmload.render import level_program as levels
from mmload.store.dataset import Dataset, Split

STEPS = [step for step in made(LevelStep) if not isinstance(step, augment.RandomHSV)]  # which torchvision has not
WARPS = made(augment.RandomRotation, augment.RandomAffine, augment.RandomPerspective)


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_program_replay_equal_draws_give_equal_batches(rows: Split, step: nn.Module) -> None:
    collate = Collate(step, augment.Normalize.imagenet())
    found = by_name(check_equal("x", collate, rows, rows=36, seed=3))
    assert {verdict.state for verdict in found.values()} == {"pass"}, found


@pytest.mark.parametrize("step", WARPS, ids=lambda step: type(step).__name__)
def test_boxes_and_masks_follow_warps(boxed: Split, step: nn.Module) -> None:
    steps = augment.RandomVerticalFlip(), step, augment.RandomHorizontalFlip()
    found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
    assert len(found) == 4
    assert {verdict.state for verdict in found.values()} == {"pass"}, found


@pytest.mark.parametrize(
    ("step", "code", "place", "by"),
    [
        (augment.ColorJitter(0.4), levels.BRIGHTNESS, 0, 0.01),
        (augment.ColorJitter(hue=0.1), levels.HUE, 0, 0.01),
        (augment.GaussianBlur(5, (1.0, 2.0)), levels.BLUR, 2, 0.2),
        (augment.RandomSolarize(100, 1.0), levels.SOLARIZE, 0, 1.0),
        (augment.RandomPosterize(3, 1.0), levels.POSTERIZE, 0, 1.0),
        (augment.RandomRotation(20), levels.AFFINE_NEAREST, 2, 1.0),
        (augment.RandomRotation(20, "bilinear"), levels.AFFINE_BILINEAR, 1, 0.02),
        (augment.RandomPerspective(p=1.0), levels.PERSPECTIVE_BILINEAR, 5, 0.5),
        (augment.RandAugment(1), levels.POSTERIZE, 0, 1.0),
    ],
)
def test_a_planted_fault_fails(
    rows: Split, monkeypatch: pytest.MonkeyPatch, step: nn.Module, code: int, place: int, by: float
) -> None:
    right = replay.changed

    def changed(items, program, k, allowance):
        numbers = program.numbers.copy()
        numbers[..., place] += by * (program.codes == code)
        return right(items, replace(program, numbers=numbers), k, allowance)

    monkeypatch.setattr(replay, "changed", changed)
    assert "x, equal draws" in equal_failures(Collate(step), rows)


def test_an_exact_operation_has_no_slack(rows: Split) -> None:
    found = by_name(check_equal("x", Collate(augment.ColorJitter(0.4, 0.4, 0.4, 0.1)), rows, seed=0))
    assert found["x, equal draws"].numbers["limit"] == 0.01
    assert found["x, equal draws"].state == "pass"
