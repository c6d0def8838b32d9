"""What every training recipe takes besides its own settings, and how these are checked."""

from __future__ import annotations

from typing import TypedDict

import torch

from mmload.augment.arguments import LONGEST_SIDE, integer, shown
from mmload.augment.boxes import BoxRule
from mmload.augment.color import Normalize


class Options(TypedDict, total=False):
    """Arguments that a training recipe hands to each :class:`~mmload.augment.collate.Collate` that it makes."""

    device: torch.device | str | None
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule | None


def side(name: str, pixels: object, *, least: int = 1, greatest: int = LONGEST_SIDE) -> int:
    """Pixels of a side.

    Raises:
        ValueError: if it is no integer from ``least`` to ``greatest``.
    """
    return integer(name, pixels, least=least, greatest=greatest, expected=f"an integer from {least} to {greatest}")


def normalize_or(normalize: Normalize | None, published: Normalize) -> Normalize:
    """The published step, unless another one is given.

    Raises:
        TypeError: if it is no Normalize.
    """
    return published if normalize is None else expect_normalize(normalize)


def expect_normalize(normalize: object) -> Normalize:
    """The step itself.

    Raises:
        TypeError: if it is no Normalize.
    """
    if not isinstance(normalize, Normalize):
        raise TypeError(f"normalize is {shown(normalize)}, expected a Normalize of mmload.augment or None")
    return normalize
