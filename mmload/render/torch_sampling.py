"""Cuts a plan's windows out of images: cropped, padded, flipped, in the images' dtype, as views where possible.

Plans are those with tensors in place of arrays, on the images' device: :func:`mmload.render.torch_rendering.copied`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.kernel_arguments import Bytes, Numbers
from mmload.render.plan import Padding, Plan, Resampling
from mmload.runtime.host_memory import constant

PICKED_AT_ONCE = 131_072
"""Pixels that are picked by one call on a CPU: their indices take 1 MB, and stay in cache."""


class OwnMasks(NamedTuple):
    """Masks of variable-size images, with the sizes of their images.

    Attributes:
        memory: uint8 [n], the pixels of all, line by line.
        starts: int64 [B], index of each mask's first pixel.
    """

    memory: Bytes
    starts: Numbers


class Placed(NamedTuple):
    """Size of a resized window and its place on the output, as :class:`~mmload.render.plan.Resampling` has them."""

    rows: int
    cols: int
    top: int
    left: int

    def visible(self, height: int, width: int) -> tuple[slice, slice]:
        """Returns the rows and columns of an output of height x width that show the resized window."""
        over = slice(min(max(self.top, 0), height), max(min(self.top + self.rows, height), 0))
        return over, slice(min(max(self.left, 0), width), max(min(self.left + self.cols, width), 0))


class Window(NamedTuple):
    """Geometry of one sample in integers: the source window, the dimensions to flip, and where it lies if resized."""

    top: int
    left: int
    rows: int
    cols: int
    flips: tuple[int, ...]
    placed: Placed = Placed(0, 0, 0, 0)

    def inside(self, shape: Sequence[int]) -> bool:
        """Returns whether all of the source window lies in an image [C, H, W]."""
        _, height, width = shape
        return self.top >= 0 and self.left >= 0 and self.top + self.rows <= height and self.left + self.cols <= width


def windows(plan: Plan) -> list[Window]:
    """Returns the geometry of a plan in host memory as Python numbers."""
    part = plan.resampling
    sides: list[Any] = [plan.top, plan.left, plan.rows, plan.cols]
    sides += [0] * 4 if part is None else [part.rows, part.cols, part.top, part.left]
    sides += [plan.flip_x, plan.flip_y]
    numbers = np.stack([np.broadcast_to(side, plan.count) for side in sides], 1).tolist()
    return [Window._make([*one[:4], (-1,) * x + (-2,) * y, Placed._make(one[4:])]) for *one, x, y in numbers]


def cut(image: Tensor, window: Window, padding: Padding) -> Tensor:
    """Cuts the source window out of one image [C, H, W]: a view if it lies inside, else a padded copy."""
    top, left, rows, cols = window[:4]
    _, height, width = image.shape
    if window.inside(image.shape):
        return image[:, top : top + rows, left : left + cols]
    y = torch.arange(top, top + rows, device=image.device)
    x = torch.arange(left, left + cols, device=image.device)
    pixels = image[:, reflected(y, height, padding.mode)[:, None], reflected(x, width, padding.mode)]
    if padding.mode != "constant":
        return pixels
    return torch.where(_is_inside(y, height)[:, None] & _is_inside(x, width), pixels, fill_values(padding, image))


def _is_inside(position: Tensor, length: int) -> Tensor:
    return (position >= 0) & (position < length)


def fill_values(padding: Padding, images: Tensor) -> Tensor:
    """Returns the fill [C or 1, 1, 1] in the images' dtype."""
    return constant(padding.fill, images.dtype, images.device).view(-1, 1, 1)


def reflected(position: Tensor, length: int, mode: str) -> Tensor:
    """Returns the positions inside of an axis that positions in or outside of it show.

    ``edge`` repeats the last pixel, ``reflect`` mirrors around it (period 2 * length - 2), ``symmetric`` mirrors and
    repeats it (period 2 * length), however far outside.
    """
    if mode == "reflect":
        period = max(2 * length - 2, 1)
        position = position.remainder(period)
        return torch.minimum(position, (period - position).clamp(max=length - 1))
    if mode == "symmetric":
        position = position.remainder(2 * length)
        return torch.minimum(position, 2 * length - 1 - position)
    return position.clamp(min=0).clamp(max=length - 1)


def on_canvas(plan: Plan, placed: Resampling) -> Tensor:
    """Returns which output pixels show a window that has a size per sample, and not the fill: bool [B, h, w]."""
    y, x = (positions(plan, axis, placed.rows.device) for axis in axes_of(plan))  # type: ignore[union-attr]  # arrays
    over, across = (y >= 0) & (y < placed.rows[:, None]), (x >= 0) & (x < placed.cols[:, None])  # type: ignore[index]
    shown: Tensor = over[:, :, None] & across[:, None, :]
    return shown


def picked(images: Tensor, plan: Plan) -> Tensor:
    """Picks the windows of a batch [B, C, H, W], by the nearest pixel if they are resized: [B, C, h, w] in their dtype.

    It picks for some samples at a time, so that their indices stay in cache.
    """
    if not plan.moves:
        return images
    over, across = (_sources(plan, axis, images.device) for axis in axes_of(plan))
    (count, channels, height, width), padding = images.shape, plan.padding
    y, x = reflected(over, height, padding.mode), reflected(across, width, padding.mode)
    taken = torch.empty((count, channels, plan.height * plan.width), dtype=images.dtype, device=images.device)
    at_once = PICKED_AT_ONCE // (plan.height * plan.width) if images.device.type == "cpu" else count
    for start in range(0, count, max(at_once, 1)):
        samples = slice(start, start + max(at_once, 1))
        index = (y[samples, :, None] * width + x[samples, None, :]).flatten(1)[:, None].expand(-1, channels, -1)
        torch.gather(images[samples].reshape(-1, channels, height * width), 2, index, out=taken[samples])
    taken = taken.view(count, channels, plan.height, plan.width)
    if padding.mode != "constant" or not any(padding.margin):
        return taken
    inside = _is_inside(over, height)[:, None, :, None] & _is_inside(across, width)[:, None, None]
    return torch.where(inside, taken, fill_values(padding, images))


class Axis(NamedTuple):
    """One axis of a plan: how positions of the output come from positions of the source.

    Attributes:
        source: length of the images.
        output: length of the output.
        start: first position of the window in the source, 0 or int64 [B].
        size: length of the window, one or int64 [B].
        flip: bool [B], whether the output is mirrored; False: none is.
        margin: positions by which windows may reach outside of the source, on both sides.
        resized: length of the window after the resize, one or int64 [B]; 0: it keeps its size.
        part: position of the resized window that the output begins with, one or int64 [B].
        mirror: bool [B], whether the window is mirrored before the resize; False: none is.
    """

    source: int
    output: int
    start: Tensor | int
    size: Tensor | int
    flip: Tensor | bool
    margin: int
    resized: Tensor | int = 0
    part: Tensor | int = 0
    mirror: Tensor | bool = False


def per_sample(value: Tensor | int, count: int, device: torch.device) -> Tensor:
    """Returns one number or bool per sample, [B], of one for all or one each."""
    return torch.full((count,), value, device=device) if isinstance(value, int) else value


def axes_of(plan: Plan) -> tuple[Axis, Axis]:
    """Returns the plan's rows and columns."""
    (_, height, width), resampling, (above, beside) = plan.source, plan.resampling, plan.padding.margin
    over = Axis(height, plan.height, plan.top, plan.rows, plan.flip_y, above)
    across = Axis(width, plan.width, plan.left, plan.cols, plan.flip_x, beside)
    if resampling is None:
        return over, across
    return (
        over._replace(resized=resampling.rows, part=-resampling.top, mirror=resampling.mirror_y),
        across._replace(resized=resampling.cols, part=-resampling.left, mirror=resampling.mirror_x),
    )


def positions(plan: Plan, axis: Axis, device: torch.device) -> Tensor:
    """Returns the position before flip and crop of each output position: int64 [B, output]."""
    place = torch.arange(axis.output, device=device).expand(plan.count, -1)
    place = torch.where(per_sample(axis.flip, plan.count, device)[:, None], axis.output - 1 - place, place)
    return place + per_sample(axis.part, plan.count, device)[:, None]


def _sources(plan: Plan, axis: Axis, device: torch.device) -> Tensor:
    """Returns the source position of each output position, back through flip, crop, resize and window."""
    place = positions(plan, axis, device)
    if plan.resampling is not None:
        middle = 0.5 * plan.resampling.exact_masks
        sides = axis.size, axis.resized, axis.mirror
        size, resized, mirror = (per_sample(side, plan.count, device)[:, None] for side in sides)
        place = _nearest(place, size, resized, mirror, middle)
    return place + per_sample(axis.start, plan.count, device)[:, None]


def _nearest(place: Tensor, window: Tensor, length: Tensor, mirror: Tensor, middle: float) -> Tensor:
    """Returns the position of torch's nearest pixel, in float32 as torch: floor((place + middle) * window / length).

    ``middle`` is 0 for ``nearest`` and 0.5 for ``nearest-exact``. If the window is mirrored before the resize,
    positions are counted from the other side.
    """
    place = torch.minimum(place.clamp(min=0), length - 1)  # positions beside the resized window are overwritten later
    step, last = window.to(torch.float32) / length, window - 1
    place = torch.where(mirror, length - 1 - place, place)
    source = torch.minimum(((place + middle) * step).floor().to(torch.int64), last)
    return torch.where(mirror, last - source, source)
