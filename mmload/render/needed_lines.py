"""Which lines of its image a window needs, so that no others are read or decoded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.render.plan import Plan

Numbers = npt.NDArray[np.int64]

_REACH = 2
"""Of a cubic; a triangle's is 1."""


def needed_lines(plan: Plan, *, all_lines: bool = False) -> Numbers:
    """The first line of each image that its window needs, and the one after the last: int64 [B, 2].

    Of a window that is larger than its canvas only the lines that show there. What lies outside of the image may be
    made of any of its lines, unless it is constant.

    Args:
        plan: of images of a size each.
        all_lines: whether all lines of the images are needed, whatever shows.
    """
    if plan.sizes is None:
        raise ValueError("the plan is of images of one size")
    height = plan.sizes[:, 0].numpy()
    top = np.zeros(plan.count, np.int64) if plan.top is None else plan.top.numpy()
    rows = plan.of_batch(plan.rows).numpy()
    if all_lines:
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
