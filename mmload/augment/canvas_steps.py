"""ScaleJitter and RandomShortestSize, named and set as in ``torchvision.transforms.v2``, and Letterbox.

torchvision's images are variable-size after such a resize, and its detection recipes crop or pad them afterwards. A
batch has one size, so here the resized image is placed on a canvas that has one size for all: it is cropped if it is
larger, and ``fill`` is beside it if it is smaller. Boxes and masks follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mmload.augment.arguments import (
    LONGEST_SIDE,
    flag,
    integer,
    integers,
    mask_level,
    pair,
    per_channel,
    span,
)
from mmload.augment.resize import ResizingStep, check_leaves_pixels
from mmload.augment.step import Draws, whole_numbers
from mmload.render.plan import Plan
from mmload.runtime.random_words import Numbers


class PlacedStep(ResizingStep):
    """Base of all steps that place images on a canvas, with the fill of the canvas."""

    is_drop_in = False  # torchvision's have no canvas

    def __init__(self, interpolation: Any, antialias: bool | None, fill: Any, mask_fill: int) -> None:
        super().__init__(interpolation, antialias)
        self.fill = per_channel("fill", fill)
        self.mask_fill = mask_level(mask_fill)

    def placed(
        self, plan: Plan, canvas: tuple[int, int], size: tuple[Numbers, Numbers], start: tuple[Numbers, Numbers] | None
    ) -> Plan:
        """Adds a resize to ``size`` (rows, cols) whose top left lies at ``start`` on the canvas."""
        top, left = start or (np.zeros_like(size[0]), np.zeros_like(size[1]))
        return plan.placed(self.resampling(size, top=top, left=left, fill=self.fill, mask_fill=self.mask_fill), canvas)


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
        fill: fill of the canvas, in the images' values; one number or one per channel.
        mask_fill: fill of a mask's canvas, 0 to 255: 255 is void.

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
        sides = f"(height, width), integers from 1 to {LONGEST_SIDE}"
        self.target_size: tuple[int, int] = integers(
            "target_size", target_size, (2,), least=1, greatest=LONGEST_SIDE, expected=sides
        )
        self.scale_range = span("scale_range", scale_range, least=1e-3, greatest=1e3)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws two numbers per sample: the factor, and the place of the crop."""
        least, greatest = self.scale_range
        height, width = plan.frame
        fitting = np.minimum(self.target_size[1] / height, self.target_size[0] / width)
        shorter = np.minimum(height, width) * fitting * least
        check_leaves_pixels("scale_range", self.scale_range, shorter, plan.frame, "make it larger")
        uniform = draws.uniform(2)
        factor = fitting * (least + (greatest - least) * uniform[:, 0])
        size = (height * factor).astype(np.int64), (width * factor).astype(np.int64)
        top, left = (
            -whole_numbers(uniform[:, 1], np.maximum(side - most, 0))
            for side, most in zip(size, self.target_size, strict=True)
        )
        return self.placed(plan, self.target_size, size, (top, left))


class RandomShortestSize(PlacedStep):
    """Resized so that the shorter side is one of several lengths, keeping the aspect ratio.

    All lie at the top left of a canvas that has room for the largest of them, as torchvision's detection models put
    the images of a batch. ``image_sizes`` of the batch are their heights and widths there, unless a later step moves
    them: put flips before it.

    Args:
        min_size: the shorter side: one length, or several to choose from.
        max_size: the longer side is not made longer than this.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.
        fill: fill of the canvas, in the images' values; one number or one per channel.
        mask_fill: fill of a mask's canvas, 0 to 255: 255 is void.

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
        bounds: dict[str, Any] = {"least": 1, "greatest": LONGEST_SIDE}
        expected = f"one integer or several from 1 to {LONGEST_SIDE}"
        self.min_size: tuple[int, ...] = integers("min_size", min_size, range(1, 10**6), **bounds, expected=expected)
        self.max_size = None if max_size is None else integer("max_size", max_size, **bounds)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one of the sizes per sample."""
        height, width = plan.frame
        (chosen,) = draws.integers((0, len(self.min_size) - 1))
        if not plan.is_variable_size:
            canvas = self.canvas(plan.height, plan.width)
        elif self.max_size is None:
            raise ValueError(
                "max_size is None, but the images are variable-size; give max_size, which sets the size of the canvas"
            )
        else:
            canvas = self.max_size, self.max_size
        size = self._sizes(np.array(self.min_size)[chosen], height, width)
        return replace(self.placed(plan, canvas, size, None), is_framed=True)

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) with room for all sizes of images of height x width."""
        rows, cols = self._sizes(np.array(self.min_size), height, width)
        return int(rows.max()), int(cols.max())

    def _sizes(self, shorter: Numbers, height: Numbers | int, width: Numbers | int) -> tuple[Numbers, Numbers]:
        """Returns heights and widths with these shorter sides as torchvision computes them."""
        factor = shorter / np.minimum(height, width)
        if self.max_size is not None:
            factor = np.minimum(factor, self.max_size / np.maximum(height, width))
        rows, cols = (height * factor).astype(np.int64), (width * factor).astype(np.int64)
        check_leaves_pixels("max_size", self.max_size, np.minimum(rows, cols), (height, width), "make it larger")
        return rows, cols


_GRAY = (114.0,)


class Letterbox(PlacedStep):
    """The whole image, as large as fits into ``size`` with its aspect kept, and ``fill`` around it.

    Place and size are those of a build's ``Letterbox``: sides are rounded to the nearest pixel, and of an odd rest the
    larger part is below and at the right. ``scaleup`` and ``center`` are those of ultralytics' ``LetterBox``.

    Args:
        size: (height, width) of the canvas, or one number for both.
        fill: fill of the canvas, in the images' values; one number or one per channel.
        interpolation: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``, or torchvision's name for it.
        antialias: whether shrinking averages over all source pixels.
        mask_fill: fill of a mask's canvas, 0 to 255: 255 is void.
        scaleup: whether an image smaller than the canvas is enlarged; False: it keeps its size.
        center: whether the image lies in the middle; False: at the top left.

    Raises:
        ValueError: if an argument is out of range, or (when run) images are floats and ``fill`` is 114.
    """

    is_random = False

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
        """Computes one size and place for each size of images; nothing is drawn."""
        if plan.peak == 1 and self.fill == _GRAY:
            raise ValueError(
                "fill is 114, a level of uint8 images, but these images are floats; give a fill from 0 to 1"
            )
        high, wide = map(plan.per_sample, plan.frame)
        share = np.minimum(self.size[0] / high, self.size[1] / wide)
        if not self.scaleup:
            share = np.minimum(share, 1)
        rows, cols = (
            np.clip(np.rint(side * share), 1, most).astype(np.int64)
            for side, most in zip((high, wide), self.size, strict=True)
        )
        if not self.center:
            return self.placed(plan, self.size, (rows, cols), None)
        top, left = ((most - side) // 2 for most, side in zip(self.size, (rows, cols), strict=True))
        return self.placed(plan, self.size, (rows, cols), (top, left))
