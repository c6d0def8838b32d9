"""Steps and samplers that are not mmload's, as users bring them, for the fuzz of loading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, Sampler
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload import augment
from mmload.augment.mix import MixStep

Draw = Any


class Halved(nn.Module):
    """A deterministic module of a user's own."""

    keeps_geometry = True

    def forward(self, images: Tensor) -> Tensor:
        return images * 0.5


def blends(step: nn.Module) -> bool:
    """Whether a step mixes levels into values between them."""
    return isinstance(step, MixStep) and step.makes_floats


class Turning(Sampler[int]):
    """A sampler as users write them: half of the rows, other ones each epoch."""

    def __init__(self, rows: int) -> None:
        self.rows, self.epoch = rows, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def rows_of(self, epoch: int) -> list[int]:
        """The rows of an epoch."""
        return [(row * 7 + epoch * 3) % self.rows for row in range(len(self))]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows_of(self.epoch))

    def __len__(self) -> int:
        return (self.rows + 1) // 2


class Ranked(DistributedSampler[int]):
    """torch's own, which can be asked for another epoch; ``fixed`` is the one that its user has set, if any."""

    def __init__(self, rows: int, ranks: int, rank: int, shuffle: bool, fixed: int | None) -> None:
        self.rows, self.fixed = rows, fixed
        super().__init__(range(rows), ranks, rank, shuffle, seed=3, drop_last=rows % 2 == 0)
        if fixed is not None:
            self.set_epoch(fixed)

    def rows_of(self, epoch: int) -> list[int]:
        """The rows of an epoch."""
        twin = DistributedSampler(range(self.rows), self.num_replicas, self.rank, self.shuffle, 3, self.drop_last)
        twin.set_epoch(epoch if self.fixed is None else self.fixed)
        return list(twin)


@st.composite
def samplers(draw: Draw, rows: int) -> Sampler[int]:
    """A sampler of an epoch's own rows."""
    if draw(st.booleans()):
        return Turning(rows)
    ranks = draw(st.integers(1, 3))
    fixed = draw(st.sampled_from([None, 1, 5]))
    return Ranked(rows, ranks, draw(st.integers(0, ranks - 1)), draw(st.booleans()), fixed)


@st.composite
def per_sample(draw: Draw) -> augment.PerSample:
    """A random transform of torchvision's, sample by sample: none that makes one level many."""
    turned = v2.RandomRotation(40, fill={tv_tensors.Mask: 255, "others": 0})
    modules = turned, v2.RandomInvert(0.5), v2.RandomHorizontalFlip(0.5), v2.RandomVerticalFlip(1.0)
    return augment.PerSample(draw(st.sampled_from(modules)))


def transformed(module: nn.Module, sample: dict[str, Any], key: int) -> dict[str, Any]:
    """A sample after a transform, whose draws are those of torch's generator seeded by ``key``."""
    state = torch.get_rng_state()
    torch.manual_seed(key)
    made: dict[str, Any] = module(sample)
    torch.set_rng_state(state)
    return made
