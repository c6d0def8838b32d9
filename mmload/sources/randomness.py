"""Detects random Python datasets: by the names of their transforms, and by reading samples several times.

A build stores each sample once, so a random transform would repeat one draw in every epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np
import torch

_ATTRIBUTES = (
    *("transform", "transforms", "target_transform", "joint_transform", "dataset", "datasets", "lambd"),
    *("_modules", "__self__", "func", "args", "keywords"),  # of modules, methods and partial functions
)
"""Attributes in which datasets keep transforms, transforms keep others, and datasets keep those that they wrap."""

_NO_PARTS = (str, bytes, int, float, np.ndarray, torch.Tensor, FunctionType, type, type(None))

_RANDOM = (
    *("Random", "ColorJitter", "ScaleJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix"),
    *("MixUp", "CutMix", "ElasticTransform", "GaussianBlur", "GaussianNoise"),
)

_LIBRARIES = ("torchvision", "albumentations", "albucore", "kornia", "timm", "monai", "torchio")
_SWITCHES = (
    *("RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale", "RandomInvert", "RandomPosterize"),
    *("RandomSolarize", "RandomAdjustSharpness", "RandomAutocontrast", "RandomEqualize", "RandomApply"),
)
"""Steps that draw only whether they apply, so that with a probability of 0 or 1 they are not random."""

_MOST = 10_000
_LISTED = 100
"""The most objects to inspect, and the most items of each list; longer lists mostly hold the samples."""
READ = 8
"""Samples that are read several times, spread over the dataset."""
_TIMES = 3


def random_step(dataset: Any) -> str | None:
    """Returns the name of a random transform that a dataset, or one that it wraps, applies; None if none is found."""
    return next((type(each).__name__ for each in _parts(dataset) if _is_random(each)), None)


def spread_indices(size: int) -> list[int]:
    """Returns the numbers of some samples from the first to the last."""
    return sorted({index * (size - 1) // (READ - 1) for index in range(READ)})


def find_unsteady(read: Callable[[int], int], size: int) -> int | None:
    """Returns the first of some samples whose checksum changes when it is read again; None if there is none.

    The global generators of torch, numpy and Python are seeded differently for each reading, and restored after it.
    A sample that cannot be read is skipped.
    """
    return next(
        (index for index in spread_indices(size) if len({_reading(read, index, seed) for seed in range(_TIMES)}) > 1),
        None,
    )


def _reading(read: Callable[[int], int], index: int, seed: int) -> int | None:
    with seeded(7919 * index + seed):
        try:
            return read(index)
        except Exception:  # whatever the user's dataset raises; the build reports it
            return None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators inside a block, and restores them after it."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _parts(root: Any) -> Iterator[Any]:
    """Yields an object and all that :data:`_ATTRIBUTES`, lists and tables lead to from it, each once."""
    waiting: list[Any] = [root]
    visited: set[int] = set()
    while waiting and len(visited) < _MOST:
        each = waiting.pop()
        if id(each) in visited or isinstance(each, _NO_PARTS):
            continue
        visited.add(id(each))
        yield each
        if isinstance(each, list | tuple | Mapping):
            waiting += islice(each.values() if isinstance(each, Mapping) else each, _LISTED)
            continue
        for name in _ATTRIBUTES:
            with suppress(Exception):  # whatever a property of the user's raises
                waiting.append(getattr(each, name, None))


def _is_random(step: Any) -> bool:
    """Returns whether a step of a known library is random: by its probability, or its name, unless it never draws."""
    kind = type(step)
    if kind.__module__.partition(".")[0] not in _LIBRARIES:
        return False
    chance = getattr(step, "p", None)
    if isinstance(chance, int | float) and not getattr(step, "always_apply", False) and 0 < chance < 1:
        return True
    if kind.__name__ == "GaussianBlur":
        return len(set(getattr(step, "sigma", (0, 1)))) > 1
    never_draws = chance == 0 or (chance == 1 and kind.__name__ in _SWITCHES)
    return not never_draws and kind.__name__.startswith(_RANDOM)
