"""Lines of images in memory, as the compiled resize takes them, and which of them a window needs.

Of a variable-size image only the lines that its window needs are read or decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.render.antialiased_resize import REACHES
from mmload.render.plan import Plan
from mmload.render.plan_parts import Resampling

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

Places = npt.NDArray[np.void]

_PLACE = ("start", "first", "count", "height", "width", "layout", "shrink")

PLACE = np.dtype([(name, np.int64) for name in _PLACE], align=True)
"""Dtype of :attr:`ImageLines.places`.

``start`` is the byte at which an image's lines begin, ``first`` the number of the first line there, ``count`` the
number of lines. ``height`` and ``width`` are those of the complete image. ``layout`` is one of those below. The image
in memory, whose lines are counted, is ``shrink`` times smaller than the original.
"""

NEEDED = np.dtype([(name, np.int64) for name in ("first", "stop", "shrink")])
"""Dtype of what a window needs of its image.

``first`` is the first line, ``stop`` one past the last, ``shrink`` the greatest number of times by which the image may
be smaller.
"""

PLANES, LINES, PIXELS = range(3)
"""Layouts: [C, H, W] of fixed-size rows; [H, C, W] of variable-size pixels; [H, W, C] of decoded JPEGs."""


SHRINKS = (2, 4)
"""Numbers of times by which a decoded image may be smaller; by 8, pixels differ by more than parity allows."""

RESERVE = 1.5
"""Factor by which its window has to shrink more than that: with less, pixels differ by more than parity allows."""

_REACH = 2
"""Reach of a cubic; a triangle's is 1."""


class ImageLines(NamedTuple):
    """Lines of some images.

    Attributes:
        memory: uint8 [n], contiguous.
        places: :data:`PLACE` [B]. In the layout :data:`PLANES` all lines are there, and in the original size.
    """

    memory: Bytes
    places: Places

    @classmethod
    def of_batch(cls, images: Tensor, indices: Numbers) -> ImageLines:
        """Returns all lines of some of ``images``, contiguous uint8 [N, C, H, W]."""
        _, channels, height, width = images.shape
        places = np.empty(len(indices), PLACE)
        places[:] = (0, 0, height, height, width, PLANES, 1)
        np.multiply(indices, channels * height * width, out=places["start"])
        return cls(images.view(-1).numpy(), places)

    @classmethod
    def of_images(cls, images: Sequence[Tensor]) -> ImageLines:
        """Returns all lines of variable-size images, uint8 [C, h, w], copied into one memory."""
        places, start = np.empty(len(images), PLACE), 0
        for k, image in enumerate(images):
            _, height, width = image.shape
            places[k] = start, 0, height, height, width, PLANES, 1
            start += image.numel()
        flat = torch.cat([image.reshape(-1) for image in images]) if len(images) else torch.empty(0, dtype=torch.uint8)
        return cls(flat.numpy(), places)

    def batch(self, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Returns images of one shape as a batch: all in memory, uint8 [N, C, H, W], and their indices, int64 [B].

        Raises:
            ValueError: if an image has another size, or does not begin at a multiple of its bytes.
        """
        size, (_, height, width) = math.prod(shape), shape
        starts = np.ascontiguousarray(self.places["start"])
        indices = starts // size
        wrong = (indices * size != starts) | (self.places["height"] != height) | (self.places["width"] != width)
        if wrong.any():
            raise ValueError(f"the images are not {tuple(shape)}, as was planned")
        memory = self.memory[: len(self.memory) // size * size]
        return torch.from_numpy(memory).view(-1, *shape), torch.from_numpy(indices)

    def check_complete(self, needed: Places, sizes: Numbers, channels: int) -> None:
        """Checks that kernels, which check nothing, find all lines that they will read.

        Args:
            needed: :data:`NEEDED` [B], of each image.
            sizes: int64 [B, 2], height and width of each image.
            channels: number of channels of all images.

        Raises:
            IndexError: if a line is missing.
            ValueError: if an image has another size.
        """
        start, first, count, height, width, layout, shrink = (self.places[name] for name in _PLACE)
        if (np.stack((height, width), 1) != sizes).any():
            raise ValueError("the images have other sizes than in the plan")
        if ((shrink < 1) | (shrink > needed["shrink"])).any():
            raise ValueError("an image was decoded smaller than its window allows")
        inside = (start >= 0) & (start + count * channels * -(-width // shrink) <= len(self.memory))
        more = np.where(shrink > 1, shrink, 0)
        begin, stop = np.maximum(needed["first"] - more, 0), np.minimum(needed["stop"] + more, height)
        present = (first * shrink <= begin) & (np.minimum((first + count) * shrink, height) >= stop)
        present &= (first >= 0) & (first + count <= -(-height // shrink))
        complete = (layout != PLANES) | ((count == height) & (shrink == 1))
        if not (inside & present & complete).all():
            raise IndexError("a window needs lines of its image that are not in memory")

    def image(self, k: int, channels: int) -> Tensor:
        """Returns the lines of image ``k`` as a view, uint8 [C, lines, W]."""
        start, _, count, _, width, layout, shrink = self.places[k].tolist()
        width = -(-width // shrink)
        flat = torch.from_numpy(self.memory[start : start + count * channels * width])
        if layout == PLANES:
            return flat.view(channels, count, width)
        if layout == LINES:
            return flat.view(count, channels, width).transpose(0, 1)
        return flat.view(count, width, channels).permute(2, 0, 1)


def needed_lines(plan: Plan) -> Places:
    """Returns what each image's window needs of it: :data:`NEEDED` [B].

    A window that is larger than its canvas needs only the lines that show there. Padding may be made of any line of the
    image, unless it is constant. Where no kernel resizes, all lines are needed, whatever shows.

    Args:
        plan: plan of variable-size images.
    """
    if plan.sizes is None:
        raise ValueError("the plan is for fixed-size images")
    height = plan.sizes[:, 0].numpy()
    top = np.zeros(plan.count, np.int64) if plan.top is None else plan.top.numpy()
    rows = plan.per_sample(plan.rows).numpy()
    needed = np.empty(plan.count, NEEDED)
    if plan.resampling is not None and not is_by_kernel(plan.resampling):
        needed["first"], needed["stop"], needed["shrink"] = 0, height, 1
        return needed
    first, stop = top, top + rows
    placed = None if plan.resampling is None else plan.resampling.placement
    if placed is not None and plan.resampling is not None:
        wanted, down = placed.rows.numpy(), placed.top.numpy()
        scale = rows / wanted
        reach = _REACH * np.maximum(scale, 1.0) + 1
        begin, end = np.maximum(-down, 0), np.minimum(wanted, plan.resampling.height - down)
        first = top + np.floor(np.maximum(begin * scale - reach, 0)).astype(np.int64)
        stop = top + np.ceil(np.minimum(end * scale + reach, rows)).astype(np.int64)
    if plan.padding is not None and plan.padding.mode != "constant":
        outside = (top < 0) | (top + rows > height)
        first, stop = np.where(outside, 0, first), np.where(outside, height, stop)
    needed["first"] = np.clip(first, 0, height)
    needed["stop"] = np.clip(stop, needed["first"], height)
    needed["shrink"] = _shrinks_of(plan, plan.sizes)
    return needed


def _shrinks_of(plan: Plan, sizes: Tensor) -> Numbers:
    """Returns the greatest number of times by which each image may be smaller for its window: int64 [B]."""
    how, allowed = plan.resampling, np.ones(plan.count, np.int64)
    if how is None:
        return allowed
    placed = how.placement
    down, across = (how.height, how.width) if placed is None else (placed.rows, placed.cols)
    rows, cols = plan.per_sample(plan.rows), plan.per_sample(plan.cols)
    least = torch.minimum(rows / plan.per_sample(down), cols / plan.per_sample(across))
    if plan.top is not None and plan.left is not None:
        inside = (plan.top >= 0) & (plan.left >= 0)
        inside &= (plan.top + rows <= sizes[:, 0]) & (plan.left + cols <= sizes[:, 1])
        least = torch.where(inside, least, 1.0)
    for shrink in SHRINKS:
        allowed[least.numpy() >= RESERVE * shrink] = shrink
    return allowed


def is_by_kernel(how: Resampling) -> bool:
    """Returns whether a compiled kernel resizes."""
    return how.antialias and how.mode in REACHES
