"""Draws of every random step are distributed as those of torchvision's transform, and wrong draws are seen.

Seeds are fixed, so a test compares the same numbers in every run.
"""

from __future__ import annotations

import drawn_samples
import numpy as np
import pytest
import torch
from distributions import chi_square, kolmogorov_smirnov
from drawn_samples import compared, properties, run_seeds
from every_step import STEPS
from torch import Tensor, nn

import mmload.augment.mix as mix_module
import mmload.augment.resize as resize_module
from mmload import augment
from mmload.augment import (
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
)
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws, sample_seeds, whole_numbers
from mmload.augment.step import LevelStep
from mmload.render.level_program import Program
from mmload.render.plan import Plan

DRAWS = 4000
SHAPE = 3, 32, 32
BOXED = 3, 40, 48


def wrong_draws(collate: Collate, seed: int = 1, draws: int = DRAWS, shape: tuple[int, int, int] = SHAPE) -> set[str]:
    """Returns the names of what is not drawn as torchvision draws it."""
    found = compared(collate, shape, seed=seed, draws=draws)
    return {name for name, right in found.items() if not right}


def expect_all_pass(collate: Collate, draws: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> list[str]:
    """Returns the names of what was compared."""
    found = compared(collate, shape, seed=seed, draws=draws)
    assert [name for name, right in found.items() if not right] == []
    return list(found)


def test_seeds_are_those_of_the_loader() -> None:
    seeds = run_seeds(7, 20, 3)
    assert torch.equal(seeds[:7], sample_seeds(3, 0, torch.arange(7)))
    assert torch.equal(seeds[14:], sample_seeds(3, 2, torch.arange(6)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("draws", [DRAWS, pytest.param(20_000, marks=pytest.mark.slow)])
def test_draw_distributions_the_usual_collates_pass(seed: int, draws: int) -> None:
    crops = RandomCrop(28), RandomCrop(32, padding=4), RandomResizedCrop(28)
    found = [expect_all_pass(Collate(crop, RandomHorizontalFlip()), draws, seed) for crop in crops]
    assert [len(names) for names in found] == [2 + 1 + 2, 2 + 1 + 2, 6 + 1 + 2]


def test_every_random_step_passes() -> None:
    collate = Collate(
        RandomCrop((40, 30), padding=(3, 6), fill=(1, 2, 3), padding_mode="reflect"),
        RandomVerticalFlip(0.2),
        RandomResizedCrop((20, 25), (0.3, 0.7), (0.5, 1.5), "bicubic"),
        RandomHorizontalFlip(0.7),
        RandomGrayscale(0.3),
        ColorJitter(0.3, 0.2, (0.5, 1.2), 0.1),
        Normalize.imagenet(),
        RandomErasing(0.6, (0.05, 0.3), (0.4, 2.0), value=0.5),
        MixUp(num_classes=3),
    )
    assert len(expect_all_pass(collate, DRAWS)) == 23 + 8


LEVEL_STEPS = [made for make in STEPS.values() if isinstance(made := make(), LevelStep)]


@pytest.mark.parametrize("step", LEVEL_STEPS, ids=lambda step: type(step).__name__)
def test_draws_are_distributed_as_torchvisions(step: nn.Module) -> None:
    assert expect_all_pass(Collate(step), 1500, seed=1)


def test_every_random_step_is_compared() -> None:
    nothing = augment.CenterCrop | augment.Letterbox | Normalize | augment.AlternatingHorizontalFlip | Resize
    for step in (make() for make in STEPS.values()):
        assert bool(properties(step, BOXED, run_seeds(20, 40, 0), 0, 0)) != isinstance(step, nothing), step


@pytest.mark.parametrize(
    "step",
    [
        ScaleJitter((36, 44), (0.2, 2.0), fill=9),
        RandomShortestSize((20, 31, 47), 50, "bicubic", fill=(1, 2, 3), mask_fill=7),
        ScaleJitter((50, 50), (0.5, 0.9), "nearest"),
    ],
)
def test_draw_distributions_resizes_to_random_sizes_are_compared(step: nn.Module) -> None:
    assert len(expect_all_pass(Collate(step, RandomHorizontalFlip()), 1000, shape=BOXED)) == 4 + 1 + 1 + 1


def test_steps_that_leave_a_size_each_are_compared() -> None:
    steps = RandomHorizontalFlip(), RandomZoomOut(), RandomIoUCrop(sampler_options=[0.1, 1.0]), Resize((9, 9))
    found = expect_all_pass(Collate(*steps), 1000, shape=BOXED)
    assert {"RandomZoomOut: rows", "RandomIoUCrop: share cropped", "RandomIoUCrop: width"} <= set(found)


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_draw_distributions_mixed_samples_are_compared(per: str) -> None:
    mixers = [MixUp(0.5, num_classes=4, per=per), CutMix(num_classes=4, p=0.5, per=per)]
    for step in (*mixers, RandomChoice(mixers, p=[2, 1], per=per)):
        expect_all_pass(Collate(step), 1000)


def test_steps_that_follow_the_epoch_are_compared() -> None:
    collate = Collate(RandomResizedCrop(lambda epoch: 20 + epoch), Resize(lambda epoch: 9 + epoch))
    assert len(expect_all_pass(collate, DRAWS)) == 7


class DoubledFlip(RandomHorizontalFlip):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.flipped(x=draws.chance(min(1.0, 2 * self.p)))


class LastNever(RandomCrop):
    """The tutorial's: its randint leaves out the last offset."""

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        spare = plan.height - self.size[0], plan.width - self.size[1]
        places = draws.uniform(2)
        return plan.cropped(whole_numbers(places[:, 0], spare[0]), whole_numbers(places[:, 1], spare[1]), *self.size)


class OffByOne(RandomCrop):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        spare = plan.height - self.size[0], plan.width - self.size[1]
        places = draws.uniform(2)
        tops, lefts = whole_numbers(places[:, 0], spare[0] + 1), whole_numbers(places[:, 1], spare[1] + 1)
        return plan.cropped(tops + 1, lefts, *self.size)


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
        (DoubledFlip(), "DoubledFlip: share flipped"),
        (LastNever(24), "LastNever: first row"),
        (OffByOne(24), "OffByOne: first row"),
        (Unsigned(), "Unsigned: Rotate"),
        (Weaker(), "Weaker: Sharpness"),
        (Narrow(30), "Narrow: angle"),
    ],
)
def test_wrong_draws_are_caught(step: nn.Module, name: str) -> None:
    assert name in wrong_draws(Collate(step))


def test_draw_check_with_a_missing_end_fails() -> None:
    shape = 3, 260, 200
    found = wrong_draws(Collate(LastNever((100, 40))), 0, 20_000, shape)
    assert found == {"LastNever: first row", "LastNever: first column"}
    assert wrong_draws(Collate(RandomCrop((100, 40))), 0, 20_000, shape) == set()


def test_draws_that_every_epoch_repeats_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_samples, "sample_seeds", lambda seed, epoch, ids: sample_seeds(seed, 0, ids))
    found = wrong_draws(Collate(RandomCrop(24), RandomHorizontalFlip()))
    assert "RandomCrop: first row, the same an epoch later" in found
    assert "RandomHorizontalFlip: share flipped, the same an epoch later" in found


def with_other_windows(monkeypatch: pytest.MonkeyPatch, **others: tuple[float, float]) -> None:
    """RandomResizedCrop draws its windows with another scale or ratio than it was given."""
    right = resize_module.drawn_windows

    def drawn(draws: Draws, frame, scale, ratio, fallback, **more):
        return right(draws, frame, others.get("scale", scale), others.get("ratio", ratio), fallback, **more)

    monkeypatch.setattr(resize_module, "drawn_windows", drawn)


def test_a_wrong_ratio_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with_other_windows(monkeypatch, ratio=(0.5, 1.7))
    collate = Collate(RandomResizedCrop(16, ratio=(0.5, 2.0)))
    assert "RandomResizedCrop: width over height" in wrong_draws(collate)


def test_a_wrong_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with_other_windows(monkeypatch, scale=(0.35, 1.0))
    assert "RandomResizedCrop: share of the area" in wrong_draws(Collate(RandomResizedCrop(16)))


def test_wrong_jitter_is_caught() -> None:
    class Strong(ColorJitter):
        def draw(self, draws: Draws):
            factors = super().draw(draws)
            return factors._replace(values=factors.values * 1.05)

    assert "Strong: brightness" in wrong_draws(Collate(Strong(0.2)))


def test_wrong_shares_of_a_mix_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix_module, "beta", lambda draws, alpha: draws.uniform(1)[:, 0])
    assert "MixUp: lam" in wrong_draws(Collate(MixUp(0.3, num_classes=4, per="batch")))
    assert "CutMix: share of the area" in wrong_draws(Collate(CutMix(0.3)))


# The tests of two samples


def test_chi_square_of_a_table_by_hand() -> None:
    ours, theirs = np.repeat([0, 1], [60, 40]), np.repeat([0, 1], [40, 60])
    assert chi_square(ours, theirs) == pytest.approx(0.0046777, rel=1e-4)  # (60 - 40)^2 / 100 twice, is 8.0


def test_rare_values_are_counted_together() -> None:
    rng = np.random.default_rng(0)
    assert chi_square(rng.geometric(0.5, 5000), rng.geometric(0.5, 5000)) > 1e-3
    rare = np.arange(1000)  # no value twice: one group for each ten of both
    assert chi_square(rare, rare + 1000) < 1e-20
    assert chi_square(rare[:4], rare[:4] + 1000) == 1.0


@pytest.mark.parametrize("test", [chi_square, kolmogorov_smirnov])
def test_p_is_even_on_equal_distributions(test) -> None:
    rng = np.random.default_rng(2)
    draw = (lambda: rng.integers(0, 20, 500)) if test is chi_square else (lambda: rng.random(500))
    values = np.sort([test(draw(), draw()) for _ in range(400)])
    apart = np.abs(values - (np.arange(400) + 0.5) / 400).max()
    assert apart < 0.1  # the 0.1% point of Kolmogorov's test at 400
