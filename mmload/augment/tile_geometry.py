"""Geometry of the tiles of mosaics, compiled: which rows they show, where they lie, and how their points move.

These are few numbers per tile. Operations of torch and numpy on them took a quarter of the time of a batch, for each
acquires and checks more than it computes. All arithmetic is float64 in a fixed order, without fused products,
so the results do not depend on the processor. The kernels keep the interpreter lock: they take some microseconds.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from mmload.augment.step import Doubles, Flags
from mmload.render.antialiased_resize import SHRINKS
from mmload.render.kernel_arguments import NEAR, NEEDED, TILE, Numbers, Places, Records
from mmload.render.motion import SCALE, SHIFT, VIEW, Motion
from mmload.runtime.host_memory import zeros
from mmload.runtime.kernels import RecordArray, called, inlined, numba_compiled

MAP_NUMBERS = 10
"""Numbers drawn per canvas: place of the mosaic (2), perspective (2), angle, scale, shear (2), translation (2)."""

_HALVES, _QUARTERS = SHRINKS


class TileRows(NamedTuple):
    """Rows that the samples of a batch are composed of: one per tile, sample after sample.

    Attributes:
        numbers: int64 [T], row of each tile.
        samples: int64 [T], sample of each tile.
        layers: int64 [T], 0, or 1 for the tiles of the image that is blended in.
        places: int64 [T], place of each tile in its mosaic, descending; 0 is the sample's own.
        alone: bool [T], whether the tile is the only one of its canvas.
    """

    numbers: Numbers
    samples: Numbers
    layers: Numbers
    places: Numbers
    alone: Annotated[Flags, "boolean[::1]"]


class MapRanges(NamedTuple):
    """Size of the output of a mosaic, and the greatest changes of its random map either way.

    Attributes:
        height: rows of the output.
        width: columns of the output.
        perspective: change of a point's depth per pixel.
        angle: rotation in radians.
        scale: change of the scale from 1.
        shear: angle of the shears in radians.
        translate: translation as a share of the output's sides.
    """

    height: int
    width: int
    perspective: float
    angle: float
    scale: float
    shear: float
    translate: float


TO_TILE, TO_CANVAS, TO_OUTPUT = range(3)
"""Moves of a point of a tile's image: a scale to the size of the tile, a shift to its place on the canvas, and the map
from the canvas to the output."""


def listed_tiles(rows: list[list[Numbers]], composed: list[Flags], blended: list[Flags]) -> TileRows:
    """Returns the rows of the tiles that are shown.

    Args:
        rows: per layer and place of a mosaic int64 [B], the rows there, the last place first.
        composed: per layer bool [B], whether there is a mosaic; else the first place is alone.
        blended: per layer bool [B], whether the layer is there; the first one always is.
    """
    drawn = np.array(rows)
    out = TileRows._make([*np.empty((4, drawn.size), np.int64), np.empty(drawn.size, np.bool_)])
    count = _list_tiles(drawn, np.array(composed), np.array(blended), out)
    return TileRows._make(each[:count] for each in out)


@numba_compiled("int64[:, :, ::1], boolean[:, ::1], boolean[:, ::1]", TileRows, returns="int64", nogil=False)
def _list_tiles(rows: Numbers, composed: Flags, blended: Flags, out: Any) -> int:
    """Writes the tiles that are shown and returns their number."""
    layers, tiles, samples = rows.shape
    count = 0
    for sample in range(samples):
        for layer in range(layers):
            if layer > 0 and not blended[layer, sample]:
                continue
            alone = not composed[layer, sample]
            for column in range(tiles - 1 if alone else 0, tiles):
                out.numbers[count], out.samples[count], out.layers[count] = rows[layer, column, sample], sample, layer
                out.places[count], out.alone[count] = tiles - 1 - column, alone
                count += 1
    return count


def placed_tiles(
    rows: TileRows, sizes: Numbers, uniform: tuple[Doubles, Doubles], ranges: MapRanges, layout: Numbers
) -> tuple[Records, Places, Motion]:
    """Places tiles on their canvases and draws the canvases' maps.

    Args:
        rows: rows of the tiles.
        sizes: int64 [T, 2], height and width of each image.
        uniform: float64 [B, 10], uniform draws of each sample for its first layer, and for its second one.
        ranges: size of the output and ranges of the map.
        layout: int64 [N, 2, 2], per place of a mosaic and axis, height first: how many times its size the tile lies
            before the point where images meet, and how many times the size of the one in the middle behind it.

    Returns:
        The tiles as kernels take them, :data:`~mmload.render.kernel_arguments.TILE` [T]; the lines that they need of
        their images, :data:`~mmload.render.kernel_arguments.NEEDED` [T]; and the motion of their points: for each tile
        the moves :data:`TO_TILE`, :data:`TO_CANVAS` and :data:`TO_OUTPUT`.
    """
    count = len(sizes)
    tiles, needed = zeros(count, TILE), np.empty(count, NEEDED)
    motion = Motion.empty(count, 3)
    _place_tiles(rows, sizes, *uniform, ranges, layout, motion, tiles, needed)
    return tiles, needed, motion


@inlined
def _times(first: Any, second: Any) -> Any:
    """Returns the product of two matrices [3, 3], as tuples of nine numbers."""
    a, b, c, d, e, f, g, h, i = first
    j, k, m, n, o, p, q, r, s = second
    return (
        a * j + b * n + c * q, a * k + b * o + c * r, a * m + b * p + c * s,
        d * j + e * n + f * q, d * k + e * o + f * r, d * m + e * p + f * s,
        g * j + h * n + i * q, g * k + h * o + i * r, g * m + h * p + i * s,
    )  # fmt: skip


@inlined
def _map_of(drawn: Doubles, ranges: Any, high: float, wide: float) -> Any:
    """Returns the matrix from a canvas of a size to the output, of ten draws."""
    seen = (
        1.0, 0.0, 0.0, 0.0, 1.0, 0.0, ranges.perspective * (2 * drawn[2] - 1), ranges.perspective * (2 * drawn[3] - 1),
        1.0,
    )  # fmt: skip
    angle, scale = ranges.angle * (2 * drawn[4] - 1), 1 + ranges.scale * (2 * drawn[5] - 1)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    across, over = math.tan(ranges.shear * (2 * drawn[6] - 1)), math.tan(ranges.shear * (2 * drawn[7] - 1))
    right = (0.5 + ranges.translate * (2 * drawn[8] - 1)) * ranges.width
    down = (0.5 + ranges.translate * (2 * drawn[9] - 1)) * ranges.height
    placed = _times((1.0, 0.0, right, 0.0, 1.0, down, 0.0, 0.0, 1.0), (1.0, across, 0.0, over, 1.0, 0.0, 0.0, 0.0, 1.0))
    turned = _times(placed, (cos, sin, 0.0, -sin, cos, 0.0, 0.0, 0.0, 1.0))
    return _times(_times(turned, seen), (1.0, 0.0, -wide / 2, 0.0, 1.0, -high / 2, 0.0, 0.0, 1.0))


@inlined
def _inverse(matrix: Any) -> Any:
    """Returns the inverse of a matrix; zeros beside a diagonal, and a last row of 0, 0, 1, stay exact."""
    a, b, c, d, e, f, g, h, i = matrix
    p, q, r = e * i - f * h, f * g - d * i, d * h - e * g
    whole = a * p + b * q + c * r
    return (
        p / whole, (c * h - b * i) / whole, (b * f - c * e) / whole,
        q / whole, (a * i - c * g) / whole, (c * d - a * f) / whole,
        r / whole, (b * g - a * h) / whole, (a * e - b * d) / whole,
    )  # fmt: skip


@inlined
def _shrink(a: float, b: float, d: float, e: float) -> int:
    """Returns by how many times an image may be decoded smaller: it stays as large as it shows, at least."""
    total, area = a * a + b * b + d * d + e * e, abs(a * e - b * d)
    least = math.sqrt(max(total - math.sqrt(max(total * total - 4 * area * area, 0.0)), 0.0) / 2)
    return _QUARTERS if least >= _QUARTERS else (_HALVES if least >= _HALVES else 1)


@inlined
def _lines(least: float, most: float, size: int) -> tuple[int, int]:
    """Returns the first line or column that a part of an image needs, with neighbors, and the one after the last."""
    first = min(max(int(math.floor(least - 0.5)), 0), size - 1)
    return first, min(max(int(math.floor(most - 0.5)) + 2, first + 1), size)


@inlined
def _frame(tile: Any, need: Any, least: tuple[float, float], most: tuple[float, float], size: Numbers) -> None:
    """Writes the part of an image that shows, if there is one, and the lines that it needs."""
    shows = least[0] < most[0] and least[1] < most[1]
    first, stop = _lines(least[0] if shows else 0.0, most[0] if shows else 0.0, size[0])
    left, right = _lines(least[1], most[1], size[1]) if shows else (0, 0)
    tile.top, tile.bottom = (first, stop) if shows else (0, 0)
    tile.left, tile.right = left, right
    need.first, need.stop = first, stop


@called
def _show(tile: Any, need: Any, ranges: Any, size: Numbers) -> None:
    """Finds what of a tile's image shows in the output, whose corners are mapped into the image."""
    least_x, least_y, most_x, most_y = np.inf, np.inf, -np.inf, -np.inf
    is_in_front = True
    for corner in range(4):
        x, y = float(ranges.width * (corner & 1)), float(ranges.height * (corner >> 1))
        below = tile.g * x + tile.h * y + tile.i
        is_in_front = is_in_front and below > NEAR
        u, v = (tile.a * x + tile.b * y + tile.c) / below, (tile.d * x + tile.e * y + tile.f) / below
        least_x, most_x = min(least_x, u), max(most_x, u)
        least_y, most_y = min(least_y, v), max(most_y, v)
    if not is_in_front:
        least_x, least_y, most_x, most_y = -np.inf, -np.inf, np.inf, np.inf
    least = max(least_y, tile.v0), max(least_x, tile.u0)
    most = min(most_y, tile.v1), min(most_x, tile.u1)
    _frame(tile, need, least, most, size)
    need.shrink = _shrink(tile.a, tile.b, tile.d, tile.e) if tile.g == 0 and tile.h == 0 else 1


@numba_compiled(
    TileRows, "int64[:, ::1], float64[:, ::1], float64[:, ::1]", MapRanges, "int64[:, :, ::1]", Motion,
    RecordArray(TILE), RecordArray(NEEDED), nogil=False,
)  # fmt: skip
def _place_tiles(
    rows: Any,
    sizes: Numbers,
    first: Doubles,
    second: Doubles,
    ranges: Any,
    layout: Numbers,
    motion: Any,
    tiles: Records,
    needed: Places,
) -> None:
    """Writes the records and the motion of tiles; those of a canvas follow each other, the one in the middle last."""
    frame = ranges.height, ranges.width
    placed, inner, key = (0, 0), (0, 0), -1
    for backward in range(len(tiles)):
        t = len(tiles) - 1 - backward  # the last first: others lie around it
        tile, size, sample = tiles[t], sizes[t], rows.samples[t]
        drawn = second[sample] if rows.layers[t] else first[sample]
        numbers, frames = motion.numbers[t], motion.frames[t]
        share = min(frame[0] / size[0], frame[1] / size[1])
        placed = (
            min(max(int(np.rint(size[0] * share)), 1), frame[0]),
            min(max(int(np.rint(size[1] * share)), 1), frame[1]),
        )
        if sample * 2 + rows.layers[t] != key:
            key, inner = sample * 2 + rows.layers[t], placed
        sides = 1 if rows.alone[t] else 2
        for axis in range(2):
            meeting = int((0.5 + drawn[axis]) * frame[axis]) - (inner[axis] // 2 if len(layout) == 9 else 0)
            before, within = layout[rows.places[t], axis, 0], layout[rows.places[t], axis, 1]
            corner = meeting - before * placed[axis] + within * inner[axis]
            numbers[TO_CANVAS, 1 - axis] = -float((frame[axis] - placed[axis]) // 2 if rows.alone[t] else corner)
            numbers[TO_TILE, 1 - axis] = placed[axis] / size[axis]
            frames[TO_TILE, 1 - axis], frames[TO_CANVAS, 1 - axis] = 0, sides * frame[axis]
            frames[TO_OUTPUT, 1 - axis] = frame[axis]
        motion.kinds[t, TO_TILE], motion.kinds[t, TO_CANVAS], motion.kinds[t, TO_OUTPUT] = SCALE, SHIFT, VIEW
        x, y = -numbers[TO_CANVAS, 0], -numbers[TO_CANVAS, 1]
        wide, high = frames[TO_CANVAS, 0], frames[TO_CANVAS, 1]
        forward = _map_of(drawn, ranges, high, wide)
        for number in range(9):
            numbers[TO_OUTPUT, number] = forward[number]
        across, over = 1 / numbers[TO_TILE, 0], 1 / numbers[TO_TILE, 1]
        to_image = across, 0.0, -x * across, 0.0, over, -y * over, 0.0, 0.0, 1.0
        tile.a, tile.b, tile.c, tile.d, tile.e, tile.f, tile.g, tile.h, tile.i = _times(to_image, _inverse(forward))
        tile.u0, tile.u1 = max(-x * across, 0.0), min((wide - x) * across, float(size[1]))
        tile.v0, tile.v1 = max(-y * over, 0.0), min((high - y) * over, float(size[0]))
        tile.layer = rows.layers[t]
        before_it = t > 0 and rows.samples[t - 1] == sample and rows.layers[t - 1] == rows.layers[t]
        tile.begins = 0 if before_it else 1
        _show(tile, needed[t], ranges, size)
