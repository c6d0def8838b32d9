"""Samples the draws of MixUp, CutMix and choices of them, and torchvision's: shares, rectangles, which of them.

A step that draws once a batch does so from the seed of its first sample, so its draws for each sample have the
distribution of those for batches, which is torchvision's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchvision.transforms import v2

from mmload import augment
from mmload.augment.draws import Draws
from mmload.augment.mix import MixChoice, MixStep
from mmload.parity.level_draws import Seen
from mmload.render.plan import Plan

Shape = tuple[int, int, int]
Sample = npt.NDArray[Any]
DrawSamples = Iterator[tuple[str, str, Sample, Sample]]
Draw = tuple[float, tuple[int, int, int, int]]
"""The share of a sample's own values, and the rectangle (x1, y1, x2, y2) that is pasted."""

_UNCHANGED: Draw = (1.0, (0, 0, 0, 0))


def mixes(step: MixStep, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Whether a sample is blended or pasted into, the share, and the rectangle."""
    mixing = _per_sample(step).mixing(Plan.of(count, shape, 255.0, torch.device("cpu")), draws)
    make, image = _torchvision(step), torch.empty(2, *shape)
    theirs = [make(image) for _ in range(count)]
    if mixing.share is not None:
        ours, other = mixing.share.to(torch.float64).numpy(), np.array([share for share, _ in theirs])
        yield "share blended", "probability", _int(ours != 1), _int(other != 1)
        if (ours != 1).any() and (other != 1).any():
            yield "lam", "real", ours[ours != 1], other[other != 1].astype(np.float32).astype(np.float64)
    if mixing.boxes is not None:
        boxes, others = mixing.boxes.numpy(), np.array([box for _, box in theirs], dtype=np.int64)
        pasted, into = _area(boxes) > 0, _area(others) > 0
        yield "share pasted into", "probability", _int(pasted), _int(into)
        if pasted.any() and into.any():
            boxes, others = boxes[pasted], others[into]
            for place, name in enumerate(("first column", "first row", "end column", "end row")):
                yield name, "integer", boxes[:, place], others[:, place]
            size = shape[1] * shape[2]
            yield "share of the area", "real", _area(boxes) / size, _area(others) / size


def _per_sample(step: MixStep) -> MixStep:
    """The step drawn for each sample, as it is for the first of each batch."""
    drawn = copy.deepcopy(step)
    for part in drawn.modules():
        if isinstance(part, MixStep):
            part.per = "sample"
    return drawn


def _torchvision(step: nn.Module) -> Callable[[Any], Draw]:
    """Makes one draw of torchvision's, with its own choice among several."""
    if isinstance(step, MixChoice):
        ran: list[int] = []
        choice = v2.RandomChoice([Seen(place, ran) for place in range(len(step.transforms))], list(step.p))
        makes = [_torchvision(one) for one in step.transforms]

        def chosen(image: Any) -> Draw:
            choice(image)
            return makes[ran.pop()](image)

        return chosen
    if not isinstance(step, augment.MixUp | augment.CutMix):
        raise TypeError(f"{type(step).__name__} mixes samples in a way that torchvision does not have")
    kind, p = v2.MixUp if isinstance(step, augment.MixUp) else v2.CutMix, step.p
    transform = kind(alpha=step.alpha, num_classes=step.num_classes)

    def drawn(image: Any) -> Draw:
        if p < 1 and float(torch.rand(1)) >= p:  # torchvision mixes every batch
            return _UNCHANGED
        params = transform.make_params([image])
        return params.get("lam", 1.0), params.get("box", _UNCHANGED[1])

    return drawn


def _area(boxes: Sample) -> Sample:
    area: Sample = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return area


def _int(values: Sample) -> Sample:
    return values.astype(np.int64)


READERS: dict[type[nn.Module], Callable[[Any, Shape, Draws, int], DrawSamples]] = {MixStep: mixes}
"""The function that samples the draws of every step that mixes."""
