"""RandomHSV against OpenCV's conversions and tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hsv_reference import changed, to_hsv, to_rgb
from level_runs import ran as ran_levels
from torch import Tensor

from mmload.augment import RandomHSV, sample_seeds
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.render import level_operations as levels
from mmload.render.level_operations import MOST_NUMBERS
from mmload.render.plan import Plan, Program
from mmload.render.torch_levels import run_program
from mmload.render.torch_rendering import copied


def all_colors(step: int) -> Tensor:
    side = torch.arange(0, 256, step, dtype=torch.uint8)
    return torch.cartesian_prod(side, side, side).T.reshape(3, len(side), -1).contiguous()


def by_kernel(image: Tensor, *numbers: float) -> Tensor:
    values = np.zeros((1, 1, MOST_NUMBERS), np.float32)
    values[0, 0, :3] = numbers
    return ran_levels(image[None], [[levels.HSV]], values, (-1, -1, -1))[0][0]


CHANGES = [
    (0, 1.0, 1.0),
    (2, 1.7, 0.6),
    (178, 0.3, 1.4),
    (90, 0.0, 1.0),
    (37, 1.33, 0.0),
    (29, 2.0, 2.0),
    (30, 0.9, 1.1),
]


@pytest.mark.parametrize("numbers", CHANGES)
def test_hsv_kernel_all_colors_are_those_of_the_reference(numbers: tuple[int, float, float]) -> None:
    image = all_colors(3)
    assert np.array_equal(by_kernel(image, *numbers).numpy(), changed(image.numpy(), *numbers))


@pytest.mark.parametrize("numbers", CHANGES)
def test_hsv_by_torch_is_the_kernel(numbers: tuple[int, float, float]) -> None:
    image = all_colors(5)
    program = Program.single_operation(levels.HSV, 1, *numbers)
    made = run_program(copied(program, image.device).description, image[None].float(), 255.0)[0]
    assert torch.equal(made.to(torch.uint8), by_kernel(image, *numbers))
    floats = run_program(copied(program, image.device).description, image[None] / 255, 1.0)[0] * 255
    apart = (floats - made).abs()
    assert apart.mean() < 3  # without the rounding of uint8 HSV


def test_the_reference_is_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    image = all_colors(3).numpy()
    picture = np.ascontiguousarray(image.transpose(1, 2, 0))
    expected = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    assert np.array_equal(np.stack(to_hsv(image), 2), expected)
    hue, rest = np.mgrid[0:180, 0 : 256 * 256 : 7]
    hsv = np.stack([hue, rest // 256, rest % 256], 2).astype(np.uint8)
    made = to_rgb(hsv[..., 0], hsv[..., 1], hsv[..., 2]).transpose(1, 2, 0)
    apart = np.abs(made.astype(int) - cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(int))
    assert apart.max() <= 1
    assert (
        apart > 0
    ).mean() < 1e-3  # whole values, which float32 makes a little less, as OpenCV's code for the processor has it


def test_hsv_1000_draws_are_the_reference() -> None:
    count = 1000
    images = torch.randint(0, 256, (count, 3, 8, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    step = RandomHSV(0.3, 0.9, 0.5)
    seeds = sample_seeds(3, 0, torch.arange(count))
    plan = step.describe(Plan.unchanged(count, (3, 8, 9), 255.0), Draws(seeds.numpy(), 0))
    assert plan.first_program is not None
    numbers = plan.first_program.numbers[:, 0]
    made = step(images, seeds)
    for k in range(count):
        turn, stronger, brighter = numbers[k, :3].tolist()
        assert np.array_equal(made[k].numpy(), changed(images[k].numpy(), int(turn), stronger, brighter))


def test_hsv_without_gains_keeps_values_and_joins_the_pass() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 9), dtype=torch.uint8)
    made = RandomHSV(0, 0, 0)(images)
    assert (made.amax(1) == images.amax(1)).all()
    assert Collate(RandomHSV(), dtype=torch.uint8)(images).dtype == torch.uint8
    gray = images[:, :1]
    seeds = sample_seeds(0, 0, torch.arange(2))
    assert torch.equal(RandomHSV(0.2)(gray.repeat(1, 3, 1, 1), seeds)[:, :1], RandomHSV(0.2)(gray, seeds))


@pytest.mark.parametrize("numbers", CHANGES)
def test_hsv_kernel_runs_of_one_color_are_those_of_the_reference(numbers: tuple[int, float, float]) -> None:
    generator = torch.Generator().manual_seed(3)
    pieces = []
    for length in [5, 64, 128, 1, 700, 1024, 63, 2000, 64, 64, 3]:  # of two colors, and of pixels between them
        color = (
            torch.tensor([[114], [114], [114]]) if length % 2 else torch.randint(0, 256, (3, 1), generator=generator)
        )
        pieces += [color.expand(3, length), torch.randint(0, 256, (3, length % 200), generator=generator)]
    image = torch.cat(pieces, 1).to(torch.uint8).contiguous()[:, None]
    assert np.array_equal(by_kernel(image, *numbers).numpy(), changed(image.numpy(), *numbers))
