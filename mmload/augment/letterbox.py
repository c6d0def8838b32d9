"""Letterbox: the whole image in the middle of a canvas, resized with its aspect kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmload.augment.arguments import flag, pair
from mmload.augment.draws import Draws
from mmload.augment.multiscale import PlacedStep
from mmload.augment.sides import exactly, over
from mmload.render.plan import Plan

_GRAY = (114.0,)


class Letterbox(PlacedStep):
    """The whole image, as large as fits into ``size`` with its aspect kept, and ``fill`` around it.

    Place and size are those of a build's ``Letterbox``: sides are rounded to the nearest pixel, and of an odd rest the
    larger part is below and at the right. ``scaleup`` and ``center`` are those of ultralytics' ``LetterBox``.

    Args:
        size: (height, width) of the canvas, or one number for both.
        fill: of the canvas, in the images' values; one number or one per channel.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.
        mask_fill: of a mask's canvas, 0 to 255: 255 is void.
        scaleup: whether an image smaller than the canvas is enlarged; False: it keeps its size.
        center: whether the image lies in the middle; False: at the top left.

    Raises:
        ValueError: if an argument is out of range, or (when run) images are floats and ``fill`` is 114.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] = 114,
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
        mask_fill: int = 255,
        scaleup: bool = True,
        center: bool = True,
    ) -> None:
        super().__init__(interpolation, antialias, fill, mask_fill)
        self.size = pair(size)
        self.scaleup = flag("scaleup", scaleup)
        self.center = flag("center", center)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """One size and place for each size of images."""
        if plan.peak == 1 and self.fill == _GRAY:
            raise ValueError("fill is 114, a level of uint8 images, and these are floats: give a value of their range")
        high, wide = (exactly(plan.of_batch(side)) for side in plan.frame)
        share = torch.minimum(over(self.size[0], high), over(self.size[1], wide))
        if not self.scaleup:
            share = share.clamp(max=1)
        rows, cols = (
            (side * share).round().to(torch.int64).clamp(1, most)
            for side, most in zip((high, wide), self.size, strict=True)
        )
        if not self.center:
            return self.placed(plan, self.size, (rows, cols), None)
        top, left = ((most - side) // 2 for most, side in zip(self.size, (rows, cols), strict=True))
        return self.placed(plan, self.size, (rows, cols), (top, left))

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return (
            f"{self.size}, fill={self.fill}, interpolation={self.mode!r}, scaleup={self.scaleup}, center={self.center}"
        )
