"""ColorJitter, named and set as in ``torchvision.transforms.v2``, drawn per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmload.augment.arguments import elements, number, span
from mmload.augment.draws import Draws
from mmload.augment.level_step import LevelStep
from mmload.render.device_constants import constant
from mmload.render.level_program import BRIGHTNESS, CONTRAST, HUE, MOST_NUMBERS, NONE, SATURATION, Program, Slot
from mmload.render.plan import Plan

_CODES = (BRIGHTNESS, CONTRAST, SATURATION, HUE)


class Factors(NamedTuple):
    """What was drawn for a batch.

    Attributes:
        values: float32 [B, 4], a factor for brightness, contrast, saturation and a rotation for hue.
        order: int64 [B, 4], which of these comes first, second, ...
    """

    values: Tensor
    order: Tensor


class ColorJitter(LevelStep):
    """Random brightness, contrast, saturation and hue, in random order, drawn per sample.

    Args:
        brightness: factor, from max(0, 1 - x) to 1 + x, or (least, greatest); None or 0: none.
        contrast: the same, around the mean luma.
        saturation: the same, around each pixel's luma.
        hue: rotation of the color circle, from -x to x in full rotations, or (least, greatest), within 0.5 of 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.ranges = (
            _factor("brightness", brightness),
            _factor("contrast", contrast),
            _factor("saturation", saturation),
            _rotation(hue),
        )

    def draw(self, draws: Draws) -> Factors:
        """An order and four factors per sample."""
        order = draws.uniform(4).argsort(1)
        uniform = draws.uniform(4)
        ends = tuple(end for ends in self.ranges for end in ends or (0.0, 0.0))
        least, greatest = constant(ends, torch.float64, uniform.device).view(-1, 2).unbind(1)
        return Factors((least + (greatest - least) * uniform).to(torch.float32), order)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """One draw of :meth:`draw`, as operations."""
        return self.operations(self.draw(draws))

    def operations(self, factors: Factors) -> Program:
        """The four adjustments with given factors; those without a range are left out."""
        codes = tuple(code if ends is not None else NONE for code, ends in zip(_CODES, self.ranges, strict=True))
        device = factors.order.device
        numbers = torch.zeros((*factors.order.shape, MOST_NUMBERS), device=device)
        chosen = factors.values.gather(1, factors.order)
        numbers[:, :, 0], numbers[:, :, 1] = chosen, 1.0 - chosen.to(torch.float64)
        slot = Slot(operations=frozenset(codes) - {NONE})
        table = constant(tuple(float(code) for code in codes), torch.int64, device)
        return Program(codes=table[factors.order], numbers=numbers, slots=(slot,) * len(codes))

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        names = ("brightness", "contrast", "saturation", "hue")
        return ", ".join(f"{name}={ends}" for name, ends in zip(names, self.ranges, strict=True))


def _factor(name: str, value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """A range of factors around 1; None where it would change nothing."""
    if value is None:
        return None
    if elements(value) is None:
        reach = number(name, value, least=0.0, expected="a number from 0, or (least, greatest)")
        ends = max(0.0, 1.0 - reach), 1.0 + reach
    else:
        ends = span(name, value, bounds="finite numbers from 0")
    return None if ends == (1.0, 1.0) else ends


def _rotation(value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """A range of rotations around 0; None where it would change nothing."""
    if value is None:
        return None
    if elements(value) is None:
        reach = number("hue", value, least=0.0, greatest=0.5, expected="a rotation from 0 to 0.5, or (least, greatest)")
        ends = -reach, reach
    else:
        ends = span("hue", value, least=-0.5, greatest=0.5, bounds="rotations within 0.5 of 0")
    return None if ends == (0.0, 0.0) else ends
