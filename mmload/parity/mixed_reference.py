"""Mixes a batch's samples with torchvision's own MixUp and CutMix, with the shares and rectangles that mmload drew.

torchvision draws once for a batch. Each sample is mixed as in a batch of two, itself and the one before it, so that the
draws of every sample are replayed, whether there is one per sample or one per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload.augment.mix import MixStep
from mmload.parity.level_reference import Allowance, Items
from mmload.render.plan import Mixing

Row = tuple[Items, Allowance]


def mixed(step: MixStep, rows: Sequence[Row], mixing: Mixing) -> list[Row]:
    """All rows after a step, each with the one before it.

    Args:
        step: for the number of classes.
        rows: of a batch, in order.
        mixing: what was drawn for them.
    """
    return [_pair(step, row, rows[k - 1], mixing, k) for k, row in enumerate(rows)]


def _pair(step: MixStep, own: Row, other: Row, mixing: Mixing, k: int) -> Row:
    """Row ``k``, mixed with the one before it."""
    share = 1.0 if mixing.share is None else float(mixing.share[k])
    box = [0, 0, 0, 0] if mixing.boxes is None else [int(side) for side in mixing.boxes[k]]
    items, (before, of_other) = own[0], other
    height, width = items["images"].shape[-2:]
    area = (box[2] - box[0]) * (box[3] - box[1])
    pastes = area > 0
    transform = v2.CutMix(num_classes=step.num_classes) if pastes else v2.MixUp(num_classes=step.num_classes)
    params = {"lam": share, "box": box, "lam_adjusted": 1.0 - area / (height * width), "batch_size": 2, "labels": None}
    made: Items = {}
    for name, item in items.items():
        changes = name == "images" or (name == "masks" and pastes)
        pair = torch.stack([item.as_subclass(Tensor), before[name].as_subclass(Tensor)])
        if name == "targets":
            made[name] = transform.transform(pair, params | {"labels": pair})[0]
        elif changes and (pastes or share != 1):
            made[name] = _like(transform.transform(pair, params)[0], item)
        else:
            made[name] = item
    allowance = own[1]
    if pastes or share != 1:
        scattered = allowance.scattered or of_other.scattered
        allowance = Allowance(max(allowance.levels, of_other.levels), scattered)
    return made, allowance


def _like(changed: Tensor, item: Any) -> Any:
    return tv_tensors.wrap(changed, like=item)
