"""Parity of the load side: what is right passes, and what is not compared is said."""

from __future__ import annotations

import pytest
import torch
from every_step import made
from parity_stores import by_name
from torch import nn

from mmload import augment
from mmload.augment import (
    AlternatingHorizontalFlip,
    BoxRule,
    CenterCrop,
    ColorJitter,
    CutMix,
    Letterbox,
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
from mmload.augment.step import LevelStep
from mmload.parity.load import check_equal
from mmload.parity.report import Verdict
from mmload.parity.run import usual_collates
from mmload.store.dataset import Split


def passed(collate: Collate, split: Split, **options: int) -> dict[str, Verdict]:
    """All that is compared of a collate holds; the verdicts by name."""
    found = by_name(check_equal("x", collate, split, **{"seed": 0, **options}))
    assert {verdict.state for verdict in found.values()} == {"pass"}, found
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_parity_load_the_usual_collates_pass(rows: Split, seed: int) -> None:
    for collate in usual_collates(rows).values():
        assert set(passed(collate, rows, seed=seed)) == {"x, equal draws", "x, labels for equal draws"}


MIXES = [
    MixUp(num_classes=4),
    CutMix(num_classes=4, p=0.5),
    MixUp(0.3, num_classes=4, per="batch"),
    CutMix(num_classes=4, per="batch"),
    RandomChoice([MixUp(0.5, num_classes=4), CutMix(num_classes=4)], p=[2, 1]),
    RandomChoice([MixUp(num_classes=4, per="batch"), CutMix(num_classes=4)], per="batch"),
]
CLASSIFIED = [
    Collate(),
    Collate(RandomCrop(28, padding=(1, 2, 3, 4), fill=7, padding_mode="edge"), RandomVerticalFlip(0.5)),
    Collate(RandomCrop(45, pad_if_needed=True), Normalize.cifar10(), dtype=torch.float64),
    Collate(RandomResizedCrop((15, 20), interpolation="bicubic"), Normalize.imagenet()),
    Collate(Resize(20), RandomCrop(16), RandomHorizontalFlip(), dtype=torch.uint8),
    Collate(CenterCrop(20), RandomGrayscale(0.5), Normalize.imagenet()),
    Collate(RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize.imagenet()),
    Collate(RandomHorizontalFlip(), Normalize.imagenet(), RandomErasing(0.7, value=(0.1, 0.2, 0.3))),
    Collate(RandomErasing(0.7, value=9), Normalize.imagenet()),
    Collate(RandomErasing(0.7, value=0.5), memory_format=torch.channels_last),
    *(Collate(RandomCrop(30), RandomHorizontalFlip(), mix, Normalize.imagenet(), RandomErasing(0.3)) for mix in MIXES),
    *(
        Collate(step, Normalize.imagenet())
        for step in made(LevelStep)
        if not isinstance(step, augment.RandomHSV)  # which torchvision has not
    ),
]


@pytest.mark.parametrize("collate", CLASSIFIED)
def test_parity_load_equal_draws_give_equal_batches(rows: Split, collate: Collate) -> None:
    found = passed(collate, rows, rows=36, seed=3)
    assert set(found) == {"x, equal draws", "x, labels for equal draws"}
    assert found["x, equal draws"].numbers["rows"] == 36


BOXED = [
    (RandomCrop((30, 31)), RandomHorizontalFlip()),
    (RandomCrop((40, 48), padding=9, mask_fill=255), RandomVerticalFlip()),
    (RandomCrop((40, 48), padding=9, padding_mode="edge"),),
    (CenterCrop((45, 53)),),
    (RandomResizedCrop((33, 21)), RandomHorizontalFlip()),
    (Resize((20, 30)), RandomCrop(16)),
    # random sizes
    (ScaleJitter((36, 44), (0.2, 2.0), fill=9), RandomHorizontalFlip()),
    (RandomShortestSize((20, 31, 47), 50, "bicubic", fill=(1, 2, 3), mask_fill=7), RandomHorizontalFlip()),
    (ScaleJitter((50, 50), (0.5, 0.9), "nearest"), RandomHorizontalFlip()),
    # a size each
    (RandomZoomOut(fill=(9, 8, 7), p=0.8, mask_fill=3), Resize((21, 30))),
    (RandomIoUCrop(), RandomVerticalFlip(), Resize((30, 22)), RandomHorizontalFlip()),
    (RandomCrop((30, 40)), RandomZoomOut(), RandomHorizontalFlip(), RandomIoUCrop(), Resize((40, 33))),
    (RandomHorizontalFlip(), RandomZoomOut(p=1), RandomVerticalFlip(), Resize((20, 20)), RandomCrop(18)),
    *(
        (RandomVerticalFlip(), warp, RandomHorizontalFlip())
        for warp in made(augment.RandomRotation, augment.RandomAffine, augment.RandomPerspective)
    ),
]


@pytest.mark.parametrize("steps", BOXED)
def test_parity_load_boxes_and_masks_follow(boxed: Split, steps: tuple[nn.Module, ...]) -> None:
    found = passed(Collate(*steps), boxed)
    assert {name.split(", ")[1].split(" for")[0] for name in found} == {"equal draws", "labels", "boxes", "masks"}


@pytest.mark.parametrize(
    "steps",
    [
        (Resize((2, 3)), RandomHorizontalFlip()),
        (Letterbox((9, 70)), RandomHorizontalFlip(), CenterCrop((7, 30))),
        (RandomCrop((30, 31)), Resize((3, 2))),
        (RandomCrop((40, 48), padding=9), RandomCrop((44, 50), pad_if_needed=True)),
        (CenterCrop((50, 60)), RandomHorizontalFlip(), CenterCrop((40, 48)), Resize((2, 2))),
    ],
)
def test_boxes_under_a_pixel_are_compared(boxed: Split, steps: tuple[nn.Module, ...]) -> None:
    found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
    assert found["x, boxes for equal draws"].state == "pass", found


def test_boxes_are_held_to_the_rule_as_far_as_torchvision_has_it(boxed: Split) -> None:
    held = by_name(check_equal("x", Collate(RandomCrop(12), box_rule=BoxRule(min_size=5)), boxed, seed=0))
    assert held["x, boxes for equal draws"].state == "pass"
    beyond = by_name(check_equal("x", Collate(RandomCrop(12), box_rule=BoxRule(min_visible=0.5)), boxed, seed=0))
    assert "boxes are not compared: torchvision has no min_visible, here 0.5" in beyond["x, equal draws"].text


def test_steps_that_follow_the_epoch_are_compared_in_each(rows: Split) -> None:
    collate = Collate(
        AlternatingHorizontalFlip(), RandomResizedCrop(lambda epoch: 20 + epoch), Resize(lambda epoch: 9 + epoch)
    )
    assert passed(collate, rows)["x, equal draws"].numbers["rows"] >= 64  # of 18: four epochs


def test_an_exact_operation_has_no_slack(rows: Split) -> None:
    assert passed(Collate(ColorJitter(0.4, 0.4, 0.4, 0.1)), rows)["x, equal draws"].numbers["limit"] == 0.01


def test_what_torchvision_does_not_do_to_one_sample_is_said(rows: Split) -> None:
    for last in (nn.Identity(), RandomErasing(value="random")):
        found = check_equal("x", Collate(RandomHorizontalFlip(), last), rows, seed=0)
        assert [verdict.state for verdict in found] == ["pass", "pass", "note"]
        assert f"compared up to {type(last).__name__}" in found[-1].text
