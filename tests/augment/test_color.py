"""Color and holes against torchvision's functional results for the same parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from batches import batch_of
from parity_stores import expect_torchvisions
from plain_windows import erased
from torch import nn

from mmload.augment import (
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, plan_for
from mmload.batch import Batch

LARGE, TINY = (3, 80, 90), (3, 20, 24)


def black_and_white(count: int, shape: tuple[int, int, int]) -> Batch:
    """Noise, but for a black and a white image."""
    batch = batch_of(count, shape)
    batch.images[0], batch.images[1] = 0, 255
    return batch


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalize_alone_takes_levels_and_floats(dtype: torch.dtype) -> None:
    images = batch_of(3, TINY).images
    scaled = tv.to_dtype(images, torch.float32, scale=True)
    given = images if dtype == torch.uint8 else scaled
    mean, std = [0.5, 0.3, 0.1], [0.2, 0.3, 0.25]
    assert (Normalize(mean, std)(given) - tv.normalize(scaled, mean, std)).abs().max() <= 1e-6


def test_normalize_twice_and_of_a_split() -> None:
    images = batch_of(3, (4, 9, 9)).images
    split = SimpleNamespace(mean=[0.1, 0.2, 0.3, 0.4], std=[0.5, 0.6, 0.7, 0.8])
    twice = Collate(Normalize.from_split(split), Normalize([0.1] * 4, [2.0] * 4))(images)
    scaled = tv.normalize(tv.to_dtype(images, torch.float32, scale=True), split.mean, split.std)
    assert (twice - tv.normalize(scaled, [0.1] * 4, [2.0] * 4)).abs().max() <= 1e-6


@pytest.mark.parametrize("shape", [LARGE, TINY, (1, 9, 9)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("steps", [
    [RandomGrayscale(0.5), RandomHorizontalFlip(0.0)],
    [ColorJitter(0.8, 0.8, 0.8, 0.4)],
    [CenterCrop(8), ColorJitter(brightness=(0.5, 0.9), contrast=0.3)],
], ids=str)  # fmt: skip
def test_colors_are_torchvisions(
    steps: list[nn.Module], shape: tuple[int, int, int], memory_format: torch.memory_format
) -> None:
    batch, channels = black_and_white(8, shape), shape[0]
    normalize = Normalize([0.5, 0.3, 0.1][:channels], [0.2, 0.3, 0.25][:channels])
    floats = batch.replace(images=batch.images / 255)
    for rows, dtype, more in (
        (batch, torch.uint8, []),
        (floats, torch.float32, []),
        (batch, torch.float32, [normalize]),
    ):
        expect_torchvisions(Collate(*steps, *more, dtype=dtype, memory_format=memory_format), rows)


def test_grayscale_after_normalize_is_of_the_normalised_values() -> None:
    batch = batch_of(4, TINY)
    got = Collate(Normalize.imagenet(), RandomGrayscale(1.0))(batch).images
    expected = tv.rgb_to_grayscale(Normalize.imagenet()(batch.images), 3)
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [LARGE, TINY])
@pytest.mark.parametrize("value", [0.0, (0.1, 0.2, 0.3)])
def test_erasing_is_torchvisions(shape: tuple[int, int, int], value: Any) -> None:
    expect_torchvisions(Collate(Normalize.imagenet(), RandomErasing(0.7, value=value)), batch_of(16, shape))


def test_erasing_noise_is_standard_normal() -> None:
    batch = batch_of(40, (3, 64, 64))
    step = RandomErasing(1.0, scale=(0.3, 0.33), value="random")
    got = Collate(Normalize([0.0] * 3, [1.0] * 3), step)(batch).images
    hole = step.describe(plan_for(batch.images), Draws(batch.seeds.numpy(), 1)).holes[0]
    sides = zip(*(one.tolist() for one in (hole.top, hole.left, hole.height, hole.width)), strict=True)
    noise = torch.cat([got[k, :, t : t + h, x : x + w].flatten() for k, (t, x, h, w) in enumerate(sides)])
    assert abs(float(noise.mean())) < 4 / len(noise) ** 0.5
    assert abs(float(noise.std()) - 1) < 4 / (2 * len(noise)) ** 0.5
    assert noise.unique().numel() > 0.9 * len(noise)


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.02, 0.33), (0.3, 3.3)), ((0.02, 1.0), (0.1, 9.0)), ((1.0, 1.0), (1, 2))]
)
def test_erased_rectangles_are_those_of_a_plain_loop(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    count = 2000
    seeds = sample_seeds(0, 0, torch.arange(count)).numpy()
    plan = plan_for(torch.empty((count, 1, 60, 80), dtype=torch.uint8))
    hole = RandomErasing(1.0, scale, ratio).describe(plan, Draws(seeds, 3)).holes[0]
    found = zip(*(one.tolist() for one in (hole.top, hole.left, hole.height, hole.width)), strict=True)
    uniform = Draws(seeds, 3).uniform(23)[:, 1:].tolist()
    for one, numbers in zip(found, uniform, strict=True):
        expected = erased(numbers, 60, 80, scale, ratio)
        assert one == expected or (expected is None and one[2:] == (0, 0))


def test_a_step_after_a_hole_sees_the_hole() -> None:
    batch = batch_of(4, TINY)
    got = Collate(RandomErasing(1.0, value=255.0), RandomHorizontalFlip(1.0), dtype=torch.uint8)(batch).images
    expected = Collate(RandomErasing(1.0, value=255.0), dtype=torch.uint8)(batch).images.flip(-1)
    assert torch.equal(got, expected)
