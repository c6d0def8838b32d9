"""Programs by torch's operations, as a device runs them, against the compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from level_runs import ran
from test_level_kernels import EXACT, pictures

from mmload.render import level_operations as levels
from mmload.render import torch_levels
from mmload.render.plan import OperationSlot, Program, chain, one_of
from mmload.render.torch_rendering import upload

COUNT = 6
WARP = (0.9137, -0.2171, 3.113, 0.1531, 1.1017, -4.371)
BENT = (1.05, 0.1, -3.0, 0.02, 0.97, 2.0, 0.001, -0.0005)


def compiled(program: Program, images: torch.Tensor) -> torch.Tensor:
    """The images after a program, by the kernels."""
    channels = images.shape[1]
    rows = [
        (-1,) * channels if slot.fill is None else slot.fill * (channels // len(slot.fill)) for slot in program.slots
    ]
    out, _ = ran(images, program.codes, program.numbers, rows)
    return out


def by_torch(program: Program, images: torch.Tensor, white: float) -> torch.Tensor:
    """The images after a program, by torch's operations."""
    return torch_levels.run_program(upload(program, images.device)[0], images, white)


def batch() -> torch.Tensor:
    """Images [6, 3, 61, 47]: noise and parts of a smooth one."""
    noise, smooth = pictures()["noise"], pictures()["smooth"][:, :61, :47]
    return torch.stack([noise, smooth, noise.flip(1), smooth.flip(2), noise // 3 + 40, smooth])


@pytest.mark.parametrize("name", EXACT)
def test_an_operation_is_within_a_level_of_the_kernels(name: str) -> None:
    operation, numbers, _ = EXACT[name]
    program = Program.single_operation(
        operation, COUNT, *numbers, apply_mask=np.array([True, True, False, True, True, False])
    )
    made = by_torch(program, batch(), 255.0)
    apart = (made - compiled(program, batch())).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01
    assert torch.equal(made[2], batch()[2].to(torch.float32))


@pytest.mark.parametrize("fill", [None, (0.0,), (200.0, 10.0, 90.0)])
@pytest.mark.parametrize(
    ("operation", "numbers"),
    [
        (levels.AFFINE_NEAREST, WARP),
        (levels.AFFINE_BILINEAR, WARP),
        (levels.PERSPECTIVE_NEAREST, BENT),
        (levels.PERSPECTIVE_BILINEAR, BENT),
    ],
)
def test_warps_are_those_of_the_kernels(
    operation: int, numbers: tuple[float, ...], fill: tuple[float, ...] | None
) -> None:
    program = Program.single_operation(operation, COUNT, *numbers, fill=fill)
    apart = (by_torch(program, batch(), 255.0) - compiled(program, batch())).abs()
    assert (apart > 1).float().mean() < 0.002  # nearest: coordinates half way between two pixels


@pytest.mark.parametrize(("wide", "high", "sigma"), [(3, 3, 0.3), (23, 23, 1.4), (5, 9, 2.0)])
def test_blurs_are_those_of_the_kernels(wide: int, high: int, sigma: float) -> None:
    program = Program.single_operation(levels.BLUR, COUNT, wide, high, sigma, blur_radius=max(wide, high) // 2)
    apart = (by_torch(program, batch(), 255.0) - compiled(program, batch())).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01


def test_every_sample_has_operations_of_its_own_and_chains_are_mixed() -> None:
    order = np.arange(COUNT)
    choice = one_of(
        [
            chain(
                [
                    Program.single_operation(levels.INVERT, COUNT),
                    Program.single_operation(levels.BRIGHTNESS, COUNT, 0.25 * order),
                ]
            ),
            Program.single_operation(levels.FLIP_X, COUNT),
            Program.single_operation(levels.PERMUTE, COUNT, 2.0, 0.0, 1.0),
        ],
        order % 3,
    )
    begin = Program.single_operation(levels.MIX_BEGIN, COUNT, 0.2 + 0.01 * order, apply_mask=order > 1)
    add = Program.single_operation(levels.MIX_ADD, COUNT, 0.4, apply_mask=order > 1)
    end = Program.single_operation(levels.MIX_END, COUNT, apply_mask=order > 1)
    program = chain([begin, choice, add, Program.single_operation(levels.POSTERIZE, COUNT, 3), add, end])
    made, by_kernels = by_torch(program, batch(), 255.0), compiled(program, batch())
    assert (made - by_kernels).abs().max() <= 1
    assert not torch.equal(by_kernels[0], by_kernels[3])


def test_floats_stay_within_0_and_1() -> None:
    images = batch().to(torch.float32) / 255
    for operation, numbers, _ in EXACT.values():
        if operation != levels.SOLARIZE:
            program = Program.single_operation(operation, COUNT, *numbers)
            changed = by_torch(program, images, 1.0)
            assert changed.min() >= 0
            assert changed.max() <= 1


def test_empty_places_do_nothing() -> None:
    program = Program(
        codes=np.zeros((COUNT, 2), np.int64),
        numbers=np.zeros((COUNT, 2, levels.MOST_NUMBERS), np.float32),
        slots=(OperationSlot(operations=frozenset()), OperationSlot(operations=frozenset({levels.INVERT}))),
    )
    assert torch.equal(by_torch(program, batch(), 255.0), batch().to(torch.float32))
    assert torch.equal(compiled(program, batch()), batch())
