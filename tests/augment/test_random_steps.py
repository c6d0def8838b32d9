"""RandomApply, RandomChoice and RandomOrder: what they hold is drawn per sample, as torchvision's draw it per call."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from level_expected import batch_of
from torch import nn

from mmload import augment
from mmload.augment import RandomApply, RandomChoice, RandomOrder, sample_seeds
from mmload.augment.collate import Collate

WRAPS = [RandomApply, RandomChoice, RandomOrder]


def many(step: nn.Module, count: int = 3000) -> list[int]:
    """What becomes of the level 200 in many samples."""
    images = torch.full((count, 1, 1, 1), 200, dtype=torch.uint8)
    return step(images, seeds=sample_seeds(8, 0, torch.arange(count))).flatten().tolist()


def chi_square(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    return sum((count - share * total) ** 2 / (share * total) for count, share in zip(counts, shares, strict=True))


def test_all_steps_are_applied_or_none() -> None:
    both = RandomApply([augment.RandomInvert(1.0), augment.RandomPosterize(1, 1.0)], 0.3)
    got = many(both)  # 200 -> 55 -> 0
    assert set(got) == {0, 200}
    assert chi_square([got.count(0), got.count(200)], [0.3, 0.7]) < 10.8  # one in a thousand
    assert set(many(RandomApply([augment.RandomInvert(1.0)], 0))) == {200}
    assert set(many(RandomApply(nn.ModuleList([augment.RandomInvert(1.0)]), 1))) == {55}


def test_one_step_is_chosen_by_its_weight() -> None:
    steps = [augment.RandomInvert(1.0), augment.RandomPosterize(1, 1.0), augment.RandomPosterize(0, 1.0)]
    got = many(RandomChoice(steps, [1, 6, 3]))
    assert chi_square([got.count(55), got.count(128), got.count(0)], [0.1, 0.6, 0.3]) < 13.8
    got = many(RandomChoice(steps))
    assert chi_square([got.count(55), got.count(128), got.count(0)], [1 / 3] * 3) < 13.8
    assert set(many(RandomChoice(steps, [0, 1e30, 0]))) == {128}


def test_all_orders_are_drawn() -> None:
    changes: list[tuple[nn.Module, Any]] = [
        (augment.RandomInvert(1.0), lambda level: 255 - level),
        (augment.RandomPosterize(3, 1.0), lambda level: level & 0b11100000),
        (augment.ColorJitter(brightness=(0.5, 0.5)), lambda level: level // 2),
    ]
    got = many(RandomOrder([step for step, _ in changes]))
    expected: dict[int, float] = {}
    for order in permutations(range(3)):
        level = 200
        for which in order:
            level = changes[which][1](level)
        expected[level] = expected.get(level, 0) + 1 / 6
    assert set(got) == set(expected)
    assert len(expected) > 3
    assert chi_square([got.count(level) for level in expected], list(expected.values())) < 20.5


def test_what_is_held_draws_by_itself() -> None:
    held = RandomOrder([augment.RandomInvert(0.5), augment.RandomInvert(0.5)])
    got = many(held)  # two independent coins: 200 if they agree
    assert chi_square([got.count(200), got.count(55)], [0.5, 0.5]) < 10.8
    same = augment.RandomInvert(0.5)
    assert many(RandomOrder([same, same])) == got


@pytest.mark.parametrize("wrap", WRAPS)
def test_only_steps_that_keep_the_size_are_held(wrap: Any) -> None:
    foreign = nn.Dropout()
    for step in (
        augment.RandomCrop(4),
        augment.Resize(4),
        augment.RandomResizedCrop(4),
        augment.Normalize.imagenet(),
        augment.RandomErasing(),
        foreign,
        "RandomInvert",
        None,
    ):
        with pytest.raises(
            TypeError, match=r"transforms has .*, which cannot be drawn per sample: Random\w+ takes flips"
        ):
            wrap([augment.RandomInvert(), step])
    with pytest.raises(TypeError, match="transforms has RandomInvert.*, which does not mix samples|cannot be drawn"):
        wrap([augment.RandomInvert(), augment.MixUp()])
    for none in ([], (), None, 3, {}, augment.RandomInvert()):
        with pytest.raises(ValueError, match="transforms is .* expected a list of at least one step"):
            wrap(none)


@pytest.mark.parametrize("wrap", [RandomChoice, RandomOrder])
def test_warps_to_choose_from_keep_their_fills(wrap: Any) -> None:
    batch = batch_of(24, masks=torch.zeros((24, 29, 37), dtype=torch.uint8))
    dark = augment.RandomRotation((45, 45), fill=0, mask_fill=3)
    light = augment.RandomRotation((30, 30), fill=(250, 240, 230), mask_fill=4)

    def rendered(*steps: nn.Module) -> list[tuple[list[Any], list[Any]]]:
        got = Collate(*steps, dtype=torch.uint8)(batch)
        return [(image.tolist(), mask.tolist()) for image, mask in zip(got.images, got.masks, strict=True)]

    plain = [[dark], [light]] if wrap is RandomChoice else [[dark, light], [light, dark]]
    got, (first, second) = rendered(wrap([dark, light])), [rendered(*steps) for steps in plain]
    found = [place for k, one in enumerate(got) for place, want in enumerate((first[k], second[k])) if one == want]
    assert len(found) == 24
    assert set(found) == {0, 1}


def test_they_hold_each_other_and_repeat_what_they_hold() -> None:
    step = RandomApply(
        [RandomChoice([RandomOrder([augment.RandomInvert(), augment.AugMix()]), augment.GaussianBlur(3)])]
    )
    batch = batch_of(6)
    whole = Collate(step, dtype=torch.uint8)(batch).images
    assert torch.equal(Collate(step, dtype=torch.uint8)(batch[2:4]).images, whole[2:4])
    assert "AugMix" in repr(step)
    assert not torch.equal(whole, batch.images)
