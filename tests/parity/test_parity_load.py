"""Parity of the load side: what is right passes, and what is not compared is said."""

from __future__ import annotations

import pytest
import torch
from parity_stores import boxed_split, by_name
from torch import nn

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
from mmload.parity.load import check_equal
from mmload.parity.run import usual_collates
from mmload.store.dataset import Dataset, Split


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return boxed_split(tmp_path_factory.mktemp("boxed"))


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


@pytest.mark.parametrize("seed", [0, 1])
def test_parity_load_the_usual_collates_pass(rows: Split, seed: int) -> None:
    for name, collate in usual_collates(rows).items():
        equal = by_name(check_equal(name, collate, rows, seed=seed))
        assert {verdict.state for verdict in equal.values()} == {"pass"}
        assert set(equal) == {f"{name}, equal draws", f"{name}, labels for equal draws"}


@pytest.mark.parametrize(
    "step",
    [
        ScaleJitter((36, 44), (0.2, 2.0), fill=9),
        RandomShortestSize((20, 31, 47), 50, "bicubic", fill=(1, 2, 3), mask_fill=7),
        ScaleJitter((50, 50), (0.5, 0.9), "nearest"),
    ],
)
def test_parity_load_resizes_to_random_sizes_are_compared(boxed: Split, step: nn.Module) -> None:
    expect_all_pass(Collate(step, RandomHorizontalFlip()), boxed)


@pytest.mark.parametrize(
    "steps",
    [
        (RandomZoomOut(fill=(9, 8, 7), p=0.8, mask_fill=3), Resize((21, 30))),
        (RandomIoUCrop(), RandomVerticalFlip(), Resize((30, 22)), RandomHorizontalFlip()),
        (RandomCrop((30, 40)), RandomZoomOut(), RandomHorizontalFlip(), RandomIoUCrop(), Resize((40, 33))),
        (RandomHorizontalFlip(), RandomZoomOut(p=1), RandomVerticalFlip(), Resize((20, 20)), RandomCrop(18)),
    ],
)
def test_pixels_boxes_and_masks_of_a_size_each_are_torchvisions(boxed: Split, steps: tuple[nn.Module, ...]) -> None:
    expect_all_pass(Collate(*steps), boxed)


MIXES = [
    MixUp(num_classes=4),
    CutMix(num_classes=4, p=0.5),
    MixUp(0.3, num_classes=4, per="batch"),
    CutMix(num_classes=4, per="batch"),
    RandomChoice([MixUp(0.5, num_classes=4), CutMix(num_classes=4)], p=[2, 1]),
    RandomChoice([MixUp(num_classes=4, per="batch"), CutMix(num_classes=4)], per="batch"),
]


@pytest.mark.parametrize("which", range(len(MIXES)))
def test_parity_load_mixed_samples_are_compared(rows: Split, which: int) -> None:
    collate = Collate(RandomCrop(30), RandomHorizontalFlip(), MIXES[which], Normalize.imagenet(), RandomErasing(0.3))
    equal = by_name(check_equal("x", collate, rows, rows=36, seed=3))
    assert {verdict.state for verdict in equal.values()} == {"pass"}, equal
    assert len(equal) == 2


def expect_all_pass(collate: Collate, split: Split) -> None:
    """Equal draws give equal images, labels, boxes and masks."""
    equal = check_equal("x", collate, split, seed=0)
    assert {verdict.state for verdict in equal} == {"pass"}, [(one.name, one.text) for one in equal]
    assert len(equal) == 4


def test_steps_that_follow_the_epoch_are_compared_in_each(rows: Split) -> None:
    collate = Collate(
        AlternatingHorizontalFlip(), RandomResizedCrop(lambda epoch: 20 + epoch), Resize(lambda epoch: 9 + epoch)
    )
    equal = check_equal("x", collate, rows, seed=0)  # 64 rows of 18: four epochs
    assert {verdict.state for verdict in equal} == {"pass"}
    assert equal[0].numbers["rows"] >= 64


EQUAL = [
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
]


@pytest.mark.parametrize("which", range(len(EQUAL)))
def test_parity_load_equal_draws_give_equal_batches(rows: Split, which: int) -> None:
    found = by_name(check_equal("x", EQUAL[which], rows, rows=36, seed=3))
    assert {verdict.state for verdict in found.values()} == {"pass"}, found
    assert found["x, equal draws"].numbers["rows"] == 36


@pytest.mark.parametrize(
    "steps",
    [
        (RandomCrop((30, 31)), RandomHorizontalFlip()),
        (RandomCrop((40, 48), padding=9, mask_fill=255), RandomVerticalFlip()),
        (RandomCrop((40, 48), padding=9, padding_mode="edge"),),
        (CenterCrop((45, 53)),),
        (RandomResizedCrop((33, 21)), RandomHorizontalFlip()),
        (Resize((20, 30)), RandomCrop(16)),
    ],
)
def test_parity_load_boxes_and_masks_follow(boxed: Split, steps: tuple[nn.Module, ...]) -> None:
    found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
    assert {name.split(", ")[1].split(" for")[0] for name in found} == {"equal draws", "labels", "boxes", "masks"}
    assert {verdict.state for verdict in found.values()} == {"pass"}, found


def test_boxes_are_held_to_the_rule(boxed: Split) -> None:
    collate = Collate(RandomCrop(12), box_rule=BoxRule(min_size=5))
    assert by_name(check_equal("x", collate, boxed, seed=0))["x, boxes for equal draws"].state == "pass"


def test_boxes_under_a_pixel_are_compared(boxed: Split) -> None:
    for steps in (
        (Resize((2, 3)), RandomHorizontalFlip()),
        (Letterbox((9, 70)), RandomHorizontalFlip(), CenterCrop((7, 30))),
        (RandomCrop((30, 31)), Resize((3, 2))),
        (RandomCrop((40, 48), padding=9), RandomCrop((44, 50), pad_if_needed=True)),
        (CenterCrop((50, 60)), RandomHorizontalFlip(), CenterCrop((40, 48)), Resize((2, 2))),
    ):
        found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
        assert found["x, boxes for equal draws"].state == "pass", found
    found = by_name(check_equal("x", Collate(RandomCrop(12), box_rule=BoxRule(min_visible=0.5)), boxed, seed=0))
    assert "boxes are not compared: torchvision has no min_visible, here 0.5" in found["x, equal draws"].text


def test_what_torchvision_does_not_do_to_one_sample_is_said(rows: Split) -> None:
    for last in (nn.Identity(), RandomErasing(value="random")):
        found = check_equal("x", Collate(RandomHorizontalFlip(), last), rows, seed=0)
        assert [verdict.state for verdict in found] == ["pass", "pass", "note"]
        assert f"compared up to {type(last).__name__}" in found[-1].text
