"""Resized crops against torchvision's antialiased reference, and their windows against its own draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2 as v2
import torchvision.transforms.v2.functional as tv
from torch import Tensor

from mmload.augment import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, sample_seeds
from mmload.augment.draws import Draws
from mmload.augment.render import Rendering
from mmload.augment.resample import resized_batch
from mmload.augment.sampling import windows
from mmload.augment.step import plan_for
from mmload.collate import Collate
from mmload.records import Batch


def pictures(count: int, shape: tuple[int, int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    smooth = torch.rand((count, shape[0], 8, 8), generator=generator) * 255
    noise = torch.rand((count, *shape), generator=generator) * 60
    return (torch.nn.functional.interpolate(smooth, shape[1:]) + noise).clamp(0, 255).to(torch.uint8)


def seeds_for(count: int) -> Tensor:
    return sample_seeds(7, 0, torch.arange(count))


@pytest.mark.parametrize("shape", [(3, 64, 80), (1, 33, 40), (4, 50, 31), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_resized_crop_is_torchvisions(shape: tuple[int, int, int], dtype: torch.dtype, mode: str) -> None:
    images, seeds = pictures(12, shape), seeds_for(12)
    step = RandomResizedCrop((32, 47), interpolation=mode)
    drawn = windows(step.describe(plan_for(images), Draws(seeds, 0)))
    got = Collate(step, dtype=dtype)(Batch(images=images, seeds=seeds, batch_size=[12])).images
    levels = got.float() * (255.0 if dtype.is_floating_point else 1.0)
    for k, (top, left, rows, cols, *_) in enumerate(drawn):
        expected = tv.resized_crop(images[k], top, left, rows, cols, [32, 47], interpolation=v2.InterpolationMode(mode))
        assert (levels[k] - expected).abs().max() <= 1.0 + 1e-4


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
    plan = RandomResizedCrop((40, 55), antialias=antialias).describe(plan_for(images), Draws(seeds, 0))
    plan = plan.flipped(x=Draws(seeds, 1).chance(0.5), y=Draws(seeds, 2).chance(0.5))
    plan = plan.cropped(torch.full((16,), 3), torch.full((16,), 5), 30, 41)
    rows = torch.empty(plan.shape)
    Rendering(replace(plan, peak=1.0), torch.float32).whole(images.float(), rows)
    assert plan.resampling is not None
    got = resized_batch(images.to(dtype), plan, plan.resampling).float()
    assert (got - rows).abs().max() <= (0.51 if dtype == torch.uint8 else 1e-3)


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


def test_validation_steps_are_one_pass_and_torchvisions() -> None:
    images = pictures(3, (3, 90, 120))
    got = Collate(Resize(64), CenterCrop(56), dtype=torch.uint8)(images)
    expected = tv.center_crop(tv.resize(images, [64]), [56, 56])
    assert (got.int() - expected.int()).abs().max() <= 1


def test_a_second_resize_runs_after_the_first() -> None:
    images = pictures(3, (3, 60, 60))
    got = Collate(Resize((30, 40)), Resize((20, 20)), dtype=torch.uint8)(images)
    expected = tv.resize(tv.resize(images, [30, 40]), [20, 20])
    assert (got.int() - expected.int()).abs().max() <= 1


def ks(first: Tensor, second: Tensor) -> float:
    """The Kolmogorov-Smirnov statistic of two samples, times the root of their effective size."""
    both = torch.cat((first, second)).sort().values
    shares = [torch.searchsorted(one.sort().values, both, right=True) / len(one) for one in (first, second)]
    size = len(first) * len(second) / (len(first) + len(second))
    return float((shares[0] - shares[1]).abs().max()) * size**0.5


def test_areas_and_ratios_are_distributed_as_torchvisions() -> None:
    count = 4000
    plan = plan_for(torch.empty((count, 1, 200, 160), dtype=torch.uint8))
    ours = RandomResizedCrop(8).describe(plan, Draws(seeds_for(count), 0))
    assert isinstance(ours.rows, Tensor)
    assert isinstance(ours.cols, Tensor)
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(8, antialias=True)
    params = [theirs.make_params([torch.empty(1, 200, 160)]) for _ in range(count)]
    rows = torch.tensor([one["height"] for one in params]).double()
    cols = torch.tensor([one["width"] for one in params]).double()
    tops = torch.tensor([one["top"] for one in params]).double()
    critical = 1.95  # exceeded by one pair of equal distributions in a thousand
    assert ks((ours.rows * ours.cols).double(), rows * cols) < critical
    assert ks((ours.cols / ours.rows).double(), cols / rows) < critical
    assert ours.top is not None
    assert ks(ours.top.double(), tops) < critical
    assert ks((ours.rows * ours.cols).double() * 1.1, rows * cols) > critical


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10)])
def test_the_fallback_is_torchvisions(height: int, width: int) -> None:
    images = torch.empty((4, 1, height, width), dtype=torch.uint8)
    scale = (0.95, 1.0)
    plan = RandomResizedCrop(8, scale=scale).describe(plan_for(images), Draws(seeds_for(4), 0))
    theirs = v2.RandomResizedCrop(8, scale=scale).make_params([images[0]])
    expected = (theirs["top"], theirs["left"], theirs["height"], theirs["width"])
    assert all(window[:4] == expected for window in windows(plan))


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ValueError, match="interpolation is 'lanczos'"):
        Resize(3, interpolation="lanczos")
    with pytest.raises(ValueError, match="scale is \\(0.5, 0.2\\)"):
        RandomResizedCrop(3, scale=(0.5, 0.2))
    with pytest.raises(ValueError, match="ratio is \\(0.0, 0.2\\)"):
        RandomResizedCrop(3, ratio=(0.0, 0.2))
    with pytest.raises(ValueError, match="size and max_size are both None"):
        Resize(None)
    with pytest.raises(ValueError, match="max_size is 5 beside size"):
        Resize((3, 4), max_size=5)
    with pytest.raises(ValueError, match="max_size is 5, expected more than size"):
        Resize(9, max_size=5)
