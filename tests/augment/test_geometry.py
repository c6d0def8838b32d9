"""Geometry is torchvision's for the same windows and flips, alone, in a list, and for any dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from batches import batch_of, detections, noise, seeds_for
from parity_stores import expect_torchvisions
from torch import Tensor, nn

from mmload.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, plan_for
from mmload.render.torch_sampling import windows

Shape = tuple[int, int, int]


@pytest.mark.parametrize("shape", [(3, 20, 20), (1, 17, 31), (4, 9, 5), (3, 1, 1)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padded_crop_is_torchvisions(shape: Shape, mode: str) -> None:
    pad = [3, 2, 1, 4] if min(shape[1:]) > 4 else [0, 0, 0, 0] if mode == "reflect" else [1, 1, 1, 1]
    fill = tuple(float(10 * one + 5) for one in range(shape[0])) if mode == "constant" else 0
    step = RandomCrop((max(shape[1] - 2, 1), max(shape[2] - 1, 1)), pad, fill=fill, padding_mode=mode)
    expect_torchvisions(Collate(step, dtype=torch.uint8), batch_of(24, shape))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_padding_many_times_as_far_as_the_image_is_numpys(mode: str) -> None:
    images, seeds = noise(40, (2, 3, 2)), seeds_for(40)
    step = RandomCrop((7, 5), padding=9, padding_mode=mode)
    padded = np.pad(images.numpy(), [(0, 0), (0, 0), (9, 9), (9, 9)], mode=mode)  # type: ignore[call-overload]
    plan = step.describe(plan_for(images), Draws(seeds.numpy(), 0))
    for got, expected, window in zip(step(images, seeds).numpy(), padded, windows(plan), strict=True):
        top, left = window.top + 9, window.left + 9
        assert np.array_equal(got, expected[:, top : top + 7, left : left + 5])


def test_pad_if_needed_pads_both_sides_as_torchvision_does() -> None:
    images, seeds = noise(300, (2, 5, 6)), seeds_for(300)
    step = RandomCrop((8, 6), pad_if_needed=True)
    found = windows(step.describe(plan_for(images), Draws(seeds.numpy(), 0)))
    assert {one.top for one in found} == {-3, -2, -1, 0}
    expected = tv.crop(tv.pad(images[0], [0, 3, 0, 3]), found[0].top + 3, found[0].left, 8, 6)
    assert torch.equal(step(images, seeds)[0], expected)


@pytest.mark.parametrize("size", [(10, 10), (21, 15), (8, 40), (20, 31), (13, 2)])
def test_center_crop_is_torchvisions(size: tuple[int, int]) -> None:
    images = noise(2, (3, 20, 31))
    assert torch.equal(CenterCrop(size)(images), tv.center_crop(images, list(size)))


LISTS: list[list[nn.Module]] = [
    [RandomHorizontalFlip()],
    [RandomVerticalFlip()],
    *[
        [
            *(RandomHorizontalFlip(first), RandomVerticalFlip(then)),
            RandomCrop((28, 40), padding=[1, 2, 3, 4], fill=9, padding_mode="constant"),
            *(RandomHorizontalFlip(then), RandomCrop((20, 25)), RandomVerticalFlip(0.5), CenterCrop((11, 18))),
        ]
        for first in (0.0, 1.0)
        for then in (0.0, 1.0)
    ],
]


@pytest.mark.parametrize("steps", LISTS)
def test_lists_are_torchvisions_one_by_one(steps: list[nn.Module]) -> None:
    expect_torchvisions(Collate(*steps, dtype=torch.uint8), detections(16, (3, 30, 41)))


def test_alternating_flips_mirror_half_of_the_rows_in_an_epoch_and_the_others_in_the_next() -> None:
    ids = torch.arange(20_000) * 3
    plan = plan_for(torch.empty((len(ids), 1, 1, 1), dtype=torch.uint8))

    def flips(epoch: int, seed: int = 0) -> Tensor:
        draws = Draws(seeds_for(len(ids), epoch).numpy(), 2, epoch=epoch, ids=ids.numpy())
        return torch.from_numpy(AlternatingHorizontalFlip(seed).describe(plan, draws).flip_x)

    first = flips(0)
    for same in (first, first[1:] == first[:-1], first == flips(0, seed=1)):
        assert abs(float(same.double().mean()) - 0.5) < 0.015
    assert all(torch.equal(flips(epoch), first ^ bool(epoch % 2)) for epoch in (1, 2, 3, 2**40, 2**40 + 1))


def test_boxes_and_masks_follow_alternating_flips() -> None:
    expect_torchvisions(Collate(AlternatingHorizontalFlip(), dtype=torch.uint8), detections(16))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (RandomCrop((12, 9)), lambda images: images),
        (
            Collate(CenterCrop((6, 6)), RandomCrop(10, padding=2, fill=77), dtype=torch.uint8),
            lambda images: tv.pad(tv.center_crop(images, [6, 6]), [2, 2, 2, 2], fill=77),  # not what was cropped
        ),
        (nn.Sequential(RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)), lambda images: images.flip(-1, -2)),
    ],
    ids=["all of an image", "padding after a crop", "sequential"],
)
def test_modules_without_draws_give_these_pixels(module: nn.Module, expected: Any) -> None:
    images = noise(4, (3, 12, 9))
    for given in (images, images.float())[: 1 if isinstance(module, Collate) else 2]:
        assert torch.equal(module(given), expected(given))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [24, 160])
@pytest.mark.parametrize("padding", [None, 3])
def test_windows_of_floats_are_those_of_levels(dtype: torch.dtype, size: int, padding: int | None) -> None:
    steps = RandomCrop(size - 4, padding), RandomHorizontalFlip(), RandomVerticalFlip()
    batch = batch_of(9, (3, size, size))
    floats = batch.replace(images=batch.images.to(dtype) / 256)  # exact in all dtypes
    levels = Collate(*steps, dtype=torch.uint8)(batch).images
    assert torch.equal(Collate(*steps, dtype=dtype)(floats).images, levels.to(dtype) / 256)
