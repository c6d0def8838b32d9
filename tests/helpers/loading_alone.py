"""Collates of steps that change levels, warp, choose, or give random sizes, and what they make of each row alone.

The pixels of these steps are held against torchvision's elsewhere. Here a batch of any size, on any thread, rank and
tier has to be what the same collate makes of its rows one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from loading_expected import Expected, Fields
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.draws import batch_of_epoch
from mmload.augment.step import LevelStep
from mmload.batch import make_batch

Draw = Any

_LEVELS: Sequence[tuple[Any, ...]] = (
    (augment.GaussianBlur, (3, 5)),
    (augment.RandomSolarize, 90),
    (augment.RandomPosterize, 3),
    (augment.RandomInvert,),
    (augment.RandomEqualize,),
    (augment.RandomAutocontrast,),
    (augment.RandomAdjustSharpness, 1.7),
    (augment.RandomPhotometricDistort,),
    (augment.RandomGrayscale, 0.5),
    (augment.ColorJitter, 0.4, 0.4, 0.4, 0.2),
    (augment.RandomRotation, 40),
    (augment.RandomAffine, 20, (0.1, 0.2), (0.7, 1.3), 9, "bilinear"),
    (augment.RandomPerspective, 0.6, 0.7),
)
_POLICIES: Sequence[tuple[Any, ...]] = (
    (augment.RandAugment, 2),
    (augment.TrivialAugmentWide,),
    (augment.AutoAugment, "cifar10", "bilinear"),
    (augment.AugMix,),
)
_SIZES: Sequence[tuple[Any, ...]] = (
    (augment.RandomResizedCrop, (9, 8)),
    (augment.Letterbox, (9, 12)),
    (augment.ScaleJitter, (9, 12), (0.5, 1.6)),
    (augment.RandomShortestSize, (6, 8, 11)),
    (augment.RandomZoomOut,),
    (augment.RandomHorizontalFlip,),
)

ALONE = (LevelStep, augment.ScaleJitter, augment.RandomShortestSize, augment.RandomZoomOut, augment.RandomIoUCrop)
"""Steps for which only the collate itself is the answer, a jitter by itself excepted."""


def is_alone(collate: Collate) -> bool:
    """Whether a collate's answer is what it makes of each row alone."""
    return any(isinstance(step, ALONE) and not isinstance(step, augment.ColorJitter) for step in collate.steps)


@st.composite
def alone_steps(draw: Draw, channels: int, store: str) -> list[nn.Module]:
    """A size, some changes of levels, and Normalize; for images of one or three channels."""
    steps = [_made(draw(st.sampled_from(_SIZES)))] if draw(st.booleans()) else []
    if store == "detection" and draw(st.booleans()):
        steps.append(augment.RandomIoUCrop())
    if any(isinstance(step, augment.RandomZoomOut | augment.RandomIoUCrop) for step in steps):
        steps.append(augment.Resize((11, 9)))
    many = _LEVELS if store in ("detection", "segmentation") else (*_LEVELS, *_POLICIES)
    changes = [_made(one) for one in draw(st.lists(st.sampled_from(many), min_size=1, max_size=3))]
    container = draw(st.sampled_from([None, augment.RandomApply, augment.RandomChoice, augment.RandomOrder]))
    steps += changes if container is None else [container(changes)]
    if draw(st.booleans()):
        steps.append(augment.RandomHorizontalFlip())
    if draw(st.booleans()):
        steps.append(augment.Normalize([0.4, 0.5, 0.45][:channels], [0.2, 0.25, 0.3][:channels]))
    return steps


def _made(spec: tuple[Any, ...]) -> nn.Module:
    kind, *arguments = spec
    made: nn.Module = kind(*arguments)
    return made


def collated_alone(collate: Collate, rows: Fields, seeds: torch.Tensor, epoch: int) -> Expected:
    """The batch of stored rows, each made by itself."""
    others = {name: value for name, value in rows.items() if name not in ("ids", "seeds")}
    ids = rows.get("ids", torch.arange(len(seeds)))  # bare images have none
    parts: list[Fields] = []
    with batch_of_epoch(epoch):
        for k in range(len(seeds)):
            row = {name: value[k : k + 1] for name, value in others.items()}
            batch = collate(make_batch(row, 1, seeds=seeds[k : k + 1], ids=ids[k : k + 1]))
            extra = {} if batch.extra is None else dict(batch.extra.items())
            parts.append({name: extra[name] if name in extra else getattr(batch, name) for name in others})
    return Expected(dict(rows) | {name: torch.cat([part[name] for part in parts]) for name in others})
