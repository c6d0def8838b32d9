"""Arguments that every preset takes besides its own settings, and checks of them."""

from __future__ import annotations

from typing import TypedDict

import torch

from mmload.augment.arguments import LONGEST_SIDE, integer, shown
from mmload.augment.boxes import BoxRule
from mmload.augment.color import Normalize


class Options(TypedDict, total=False):
    """Arguments that a preset hands to each :class:`~mmload.augment.collate.Collate` that it makes."""

    device: torch.device | str | None
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule | None


def side(name: str, pixels: object, *, least: int = 1, greatest: int = LONGEST_SIDE) -> int:
    """Returns the pixels of a side, checked.

    Raises:
        ValueError: if it is no integer from ``least`` to ``greatest``.
    """
    return integer(name, pixels, least=least, greatest=greatest, expected=f"an integer from {least} to {greatest}")


def normalize_or(normalize: Normalize | None, published: Normalize) -> Normalize:
    """Returns the published step, unless another one is given.

    Raises:
        TypeError: if it is no Normalize.
    """
    return published if normalize is None else expect_normalize(normalize)


def expect_normalize(normalize: object) -> Normalize:
    """Returns the step itself, checked.

    Raises:
        TypeError: if it is no Normalize.
    """
    if not isinstance(normalize, Normalize):
        raise TypeError(f"normalize is {shown(normalize)}, expected a Normalize of mmload.augment or None")
    return normalize
