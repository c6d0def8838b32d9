"""Steps that change levels: torchvision's pixels for the numbers drawn, alone, in a collate, and by any path."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from batches import by_parts
from level_expected import batch_of, exact_steps, level_steps
from torch import Tensor, nn
from torchvision import tv_tensors

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, LevelStep, plan_for
from mmload.batch import Batch
from mmload.parity.replay import Allowance, changed
from mmload.render.plan import Program

COUNT = 12


def program_of(step: nn.Module, batch: Batch, place: int = 0) -> Program:
    """What a step draws at a place of a list."""
    assert isinstance(step, LevelStep)
    return step.program(plan_for(batch.images), Draws(batch.seeds.numpy(), place))


def expected(step: nn.Module, batch: Batch, place: int = 0) -> Tensor:
    """The images by torchvision."""
    program = program_of(step, batch, place)
    rows = [{"images": tv_tensors.Image(image)} for image in batch.images]
    made = [changed(row, program, k, Allowance())[0]["images"] for k, row in enumerate(rows)]
    return torch.stack([image.as_subclass(Tensor) for image in made])


def floats_of(batch: Batch) -> Batch:
    changed: Batch = batch.replace(images=batch.images / 255)
    return changed


def _id(step: nn.Module) -> str:
    return type(step).__name__


@pytest.mark.parametrize(
    ("name", "argument", "first", "second"),
    [("Solarize", "threshold", 10, 250), ("Posterize", "bits", 1, 5), ("AdjustSharpness", "sharpness_factor", 0, 3)],
)
def test_settings_count_as_they_are_when_a_step_runs(name: str, argument: str, first: int, second: int) -> None:
    make, images = getattr(augment, f"Random{name}"), batch_of(COUNT, 3, 9, 9).images
    step = make(first, p=1.0)
    setattr(step, argument, second)
    assert torch.equal(step(images), make(second, p=1.0)(images))


@pytest.mark.parametrize("step", exact_steps(), ids=_id)
@pytest.mark.parametrize("shape", [(3, 29, 37), (1, 29, 37), (3, 2, 3), (3, 1, 1), (1, 65, 3)])
def test_a_step_has_the_bits_of_torchvision_alone_and_in_a_collate(
    step: nn.Module, shape: tuple[int, int, int]
) -> None:
    batch = batch_of(COUNT, *shape)
    wanted = expected(step, batch)
    assert torch.equal(step(batch.images, seeds=batch.seeds), wanted)
    assert torch.equal(Collate(step, dtype=torch.uint8)(batch).images, wanted)
    assert torch.equal(Collate(step)(batch).images, tv.to_dtype(wanted, torch.float32, scale=True))
    if min(shape[1:]) > 3:
        assert not torch.equal(wanted, batch.images)


@pytest.mark.parametrize("step", level_steps(), ids=_id)
def test_a_step_on_floats_is_torchvisions(step: nn.Module) -> None:
    batch = floats_of(batch_of(3))
    got = step(batch.images, seeds=batch.seeds)
    assert got.min() >= 0
    assert got.max() <= 1
    apart = (got - expected(step, batch)).abs()
    assert (apart.amax(1) > 1e-4).float().mean() < 0.003  # a coordinate half way between pixels, a value at a step
    assert torch.equal(Collate(step)(batch).images, got)
    assert torch.equal(Collate(step)(batch[1:2]).images, got[1:2])


@pytest.mark.parametrize("kernel", [1, 3, (5, 3), (3, 9), 23])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_levels_a_blur_is_within_a_level_of_torchvision(kernel: int | tuple[int, int], channels: int) -> None:
    step, batch = augment.GaussianBlur(kernel, (0.2, 3.0)), batch_of(COUNT, channels)
    sigma = 0.2 + 2.8 * Draws(batch.seeds.numpy(), 0).uniform(1)[:, 0]
    size = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
    wanted = torch.stack(
        [tv.gaussian_blur(image, size, [float(one)] * 2) for image, one in zip(batch.images, sigma, strict=True)]
    )
    apart = (step(batch.images, seeds=batch.seeds).int() - wanted.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01


@pytest.mark.parametrize("step", [augment.RandomInvert(), augment.RandomEqualize(), augment.RandomPosterize(2)])
def test_steps_without_colors_take_any_number_of_channels(step: nn.Module) -> None:
    batch = batch_of(COUNT, 4)
    assert torch.equal(Collate(step, dtype=torch.uint8)(batch).images, expected(step, batch))


def test_photometric_distort_has_the_bits_of_torchvision() -> None:
    batch = batch_of(COUNT)
    draws = Draws(batch.seeds.numpy(), 0)
    on, values, keys = (draws.uniform(5) < 0.5).tolist(), draws.uniform(4), draws.uniform(3)
    first = draws.chance(0.5).tolist()
    got = augment.RandomPhotometricDistort()(batch.images, seeds=batch.seeds)
    for k, image in enumerate(batch.images):
        light, contrast, color, turn = (values[k] * np.array([0.25, 1, 1, 0.1])).tolist()
        image = tv.adjust_brightness(image, 0.875 + light) if on[k][0] else image
        image = tv.adjust_contrast(image, 0.5 + contrast) if on[k][1] and first[k] else image
        image = tv.adjust_saturation(image, 0.5 + color) if on[k][2] else image
        image = tv.adjust_hue(image, -0.05 + turn) if on[k][3] else image
        image = tv.adjust_contrast(image, 0.5 + contrast) if on[k][1] and not first[k] else image
        image = image[keys[k].argsort().tolist()] if on[k][4] else image
        assert torch.equal(got[k], image)


# One path as good as another


@pytest.mark.parametrize("step", level_steps(), ids=_id)
def test_pixels_do_not_depend_on_batch_order_rows_or_memory_format(step: nn.Module) -> None:
    batch = batch_of(COUNT)
    collate = Collate(augment.RandomCrop(25), step, augment.RandomHorizontalFlip(), dtype=torch.uint8)
    whole = collate(batch).images
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    assert torch.equal(collate(batch[order]).images, whole[order])
    assert torch.equal(collate(batch[3:4]).images, whole[3:4])
    assert torch.equal(collate(batch[2:9]).images, whole[2:9])
    assert torch.equal(by_parts(collate, batch, 0, 3, 7).images, whole)
    for dtype in (torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            other = Collate(*collate.steps, dtype=dtype, memory_format=memory_format)(batch).images
            assert other.is_contiguous(memory_format=memory_format)
            assert torch.equal(other, Collate(dtype=dtype)(whole))


@pytest.mark.parametrize("step", level_steps(), ids=_id)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_empty_batch_stays_empty(step: nn.Module, dtype: torch.dtype) -> None:
    images = torch.empty((0, 3, 29, 37), dtype=dtype)
    assert step(images).shape == images.shape
    assert Collate(step)(images).shape == images.shape


# As any module


@pytest.mark.parametrize("step", level_steps(), ids=_id)
def test_a_step_is_a_module_as_others(step: nn.Module) -> None:
    batch = batch_of(COUNT)
    wanted = step(batch.images, seeds=batch.seeds)
    for twin in (pickle.loads(pickle.dumps(step)), copy.deepcopy(step)):
        assert repr(twin) == repr(step)
        assert torch.equal(twin(batch.images, seeds=batch.seeds), wanted)
    assert step(batch.images.to(torch.float16)[:2] / 255).dtype == torch.float16
    first, second = (step(batch.images, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert nn.Sequential(step, copy.deepcopy(step))(batch.images).shape == batch.images.shape
    before = batch.images.clone()
    step(batch.images)
    assert torch.equal(batch.images, before)
    assert not list(step.parameters())
    assert type(step).__name__ in repr(step)
    with pytest.raises(ValueError, match="seeds have the shape"):
        step(batch.images, seeds=batch.seeds[:2])


def test_a_step_runs_inside_a_compiled_function_as_it_is() -> None:
    batch, step = batch_of(2), augment.RandomInvert(1.0)
    compiled = torch.compile(lambda images: step(images), backend="eager")
    assert torch.equal(compiled(batch.images), 255 - batch.images)


# What is refused


@pytest.mark.parametrize("step", level_steps(), ids=_id)
def test_a_step_after_normalize_is_refused(step: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"{type(step).__name__} comes after Normalize"):
        Collate(augment.Normalize.imagenet(), augment.RandomHorizontalFlip(), step)


COLORED = (
    augment.RandomAutocontrast,
    augment.RandomAdjustSharpness,
    augment.ColorJitter,
    augment.RandomPhotometricDistort,
    augment.RandAugment,
    augment.TrivialAugmentWide,
    augment.AutoAugment,
    augment.AugMix,
)


@pytest.mark.parametrize("step", [one for one in level_steps() if isinstance(one, COLORED)], ids=_id)
@pytest.mark.parametrize("channels", [2, 4])
def test_channels_without_colors_are_refused_before_a_pixel_is_read(step: nn.Module, channels: int) -> None:
    for one in (step, augment.RandomApply([step])):
        with pytest.raises(ValueError, match=f"{type(step).__name__} takes images of 1 or 3 channels, these have"):
            Collate(one).prepare(batch_of(2).replace(images=None), (channels, 9, 9))
