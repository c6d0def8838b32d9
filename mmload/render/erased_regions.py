"""A plan's holes as the compiled kernels take them, and overwritten by torch's operations: the same bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.render.device_constants import constant
from mmload.render.hole_kernels import SIDES
from mmload.render.plan import Hole, Plan
from mmload.runtime.normal_noise import normals


class Holes(NamedTuple):
    """Holes as :func:`mmload.render.hole_kernels.erase` takes them.

    Attributes:
        sides: int64 [B, n, :data:`~mmload.render.hole_kernels.SIDES`].
        values: float32 [n, C]; NaN: noise.
    """

    sides: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    def of(self, samples: slice) -> Holes:
        """Those of some samples."""
        return Holes(self.sides[samples], self.values)

    @classmethod
    def of_plan(cls, plan: Plan) -> Holes:
        """Those of all samples."""
        sides = np.zeros((plan.count, len(plan.holes), SIDES), np.int64)
        values = np.full((len(plan.holes), plan.source[0]), np.nan, np.float32)
        for n, hole in enumerate(plan.holes):
            for side, tensor in enumerate((hole.top, hole.left, hole.height, hole.width, hole.noise)):
                if tensor is not None:
                    sides[:, n, side] = tensor.numpy()
            if hole.value is not None:
                values[n] = hole.value
        return cls(sides, values)

    @classmethod
    def none(cls, count: int, channels: int) -> Holes:
        """No hole in any sample."""
        return cls(np.zeros((count, 0, SIDES), np.int64), np.zeros((0, channels), np.float32))


def punch_batch(hole: Hole, images: Tensor) -> None:
    """Overwrites every sample's hole in a batch [B, C, H, W]."""
    _, channels, rows, cols = images.shape
    y = torch.arange(rows, device=images.device).view(1, 1, -1, 1) - _of_batch(hole.top)
    x = torch.arange(cols, device=images.device).view(1, 1, 1, -1) - _of_batch(hole.left)
    height, width = _of_batch(hole.height), _of_batch(hole.width)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if hole.value is not None:
        values = constant(hole.value, torch.float32, images.device).view(-1, 1, 1)
        images.copy_(torch.where(inside, values.to(images.dtype), images))
    elif hole.noise is not None:
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        half, second = (width + 1) // 2, x >= (width + 1) // 2
        words = (channel * height + y) * half + torch.where(second, x - half, x)
        noise = normals(_of_batch(hole.noise), words, second)
        images.copy_(torch.where(inside, noise.to(images.dtype), images))


def _of_batch(one: Tensor) -> Tensor:
    return one.view(-1, 1, 1, 1)
