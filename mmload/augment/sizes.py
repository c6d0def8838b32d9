"""Sizes of images: sides that are one number per batch or one per sample, and sizes that follow the epoch.

Small images in the first epochs and larger ones in the last save training time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mmload.augment.arguments import LONGEST_SIDE, integer, refusal

Side: TypeAlias = Tensor | int


def least(side: Side) -> int:
    """Returns the smallest side; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.min()) if len(side) else 0


def greatest(side: Side) -> int:
    """Returns the largest side; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.max()) if len(side) else 0


def missing(wanted: int, side: Side) -> Side:
    """Returns the pixels by which a side is shorter than wanted."""
    return max(wanted - side, 0) if isinstance(side, int) else (wanted - side).clamp(min=0)


def exactly(side: Side) -> Tensor:
    """Converts a side to float64, for quotients and products as Python computes them; torch's would be float32."""
    return torch.as_tensor(side, dtype=torch.float64)


def over(number: int, side: Tensor) -> Tensor:
    """Divides a number by each side: float64, rounded as Python rounds it.

    Torch makes ``number / side`` the product with the reciprocal: another number for a quarter of all sizes.
    """
    return torch.full_like(side, number).div(side)


def size_with_least(measure: Tensor | float, height: Side, width: Side) -> str:
    """Returns a size to name in a message: that of all samples, or of the one with the least ``measure``, [B]."""
    if not isinstance(measure, Tensor) or isinstance(height, int) or isinstance(width, int):
        return f"{height} x {width}"
    place = int(measure.argmin())
    return f"{int(height[place])} x {int(width[place])}"


def column(side: Side) -> Side:
    """Returns one number, or [B, 1], to compare with several numbers per sample."""
    return side[:, None] if isinstance(side, Tensor) else side


SizeOfEpoch = Callable[[int], Any]
"""An epoch's number -> the ``size`` that a step has in it."""

Size = int | Sequence[int] | SizeOfEpoch


@dataclass(frozen=True)
class ProgressiveSize:
    """A size that rises linearly between two epochs, as in FFCV's ResNet-50 configurations, in steps of ``multiple``.

    It is ``min_size`` up to ``start_epoch`` and ``max_size`` from ``end_epoch`` on. Between them it is the multiple
    nearest to the straight line (the even one of two as near), within both sizes. FFCV's ``rn50_88_epochs.yaml`` is
    ``ProgressiveSize(160, 192, start_epoch=65, end_epoch=76)``.

    Args:
        min_size: pixels of the first epochs.
        max_size: pixels of the last epochs.
        start_epoch: the last epoch of ``min_size``; counted from 0.
        end_epoch: the first epoch of ``max_size``.
        multiple: what sizes between them are a multiple of.

    Raises:
        ValueError: if an argument is out of range, or the greater one comes first.
    """

    min_size: int
    max_size: int
    start_epoch: int
    end_epoch: int
    multiple: int = 32

    def __post_init__(self) -> None:
        for name, least in (("min_size", 1), ("max_size", 1), ("multiple", 1), ("start_epoch", 0), ("end_epoch", 0)):
            greatest = None if name.endswith("epoch") else LONGEST_SIDE
            expected = f"an integer from {least}" + (f" to {LONGEST_SIDE}" if greatest else "")
            given = integer(name, getattr(self, name), least=least, greatest=greatest, expected=expected)
            object.__setattr__(self, name, given)
        for first, last in (("min_size", "max_size"), ("start_epoch", "end_epoch")):
            ends = getattr(self, first), getattr(self, last)
            if ends[0] > ends[1]:
                raise refusal(f"({first}, {last})", ends, "the smaller one first")

    def __call__(self, epoch: int) -> int:
        """Returns the size in an epoch."""
        if epoch <= self.start_epoch:
            return self.min_size
        if epoch >= self.end_epoch:
            return self.max_size
        share = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        size = self.min_size + share * (self.max_size - self.min_size)
        return min(max(round(size / self.multiple) * self.multiple, self.min_size), self.max_size)
