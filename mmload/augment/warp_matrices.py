"""Matrices of warps, one per sample, with torchvision's numbers: float64 [B, 6] and [B, 8]."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def affine_matrix(
    angle: Tensor, translate: tuple[Tensor, Tensor], scale: Tensor, shear: tuple[Tensor, Tensor], center: Tensor
) -> Tensor:
    """From output to input coordinates: torchvision's ``_get_inverse_affine_matrix``.

    Args:
        angle: float64 [B], degrees.
        translate: x and y, float64 [B] each, in pixels.
        scale: float64 [B].
        shear: x and y, float64 [B] each, in degrees.
        center: float64 [2], x and y from the image's center, in pixels.

    Returns:
        float64 [B, 6], rows of a 2 x 3 matrix.
    """
    rotation, shear_x, shear_y = (value * (math.pi / 180) for value in (angle, *shear))
    cos_y, tan_x, turned = shear_y.cos(), shear_x.tan(), rotation - shear_y
    a = turned.cos() / cos_y
    b = -(a * tan_x + rotation.sin())
    c = turned.sin() / cos_y
    d = rotation.cos() - c * tan_x
    x, y = center.unbind(0)
    moved_x, moved_y = x + translate[0], y + translate[1]
    rows = []
    for first, second, middle in ((d / scale, -b / scale, x), (-c / scale, a / scale, y)):
        rows += [first, second, middle - first * moved_x - second * moved_y]
    return torch.stack(rows, 1)


def perspective_coefficients(start: Tensor, end: Tensor) -> Tensor:
    """From output to input coordinates, for four corners that are moved: torchvision's ``_get_perspective_coeffs``.

    Args:
        start: float64 [4, 2], x and y of the corners of the input.
        end: float64 [B, 4, 2], where they are in the output.

    Returns:
        float64 [B, 8].
    """
    count = len(end)
    x, y = end.unbind(2)
    ones, zeros = torch.ones_like(x), torch.zeros_like(x)
    u, v = (values.expand(count, 4) for values in start.unbind(1))
    first = torch.stack((x, y, ones, zeros, zeros, zeros, -u * x, -u * y), 2)
    second = torch.stack((zeros, zeros, zeros, x, y, ones, -v * x, -v * y), 2)
    system, wanted = torch.cat((first, second), 1), torch.cat((u, v), 1)
    coefficients: Tensor = torch.linalg.solve_ex(system, wanted).result  # does not wait for a device
    return coefficients
