"""Resized crops against torchvision's antialiased reference, and their windows against its own draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as v2
import torchvision.transforms.v2.functional as tv
from batches import detections, seeds_for
from batches import noise as pictures
from parity_stores import expect_torchvisions
from plain_windows import resized_crop
from torch import nn

from mmload.augment import (
    CenterCrop,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, plan_for
from mmload.batch import Batch
from mmload.render.level_operations import FLIP_X, FLIP_Y
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_rendering import resized_batch, upload
from mmload.render.torch_sampling import windows


@pytest.mark.parametrize("shape", [(3, 64, 80), (1, 33, 40), (4, 50, 31), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_resized_crop_is_torchvisions(shape: tuple[int, int, int], dtype: torch.dtype, mode: str) -> None:
    expect_torchvisions(Collate(RandomResizedCrop((32, 47), interpolation=mode), dtype=dtype), detections(12, shape))


@pytest.mark.parametrize("steps", [[Resize(64), CenterCrop(56)], [Resize((30, 40)), Resize((20, 20))]], ids=str)
def test_lists_with_a_resize_are_torchvisions(steps: list[nn.Module]) -> None:
    expect_torchvisions(Collate(*steps, dtype=torch.uint8), detections(3, (3, 90, 120)))


def test_the_packed_way_gives_the_bits_of_the_plain_way() -> None:
    images, seeds = pictures(16, (3, 70, 60)), seeds_for(16)
    batch = Batch(images=images, seeds=seeds, batch_size=[16])
    steps = (RandomResizedCrop(48), RandomHorizontalFlip(), CenterCrop((40, 33)))
    whole = Collate(*steps, dtype=torch.uint8)(batch).images
    assert torch.equal(Collate(*steps)(batch).images, whole * torch.tensor(1 / 255))


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_batched_resize_is_within_a_level_of_the_float_reference(antialias: bool, dtype: torch.dtype) -> None:
    images, seeds = pictures(16, (3, 61, 72)), seeds_for(16)
    plan = RandomResizedCrop((40, 55), antialias=antialias).describe(plan_for(images), Draws(seeds.numpy(), 0))
    plan = plan.flipped(FLIP_X, Draws(seeds.numpy(), 1).chance(0.5)).flipped(
        FLIP_Y, Draws(seeds.numpy(), 2).chance(0.5)
    )
    plan = plan.cropped(np.full(16, 3), np.full(16, 5), 30, 41)
    rows = torch.empty(plan.shape)
    Rendering(replace(plan, peak=1.0), torch.float32).render_batch(images.float(), rows)
    plan = upload(plan, torch.device("cpu"))[0]
    assert plan.resampling is not None
    got = resized_batch(images.to(dtype), plan, plan.resampling).float()
    assert (got - rows).abs().max() <= (1.01 if dtype == torch.uint8 else 1e-3)  # levels are rounded in both directions


@pytest.mark.parametrize(
    ("size", "max_size"), [(20, None), ([17], None), ((31, 12), None), (20, 25), (None, 33), (40, None)]
)
@pytest.mark.parametrize("shape", [(3, 40, 57), (3, 57, 40), (3, 40, 40)])
def test_resize_is_torchvisions(
    size: int | list[int] | None, max_size: int | None, shape: tuple[int, int, int]
) -> None:
    images = pictures(2, shape)
    expected = tv.resize(images, size, max_size=max_size)
    got = Resize(size, max_size=max_size)(images)
    assert got.shape == expected.shape
    assert (got.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("antialias", [False, True])
def test_a_max_size_that_leaves_nothing_is_refused(antialias: bool) -> None:
    collate = Collate(Resize(3, max_size=4, antialias=antialias))
    with pytest.raises(ValueError, match="max_size 4 leaves no pixel of images of 9 x 2: make it larger"):
        collate(pictures(2, (3, 9, 2)))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 5, 1), (2, 3, 2)])
def test_a_column_is_the_row_of_the_transposed_image(
    mode: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    """torch 2.15 itself makes the mean of all lines of a column of antialiased floats."""
    images = pictures(3, shape).to(dtype) / 255
    column = Resize((16, 1), mode)(images)
    row = Resize((1, 16), mode)(images.transpose(2, 3).contiguous()).transpose(2, 3)
    torch.testing.assert_close(column, row, rtol=0, atol=1e-5)
    assert (column != column[:, :, :1]).any()


def test_bicubic_overshoots_before_its_colours_change() -> None:
    """Clipped to levels first, gray noise was ten levels off."""
    images = torch.randint(0, 256, (6, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    got = Collate(RandomGrayscale(1.0), Resize((19, 14), "bicubic"), dtype=torch.uint8)(images)
    expected = tv.resize(tv.rgb_to_grayscale(images, 3), [19, 14], v2.InterpolationMode.BICUBIC)
    assert (got.int() - expected.int()).abs().max() <= 1
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    values = Collate(Normalize(mean, std), Resize((19, 14), "bicubic"))(images)
    floats = tv.normalize(tv.to_dtype(images, torch.float32, scale=True), mean, std)
    wanted = tv.resize(floats, [19, 14], v2.InterpolationMode.BICUBIC)
    torch.testing.assert_close(values, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("antialias", [False, True])
def test_floats_of_every_dtype_are_resized(dtype: torch.dtype, mode: str, antialias: bool) -> None:
    """torch itself resizes no float16 with antialiasing."""
    images = pictures(2, (3, 12, 10))
    steps = RandomErasing(1.0), Normalize([0.5], [0.5]), RandomErasing(1.0), Resize((9, 5), mode, antialias=antialias)
    batch = Batch(images=images[:, :1], seeds=seeds_for(2), batch_size=[2])
    got = Collate(*steps, dtype=dtype)(batch).images
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), Collate(*steps)(batch).images, rtol=0, atol=0.02)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "nearest-exact"])
@pytest.mark.parametrize("flip", [RandomHorizontalFlip, RandomVerticalFlip])
@pytest.mark.parametrize("later", [False, True])
def test_nearest_pixels_after_a_flip_are_torchvisions(mode: str, flip: type[nn.Module], later: bool) -> None:
    """Masks, too: nearest counts from one side, so mirrored before the resize is not mirrored after it."""
    steps = [flip(1.0), Resize((8, 11), mode), *[CenterCrop((5, 6)), flip(1.0)] * later]
    batch = detections(8, (1, 13, 17))
    batch.masks = batch.images[:, 0]
    expect_torchvisions(Collate(*steps, dtype=torch.uint8), batch)
    if mode != "bilinear":
        made = Collate(*steps, dtype=torch.uint8)(batch)
        assert torch.equal(made.images[:, 0], made.masks)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_pixels_of_masks_of_any_size_are_torchs(mode: str) -> None:
    """In torch's float32 arithmetic: a column each, numbered."""
    for cols in (1, 2, 3, 5, 7, 31, 41, 97, 255):
        masks = torch.arange(cols, dtype=torch.uint8).expand(1, 1, cols)
        images = masks[:, None].contiguous()
        for wanted in (*range(1, 64), 97, 254, 500, 1021):
            batch = Batch(images=images, masks=masks.contiguous(), batch_size=[1])
            got = Collate(Resize((1, wanted), mode), dtype=torch.uint8)(batch)
            assert torch.equal(got.images[:, 0], got.masks), (cols, wanted)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(1, 9, 7), (3, 9, 7), (4, 2, 5), (3, 1, 8)])
def test_one_pixel_without_antialias_is_the_middle(mode: str, shape: tuple[int, int, int]) -> None:
    """torch 2.15 fails at contiguous uint8 images of three channels there."""
    images = pictures(4, shape)
    got = Collate(Resize((1, 1), mode, antialias=False), dtype=torch.uint8)(images)
    wanted = torch.nn.functional.interpolate(images.double(), (1, 1), mode=mode).clamp(0, 255)
    assert (got - wanted).abs().max() <= 0.51


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(11, 14), (7, 1), (5, 3), (2, 2)])
def test_one_antialiased_pixel_of_three_channels(mode: str, size: tuple[int, int]) -> None:
    images = torch.randint(0, 256, (4, 3, *size), dtype=torch.uint8)
    got = Collate(Resize((1, 1), mode), dtype=torch.uint8)(images)
    floats = tv.resize(images.float(), [1, 1], v2.InterpolationMode(mode), antialias=True).clamp(0, 255)
    assert got.shape == (4, 3, 1, 1)
    assert float((got.float() - floats).abs().max()) <= 1


@pytest.mark.parametrize("shape", [(60, 80), (10, 400), (3, 2), None])
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.5), (0.2, 6.0))])
def test_windows_are_those_of_a_plain_loop(
    shape: tuple[int, int] | None, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    """Sizes of their own, too, where ``shape`` is None."""
    count = 1000
    seeds, sizes = seeds_for(count).numpy(), np.random.default_rng(0).integers(2, 400, (count, 2))
    start = Plan.unchanged_sizes(sizes, 3) if shape is None else Plan.unchanged(count, (3, *shape), 255.0)
    plan = RandomResizedCrop(8, scale, ratio).describe(start, Draws(seeds, 5))
    uniform = Draws(seeds, 5).uniform(22).tolist()
    for window, numbers, size in zip(windows(plan), uniform, sizes.tolist(), strict=True):
        assert window[:4] == resized_crop(numbers, *(shape or size), scale, ratio)


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10)])
def test_the_fallback_is_torchvisions(height: int, width: int) -> None:
    images = torch.empty((4, 1, height, width), dtype=torch.uint8)
    scale = (0.95, 1.0)
    plan = RandomResizedCrop(8, scale=scale).describe(plan_for(images), Draws(seeds_for(4).numpy(), 0))
    theirs = v2.RandomResizedCrop(8, scale=scale).make_params([images[0]])
    expected = (theirs["top"], theirs["left"], theirs["height"], theirs["width"])
    assert all(window[:4] == expected for window in windows(plan))
