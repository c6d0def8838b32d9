"""Color and holes against torchvision's functional results for the same parameters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from plain_windows import erased
from torch import Tensor

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
from mmload.augment.color import Factors
from mmload.augment.draws import Draws
from mmload.augment.step import plan_for
from mmload.batch import Batch
from mmload.render.kernel_arguments import ImageLines
from mmload.render.rendering import Rendering

LARGE, TINY = (3, 80, 90), (3, 20, 24)


def batch_of(count: int, shape: tuple[int, int, int]) -> Batch:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return Batch(images=images, seeds=sample_seeds(1, 0, torch.arange(count)), batch_size=[count])


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
    with pytest.raises(ValueError, match="this split has no statistics"):
        Normalize.from_split(SimpleNamespace(mean=[], std=[]))


@pytest.mark.parametrize("shape", [LARGE, TINY, (1, 9, 9)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_grayscale_is_torchvisions(shape: tuple[int, int, int], memory_format: torch.memory_format) -> None:
    batch = batch_of(12, shape)
    step = RandomGrayscale(0.5)
    gray = step.describe(plan_for(batch.images), Draws(batch.seeds.numpy(), 0)).gray
    assert gray is not None
    assert 0 < gray.sum() < 12
    collate = Collate(step, RandomHorizontalFlip(0.0), dtype=torch.uint8, memory_format=memory_format)
    got = collate(batch).images
    for k in range(12):
        expected = tv.rgb_to_grayscale(batch.images[k], shape[0]) if gray[k] else batch.images[k]
        assert (got[k].int() - expected.int()).abs().max() <= 1


def test_grayscale_after_normalize_is_of_the_normalised_values() -> None:
    batch = batch_of(4, TINY)
    got = Collate(Normalize.imagenet(), RandomGrayscale(1.0))(batch).images
    expected = tv.rgb_to_grayscale(Normalize.imagenet()(batch.images), 3)
    assert torch.allclose(got, expected, atol=1e-5)


def jittered(image: Tensor, values: list[float], order: list[int]) -> Tensor:
    changes = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    for which in order:
        image = changes[which](image, values[which])
    return image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("floats", [False, True])
def test_jitter_is_torchvisions(channels: int, floats: bool) -> None:
    images = batch_of(24, (channels, 31, 29)).images
    images[0], images[1] = 0, 255
    if floats:
        images = images / 255
    step = ColorJitter(0.8, 0.8, 0.8, 0.4)
    factors = step.draw(Draws(sample_seeds(2, 0, torch.arange(24)).numpy(), 0))
    plan = plan_for(images).followed_by(step.operations(factors))
    got = torch.empty_like(images)
    Rendering(plan, images.dtype).render_batch(images, got)
    for k in range(24):
        expected = jittered(images[k], factors.values[k].tolist(), factors.order[k].tolist())
        limit = 1 / 255 if floats else 1
        assert (got[k].float() - expected.float()).abs().max() <= limit


def test_jitter_before_normalize_is_torchvisions_pipeline() -> None:
    batch = batch_of(6, (3, 40, 40))
    step = ColorJitter(brightness=(0.5, 0.9), contrast=0.3)
    got = Collate(CenterCrop(32), step, Normalize.imagenet())(batch).images
    factors: Factors = step.draw(Draws(batch.seeds.numpy(), 1))
    for k in range(6):
        image = tv.center_crop(batch.images[k], [32, 32])
        image = jittered(image, factors.values[k].tolist(), [one for one in factors.order[k].tolist() if one < 2])
        image = tv.to_dtype(image, torch.float32, scale=True)
        expected = tv.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        assert (got[k] - expected).abs().max() <= 1 / 255 / 0.224 + 1e-5


@pytest.mark.parametrize("shape", [LARGE, TINY])
@pytest.mark.parametrize("value", [0.0, (0.1, 0.2, 0.3), "random"])
def test_erasing_is_torchvisions_and_the_same_by_rows(shape: tuple[int, int, int], value: object) -> None:
    batch = batch_of(16, shape)
    step = RandomErasing(0.7, value=value)  # type: ignore[arg-type]
    plan = step.describe(plan_for(batch.images), Draws(batch.seeds.numpy(), 1))
    collate = Collate(Normalize.imagenet(), step)
    got, clean = collate(batch).images, Collate(Normalize.imagenet())(batch).images
    prepared = collate.prepare(batch.replace(images=None), shape)
    rows = torch.empty(prepared.shape)
    for k in range(16):
        prepared.rendering.render_lines(k, ImageLines.of_batch(batch.images, np.array([k])), rows)
    assert torch.equal(prepared.finish(rows).images, got)
    hole = plan.holes[0]
    for k in range(16):
        i, j, h, w = (int(one[k]) for one in (hole.top, hole.left, hole.height, hole.width))
        filled = got[k, :, i : i + h, j : j + w] if value == "random" else torch.tensor(value).view(-1, 1, 1)
        expected = tv.erase(clean[k], i, j, h, w, filled.expand(3, h, w)) if h else clean[k]
        assert torch.equal(got[k], expected)
    assert 0 < (hole.height > 0).sum() < 16


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


def test_color_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="std is"):
        Normalize([0.0], [0.0])
    with pytest.raises(ValueError, match="mean has 2 channels and std 1"):
        Normalize([0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="Normalize has 3 channels and the images 1"):
        Normalize.imagenet()(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ValueError, match="takes images of 1 or 3 channels"):
        RandomGrayscale()(torch.zeros(1, 2, 2, 2))
    with pytest.raises(ValueError, match="takes images of 1 or 3 channels"):
        ColorJitter(0.5)(torch.zeros(1, 2, 2, 2))
    with pytest.raises(ValueError, match="hue is 0.7"):
        ColorJitter(hue=0.7)
    with pytest.raises(ValueError, match="brightness is -1"):
        ColorJitter(brightness=-1)
    with pytest.raises(ValueError, match="value is 'noise'"):
        RandomErasing(value="noise")
    with pytest.raises(ValueError, match="value has 2 numbers"):
        RandomErasing(value=(1.0, 2.0))(torch.zeros(1, 3, 2, 2))
