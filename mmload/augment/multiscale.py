"""ScaleJitter and RandomShortestSize, named and set as in ``torchvision.transforms.v2``: resizes to a random size.

torchvision's images come out in sizes of their own, and its detection recipes crop or pad them afterwards. A batch has
one size, so here the resized image is placed on a canvas that is as large for all: cut off where it is larger, with
``fill`` beside it where it is smaller. Boxes and masks follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmload.augment.arguments import LONGEST_SIDE, elements, flag, integer, pair, per_channel, refusal, span
from mmload.augment.draws import Draws, whole_numbers
from mmload.augment.resize import mode_of, resampling_to
from mmload.augment.sides import exactly, least, over, size_with_least
from mmload.augment.step import Step
from mmload.render.device_constants import constant
from mmload.render.framing import Placement
from mmload.render.plan import Plan


class PlacedStep(Step):
    """What all that place images on a canvas share: the interpolation, and the canvas's fill."""

    takes_sizes = True

    def __init__(self, interpolation: Any, antialias: bool | None, fill: Any, mask_fill: int) -> None:
        super().__init__()
        self.mode = mode_of(interpolation)
        self.antialias = antialias is not None and flag("antialias", antialias)
        self.fill = per_channel("fill", fill)
        self.mask_fill = integer(
            "mask_fill", mask_fill, least=0, greatest=255, expected="an integer from 0 to 255, of which 255 is void"
        )

    def fits(self, plan: Plan) -> bool:
        """Only one resize fits into a pass, and it must come before flips, padding, and what changes the fill."""
        return plan.fits_placement(self.mode)

    def placed(
        self, plan: Plan, canvas: tuple[int, int], size: tuple[Tensor, Tensor], start: tuple[Tensor, Tensor] | None
    ) -> Plan:
        """The plan followed by resizes to ``size`` (rows, cols), whose top left lies at ``start`` on the canvas."""
        rows, cols = size
        top, left = start or (torch.zeros_like(rows), torch.zeros_like(cols))
        placement = Placement(rows=rows, cols=cols, top=top, left=left, fill=self.fill, mask_fill=self.mask_fill)
        how = resampling_to(canvas, self.mode, self.antialias)
        return plan.resized(None, replace(how, placement=placement, exact_masks=self.mode == "nearest-exact"))


class ScaleJitter(PlacedStep):
    """Resized by a random factor and placed on a canvas of ``target_size``: large scale jitter.

    It is torchvision's ``ScaleJitter`` and the ``FixedSizeCrop`` of its detection recipe ``lsj``
    (``references/detection/transforms.py`` of pytorch/vision at commit 0055d83): a larger image is cropped at a random
    place, the same share of what exceeds it above as at the left, and a smaller one lies at the top left.

    Args:
        target_size: (height, width) of the canvas. At factor 1 the image is as large as fits, with torchvision's order:
            its height into ``target_size[1]`` and its width into ``target_size[0]``.
        scale_range: least and greatest factor, drawn uniformly.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.
        fill: of the canvas, in the images' values; one number or one per channel.
        mask_fill: of a mask's canvas, 0 to 255: 255 is void.

    Raises:
        ValueError: if an argument is out of range, or (when run) the least factor leaves no pixel.
    """

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
        fill: float | Sequence[float] = 0,
        mask_fill: int = 255,
    ) -> None:
        super().__init__(interpolation, antialias, fill, mask_fill)
        if len(elements(target_size) or ()) != 2:
            raise refusal("target_size", target_size, "(height, width)")
        try:
            self.target_size = pair(target_size)
        except ValueError as error:
            raise refusal("target_size", target_size, f"two integers from 1 to {LONGEST_SIDE}") from error
        self.scale_range = span("scale_range", scale_range, least=1e-3, greatest=1e3, bounds="from 0.001 to 1000")

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Two numbers per sample: the factor, and the place of the crop."""
        least, greatest = self.scale_range
        height, width = plan.frame
        fitting: Tensor | float
        if isinstance(height, int) and isinstance(width, int):
            fitting = min(self.target_size[1] / height, self.target_size[0] / width)
            shorter: Tensor | float = min(height, width) * fitting * least
        else:
            height, width = exactly(height), exactly(width)
            fitting = torch.minimum(over(self.target_size[1], height), over(self.target_size[0], width))
            shorter = torch.minimum(height, width) * fitting * least
        if (min(shorter.tolist(), default=1.0) if isinstance(shorter, Tensor) else shorter) < 1:
            images = f"images of {size_with_least(shorter, *plan.frame)}"
            raise ValueError(f"scale_range {self.scale_range} leaves no pixel of {images}: make it larger")
        uniform = draws.uniform(2)
        factor = fitting * (least + (greatest - least) * uniform[:, 0])
        size = (height * factor).to(torch.int64), (width * factor).to(torch.int64)
        spare = ((side - most).clamp(min=0) for side, most in zip(size, self.target_size, strict=True))
        top, left = (-whole_numbers(uniform[:, 1], one) for one in spare)
        return self.placed(plan, self.target_size, size, (top, left))

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"{self.target_size}, scale_range={self.scale_range}, interpolation={self.mode!r}, fill={self.fill}"


class RandomShortestSize(PlacedStep):
    """Resized so that the shorter side is one of several lengths, keeping the aspect ratio.

    All lie at the top left of a canvas that has room for the largest of them, as torchvision's detection models put
    the images of a batch.

    Args:
        min_size: the shorter side: one length, or several to choose from.
        max_size: the longer side is not made longer than this.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.
        fill: of the canvas, in the images' values; one number or one per channel.
        mask_fill: of a mask's canvas, 0 to 255: 255 is void.

    Raises:
        ValueError: if an argument is out of range, or (when run) ``max_size`` leaves no pixel of the shorter side.
    """

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
        fill: float | Sequence[float] = 0,
        mask_fill: int = 255,
    ) -> None:
        super().__init__(interpolation, antialias, fill, mask_fill)
        several = elements(min_size)
        sides = (min_size,) if several is None else several
        expected = f"one integer or several from 1 to {LONGEST_SIDE}"
        if not sides:
            raise refusal("min_size", min_size, expected)
        bounds: dict[str, Any] = {"least": 1, "greatest": LONGEST_SIDE}
        self.min_size = tuple(integer("min_size", one, **bounds, expected=expected) for one in sides)
        self.max_size = None if max_size is None else integer("max_size", max_size, **bounds)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """One of the sizes per sample."""
        height, width = plan.frame
        (chosen,) = draws.integers((0, len(self.min_size) - 1))
        if isinstance(height, int) and isinstance(width, int):
            canvas = self.canvas(height, width)
        elif self.max_size is None:
            raise ValueError(
                "max_size is None where images have a size each: give it, as it decides how large the canvas is"
            )
        else:
            canvas = self.max_size, self.max_size
        high, wide = exactly(height), exactly(width)
        factor = constant(self.min_size, torch.float64, plan.device)[chosen] / torch.minimum(high, wide)
        if self.max_size is not None:
            factor = over(self.max_size, torch.maximum(high, wide)).minimum(factor)
        rows, cols = (high * factor).to(torch.int64), (wide * factor).to(torch.int64)
        if plan.is_ragged and min(least(rows), least(cols)) < 1:
            size = size_with_least(torch.minimum(rows, cols), height, width)
            raise ValueError(f"max_size {self.max_size} leaves no pixel of an image of {size}")
        return self.placed(plan, canvas, (rows, cols), None)

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that has room for all sizes of images of height x width."""
        rows, cols = zip(*(self._size(one, height, width) for one in self.min_size), strict=True)
        return max(rows), max(cols)

    def _size(self, shorter: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) as torchvision computes them."""
        factor = shorter / min(height, width)
        if self.max_size is not None:
            factor = min(factor, self.max_size / max(height, width))
        rows, cols = int(height * factor), int(width * factor)
        if min(rows, cols) < 1:
            raise ValueError(f"max_size {self.max_size} leaves {rows} x {cols} pixels of images of {height} x {width}")
        return rows, cols

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"{self.min_size}, max_size={self.max_size}, interpolation={self.mode!r}, fill={self.fill}"
