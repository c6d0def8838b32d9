"""Cuts a plan's windows out of images: cropped, padded, flipped, in the images' dtype, as views where possible.

Plans are those with tensors in place of arrays, on the images' device: :func:`mmload.render.plan_copies.with_tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmload.render.kernel_arguments import Bytes, Numbers
from mmload.render.plan import Plan
from mmload.render.plan_parts import Padding, Placement
from mmload.runtime.memory_pool import constant

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


class Window(NamedTuple):
    """Geometry of one sample in integers: source window, start of the crop after a resize, dimensions to flip."""

    top: int
    left: int
    rows: int
    cols: int
    part_top: int
    part_left: int
    flips: tuple[int, ...]

    def inside(self, shape: Sequence[int]) -> bool:
        """Returns whether all of the source window lies in an image [C, H, W]."""
        _, height, width = shape
        return self.top >= 0 and self.left >= 0 and self.top + self.rows <= height and self.left + self.cols <= width


def windows(plan: Plan) -> list[Window]:
    """Returns the plan's geometry as Python numbers."""
    zero = [0] * plan.count
    top, left = _numbers(plan.top, zero), _numbers(plan.left, zero)
    rows, cols = _numbers(plan.rows, zero), _numbers(plan.cols, zero)
    part = plan.resampling
    part_top = zero if part is None else _numbers(part.top, zero)
    part_left = zero if part is None else _numbers(part.left, zero)
    across, over = _numbers(plan.flip_x, zero), _numbers(plan.flip_y, zero)
    flips = [(-1,) * bool(x) + (-2,) * bool(y) for x, y in zip(across, over, strict=True)]
    return [Window(*one) for one in zip(top, left, rows, cols, part_top, part_left, flips, strict=True)]


def _numbers(value: Tensor | int | None, zero: list[int]) -> list[int]:
    """Returns one number per sample."""
    if value is None:
        return zero
    if isinstance(value, int):
        return [value] * len(zero)
    numbers: list[int] = value.tolist()
    return numbers


def cut(image: Tensor, window: Window, padding: Padding | None) -> Tensor:
    """Cuts the source window out of one image [C, H, W]: a view if it lies inside, else a padded copy."""
    top, left, rows, cols = window[:4]
    _, height, width = image.shape
    if window.inside(image.shape):
        return image[:, top : top + rows, left : left + cols]
    padding = padding or Padding()
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


def chunks(count: int, sizes: Sequence[int], most: int) -> list[slice]:
    """Divides samples of the sizes [C, h, w] into parts of at most ``most`` elements, or of one sample."""
    size = max(1, most // max(math.prod(sizes), 1))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def on_canvas(plan: Plan, placed: Placement) -> Tensor:
    """Returns which output pixels show a resized window, and not the canvas around it: bool [B, h, w]."""
    y, x = (positions(plan, axis, placed.rows.device) for axis in axes_of(plan))
    over, across = (y >= 0) & (y < placed.rows[:, None]), (x >= 0) & (x < placed.cols[:, None])
    shown: Tensor = over[:, :, None] & across[:, None, :]
    return shown


def picked(images: Tensor, plan: Plan) -> Tensor:
    """Picks the windows of a batch [B, C, H, W], by the nearest pixel if they are resized: [B, C, h, w] in their dtype.

    It picks for some samples at a time, so that their indices stay in cache.
    """
    if not plan.moves:
        return images
    y, x = (_sources(plan, axis, images.device) for axis in axes_of(plan))
    (count, channels, height, width), inside = images.shape, None
    if plan.padding is not None:
        inside = _is_inside(y, height)[:, None, :, None] & _is_inside(x, width)[:, None, None]
        y, x = reflected(y, height, plan.padding.mode), reflected(x, width, plan.padding.mode)
    taken = torch.empty((count, channels, plan.height * plan.width), dtype=images.dtype, device=images.device)
    most = PICKED_AT_ONCE if images.device.type == "cpu" else count * plan.height * plan.width
    for samples in chunks(count, (plan.height, plan.width), most):
        index = (y[samples, :, None] * width + x[samples, None, :]).flatten(1)[:, None].expand(-1, channels, -1)
        torch.gather(images[samples].reshape(-1, channels, height * width), 2, index, out=taken[samples])
    taken = taken.view(count, channels, plan.height, plan.width)
    if plan.padding is None or plan.padding.mode != "constant" or inside is None:
        return taken
    return torch.where(inside, taken, fill_values(plan.padding, images))


class Axis(NamedTuple):
    """One axis of a plan: how positions of the output come from positions of the source.

    Attributes:
        source: length of the images.
        output: length of the output.
        start: int64 [B], first position of the window in the source; None: 0.
        size: length of the window, one or int64 [B].
        flip: bool [B], whether the output is mirrored.
        margin: positions by which windows may reach outside of the source, on both sides.
        resized: length of the window after the resize, one or int64 [B]; None: it keeps its size.
        part: int64 [B], first position of the resized window that the output shows; None: 0.
        mirror: bool [B], whether the window is mirrored before the resize.
    """

    source: int
    output: int
    start: Tensor | None
    size: Tensor | int
    flip: Tensor | None
    margin: int
    resized: Tensor | int | None = None
    part: Tensor | None = None
    mirror: Tensor | None = None


def per_sample(value: Tensor | int, count: int, device: torch.device) -> Tensor:
    """Returns one number per sample, int64 [B], of one for all or one each."""
    return torch.full((count,), value, device=device) if isinstance(value, int) else value


def axes_of(plan: Plan) -> tuple[Axis, Axis]:
    """Returns the plan's rows and columns."""
    (_, height, width), resampling = plan.source, plan.resampling
    above, beside = (0, 0) if plan.padding is None else plan.padding.margin
    over = Axis(height, plan.height, plan.top, plan.rows, plan.flip_y, above)
    across = Axis(width, plan.width, plan.left, plan.cols, plan.flip_x, beside)
    if resampling is None:
        return over, across
    if (placed := resampling.placement) is None:
        over, across = (
            over._replace(resized=resampling.height, part=resampling.top),
            across._replace(resized=resampling.width, part=resampling.left),
        )
    else:
        over = over._replace(resized=placed.rows, part=_less(resampling.top, placed.top))
        across = across._replace(resized=placed.cols, part=_less(resampling.left, placed.left))
    return over._replace(mirror=resampling.mirror_y), across._replace(mirror=resampling.mirror_x)


def _less(start: Tensor | None, placed: Tensor) -> Tensor:
    """Returns the start of a crop in the resized window, of the starts of both on the canvas."""
    return -placed if start is None else start - placed


def positions(plan: Plan, axis: Axis, device: torch.device) -> Tensor:
    """Returns the position before flip and crop of each output position: int64 [B, output]."""
    place = torch.arange(axis.output, device=device).expand(plan.count, -1)
    if axis.flip is not None:
        place = torch.where(axis.flip[:, None], axis.output - 1 - place, place)
    return place if axis.part is None else place + axis.part[:, None]


def _sources(plan: Plan, axis: Axis, device: torch.device) -> Tensor:
    """Returns the source position of each output position, back through flip, crop, resize and window."""
    place = positions(plan, axis, device)
    if plan.resampling is not None and axis.resized is not None:
        middle = 0.5 * plan.resampling.exact_masks
        place = _nearest(place, per_sample(axis.size, plan.count, device), axis.resized, axis.mirror, middle)
    return place if axis.start is None else place + axis.start[:, None]


def _nearest(place: Tensor, window: Tensor, length: Tensor | int, mirror: Tensor | None, middle: float) -> Tensor:
    """Returns the position of torch's nearest pixel, in float32 as torch: floor((place + middle) * window / length).

    ``middle`` is 0 for ``nearest`` and 0.5 for ``nearest-exact``. If the window is mirrored before the resize,
    positions are counted from the other side.
    """
    if isinstance(length, Tensor):  # one per sample; positions beside the resized window are overwritten later
        length = length[:, None]
        place = torch.minimum(place.clamp(min=0), length - 1)
    step, last = window.to(torch.float32)[:, None] / length, window[:, None] - 1
    if mirror is not None:
        place = torch.where(mirror[:, None], length - 1 - place, place)
    source = torch.minimum(((place + middle) * step).floor().to(torch.int64), last)
    return source if mirror is None else torch.where(mirror[:, None], last - source, source)
