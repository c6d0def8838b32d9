"""RandomErasing (cutout), named and set as in ``torchvision.transforms.v2``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.augment.arguments import argument_error, chance, per_channel, ratios, shares
from mmload.augment.draws import Draws, whole_numbers
from mmload.augment.resize import ATTEMPTS, first, rectangles
from mmload.augment.step import Step
from mmload.errors import counted
from mmload.render.plan import Plan
from mmload.render.plan_parts import Hole
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.random_words import Words, unit_of_word


class RandomErasing(Step):
    """Overwrites a random rectangle with probability ``p``, drawn per sample.

    After Normalize, ``value`` is in normalized units. A step after RandomErasing starts another pass over the pixels.
    Boxes and masks do not change.

    Args:
        p: probability that a rectangle is erased.
        scale: least and greatest share of the image's area.
        ratio: least and greatest height / width; drawn uniformly in its logarithm.
        value: one number, one per channel, or ``"random"``: standard normal noise for each pixel.

    Raises:
        ValueError: if an argument is out of range, or (when run) there is not one value per channel.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
    ) -> None:
        super().__init__()
        self.p = chance(p)
        self.scale = shares(scale)
        if self.scale[1] > 1:
            raise argument_error("scale", scale, "shares of the area, at most 1")
        self.ratio = ratios(ratio)
        self.value = _value(value)

    def fits(self, plan: Plan) -> bool:
        # Only holes and a mixing of samples follow a hole in a pass.
        return plan.fits_hole()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one rectangle per sample: the first of ten that is smaller than the image, else none."""
        channels = plan.source[0]
        if self.value is not None and len(self.value) not in (1, channels):
            raise ValueError(
                f"value has {counted(len(self.value), 'number')} and the images {counted(channels, 'channel')}"
            )
        applied = draws.chance(self.p)
        rows, cols = self._sides(plan, draws)
        corners = draws.uniform(2)
        noise = draws.bits(1)[:, 0] if self.value is None else None
        hole = Hole(
            top=whole_numbers(corners[:, 0], (plan.height - rows + 1).clamp(min=1)),
            left=whole_numbers(corners[:, 1], (plan.width - cols + 1).clamp(min=1)),
            height=torch.where(applied, rows, 0),
            width=torch.where(applied, cols, 0),
            value=self.value,
            noise=noise,
        )
        return plan.with_hole(hole)

    def _sides(self, plan: Plan, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draws rows and columns of the holes: int64 [B], 0 where none is smaller than the image."""
        height, width = plan.height, plan.width
        if plan.device.type != "cpu":
            rows, cols = rectangles(draws, height * width, self.scale, self.ratio)
            fitting = (rows < height) & (cols < width)
            found = fitting.any(1)
            return torch.where(found, first(rows, fitting), 0), torch.where(found, first(cols, fitting), 0)
        bounds = np.array([height * width, *self.scale, *map(math.log, self.ratio)])
        words = draws.bits(2 * ATTEMPTS).numpy().view(np.uint64)
        sides = np.zeros((2, len(words)), np.int64)
        _find_rectangles(words, bounds, height, width, sides)
        rows, cols = torch.from_numpy(sides)
        return rows, cols

    def extra_repr(self) -> str:
        return f"p={self.p}, scale={self.scale}, ratio={self.ratio}, value={self.value or 'random'!r}"


def _value(value: float | Sequence[float] | str) -> tuple[float, ...] | None:
    """Checks one number or one per channel; None stands for noise."""
    if not isinstance(value, str):
        return per_channel("value", value)
    if value != "random":
        raise argument_error("value", value, "a number, one per channel, or 'random'")
    return None


@numba_compiled("void(uint64[:, ::1], float64[::1], int64, int64, int64[:, ::1])", nogil=False)
def _find_rectangles(
    words: Words, bounds: npt.NDArray[np.float64], rows: int, cols: int, out: npt.NDArray[np.int64]
) -> None:
    """Writes the first rectangle per sample that fits, of those that :func:`~mmload.augment.resize.rectangles` draws.

    The first n of words [B, 2 n] draw shares of the area, the others ratios. Bounds are the area, least and greatest
    share of it, and logarithms of the extreme ratios. Sides [2, B] are below ``rows`` and ``cols``, or stay.
    """
    tries = words.shape[1] // 2
    area, least, greatest, low, high = bounds[0], bounds[1], bounds[2], bounds[3], bounds[4]
    for k in range(len(words)):
        for attempt in range(tries):
            target = area * (least + (greatest - least) * unit_of_word(words[k, attempt]))
            aspect = math.exp(low + (high - low) * unit_of_word(words[k, tries + attempt]))
            first, second = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if first < rows and second < cols:
                out[0, k], out[1, k] = first, second
                break
