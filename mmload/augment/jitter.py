"""ColorJitter, named and set as in ``torchvision.transforms.v2``: brightness, contrast, saturation and hue per sample.

Comes in: rendered images and draws. Goes out: new images. Clamps, means and hue are not linear, so this runs after a
pass and not in it; on uint8 images it cuts to whole levels after each of the four, as torchvision does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mmload.augment import adjust
from mmload.augment.constants import constant
from mmload.augment.draws import Draws
from mmload.augment.step import AfterStep, span, white

_ADJUSTMENTS = (adjust.brightness, adjust.contrast, adjust.saturation, adjust.hue)


class Factors(NamedTuple):
    """What was drawn for a batch.

    Attributes:
        values: float32 [B, 4], a factor for brightness, contrast, saturation and a turn for hue.
        order: int64 [B, 4], which of these comes first, second, ...
    """

    values: Tensor
    order: Tensor


class ColorJitter(AfterStep):
    """Random brightness, contrast, saturation and hue, in random order, drawn per sample.

    Args:
        brightness: factor, from max(0, 1 - x) to 1 + x, or (least, greatest); None or 0: none.
        contrast: the same, around the mean luma.
        saturation: the same, around each pixel's luma.
        hue: turn, from -x to x in whole turns of the colour circle, or (least, greatest), within 0.5 of 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    takes_uint8 = True

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
            _turn(hue),
        )

    def change(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """The images jittered; targets as they are."""
        return self.adjusted(images, self.draw(draws)), targets

    def draw(self, draws: Draws) -> Factors:
        """An order and four factors per sample."""
        order = draws.uniform(4).argsort(1)
        uniform = draws.uniform(4)
        ends = tuple(end for ends in self.ranges for end in ends or (0.0, 0.0))
        least, greatest = constant(ends, torch.float64, uniform.device).view(-1, 2).unbind(1)
        return Factors((least + (greatest - least) * uniform).to(torch.float32), order)

    def adjusted(self, images: Tensor, factors: Factors) -> Tensor:
        """The images [B, C, H, W] with given factors, in their dtype.

        Raises:
            ValueError: if the images have neither one nor three channels.
        """
        if images.shape[1] not in (1, 3):
            raise ValueError(f"ColorJitter takes images of 1 or 3 channels, these have {images.shape[1]}")
        brightest = white(images.dtype)
        values = images.to(torch.float32, copy=True)
        places = factors.order.argsort(dim=0, stable=True).unbind(1)
        counts = one_hot(factors.order, len(_ADJUSTMENTS)).sum(0).tolist()  # what a device is waited for
        for turn, sizes in zip(places, counts, strict=True):
            for which, mine in enumerate(turn.split_with_sizes(sizes)):
                if self.ranges[which] is not None:
                    values[mine] = _ADJUSTMENTS[which](values[mine], factors.values[mine, which], brightest)
        return values.to(images.dtype)

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        names = ("brightness", "contrast", "saturation", "hue")
        return ", ".join(f"{name}={ends}" for name, ends in zip(names, self.ranges, strict=True))


def _factor(name: str, value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """A range of factors around 1; None where it would change nothing."""
    if isinstance(value, int | float):
        if value < 0:
            raise ValueError(f"{name} is {value!r}, expected a number from 0 or (least, greatest)")
        value = (max(0.0, 1.0 - value), 1.0 + value)
    ends = None if value is None else span(name, value)
    return None if ends == (1.0, 1.0) else ends


def _turn(value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """A range of turns around 0; None where it would change nothing."""
    if value is None:
        return None
    ends = (-value, value) if isinstance(value, int | float) else tuple(float(one) for one in value)
    if len(ends) != 2 or not -0.5 <= ends[0] <= ends[1] <= 0.5:
        raise ValueError(f"hue is {value!r}, expected a turn up to 0.5 or (least, greatest) within 0.5 of 0")
    return None if ends == (0.0, 0.0) else (float(ends[0]), float(ends[1]))
