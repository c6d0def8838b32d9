"""Tiles of a canvas against a plain computation of each pixel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mmload.render.canvas_kernels import paint
from mmload.render.kernel_arguments import LINES, PIXELS, PLACE, PLANES, TILE, Composed, Lines
from mmload.runtime import kernel_compiler, kernels, machine_code, numba_intrinsics
from mmload.runtime.kernels import Kernel

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


def stored(image: Array, layout: int, first: int, stop: int) -> Lines:
    """Some lines of an image in memory."""
    _, height, width = image.shape
    lines = image if layout == PLANES else image[:, first:stop]
    order = {PLANES: (0, 1, 2), LINES: (1, 0, 2), PIXELS: (1, 2, 0)}[layout]
    memory = np.concatenate([np.zeros(5, np.uint8), lines.transpose(order).reshape(-1)])
    begin, count = (0, height) if layout == PLANES else (first, stop - first)
    return Lines(memory, np.array([(5, begin, count, height, width, layout, 1)], PLACE), memory)


def tiles_of(**fields: Any) -> Array:
    """Tiles with these values; a field that has several makes several tiles."""
    tiles = np.zeros(max(np.size(value) for value in fields.values()), TILE)
    for name, value in fields.items():
        tiles[name] = value
    return tiles


def painted(kernel: Any, lines: Lines, tiles: Array, ground: Array, out: Array, share: float = np.nan) -> None:
    """Paints the tiles of one sample."""
    shares = np.full(len(tiles), np.nan, np.float32)
    shares[-1] = share
    kernel(lines, Composed(tiles, ground, out, shares), np.array([0, len(tiles)]))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("layout", [PLANES, LINES, PIXELS])
@pytest.mark.parametrize("name", MAPS)
def test_paint_a_tile_is_within_a_level_of_the_plain_computation(name: str, layout: int, channels: int) -> None:
    image = np.random.default_rng(4).integers(0, 256, (channels, 37, 29), np.uint8)
    ground, limits = np.arange(7, 7 + channels, dtype=np.uint8), np.array([2.3, 27.1, 0.0, 30.6])
    map_ = dict(zip("abcdefghi", MAPS[name].reshape(-1), strict=True))
    tile = tiles_of(**map_, **dict(zip(("u0", "u1", "v0", "v1"), limits, strict=True)), begins=1, bottom=37, right=29)
    out = np.zeros((1, channels, 33, 45), np.uint8)
    painted(paint, stored(image, layout, 0, 37), tile, ground, out)
    before = np.broadcast_to(ground[:, None, None].astype(float), out.shape[1:])
    apart = np.abs(out[0] - expected(image.astype(float), MAPS[name], limits, before))
    assert (apart.max(0) > 0.51).mean() < 0.002  # pixels on the limits may be either
    assert (out[0] != before).mean() > 0.05


@pytest.fixture(params=["own", "without AVX-512"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The kernel by this processor's instructions, and compiled without AVX-512's, which take neighbors otherwise."""
    if request.param == "own":
        yield paint
        return
    monkeypatch.setattr(numba_intrinsics, "_has_avx512", lambda: False)
    monkeypatch.setattr(kernels, "load", lambda symbol, compile_: machine_code._link(compile_(), symbol))
    kernel_compiler._compiled.cache_clear()  # what was compiled with AVX-512
    yield Kernel(paint.function, paint.kinds, paint.returns, nogil=True)  # type: ignore[attr-defined]  # a kernel
    kernel_compiler._compiled.cache_clear()


def test_paint_a_straight_tile_has_the_bits_of_a_turned_one(kernel: Any) -> None:
    image = np.random.default_rng(6).integers(0, 256, (3, 187, 329), np.uint8)
    lines = {layout: stored(image, layout, 0, 187) for layout in (LINES, PIXELS)}
    for scale in (0.3, 0.9, 1.0, 1.7, 2.3, 3.9, 5.3, -1.2, -4.4):
        begin = {"c": -3.7, "f": 2.2} if scale > 0 else {"c": -scale * 75.1, "f": 185.5}
        for layout, u1, v0 in ((LINES, 328.5, 1.5), (PIXELS, 328.5, 1.5), (LINES, 329, 0), (PIXELS, 329, 0)):
            made = np.zeros((2, 1, 3, 33, 75), np.uint8)
            for out, turn in zip(made, (0.0, 1e-300), strict=True):
                tile = tiles_of(
                    a=scale, e=1.3 * scale, b=turn, i=1, **begin, u1=u1, v0=v0, v1=187, begins=1, bottom=187, right=329
                )
                painted(kernel, lines[layout], tile, np.full(3, 9, np.uint8), out)
            assert np.array_equal(*made), (scale, layout)
            assert (made[0] != 9).mean() > 0.5


def test_paint_a_smaller_image_and_a_part_of_its_lines() -> None:
    image = np.random.default_rng(5).integers(0, 256, (3, 40, 60), np.uint8)
    small = image[:, ::2, ::2].copy()
    tile = tiles_of(a=2, e=2, i=1, c=8, f=10, u1=60, v1=40, begins=1, top=9, left=7, bottom=33, right=41)
    lines = stored(small, PIXELS, 3, 18)
    lines.places["height"], lines.places["width"], lines.places["shrink"] = 40, 60, 2
    out = np.zeros((1, 3, 11, 16), np.uint8)
    painted(paint, lines, tile, np.zeros(3, np.uint8), out)
    assert np.array_equal(out[0], small[:, 5:16, 4:20])


def test_paint_later_tiles_are_on_top_and_layers_are_apart() -> None:
    tiles = tiles_of(a=1, e=1, i=1, layer=(0, 0, 1), begins=(1, 0, 1), u1=(6, 3, 4), v1=5, bottom=5, right=6)
    memory = np.repeat(np.array([10, 20, 30], np.uint8), 3 * 5 * 6)
    places = np.array([(90 * k, 0, 5, 5, 6, PLANES, 1) for k in range(3)], PLACE)
    out, layers = np.zeros((2, 2, 3, 5, 7), np.uint8)
    painted(paint, Lines(memory, places, memory), tiles, np.full(3, 9, np.uint8), out)
    assert out[0, 0, 0].tolist() == [20, 20, 20, 10, 10, 10, 9]
    assert out[1, 0, 0].tolist() == [30, 30, 30, 30, 9, 9, 9]
    painted(paint, Lines(memory, places), tiles, np.full(3, 9, np.uint8), layers, 0.25)
    assert np.array_equal(layers[0], np.rint(out[0] * 0.25 + out[1] * 0.75).astype(np.uint8))
