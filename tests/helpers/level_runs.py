"""The compiled operations on levels, with the working memory that they need."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mmload.render.level_kernels import run


def ran(
    images: Tensor, codes: ArrayLike, numbers: ArrayLike, fills: ArrayLike, flips: ArrayLike | None = None
) -> tuple[Tensor, list[int]]:
    """A copy of images [B, C, H, W] after operations, and the flips that are still to be done.

    Args:
        images: uint8.
        codes: [B, K].
        numbers: [B, K, 8].
        fills: [K, C].
        flips: [B] bits, due before the operations; None: none.
    """
    out = images.clone(memory_format=torch.contiguous_format)
    count, channels, height, width = out.shape
    left = np.array([0] * count if flips is None else flips, np.uint8)
    size = channels * height * width
    run(
        out.numpy(),
        left,
        np.array(codes, np.int64),
        np.array(numbers, np.float32),
        np.array(fills, np.int64).reshape(-1, channels),
        np.zeros(size, np.uint8),
        np.zeros(size, np.float32),
        np.zeros((height + 2) * (width + 2), np.uint32),
    )
    return out, left.tolist()
