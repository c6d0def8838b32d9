"""ColorJitter, named and set as in ``torchvision.transforms.v2``: brightness, contrast, saturation and hue per sample.

Clamps, means and hue are not linear, so it runs on the rendered batch and not in a pass. On uint8 images it rounds down
to levels after each of the four, as torchvision does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mmload.augment import color_arithmetic as adjust
from mmload.augment.arguments import elements, number, span
from mmload.augment.draws import Draws
from mmload.augment.step import AfterStep, white
from mmload.render.device_constants import constant

_ADJUSTMENTS = (adjust.brightness, adjust.contrast, adjust.saturation, adjust.hue)


class Factors(NamedTuple):
    """What was drawn for a batch.

    Attributes:
        values: float32 [B, 4], a factor for brightness, contrast, saturation and a rotation for hue.
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
        hue: rotation of the color circle, from -x to x in full rotations, or (least, greatest), within 0.5 of 0.

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
            _rotation(hue),
        )

    def change(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """The jittered images, and the targets unchanged."""
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
        positions = factors.order.argsort(dim=0, stable=True).unbind(1)
        counts = one_hot(factors.order, len(_ADJUSTMENTS)).sum(0).tolist()  # synchronizes with a device
        for samples, sizes in zip(positions, counts, strict=True):
            for which, chosen in enumerate(samples.split_with_sizes(sizes)):
                if self.ranges[which] is not None:
                    values[chosen] = _ADJUSTMENTS[which](values[chosen], factors.values[chosen, which], brightest)
        return values.to(images.dtype)

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
