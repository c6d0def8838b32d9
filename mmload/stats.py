"""Exact integer sums over stored pixels, and the channel statistics that follow from them.

Comes in: uint8 images. Goes out: whole numbers that add up in any order to the same total, so that the statistics of a
dataset do not depend on threads or shards. Never reads a file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CACHED = 3 * 256 * 256  # floats that stay in a core's cache
_BLOCK = 256  # 256 x 255^2 < 2^24: a float32 sum over a block is exact in whatever order it is added


def channel_sums(images: Tensor) -> Tensor:
    """Each channel's sum and sum of squares.

    In float32 over blocks of 256 pixels, in a buffer that stays in cache; a buffer for 8 large images took more than
    twice as long, and integer arithmetic 3 times. Small images go through it many at a time.

    Args:
        images: uint8 [N, C, H, W], contiguous.

    Returns:
        int64 [2, C].
    """
    count, channels, *_ = images.shape
    pixels = images.reshape(count, channels, -1)
    whole = pixels.shape[2] // _BLOCK * _BLOCK
    sums = np.zeros((2, channels), dtype=np.int64)
    if whole:
        step = max(1, _CACHED // (channels * whole))
        floats = torch.empty((min(step, count), channels, whole // _BLOCK, _BLOCK))
        for start in range(0, count, step):
            some = pixels[start : start + step, :, :whole]
            blocks = floats[: len(some)].copy_(some.view(len(some), channels, -1, _BLOCK))
            sums[0] += _whole(blocks.sum(3))
            sums[1] += _whole(blocks.square_().sum(3))
    if whole < pixels.shape[2]:
        rest = pixels[:, :, whole:].to(torch.int64)
        sums += torch.stack((rest.sum((0, 2)), rest.square().sum((0, 2)))).numpy()
    return torch.from_numpy(sums)


def _whole(sums: Tensor) -> npt.NDArray[np.int64]:
    """Sums of blocks, float32 [N, C, blocks], as one whole number a channel."""
    total: npt.NDArray[np.int64] = sums.numpy().astype(np.int64).sum((0, 2))
    return total


def mean_std(sums: list[int], squares: list[int], pixels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and population standard deviation in [0, 1].

    Args:
        sums: each channel's sum.
        squares: each channel's sum of squares.
        pixels: how many pixels each channel has; 0 gives no statistics.
    """
    if not pixels:
        return (), ()
    mean = tuple(total / pixels / 255 for total in sums)
    spread = (max(0, square * pixels - total * total) for total, square in zip(sums, squares, strict=True))
    return mean, tuple(float(value**0.5) / pixels / 255 for value in spread)
