"""Parts of a plan: canvases, padding, placement, resize, rectangles that are overwritten, mixing of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mmload.errors import counted
from mmload.render.kernel_arguments import HOLE, Holes, Numbers, Places, Records
from mmload.runtime.host_memory import zeros

Array: TypeAlias = Any
"""NumPy array on the host; torch's tensor in the copy of a plan that torch's operations render from."""

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
"""Names of the ways in which padding is filled."""

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue, as ``torchvision.transforms.v2.functional.rgb_to_grayscale`` has them."""


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Canvases that the images of a plan are composed on: T tiles of B samples, each a part of an image.

    Attributes:
        height: rows of a canvas.
        width: columns of a canvas.
        samples: int64 [T], sample of each tile, in order.
        tiles: :data:`~mmload.render.kernel_arguments.TILE` [T].
        needed: :data:`~mmload.render.kernel_arguments.NEEDED` [T], lines of each tile's image that show.
        fill: value of a canvas beside its tiles per channel, or one for all.
        shares: float32 [B], weight of layer 0, in which layer 1 is blended; NaN: the sample has one layer.
    """

    height: int
    width: int
    samples: Numbers
    tiles: Records
    needed: Places
    fill: tuple[float, ...]
    shares: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Padding outside of the image; boxes are never repeated or mirrored.

    Attributes:
        mode: one of :data:`PADDING_MODES`.
        fill: value of the constant per channel, or one for all.
        mask_fill: value of the constant in masks; 255 is void.
        margin: rows and columns by which windows may reach outside.
    """

    mode: str = "constant"
    fill: tuple[float, ...] = (0.0,)
    mask_fill: int = 255
    margin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Sizes to which windows are resized, and their places on a canvas that has one size for all samples.

    Attributes:
        rows: int64 [B], height of the resized window.
        cols: int64 [B], width of it.
        top: int64 [B], row of the canvas where it begins; if negative, rows are cut off.
        left: int64 [B], column of the canvas where it begins.
        fill: value of the rest of the canvas per channel, or one for all.
        mask_fill: value of the rest of a mask's canvas.
    """

    rows: Array
    cols: Array
    top: Array
    left: Array
    fill: tuple[float, ...]
    mask_fill: int


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """Resize of a window to (height, width), of which a part may be cropped.

    Attributes:
        height: rows after the resize, before the crop; with a placement, of the canvas; 0 while the canvas is not
            known, since a crop must follow.
        width: columns, as height.
        mode: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``.
        antialias: whether shrinking averages over all source pixels.
        top: int64 [B], first row of the crop; None: there is no crop.
        left: int64 [B], first column of the crop; None: there is no crop.
        exact_masks: whether masks take ``nearest-exact``; else ``nearest``.
        mirror_x: bool [B], whether the window is mirrored left to right before the resize, which ``flip_x`` of the plan
            does after it: nearest pixels of masks are counted from one side, so they depend on the order.
        mirror_y: bool [B], the same upside down.
        placement: size to which each window is resized and its place on the canvas; None: to height x width.
    """

    height: int
    width: int
    mode: str
    antialias: bool
    top: Array | None = None
    left: Array | None = None
    exact_masks: bool = False
    mirror_x: Array | None = None
    mirror_y: Array | None = None
    placement: Placement | None = None

    @property
    def is_open(self) -> bool:
        """Whether windows are variable-size after the resize, too, so that a crop must follow."""
        return self.height == 0


@dataclass(frozen=True, kw_only=True)
class Hole:
    """Rectangle that is overwritten after everything else.

    Attributes:
        top: int64 [B], first row in output pixels.
        left: int64 [B], first column.
        height: int64 [B]; 0 if the sample has no hole.
        width: int64 [B].
        value: one number, or one per channel; None: ``noise``.
        noise: int64 [B], keys of standard normal noise per pixel.
    """

    top: Array
    left: Array
    height: Array
    width: Array
    value: tuple[float, ...] | None
    noise: Array | None = None


def holes_of(holes: Sequence[Hole], count: int, channels: int) -> Holes:
    """Returns the holes of ``count`` samples, each of which has all of them, as kernels take them."""
    sides = zeros((count, len(holes)), HOLE)
    values = np.full((len(holes), channels), np.nan, np.float32)
    for n, hole in enumerate(holes):
        for name in HOLE.names or ():
            if (numbers := getattr(hole, name)) is not None:
                sides[name][:, n] = numbers
        if hole.value is not None:
            values[n] = hole.value
    return Holes(sides, values)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixing of every sample with the one before it in the batch, the first with the last: a blend, then a paste.

    Attributes:
        share: float32 [B], weight of the sample in share * own + (1 - share) * other; 1: it is not blended. None: no
            sample is blended.
        boxes: int64 [B, 4], x1 y1 x2 y2 of the rectangle that is pasted from the other; empty: none is. None: nothing
            is pasted in any sample.
        classes: number of classes of targets that are class indices; None: targets are soft already.
    """

    share: Array | None = None
    boxes: Array | None = None
    classes: int | None = None

    def target_share(self, height: int, width: int) -> Array:
        """Returns the weight of every sample's own target: float32 [B]."""
        share = np.float32(1) if self.share is None else self.share
        if self.boxes is None:
            return share
        x1, y1, x2, y2 = self.boxes.T
        return share * (np.float32(1) - ((x2 - x1) * (y2 - y1)).astype(np.float32) / np.float32(width * height))


def check_fill(fill: tuple[float, ...], channels: int, peak: float) -> None:
    """Checks that images of so many channels, of which ``peak`` is white, can be filled with values.

    Raises:
        ValueError: if they are neither one nor one per channel, or no levels of uint8 images.
    """
    if len(fill) not in (1, channels):
        raise ValueError(f"fill has {counted(len(fill), 'number')} and the images {counted(channels, 'channel')}")
    if peak > 1:
        check_levels("fill", fill)


def check_levels(name: str, values: tuple[float, ...] | None) -> None:
    """Checks that values can be written into uint8 images; None stands for noise, which cannot.

    Raises:
        ValueError: if they are not integers from 0 to 255.
    """
    if values is None or any(not (0 <= one <= 255 and one == int(one)) for one in values):
        got = "'random'" if values is None else ", ".join(f"{one:g}" for one in values)
        raise ValueError(
            f"{name} is {got}, and the images are uint8 there: give integers from 0 to 255, or put the step after "
            "Normalize"
        )
