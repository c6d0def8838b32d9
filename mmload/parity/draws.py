"""Samples the draws of a collate's step, and those of torchvision's transform with the same settings.

Takes a step, the shape of its input and seeds as the loader creates them, and returns two samples of each property
(first row, area, whether it flips ...). torchvision's samples come from its ``make_params`` or, if it has none, from
its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mmload import augment
from mmload.augment.draws import Draws, sample_seeds
from mmload.augment.step import Step
from mmload.interop.torchvision import equivalent_of
from mmload.parity import detection_draws, level_draws, mixed_draws
from mmload.render.plan import Plan

Shape = tuple[int, int, int]
Sample = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Property:
    """One drawn quantity: the same number of draws by mmload and by torchvision.

    Attributes:
        name: such as ``RandomCrop: first row``.
        kind: "integer" for integers, "real" for others, "probability" for 0 and 1; "repeat" for whether a draw is the
            same an epoch later, also 0 and 1.
        ours: int64 or float64 [N], mmload's draws.
        theirs: int64 or float64 [N], torchvision's draws.
    """

    name: str
    kind: str
    ours: Sample
    theirs: Sample


def properties(step: nn.Module, shape: Shape, seeds: Tensor, step_index: int, seed: int) -> list[Property]:
    """Both samples of everything that a step draws; empty if it draws nothing comparable.

    Args:
        step: a step of a collate.
        shape: (C, H, W) of its input images.
        seeds: int64 [N], for mmload's draws.
        step_index: the index of the step in the collate.
        seed: for torchvision's draws.
    """
    read = next((read for kind, read in _READERS.items() if isinstance(step, kind)), None)
    if read is None:
        return []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draws = Draws(seeds, step_index, boxes=detection_draws.boxes_for(shape, len(seeds)))
        found = list(read(step, shape, draws, len(seeds)))
    name = type(step).__name__
    return [Property(name=f"{name}: {what}", kind=kind, ours=ours, theirs=other) for what, kind, ours, other in found]


def run_seeds(rows: int, count: int, seed: int) -> Tensor:
    """Seeds [count] of a training run over ``rows`` rows, epoch after epoch, as the loader creates them."""
    ids = torch.arange(rows)
    epochs = [sample_seeds(seed, epoch, ids) for epoch in range(-(-count // rows))]
    return torch.cat(epochs)[:count]


def shape_after(step: nn.Module, shape: Shape) -> Shape:
    """The shape of a step's output images for input images of ``shape``."""
    if not isinstance(step, Step):
        return shape
    nothing = torch.zeros(1, dtype=torch.int64)
    draws = Draws(nothing, 0, epoch=0, ids=nothing, boxes=detection_draws.boxes_for(shape, 1))
    plan = step.describe(_blank(1, shape), draws)
    return shape[0], plan.height, plan.width


DrawSamples = Iterator[tuple[str, str, Sample, Sample]]


def _crop(step: augment.RandomCrop, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    plan = step.describe(_blank(count, shape), draws)
    theirs = _params(equivalent_of(step), shape, count)
    left, top, _, _ = theirs[0]["padding"]
    if plan.top is not None and plan.left is not None:
        yield "first row", "integer", _int_array(plan.top + top), _column(theirs, "top")
        yield "first column", "integer", _int_array(plan.left + left), _column(theirs, "left")


def _resized_crop(step: augment.RandomResizedCrop, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    plan = step.describe(_blank(count, shape), draws)
    theirs = _params(equivalent_of(step), shape, count)
    if plan.top is None or plan.left is None:
        return
    rows, cols = _int_array(torch.as_tensor(plan.rows)), _int_array(torch.as_tensor(plan.cols))
    their_rows, their_cols = _column(theirs, "height"), _column(theirs, "width")
    area = float(shape[1] * shape[2])
    yield "share of the area", "real", rows * cols / area, their_rows * their_cols / area
    yield "width over height", "real", cols / rows, their_cols / their_rows
    yield "rows", "integer", rows, their_rows
    yield "columns", "integer", cols, their_cols
    yield "first row", "integer", _int_array(plan.top), _column(theirs, "top")
    yield "first column", "integer", _int_array(plan.left), _column(theirs, "left")


def _chance(what: str, field: str) -> Callable[[nn.Module, Shape, Draws, int], DrawSamples]:
    """A reader for steps that only draw whether they apply; ``field`` is the plan's mask of the selected samples."""

    def read(step: Any, shape: Shape, draws: Draws, count: int) -> DrawSamples:
        chosen = getattr(step.describe(_blank(count, shape), draws), field)
        yield what, "probability", _int_array(chosen), _applied(step, count)

    return read


def _erasing(step: augment.RandomErasing, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    (hole,) = step.describe(_blank(count, shape), draws).holes
    holed = hole.height > 0
    yield "share erased", "probability", _int_array(holed), _applied(step, count)
    if not holed.any():
        return
    theirs = [params for params in _params(equivalent_of(step), shape, count) if params["v"] is not None]
    if not theirs:
        return
    rows, cols = _int_array(hole.height[holed]), _int_array(hole.width[holed])
    their_rows, their_cols = _column(theirs, "h"), _column(theirs, "w")
    area = float(shape[1] * shape[2])
    yield "share of the area", "real", rows * cols / area, their_rows * their_cols / area
    yield "height over width", "real", rows / cols, their_rows / their_cols
    yield "first row", "integer", _int_array(hole.top[holed]), _column(theirs, "i")
    yield "first column", "integer", _int_array(hole.left[holed]), _column(theirs, "j")


def _jitter(step: augment.ColorJitter, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    factors = step.draw(draws)
    theirs = _params(equivalent_of(step), shape, count)
    for which, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        if step.ranges[which] is not None:
            ours = factors.values[:, which].to(torch.float64).numpy()
            yield name, "real", ours, np.array([each[f"{name}_factor"] for each in theirs], dtype=np.float64)
    weights = torch.tensor([64, 16, 4, 1])
    orders = torch.stack([each["fn_idx"] for each in theirs])
    yield "order", "integer", _int_array((factors.order * weights).sum(1)), _int_array((orders * weights).sum(1))


_READERS: dict[type[nn.Module], Callable[[Any, Shape, Draws, int], DrawSamples]] = {
    augment.RandomCrop: _crop,
    augment.RandomResizedCrop: _resized_crop,
    augment.RandomHorizontalFlip: _chance("share flipped", "flip_x"),
    augment.RandomVerticalFlip: _chance("share flipped", "flip_y"),
    augment.RandomGrayscale: _chance("share made gray", "gray"),
    augment.RandomErasing: _erasing,
    augment.ColorJitter: _jitter,
    **level_draws.READERS,
    **detection_draws.READERS,
    **mixed_draws.READERS,
}


def _params(transform: Any, shape: Shape, count: int) -> list[dict[str, Any]]:
    """Samples of torchvision's own draws."""
    image = torch.empty(shape)
    return [transform.make_params([image]) for _ in range(count)]


def _applied(step: nn.Module, count: int) -> Sample:
    """Whether torchvision's transform of a step with a probability was applied, in each of ``count`` runs.

    A transform that is not applied returns its input tensor itself.
    """
    transform, image = equivalent_of(step), torch.zeros(3, 16, 16)
    return np.array([transform(image) is not image for _ in range(count)], dtype=np.int64)


def _blank(count: int, shape: Shape) -> Plan:
    return Plan.of(count, shape, 255.0, torch.device("cpu"))


def _int_array(values: Tensor | None) -> Sample:
    if values is None:
        raise ValueError("the step described none of what it is for")
    return values.to(torch.int64).numpy()


def _column(params: Sequence[dict[str, Any]], name: str) -> Sample:
    return np.array([each[name] for each in params], dtype=np.int64)
