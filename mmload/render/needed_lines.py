"""Which lines of its image a window needs, so that no others are read or decoded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mmload.render.antialiased_resize import REACHES
from mmload.render.framing import Resampling
from mmload.render.plan import Plan

Numbers = npt.NDArray[np.int64]

SHRINKS = (2, 4)
"""How many times smaller an image may be decoded; of eight, pixels differ by more than parity allows."""

RESERVE = 1.5
"""How many times more than that its window has to shrink: with less, pixels differ by more than parity allows."""

_REACH = 2
"""Of a cubic; a triangle's is 1."""


def needed_lines(plan: Plan) -> Numbers:
    """The first line of each image that its window needs, and the one after the last: int64 [B, 2].

    Of a window that is larger than its canvas only the lines that show there. What lies outside of the image may be
    made of any of its lines, unless it is constant. Where no kernel resizes, all lines are needed, whatever shows.

    Args:
        plan: of images of a size each.
    """
    if plan.sizes is None:
        raise ValueError("the plan is of images of one size")
    height = plan.sizes[:, 0].numpy()
    top = np.zeros(plan.count, np.int64) if plan.top is None else plan.top.numpy()
    rows = plan.of_batch(plan.rows).numpy()
    if plan.resampling is not None and not is_by_kernel(plan.resampling):
        return np.stack((np.zeros_like(height), height), 1)
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
    first = np.clip(first, 0, height)
    return np.stack((first, np.clip(stop, first, height)), 1)


def shrinks_of(plan: Plan) -> Numbers:
    """How many times smaller each image may be for its window, if that is inside: int64 [B]."""
    how = plan.resampling
    if plan.sizes is None or how is None:
        raise ValueError("the plan is of images of one size, or resizes none")
    allowed = np.ones(plan.count, np.int64)
    if not is_by_kernel(how):
        return allowed
    placed = how.placement
    down, across = (how.height, how.width) if placed is None else (placed.rows, placed.cols)
    rows, cols = plan.of_batch(plan.rows), plan.of_batch(plan.cols)
    least = torch.minimum(rows / plan.of_batch(down), cols / plan.of_batch(across))
    if plan.top is not None and plan.left is not None:
        inside = (plan.top >= 0) & (plan.left >= 0)
        inside &= (plan.top + rows <= plan.sizes[:, 0]) & (plan.left + cols <= plan.sizes[:, 1])
        least = torch.where(inside, least, 1.0)
    for shrink in SHRINKS:
        allowed[least.numpy() >= RESERVE * shrink] = shrink
    return allowed


def is_by_kernel(how: Resampling) -> bool:
    """Whether a compiled kernel resizes."""
    return how.antialias and how.mode in REACHES
