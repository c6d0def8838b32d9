"""Samples the draws of the steps for detection, and torchvision's: sizes, places, windows that depend on boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from mmload import augment
from mmload.augment.draws import Draws
from mmload.interop.torchvision import equivalent_of
from mmload.render.plan import Plan

Shape = tuple[int, int, int]
Sample = npt.NDArray[Any]
DrawSamples = Iterator[tuple[str, str, Sample, Sample]]

_BOXES = ((0.1, 0.1, 0.4, 0.6), (0.5, 0.3, 0.9, 0.95), (0.2, 0.7, 0.3, 0.8))
"""Three boxes as shares of the image."""

_FEWER = 2_000  # torchvision takes about a millisecond for a crop that depends on boxes


def boxes_for(shape: Shape, count: int) -> Callable[[Plan], tuple[Tensor, Tensor]]:
    """The same three boxes for every sample, as :class:`mmload.augment.draws.Draws` takes them."""
    boxes = torch.tensor(_BOXES) * torch.tensor([shape[2], shape[1], shape[2], shape[1]])
    return lambda plan: (boxes.expand(count, 3, 4), torch.ones(count, 3, dtype=torch.bool))


def _plan(step: Any, shape: Shape, draws: Draws, count: int) -> Plan:
    plan: Plan = step.describe(Plan.of(count, shape, 255.0, torch.device("cpu")), draws)
    return plan


def placed(step: augment.ScaleJitter | augment.RandomShortestSize, shape: Shape, draws: Draws, n: int) -> DrawSamples:
    """The size after the resize, and the place of the crop."""
    how = _plan(step, shape, draws, n).resampling
    if how is None or how.placement is None:
        return
    transform, image = equivalent_of(step), torch.empty(shape)
    theirs = [transform.make_params([image]) for _ in range(n)]
    sizes = _int([one["size"] for one in theirs])
    yield "rows", "integer", how.placement.rows.numpy(), sizes[:, 0]
    yield "columns", "integer", how.placement.cols.numpy(), sizes[:, 1]
    yield "first row", "integer", -how.placement.top.numpy(), _int([one["top"] for one in theirs])
    yield "first column", "integer", -how.placement.left.numpy(), _int([one["left"] for one in theirs])


def zoom_out(step: augment.RandomZoomOut, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Whether the step applies, the size of the canvas, and the place on it."""
    plan = _plan(step, shape, draws, count)
    if plan.top is None or plan.left is None:
        return
    _, height, width = shape
    transform, image = equivalent_of(step), torch.zeros(shape)
    theirs = _int([transform.make_params([image])["padding"] for _ in range(count)])
    applied = _int([bool(torch.rand(1) < transform.p) for _ in range(count)])
    rows, cols = (torch.as_tensor(side).numpy() for side in (plan.rows, plan.cols))
    on = (rows > height) | (cols > width)
    some = (theirs.reshape(-1, 4)[:, :2] + theirs.reshape(-1, 4)[:, 2:]).max(1) > 0
    yield "share zoomed out", "probability", on.astype(np.int64), applied * some
    if on.any() and some.any():
        theirs = theirs[some]
        yield "rows", "integer", rows[on], theirs[:, 1] + theirs[:, 3] + height
        yield "columns", "integer", cols[on], theirs[:, 0] + theirs[:, 2] + width
        yield "first row", "integer", -plan.top.numpy()[on], theirs[:, 1]
        yield "first column", "integer", -plan.left.numpy()[on], theirs[:, 0]


def iou_crop(step: augment.RandomIoUCrop, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Whether the step crops, and the window, for three boxes."""
    plan = _plan(step, shape, draws, count)
    if plan.top is None or plan.left is None:
        return
    boxes, _ = boxes_for(shape, 1)(plan)
    fewer, transform = min(count, _FEWER), equivalent_of(step)
    given = [torch.empty(shape), tv_tensors.BoundingBoxes(boxes[0], format="XYXY", canvas_size=shape[1:])]
    theirs = [transform.make_params(given) for _ in range(fewer)]
    ours = {"top": plan.top, "left": plan.left, "height": plan.rows, "width": plan.cols}
    whole = (torch.as_tensor(plan.rows) == shape[1]) & (torch.as_tensor(plan.cols) == shape[2])
    crops = (~whole).numpy()[:fewer]
    yield "share cropped", "probability", crops.astype(np.int64), _int([bool(one) for one in theirs])
    params = [one for one in theirs if one]
    if crops.any() and params:
        for name, values in ours.items():
            yield name, "integer", torch.as_tensor(values).numpy()[:fewer][crops], _int([one[name] for one in params])


def _int(values: Any) -> Sample:
    return np.array(values, dtype=np.int64)


READERS: dict[type[nn.Module], Callable[[Any, Shape, Draws, int], DrawSamples]] = {
    augment.ScaleJitter: placed,
    augment.RandomShortestSize: placed,
    augment.RandomZoomOut: zoom_out,
    augment.RandomIoUCrop: iou_crop,
}
"""The function that samples the draws of each step."""
