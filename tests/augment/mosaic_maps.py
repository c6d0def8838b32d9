"""The maps of Mosaic's canvases as products of plain matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmload.augment import Mosaic


def maps_of(step: Mosaic, uniform: Tensor, canvas: Tensor) -> Tensor:
    """Matrices from canvas to output, float64 [T, 3, 3], of numbers [T, 10] and canvas sizes [T, 2], height first."""
    signed = 2 * uniform - 1
    height, width = step.size
    nothing, one = torch.zeros(len(uniform), dtype=torch.float64), torch.ones(len(uniform), dtype=torch.float64)

    def matrix(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return torch.stack([torch.stack(row, 1) for row in rows], 1)

    center = matrix((one, nothing, -canvas[:, 1] / 2), (nothing, one, -canvas[:, 0] / 2), (nothing, nothing, one))
    depth = step.perspective * signed[:, 2:4]
    seen = matrix((one, nothing, nothing), (nothing, one, nothing), (depth[:, 0], depth[:, 1], one))
    angle, scale = math.radians(step.degrees) * signed[:, 4], 1 + step.scale * signed[:, 5]
    cos, sin = scale * angle.cos(), scale * angle.sin()
    turned = matrix((cos, sin, nothing), (-sin, cos, nothing), (nothing, nothing, one))
    across, over = (math.radians(step.shear) * signed[:, 6:8]).tan().unbind(1)
    sheared = matrix((one, across, nothing), (over, one, nothing), (nothing, nothing, one))
    right, down = (0.5 + step.translate * signed[:, 8:]).unbind(1)
    moved = matrix((one, nothing, right * width), (nothing, one, down * height), (nothing, nothing, one))
    return moved @ sheared @ turned @ seen @ center
