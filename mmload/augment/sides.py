"""Sides of images: one number for all of a batch, or int64 [B], one each."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Side: TypeAlias = Tensor | int


def least(side: Side) -> int:
    """The smallest of them; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.min()) if len(side) else 0


def greatest(side: Side) -> int:
    """The largest of them; 0 of an empty batch."""
    return side if isinstance(side, int) else int(side.max()) if len(side) else 0


def missing(wanted: int, side: Side) -> Side:
    """By how much a side is smaller than what is wanted."""
    return max(wanted - side, 0) if isinstance(side, int) else (wanted - side).clamp(min=0)


def exactly(side: Side) -> Tensor:
    """In float64, for quotients and products as Python computes them; those of integers would be float32."""
    return torch.as_tensor(side, dtype=torch.float64)


def over(number: int, side: Tensor) -> Tensor:
    """A number over each side, float64, rounded as Python rounds it.

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
    """One number, or [B, 1], to compare with several numbers per sample."""
    return side[:, None] if isinstance(side, Tensor) else side
