"""Sizes that follow the epoch: small images in the first epochs, larger ones in the last, which saves training time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmload.augment.arguments import LONGEST_SIDE, integer, refusal

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
        """The size in an epoch."""
        if epoch <= self.start_epoch:
            return self.min_size
        if epoch >= self.end_epoch:
            return self.max_size
        share = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        size = self.min_size + share * (self.max_size - self.min_size)
        return min(max(round(size / self.multiple) * self.multiple, self.min_size), self.max_size)
