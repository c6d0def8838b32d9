"""The compiled operations on levels, on a batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mmload.render.kernel_arguments import PLACE, PLANES, WINDOW, Operations
from mmload.render.level_kernels import run_operations


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
    places = np.array([(0, 0, height, height, width, PLANES, 1)] * count, PLACE)
    places["start"] = np.arange(count) * (channels * height * width)
    windows = np.zeros(count, WINDOW)
    windows["flips"] = 0 if flips is None else flips
    fills_of_slots = np.array(fills, np.int64).reshape(-1, channels)
    run_operations(
        out.numpy().reshape(-1),
        places,
        channels,
        windows,
        Operations(np.array(codes, np.int64), np.array(numbers, np.float32), fills_of_slots),
        np.array([0, count]),
    )
    return out, windows["flips"].tolist()
