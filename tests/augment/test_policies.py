"""RandAugment, TrivialAugmentWide, AutoAugment and AugMix against torchvision's, with the same choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as v2
from level_expected import batch_of
from torch import Tensor, nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.policies import AUGMIX, AUTO_AUGMENT, RAND_AUGMENT, TRIVIAL_AUGMENT_WIDE
from mmload.augment.policies import POLICIES as PAIRS
from mmload.augment.step import Draws, dirichlet, plan_for, whole_numbers
from mmload.batch import Batch
from mmload.render.rendering import Rendering

HEIGHT, WIDTH = 40, 57
WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
POLICIES: list[tuple[Any, Any, Any, int]] = [
    (augment.RandAugment(), v2.RandAugment(), RAND_AUGMENT, 31),
    (augment.RandAugment(magnitude=2, num_magnitude_bins=7), v2.RandAugment(num_magnitude_bins=7), RAND_AUGMENT, 7),
    (augment.TrivialAugmentWide(), v2.TrivialAugmentWide(), TRIVIAL_AUGMENT_WIDE, 31),
    (augment.TrivialAugmentWide(2, "bilinear", 9), v2.TrivialAugmentWide(2, fill=9), TRIVIAL_AUGMENT_WIDE, 2),
    (augment.AutoAugment(), v2.AutoAugment(), AUTO_AUGMENT, 10),
    (augment.AugMix(), v2.AugMix(), AUGMIX, 10),
]


NUDGES = (0.0, 1e-5, -1e-5)
"""Shares by which a magnitude is changed: a pixel whose place is halfway between two is one of these. To which side
torchvision's product of matrices rounds it depends on the processor; of a shear by 0.2 it is every fifth column."""


def their_space(policy: Any) -> dict[str, Any]:
    return dict(
        policy._PARTIAL_AUGMENTATION_SPACE | policy._AUGMENTATION_SPACE
        if hasattr(policy, "_PARTIAL_AUGMENTATION_SPACE")
        else policy._AUGMENTATION_SPACE
    )


def magnitude_of(policy: Any, name: str, bin_: int, bins: int, negative: bool) -> float:
    magnitudes, signed = their_space(policy)[name]
    values = magnitudes(bins, HEIGHT, WIDTH)
    value = 0.0 if values is None else float(values[bin_])
    return -value if signed and negative else value


def applied(policy: Any, image: Tensor, name: str, magnitude: float, interpolation: str) -> Tensor:
    mode = v2.InterpolationMode(interpolation)
    changed: Tensor = policy._apply_image_or_video_transform(image, name, magnitude, mode, policy._fill)
    return changed


def differ(got: Tensor, wanted: Sequence[Tensor], name: str, interpolation: str) -> float:
    """The share of pixels that are none of torchvision's."""
    limit = 1 if name in WARPS and interpolation == "bilinear" else 0
    apart = torch.stack([(got.int() - one.int()).abs().amax(0) for one in wanted]).amin(0)
    return float((apart > limit).float().mean())


@pytest.mark.parametrize(("ours", "theirs", "space", "bins"), POLICIES, ids=lambda part: str(part)[:40])
def test_every_change_and_magnitude_is_torchvisions(ours: Any, theirs: Any, space: Any, bins: int) -> None:
    names = [change.name for change in space]
    assert set(names) == set(their_space(theirs))
    cases = [
        (which, bin_, negative)
        for which, change in enumerate(space)
        for bin_ in range(bins)
        for negative in ((False, True) if change.signed else (False,))
        if change.least != change.most or bin_ == 0
    ]
    image = batch_of(1, height=HEIGHT, width=WIDTH).images
    images = image.expand(len(cases), -1, -1, -1).contiguous()
    chosen, bin_of, negative = (np.array(column) for column in zip(*cases, strict=True))
    plan = plan_for(images)
    plan = plan.followed_by(ours.changes(space, chosen, negative, plan, bin_of, bins))
    got = torch.empty_like(images)
    Rendering(plan, torch.uint8).render_batch(images, got)
    for k, (which, bin_, minus) in enumerate(cases):
        name = names[which]
        magnitude = magnitude_of(theirs, name, bin_, bins, minus)
        wanted = [
            applied(theirs, image[0], name, magnitude * (1 + nudge), ours.interpolation)
            for nudge in (NUDGES if name in WARPS and ours.interpolation == "nearest" else (0.0,))
        ]
        allowed = 0.002 if name in WARPS else 0
        assert differ(got[k], wanted, name, ours.interpolation) <= allowed, (name, bin_, minus)


def test_policies_are_torchvisions() -> None:
    for name in ("imagenet", "cifar10", "svhn"):
        theirs = v2.AutoAugment(v2.AutoAugmentPolicy(name))._get_policies(v2.AutoAugmentPolicy(name))
        assert list(PAIRS[name]) == [tuple(pair) for pair in theirs]


def compared(step: nn.Module, batch: Batch, wanted: list[Tensor], share: float) -> None:
    got = step(batch.images, seeds=batch.seeds)
    assert torch.equal(Collate(step, dtype=torch.uint8)(batch).images, got)
    apart = (got.int() - torch.stack(wanted).int()).abs().amax(1)
    assert (apart > 1).float().mean() < share


def test_rand_augment_and_trivial_augment_make_what_they_draw() -> None:
    batch = batch_of(40, height=HEIGHT, width=WIDTH)
    draws, theirs, wanted = Draws(batch.seeds.numpy(), 0), v2.RandAugment(), list(batch.images)
    for _ in range(2):
        uniform = draws.uniform(2)
        for k, (which, sign) in enumerate(uniform.tolist()):
            name = RAND_AUGMENT[int(which * 14)].name
            magnitude = magnitude_of(theirs, name, 9, 31, sign < 0.5)
            wanted[k] = applied(theirs, wanted[k], name, magnitude, "nearest")
    compared(augment.RandAugment(), batch, wanted, 0.01)
    wide, draws = v2.TrivialAugmentWide(), Draws(batch.seeds.numpy(), 0)
    bins, uniform = whole_numbers(draws.uniform(1)[:, 0], 31), draws.uniform(2)
    wanted = []
    for k, (which, sign) in enumerate(uniform.tolist()):
        name = TRIVIAL_AUGMENT_WIDE[int(which * 14)].name
        magnitude = magnitude_of(wide, name, int(bins[k]), 31, sign < 0.5)
        wanted.append(applied(wide, batch.images[k], name, magnitude, "nearest"))
    compared(augment.TrivialAugmentWide(), batch, wanted, 0.002)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_makes_what_it_draws(policy: str) -> None:
    batch, theirs = batch_of(40, height=HEIGHT, width=WIDTH), v2.AutoAugment(v2.AutoAugmentPolicy(policy))
    draws, wanted = Draws(batch.seeds.numpy(), 0), list(batch.images)
    pairs = whole_numbers(draws.uniform(1)[:, 0], 25)
    for place in range(2):
        for k, (on, sign) in enumerate(draws.uniform(2).tolist()):
            name, chance, bin_ = theirs._policies[int(pairs[k])][place]
            if on < chance:
                magnitude = magnitude_of(theirs, name, bin_ or 0, 10, sign < 0.5)
                wanted[k] = applied(theirs, wanted[k], name, magnitude, "nearest")
    compared(augment.AutoAugment(policy), batch, wanted, 0.01)


@pytest.mark.parametrize("depth", [-1, 2])
def test_augmix_makes_what_it_draws(depth: int) -> None:
    batch, theirs = batch_of(12, height=HEIGHT, width=WIDTH), v2.AugMix()
    draws = Draws(batch.seeds.numpy(), 0)
    kept = dirichlet(draws, 1.0, 2)
    shares = (dirichlet(draws, 1.0, 3) * kept[:, 1:]).astype(np.float32)
    mixed = [float(kept[k, 0]) * image for k, image in enumerate(batch.images)]
    for row in range(3):
        chains = list(batch.images)
        depths = [depth] * 12 if depth > 0 else (1 + whole_numbers(draws.uniform(1)[:, 0], 3)).tolist()
        for place in range(depth if depth > 0 else 3):
            bins, uniform = whole_numbers(draws.uniform(1)[:, 0], 3), draws.uniform(2)
            for k, (which, sign) in enumerate(uniform.tolist()):
                if depths[k] > place:
                    name = AUGMIX[int(which * len(AUGMIX))].name
                    magnitude = magnitude_of(theirs, name, int(bins[k]), 10, sign < 0.5)
                    chains[k] = applied(theirs, chains[k], name, magnitude, "bilinear")
        mixed = [one + float(shares[k, row]) * chains[k] for k, one in enumerate(mixed)]
    compared(augment.AugMix(chain_depth=depth), batch, [one.to(torch.uint8) for one in mixed], 0.02)


ALL = [augment.RandAugment, augment.TrivialAugmentWide, augment.AutoAugment, augment.AugMix]


@pytest.mark.parametrize("make", ALL)
def test_boxes_and_masks_are_refused(make: Any) -> None:
    boxes, masks = torch.zeros((2, 1, 4)), torch.zeros((2, 29, 37), dtype=torch.uint8)
    for batch in (batch_of(2, boxes=boxes), batch_of(2, masks=masks)):
        for step in (make(), augment.RandomApply([augment.RandomOrder([make()])])):
            with pytest.raises(ValueError, match=f"{make.__name__} warps images but not boxes and masks"):
                Collate(step)(batch)


def test_no_operation_changes_nothing() -> None:
    batch = batch_of(3)
    assert torch.equal(Collate(augment.RandAugment(0), dtype=torch.uint8)(batch).images, batch.images)
