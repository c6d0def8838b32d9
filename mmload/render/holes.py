"""Rectangles that are overwritten: a plan's as kernels take them, the compiled loop, and torch's operations.

Both ways give the same bits. The kernels that color lines call the loop while these lines are in cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.cached_tensors import constant, scratch
from mmload.render.kernel_arguments import HOLE, Holes, Pixels
from mmload.render.plan import Plan
from mmload.render.plan_parts import Hole
from mmload.runtime.normal_noise import normal_line, normals
from mmload.runtime.numba_compile import called, inlined
from mmload.runtime.numba_internals import rounded

_U = np.uintp

_NO_MEMORY = np.empty(0, np.float32)


def holes_of(plan: Plan) -> Holes:
    """Returns the holes of all samples of a plan, without working memory."""
    sides = np.zeros((plan.count, len(plan.holes)), HOLE)
    values = np.full((len(plan.holes), plan.source[0]), np.nan, np.float32)
    for n, hole in enumerate(plan.holes):
        for name in HOLE.names or ():
            if (numbers := getattr(hole, name)) is not None:
                sides[name][:, n] = numbers.numpy()
        if hole.value is not None:
            values[n] = hole.value
    return Holes(sides, values, _NO_MEMORY)


def no_holes(count: int, channels: int) -> Holes:
    """Returns that no sample has a hole."""
    return Holes(np.zeros((count, 0), HOLE), np.zeros((0, channels), np.float32), _NO_MEMORY)


def holes_in(holes: Holes, samples: slice, width: int) -> Holes:
    """Returns the holes of some samples, with the calling thread's working memory for lines of this width."""
    return Holes(holes.sides[samples], holes.values, scratch("noise", (width + 1,), torch.float32).numpy())


class LineRange(NamedTuple):
    """Lines of a sample, in the order of the output's memory.

    Attributes:
        plane: first channel of the lines.
        depth: channels that are interleaved in a line.
        begin: first line.
        end: one past the last line.
        across: values of a line.
    """

    plane: Any
    depth: Any
    begin: int
    end: int
    across: int


@inlined
def erased_lines(holes: Holes, sample: int) -> tuple[int, int]:
    """Returns the first line with a hole of a sample and one past the last; (a large number, 0) if it has none."""
    begin, end = 1 << 62, 0
    for n in range(holes.sides.shape[1]):
        hole = holes.sides[sample, n]
        if hole.height > 0:
            begin, end = min(begin, hole.top), max(end, hole.top + hole.height)
    return begin, end


@called
def erase(holes: Holes, sample: int, lines: LineRange, target: Pixels, at: Any) -> None:
    """Overwrites a sample's holes in some of its lines.

    A line of noise takes the words after those of the hole's lines above it, and of the channels before.

    Args:
        holes: of the samples of a call.
        sample: number of the sample among them.
        lines: lines that are in ``target``.
        target: flat; float32, uint8 or the bits of half precision.
        at: index of the first line's first value.
    """
    plane, at, depth = _U(lines.plane), np.int64(at), lines.depth  # uint64 and int64 together make floats
    values, noise = holes.values, holes.noise
    for n in range(holes.sides.shape[1]):
        hole = holes.sides[sample, n]
        top, left, height, width, key = hole.top, hole.left, hole.height, _U(hole.width), np.uint64(hole.noise)
        half, same = (width + _U(1)) // _U(2), True  # NaN is not the same as itself
        for c in range(_U(depth)):
            same = same and values[n, plane + c] == values[n, plane]
        for y in range(max(top, lines.begin), min(top + height, lines.end)):
            line = _U(at + (y - lines.begin) * lines.across + left * depth)
            if same:
                value = rounded(values[n, plane], target)
                for i in range(width * _U(depth)):
                    target[line + i] = value
                continue
            for c in range(_U(depth)):
                if np.isnan(values[n, plane + c]):
                    words = ((plane + c) * _U(height) + _U(y - top)) * half
                    normal_line(key, np.uint64(words), half, noise)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = rounded(noise[x], target)
                else:
                    value = rounded(values[n, plane + c], target)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = value


def punch_batch(hole: Hole, images: Tensor) -> None:
    """Overwrites every sample's hole in a batch [B, C, H, W], by torch's operations."""
    _, channels, rows, cols = images.shape
    y = torch.arange(rows, device=images.device).view(1, 1, -1, 1) - _per_sample(hole.top)
    x = torch.arange(cols, device=images.device).view(1, 1, 1, -1) - _per_sample(hole.left)
    height, width = _per_sample(hole.height), _per_sample(hole.width)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if hole.value is not None:
        values = constant(hole.value, torch.float32, images.device).view(-1, 1, 1)
        images.copy_(torch.where(inside, values.to(images.dtype), images))
    elif hole.noise is not None:
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        half, second = (width + 1) // 2, x >= (width + 1) // 2
        words = (channel * height + y) * half + torch.where(second, x - half, x)
        noise = normals(_per_sample(hole.noise), words, second)
        images.copy_(torch.where(inside, noise.to(images.dtype), images))


def _per_sample(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)
