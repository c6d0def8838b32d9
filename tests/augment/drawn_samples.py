"""Samples the draws of a collate's steps, and those of torchvision's transforms with the same settings.

Takes a step, the shape of its input and seeds as the loader creates them, and returns two samples of each property
(first row, area, whether it flips ...). torchvision's samples come from its ``make_params`` or, if it has none, from
its output. A step that mixes once a batch draws from the seed of the first sample of the batch, so its draws for each
sample have the distribution of those for batches, which is torchvision's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import drawn_programs
import numpy as np
import numpy.typing as npt
import torch
from distributions import chi_square, kolmogorov_smirnov
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload import augment
from mmload.augment.boxes import Trail, boxes_in
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws, sample_seeds
from mmload.augment.mix import MixChoice, MixStep
from mmload.augment.step import Step
from mmload.interop.torchvision import equivalent_of
from mmload.render.plan import Plan

ALPHA = 1e-4
"""Probability that right draws fail any test of a collate; each test uses ``ALPHA`` divided by their number."""

Shape = tuple[int, int, int]
Sample = npt.NDArray[Any]
DrawSamples = Iterator[tuple[str, str, Sample, Sample]]
Mix = tuple[float, tuple[int, int, int, int]]
"""The share of a sample's own values, and the rectangle (x1, y1, x2, y2) that is pasted."""

_BOXES = ((0.1, 0.1, 0.4, 0.6), (0.5, 0.3, 0.9, 0.95), (0.2, 0.7, 0.3, 0.8))  # shares of the image
_UNCHANGED: Mix = (1.0, (0, 0, 0, 0))
_NEXT = 4_000  # number of draws that are compared with those of the next epoch
_FEWER = 2_000  # torchvision takes about a millisecond for a crop that depends on boxes


@dataclass(frozen=True, kw_only=True)
class Property:
    """One drawn quantity: the same number of draws by mmload and by torchvision.

    Attributes:
        name: such as ``RandomCrop: first row``.
        kind: "integer" for integers, "real" for others, "probability" for 0 and 1.
        ours: int64 or float64 [N], mmload's draws.
        theirs: int64 or float64 [N], torchvision's draws.
    """

    name: str
    kind: str
    ours: Sample
    theirs: Sample

    def tests(self) -> list[float]:
        """Returns the p-values; for integers also whether both ends are as frequent as other values."""
        if self.kind == "real":
            return [kolmogorov_smirnov(self.ours, self.theirs)]
        found = [chi_square(self.ours, self.theirs)]
        both = np.concatenate([self.ours, self.theirs])
        if self.kind == "integer" and np.ptp(both) > 1:
            found += [chi_square(self.ours != end, self.theirs != end) for end in (both.min(), both.max())]
        return found


def compared(collate: Collate, shape: Shape, *, rows: int = 18, seed: int, draws: int) -> dict[str, bool]:
    """Compares the draws of every random step with torchvision's own, and those of one epoch with the next.

    Args:
        collate: the steps; sizes that follow the epoch are those of epoch 0.
        shape: (C, H, W) of the stored images.
        rows: number of rows per epoch.
        seed: the seed of the run, and of torchvision's draws.
        draws: number of draws of each property.

    Returns:
        Name of each property -> whether all of its tests hold.
    """
    found: list[Property] = []
    for index, each_epochs in enumerate(collate.steps):
        step = each_epochs.at_epoch(0) if isinstance(each_epochs, Step) else each_epochs
        found += _of_two_epochs(step, shape, index, rows, draws, seed)
        shape = _shape_after(step, shape)
    results = {each.name: each.tests() for each in found}
    limit = ALPHA / max(1, sum(map(len, results.values())))
    return {name: min(values) >= limit for name, values in results.items()}


def _of_two_epochs(step: nn.Module, shape: Shape, index: int, rows: int, draws: int, seed: int) -> list[Property]:
    """Returns all properties that a step draws, and whether its draws change in the next epoch."""
    here = properties(step, shape, run_seeds(rows, draws, seed), index, seed)
    first = next((at for at, each in enumerate(here) if each.kind != "real"), None)
    if first is None:
        return here
    count = min(draws, _NEXT)
    following = run_seeds(rows, count + rows, seed)[rows:]
    now, there = here[first], properties(step, shape, following, index, seed + 1)[first]
    ours, theirs = now.ours[:count] == there.ours[:count], now.theirs[:count] == there.theirs[:count]
    repeated = Property(name=f"{now.name}, the same an epoch later", kind="probability", ours=ours, theirs=theirs)
    return [*here, repeated]


def properties(step: nn.Module, shape: Shape, seeds: Tensor, index: int, seed: int) -> list[Property]:
    """Returns both samples of everything that a step draws; empty if it draws nothing comparable.

    Args:
        step: a step of a collate.
        shape: (C, H, W) of its input images.
        seeds: int64 [N], for mmload's draws.
        index: the index of the step in the collate.
        seed: for torchvision's draws.
    """
    read = next((read for kind, read in READERS.items() if isinstance(step, kind)), None)
    if read is None:
        return []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draws = Draws(seeds.numpy(), index, boxes=example_boxes(shape, len(seeds)))
        found = list(read(step, shape, draws, len(seeds)))
    name = type(step).__name__
    return [Property(name=f"{name}: {what}", kind=kind, ours=ours, theirs=other) for what, kind, ours, other in found]


def example_boxes(shape: Shape, count: int) -> Callable[[Plan], tuple[Trail, npt.NDArray[np.int64]]]:
    """Returns the same three boxes for every sample, in the form that :class:`mmload.augment.draws.Draws` takes."""
    boxes = torch.tensor(_BOXES) * torch.tensor([shape[2], shape[1], shape[2], shape[1]])
    return partial(boxes_in, {"boxes": boxes.repeat(count, 1, 1).numpy()}, trail=None)


def run_seeds(rows: int, count: int, seed: int) -> Tensor:
    """Returns seeds [count] of a training run over ``rows`` rows, epoch after epoch, as the loader creates them."""
    ids = torch.arange(rows)
    epochs = [sample_seeds(seed, epoch, ids) for epoch in range(-(-count // rows))]
    return torch.cat(epochs)[:count]


def _shape_after(step: nn.Module, shape: Shape) -> Shape:
    """Returns the shape of a step's output images for input images of ``shape``."""
    if not isinstance(step, Step):
        return shape
    nothing = np.zeros(1, np.int64)
    draws = Draws(nothing, 0, epoch=0, ids=nothing, boxes=example_boxes(shape, 1))
    plan = step.describe(_blank(1, shape), draws)
    return shape[0], plan.height, plan.width


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
    rows, cols = _int_array(plan.rows), _int_array(plan.cols)
    their_rows, their_cols = _column(theirs, "height"), _column(theirs, "width")
    area = float(shape[1] * shape[2])
    yield "share of the area", "real", rows * cols / area, their_rows * their_cols / area
    yield "width over height", "real", cols / rows, their_cols / their_rows
    yield "rows", "integer", rows, their_rows
    yield "columns", "integer", cols, their_cols
    yield "first row", "integer", _int_array(plan.top), _column(theirs, "top")
    yield "first column", "integer", _int_array(plan.left), _column(theirs, "left")


def _chance(what: str, field: str) -> Callable[[nn.Module, Shape, Draws, int], DrawSamples]:
    """Returns a reader for steps that only draw whether they apply; ``field`` is the plan's mask of the samples."""

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
            ours = factors.values[:, which].astype(np.float64)
            yield name, "real", ours, np.array([each[f"{name}_factor"] for each in theirs], dtype=np.float64)
    weights = np.array([64, 16, 4, 1])
    orders = np.stack([each["fn_idx"].numpy() for each in theirs])
    yield "order", "integer", _int_array((factors.order * weights).sum(1)), _int_array((orders * weights).sum(1))


def _hsv(step: augment.RandomHSV, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """YOLO's: a draw from -1 to 1 for each of the three; torchvision has no such step."""
    numbers = step.program(_blank(count, shape), draws).numbers[:, 0].astype(np.float64)
    uniform = (2 * torch.rand((count, 3), dtype=torch.float64) - 1).numpy()
    yield "hue", "integer", (numbers[:, 0] + 90) % 180, np.floor(uniform[:, 0] * step.hue * 180) + 90
    yield "saturation", "real", numbers[:, 1], 1 + uniform[:, 1] * step.saturation
    yield "value", "real", numbers[:, 2], 1 + uniform[:, 2] * step.value


def _placed(step: augment.ScaleJitter | augment.RandomShortestSize, shape: Shape, draws: Draws, n: int) -> DrawSamples:
    how = step.describe(_blank(n, shape), draws).resampling
    if how is None or how.placement is None:
        return
    transform, image = equivalent_of(step), torch.empty(shape)
    theirs = [transform.make_params([image]) for _ in range(n)]
    sizes = _int_list([one["size"] for one in theirs])
    yield "rows", "integer", how.placement.rows, sizes[:, 0]
    yield "columns", "integer", how.placement.cols, sizes[:, 1]
    yield "first row", "integer", -how.placement.top, _int_list([one["top"] for one in theirs])
    yield "first column", "integer", -how.placement.left, _int_list([one["left"] for one in theirs])


def _zoom_out(step: augment.RandomZoomOut, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    plan = step.describe(_blank(count, shape), draws)
    if plan.top is None or plan.left is None:
        return
    _, height, width = shape
    transform, image = equivalent_of(step), torch.zeros(shape)
    theirs = _int_list([transform.make_params([image])["padding"] for _ in range(count)])
    applied = _int_list([bool(torch.rand(1) < transform.p) for _ in range(count)])
    rows, cols = (plan.rows, plan.cols)
    on = (rows > height) | (cols > width)
    some = (theirs.reshape(-1, 4)[:, :2] + theirs.reshape(-1, 4)[:, 2:]).max(1) > 0
    yield "share zoomed out", "probability", on.astype(np.int64), applied * some
    if on.any() and some.any():
        theirs = theirs[some]
        yield "rows", "integer", rows[on], theirs[:, 1] + theirs[:, 3] + height
        yield "columns", "integer", cols[on], theirs[:, 0] + theirs[:, 2] + width
        yield "first row", "integer", -plan.top[on], theirs[:, 1]
        yield "first column", "integer", -plan.left[on], theirs[:, 0]


def _iou_crop(step: augment.RandomIoUCrop, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    plan = step.describe(_blank(count, shape), draws)
    if plan.top is None or plan.left is None:
        return
    boxes = example_boxes(shape, 1)(_blank(1, shape))[0].boxes[:, :-1]
    fewer, transform = min(count, _FEWER), equivalent_of(step)
    given = [
        torch.empty(shape),
        tv_tensors.BoundingBoxes(torch.from_numpy(boxes[0].copy()), format="XYXY", canvas_size=shape[1:]),
    ]
    theirs = [transform.make_params(given) for _ in range(fewer)]
    ours = {"top": plan.top, "left": plan.left, "height": plan.rows, "width": plan.cols}
    whole = (plan.rows == shape[1]) & (plan.cols == shape[2])
    crops = (~whole)[:fewer]
    yield "share cropped", "probability", crops.astype(np.int64), _int_list([bool(one) for one in theirs])
    params = [one for one in theirs if one]
    if crops.any() and params:
        for name, values in ours.items():
            yield (
                name,
                "integer",
                np.asarray(values)[:fewer][crops],
                _int_list([one[name] for one in params]),
            )


def _mixes(step: MixStep, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    mixing = _per_sample(step).mixing(_blank(count, shape), draws)
    make, image = _torchvision_mix(step), torch.empty(2, *shape)
    theirs = [make(image) for _ in range(count)]
    if mixing.share is not None:
        ours, other = mixing.share.astype(np.float64), np.array([share for share, _ in theirs])
        yield "share blended", "probability", _int_list(ours != 1), _int_list(other != 1)
        if (ours != 1).any() and (other != 1).any():
            yield "lam", "real", ours[ours != 1], other[other != 1].astype(np.float32).astype(np.float64)
    if mixing.boxes is not None:
        boxes, others = mixing.boxes, np.array([box for _, box in theirs], dtype=np.int64)
        pasted, into = _area(boxes) > 0, _area(others) > 0
        yield "share pasted into", "probability", _int_list(pasted), _int_list(into)
        if pasted.any() and into.any():
            boxes, others = boxes[pasted], others[into]
            for place, name in enumerate(("first column", "first row", "end column", "end row")):
                yield name, "integer", boxes[:, place], others[:, place]
            size = shape[1] * shape[2]
            yield "share of the area", "real", _area(boxes) / size, _area(others) / size


def _per_sample(step: MixStep) -> MixStep:
    """Returns the step drawn for each sample, as it is for the first sample of each batch."""
    drawn = copy.deepcopy(step)
    for part in drawn.modules():
        if isinstance(part, MixStep):
            part.per = "sample"
    return drawn


def _torchvision_mix(step: nn.Module) -> Callable[[Any], Mix]:
    """Returns a function that makes one draw of torchvision's, with its own choice among several."""
    if isinstance(step, MixChoice):
        ran: list[int] = []
        choice = v2.RandomChoice(
            [drawn_programs.Seen(place, ran) for place in range(len(step.transforms))], list(step.p)
        )
        makes = [_torchvision_mix(one) for one in step.transforms]

        def chosen(image: Any) -> Mix:
            choice(image)
            return makes[ran.pop()](image)

        return chosen
    if not isinstance(step, augment.MixUp | augment.CutMix):
        raise TypeError(f"{type(step).__name__} mixes samples in a way that torchvision does not have")
    kind, p = v2.MixUp if isinstance(step, augment.MixUp) else v2.CutMix, step.p
    transform = kind(alpha=step.alpha, num_classes=step.num_classes)

    def drawn(image: Any) -> Mix:
        if p < 1 and float(torch.rand(1)) >= p:  # torchvision mixes every batch
            return _UNCHANGED
        params = transform.make_params([image])
        return params.get("lam", 1.0), params.get("box", _UNCHANGED[1])

    return drawn


def _area(boxes: Sample) -> Sample:
    area: Sample = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return area


def _params(transform: Any, shape: Shape, count: int) -> list[dict[str, Any]]:
    """Samples torchvision's own draws."""
    image = torch.empty(shape)
    return [transform.make_params([image]) for _ in range(count)]


def _applied(step: nn.Module, count: int) -> Sample:
    """Samples whether torchvision's transform applies: one that does not returns its input tensor itself."""
    transform, image = equivalent_of(step), torch.zeros(3, 16, 16)
    return np.array([transform(image) is not image for _ in range(count)], dtype=np.int64)


def _blank(count: int, shape: Shape) -> Plan:
    return Plan.unchanged(count, shape, 255.0)


def _int_array(values: np.ndarray | None) -> Sample:
    assert values is not None, "the step described nothing"
    return values.astype(np.int64)


def _column(params: Sequence[dict[str, Any]], name: str) -> Sample:
    return np.array([each[name] for each in params], dtype=np.int64)


def _int_list(values: Any) -> Sample:
    return np.array(values, dtype=np.int64)


READERS: dict[type[nn.Module], Callable[[Any, Shape, Draws, int], DrawSamples]] = {
    augment.RandomCrop: _crop,
    augment.RandomResizedCrop: _resized_crop,
    augment.RandomHorizontalFlip: _chance("share flipped", "flip_x"),
    augment.RandomVerticalFlip: _chance("share flipped", "flip_y"),
    augment.RandomGrayscale: _chance("share made gray", "gray"),
    augment.RandomErasing: _erasing,
    augment.ColorJitter: _jitter,
    augment.RandomHSV: _hsv,
    augment.ScaleJitter: _placed,
    augment.RandomShortestSize: _placed,
    augment.RandomZoomOut: _zoom_out,
    augment.RandomIoUCrop: _iou_crop,
    MixStep: _mixes,
    **drawn_programs.READERS,
}
"""Step -> the function that samples its draws."""
