"""Affine and perspective warps of a batch, and of points, by torch's operations.

Grids are torchvision's, in float32; :mod:`mmload.render.warp_kernels` computes the same for one image on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from mmload.render import level_program as levels
from mmload.runtime.memory_pool import constant

_OUTSIDE = 4.0
"""Grid coordinate that no pixel is near, whatever the size: for points on the horizon, which are infinitely far or
undefined, and would be sampled as NaN."""

_FAR = 1e9
"""Coordinate in pixels to which points on the horizon are moved: outside of every image."""


def warped(operation: int, images: Tensor, numbers: Tensor, fill: tuple[float, ...] | None, white: float) -> Tensor:
    """Warps a batch.

    Args:
        operation: one of :data:`~mmload.render.level_program.WARPS`.
        images: float32 [B, C, H, W].
        numbers: float32 [B, 8], numbers of the operation.
        fill: values outside, per channel or one for all; None: 0, not blended with the edge once more.
        white: 255 where values are rounded to levels, else 1.
    """
    perspective = operation in (levels.PERSPECTIVE_NEAREST, levels.PERSPECTIVE_BILINEAR)
    nearest = operation in (levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST)
    grid = (_perspective_grid if perspective else _affine_grid)(numbers, *images.shape[2:])
    mode = "nearest" if nearest else "bilinear"
    if fill is None:
        warped = grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)
    else:
        inside = torch.ones_like(images[:, :1])
        both = grid_sample(torch.cat((images, inside), 1), grid, mode=mode, padding_mode="zeros", align_corners=False)
        warped, share = both[:, :-1], both[:, -1:]
        ground = constant(fill, torch.float32, images.device).view(1, -1, 1, 1)
        warped = torch.where(share < 0.5, ground, warped) if nearest else (warped - ground) * share + ground
    return warped if white == 1 else warped.round_()


def _affine_grid(numbers: Tensor, height: int, width: int) -> Tensor:
    x = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width, device=numbers.device)
    y = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height, device=numbers.device)
    across, over = _half(numbers[:, :3], width), _half(numbers[:, 3:6], height)
    return torch.stack((_planes(across, x, y), _planes(over, x, y)), dim=3)


def _perspective_grid(numbers: Tensor, height: int, width: int) -> Tensor:
    x = torch.linspace(0.5, width - 0.5, width, device=numbers.device)
    y = torch.linspace(0.5, height - 0.5, height, device=numbers.device)
    below = _planes(torch.cat((numbers[:, 6:8], torch.ones_like(numbers[:, :1])), 1), x, y)
    across, over = _half(numbers[:, :3], width), _half(numbers[:, 3:6], height)
    grid = torch.stack((_planes(across, x, y) / below, _planes(over, x, y) / below), dim=3) - 1.0
    return grid.nan_to_num(nan=_OUTSIDE).clamp(-_OUTSIDE, _OUTSIDE)


def _half(factors: Tensor, length: int) -> Tensor:
    """Converts pixels to shares of half of the image's side."""
    return factors / (0.5 * length)


def _planes(factors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns a x + b y + c of each sample: [B, h, w] of factors [B, 3]."""
    a, b, c = (factor.view(-1, 1, 1) for factor in factors.unbind(1))
    return a * x + b * y.unsqueeze(1) + c


def warped_points(operation: int, numbers: Tensor, points: Tensor, height: int, width: int) -> Tensor:
    """Moves points of the image as a warp does.

    Args:
        operation: one of :data:`~mmload.render.level_program.WARPS`.
        numbers: float32 [B, 8], numbers of the operation: from output to input.
        points: [B, M, N, 2], x and y in pixels from the image's corner.
        height: height of the image.
        width: width of the image.

    Returns:
        float64 [B, M, N, 2].
    """
    a, b, c, d, e, f, g, h = numbers.to(torch.float64).unbind(1)
    if operation in (levels.AFFINE_NEAREST, levels.AFFINE_BILINEAR):  # around the center
        across, over = 0.5 * width, 0.5 * height
        c, f = c + across - a * across - b * over, f + over - d * across - e * over
        g, h = torch.zeros_like(a), torch.zeros_like(a)
    x_rows = (e - f * h, c * h - b, b * f - c * e)
    y_rows = (f * g - d, a - c * g, c * d - a * f)
    below = (d * h - e * g, b * g - a * h, a * e - b * d)
    x, y = points.to(torch.float64).unbind(3)
    new_x, new_y, scale = (_of_points(row, x, y) for row in (x_rows, y_rows, below))
    moved = torch.stack((new_x / scale, new_y / scale), 3)
    return moved.nan_to_num(nan=-_FAR, posinf=_FAR, neginf=-_FAR)


def _of_points(row: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
    first, second, third = (factor.view(-1, 1, 1) for factor in row)
    return first * x + second * y + third
