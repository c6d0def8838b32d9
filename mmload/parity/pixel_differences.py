"""Measures the differences of two uint8 images, in levels of 255, and compares them with limits.

Differences are sums, so those of several rows can be added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mmload.errors import counted


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Summed differences of values; two of them can be added.

    Attributes:
        rows: number of images compared.
        unequal: number of these with any difference.
        values: number of values compared.
        greatest: the largest difference, in levels.
        total: the sum of all differences.
        squares: the sum of their squares.
        over: number of values that differ by more than one level.
    """

    rows: int = 0
    unequal: int = 0
    values: int = 0
    greatest: int = 0
    total: int = 0
    squares: int = 0
    over: int = 0

    @classmethod
    def of(cls, stored: Tensor, reference: Tensor) -> Self:
        """The differences of one row: uint8 [C, H, W] both."""
        apart = (stored.to(torch.int16) - reference.to(torch.int16)).abs().to(torch.int64)
        greatest = int(apart.max()) if apart.numel() else 0
        return cls(
            rows=1,
            unequal=int(greatest > 0),
            values=apart.numel(),
            greatest=greatest,
            total=int(apart.sum()),
            squares=int((apart * apart).sum()),
            over=int((apart > 1).sum()),
        )

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            rows=self.rows + other.rows,
            unequal=self.unequal + other.unequal,
            values=self.values + other.values,
            greatest=max(self.greatest, other.greatest),
            total=self.total + other.total,
            squares=self.squares + other.squares,
            over=self.over + other.over,
        )

    @property
    def mean(self) -> float:
        """The mean difference in levels."""
        return self.total / max(self.values, 1)

    @property
    def share_over(self) -> float:
        """The share of values that differ by more than one level."""
        return self.over / max(self.values, 1)

    @property
    def psnr(self) -> float:
        """Peak signal-to-noise ratio, 10 log10(255^2 / mean square), in dB; infinite for equal pixels."""
        if not self.squares:
            return math.inf
        return 10.0 * math.log10(255.0**2 * self.values / self.squares)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on pixel differences: the largest difference, the share over one level, the mean."""

    greatest: int
    share_over: float
    mean: float

    def hold(self, found: Difference) -> bool:
        """Whether the differences are within the limits."""
        near = found.share_over <= self.share_over and found.mean <= self.mean
        return found.greatest <= self.greatest and near

    def __str__(self) -> str:
        if not self.greatest:
            return "has to be equal"
        if self.greatest == 255:
            return f"limit: mean {self.mean:g}"
        levels = counted(self.greatest, "level")
        return f"limits: {levels}, {self.share_over:.0%} over 1, mean {self.mean:g}"


EXACT = Limits(greatest=0, share_over=0.0, mean=0.0)
"""For torchvision's uint8 tensor kernels, which a build uses."""

PILLOW = Limits(greatest=2, share_over=0.01, mean=0.1)
"""For Pillow's own bilinear resize: 1 level at most on 88 photographs at 7 sizes, 2 on pure noise."""

PILLOW_BICUBIC = Limits(greatest=16, share_over=0.02, mean=0.5)
"""For Pillow's bicubic resize: 2 levels at most on the same photographs; on pure noise 2 with Pillow 12, 15 with 13."""

NVJPEG = Limits(greatest=255, share_over=1.0, mean=2.0)
"""For JPEGs decoded by a CUDA device: the tolerance between its two decoders in torchvision's own tests."""


def difference_text(found: Difference, limits: Limits) -> str:
    """A difference as text for a verdict."""
    if not found.greatest:
        return f"{counted(found.rows, 'row')} equal in every value"
    noise = f"PSNR {found.psnr:.1f} dB"
    return (
        f"{found.unequal:,} of {counted(found.rows, 'row')} differ: at most {found.greatest}, "
        f"{found.share_over:.2%} over 1 level, mean {found.mean:.3f}, {noise} ({limits})"
    )
