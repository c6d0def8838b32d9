"""Tiles of a canvas against a plain computation of each pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mmload.render.canvas_kernels import paint
from mmload.render.kernel_arguments import LINES, PIXELS, PLACE, PLANES, TILE, ImageLines

Array = npt.NDArray[Any]

MAPS = {
    "same": np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "moved": np.array([[1, 0, -7], [0, 1, 5], [0, 0, 1]]),
    "affine": np.array([[0.8, 0.3, -3.2], [-0.25, 1.1, 4.7], [0, 0, 1]]),
    "shrunk": np.array([[3.1, 0, -9.5], [0, 2.6, -3.3], [0, 0, 1]]),
    "turned": np.array([[0, -1, 30.5], [1, 0, -2.25], [0, 0, 1]]),
    "perspective": np.array([[0.9, 0.1, 1.5], [0.05, 1.2, -4], [0.004, -0.003, 0.9]]),
    "behind": np.array([[0.9, 0.1, 1.5], [0.05, 1.2, -4], [0.05, 0.02, -0.6]]),
}


def expected(image: Array, map_: Array, limits: Array, out: Array) -> Array:
    """The canvas after a tile, and which pixels are near enough to its limits to be either; float64."""
    channels, height, width = out.shape
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    points = np.einsum("ij,jyx->iyx", map_, np.stack([x, y, np.ones_like(x)]))
    front = points[2] > 1e-6
    u, v = points[:2] / np.where(front, points[2], 1)
    inside = front & (u >= limits[0]) & (u <= limits[1]) & (v >= limits[2]) & (v <= limits[3])
    _, high, wide = image.shape
    column, row = np.clip(u - 0.5, 0, wide - 1), np.clip(v - 0.5, 0, high - 1)
    x0, y0 = np.floor(column).astype(int), np.floor(row).astype(int)
    x1, y1 = np.minimum(x0 + 1, wide - 1), np.minimum(y0 + 1, high - 1)
    right, low = column - x0, row - y0
    upper = image[:, y0, x0] * (1 - right) + image[:, y0, x1] * right
    lower = image[:, y1, x0] * (1 - right) + image[:, y1, x1] * right
    return np.where(inside, upper * (1 - low) + lower * low, out)


def stored(image: Array, layout: int, first: int, stop: int) -> tuple[Array, Any]:
    channels, height, width = image.shape
    lines = image if layout == PLANES else image[:, first:stop]
    order = {PLANES: (0, 1, 2), LINES: (1, 0, 2), PIXELS: (1, 2, 0)}[layout]
    memory = np.concatenate([np.zeros(5, np.uint8), lines.transpose(order).reshape(-1)])
    place = np.zeros(1, PLACE)
    begin, count = (0, height) if layout == PLANES else (first, stop - first)
    place[0] = 5, begin, count, height, width, layout, 1
    return memory, place


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("layout", [PLANES, LINES, PIXELS])
@pytest.mark.parametrize("name", MAPS)
def test_paint_a_tile_is_within_a_level_of_the_plain_computation(name: str, layout: int, channels: int) -> None:
    rng = np.random.default_rng(4)
    image = rng.integers(0, 256, (channels, 37, 29), np.uint8)
    ground = np.arange(7, 7 + channels, dtype=np.uint8)
    tile, limits = np.zeros(1, TILE), np.array([2.3, 27.1, 0.0, 30.6])
    for key, value in zip("abcdefghi", MAPS[name].reshape(-1), strict=True):
        tile[key] = value
    tile["u0"], tile["u1"], tile["v0"], tile["v1"] = limits
    tile["begins"], tile["bottom"], tile["right"] = 1, 37, 29
    out = np.zeros((1, channels, 33, 45), np.uint8)
    memory, place = stored(image, layout, 0, 37)
    paint(ImageLines(memory, place, memory), 0, tile, ground, out, np.nan)
    before = np.broadcast_to(ground[:, None, None].astype(float), out.shape[1:])
    wanted = expected(image.astype(float), MAPS[name], limits, before)
    apart = np.abs(out[0] - wanted)
    assert (apart.max(0) > 0.51).mean() < 0.002  # pixels on the limits may be either
    assert (out[0] != before).mean() > 0.05


@pytest.mark.parametrize("layout", [LINES, PIXELS])
@pytest.mark.parametrize("scale", [0.3, 0.9, 1.0, 1.7, 2.3, 3.9, 5.3, -1.2, -4.4])
def test_paint_a_straight_tile_has_the_bits_of_a_turned_one(scale: float, layout: int) -> None:
    image = np.random.default_rng(6).integers(0, 256, (3, 187, 329), np.uint8)
    memory, place = stored(image, layout, 0, 187)
    made = []
    for turn in (0.0, 1e-300):
        tile = np.zeros(1, TILE)
        tile["a"], tile["e"], tile["b"], tile["i"] = scale, 1.3 * scale, turn, 1
        tile["c"], tile["f"] = (-3.7, 2.2) if scale > 0 else (-scale * 75.1, 185.5)
        tile["u1"], tile["v0"], tile["v1"] = 328.5, 1.5, 187
        tile["begins"], tile["bottom"], tile["right"] = 1, 187, 329
        out = np.zeros((1, 3, 33, 75), np.uint8)
        paint(ImageLines(memory, place, memory), 0, tile, np.full(3, 9, np.uint8), out, np.nan)
        made.append(out)
    assert np.array_equal(*made)
    assert (made[0] != 9).mean() > 0.5


def test_paint_a_smaller_image_and_a_part_of_its_lines() -> None:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 256, (3, 40, 60), np.uint8)
    small = image[:, ::2, ::2].copy()
    tile = np.zeros(1, TILE)
    tile["a"] = tile["e"] = 2.0
    tile["i"], tile["c"], tile["f"] = 1.0, 8.0, 10.0
    tile["u1"], tile["v1"], tile["begins"] = 60, 40, 1
    tile["top"], tile["left"], tile["bottom"], tile["right"] = 9, 7, 33, 41
    memory, place = stored(small, PIXELS, 3, 18)
    place["height"], place["width"], place["shrink"] = 40, 60, 2
    out = np.zeros((1, 3, 11, 16), np.uint8)
    paint(ImageLines(memory, place, memory), 0, tile, np.zeros(3, np.uint8), out, np.nan)
    assert np.array_equal(out[0], small[:, 5:16, 4:20])


def test_paint_later_tiles_are_on_top_and_layers_are_apart() -> None:
    tiles = np.zeros(3, TILE)
    tiles["a"] = tiles["e"] = tiles["i"] = 1
    tiles["layer"], tiles["begins"] = (0, 0, 1), (1, 0, 1)
    tiles["u1"], tiles["v1"], tiles["bottom"], tiles["right"] = (6, 3, 4), 5, 5, 6
    images = [np.full((3, 5, 6), level, np.uint8) for level in (10, 20, 30)]
    places = np.zeros(3, PLACE)
    for k in range(3):
        places[k] = 90 * k, 0, 5, 5, 6, PLANES, 1
    out = np.zeros((2, 3, 5, 7), np.uint8)
    memory = np.concatenate([image.reshape(-1) for image in images])
    paint(ImageLines(memory, places, memory), 0, tiles, np.full(3, 9, np.uint8), out, np.nan)
    assert out[0, 0, 0].tolist() == [20, 20, 20, 10, 10, 10, 9]
    assert out[1, 0, 0].tolist() == [30, 30, 30, 30, 9, 9, 9]
    layers = np.empty_like(out)
    paint(ImageLines(memory, places), 0, tiles, np.full(3, 9, np.uint8), layers, np.float32(0.25))
    assert np.array_equal(layers[0], np.rint(out[0] * 0.25 + out[1] * 0.75).astype(np.uint8))
