"""Moves the boxes of tiles, and all that belongs to them, to the samples that the tiles are composed to.

Masks of instances are polygons there; run lengths become rectangles first. What of a polygon is outside of its canvas
or of the output is cut off, as no pixels of it are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmload.augment.boxes import POLYGONS, Fields, Trail, moved_fields, points_in, without_runs
from mmload.augment.draws import Flags
from mmload.augment.tile_geometry import MovingTiles
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PADDING
from mmload.render.kernel_arguments import NEAR, Numbers
from mmload.render.motion import move_boxes
from mmload.render.plan import Plan
from mmload.render.plan_parts import Array
from mmload.runtime.host_arrays import taken, zeros
from mmload.runtime.numba_compile import numba_compiled


class _Outlines(NamedTuple):
    """Polygons, the points of one after another.

    Attributes:
        points: float64 [N, 5], x and y on the canvas; x, y and divisor in the output.
        ring: int64 [N], polygon of each point, ascending.
    """

    points: Array
    ring: Array

    def clipped(self, distance: Array) -> _Outlines:
        """Cuts off what is on one side of a line (Sutherland and Hodgman 1974).

        Args:
            distance: float64 [N], of each point, linear in ``points``; negative beyond the line.
        """
        inside = distance >= 0
        if inside.all():
            return self
        after = np.arange(1, len(inside) + 1)
        is_last = np.append(self.ring[1:] != self.ring[:-1], True)
        after[is_last] = np.flatnonzero(np.append(True, is_last[:-1]))
        crosses = inside != inside[after]
        share = distance / np.where(crosses, distance - distance[after], 1)
        cut = self.points + share[:, None] * (self.points[after] - self.points)
        stays = np.stack((inside, crosses), 1)
        return _Outlines(np.stack((self.points, cut), 1)[stays], np.stack((self.ring, self.ring), 1)[stays])


def composed_boxes(fields: Fields, tiles: MovingTiles, plan: Plan) -> tuple[Fields, Trail]:
    """Moves the boxes of tiles to the samples that they are composed to, clipped to the canvas and to the output.

    Keypoints, corners of rotated boxes and masks of instances move with them.

    Args:
        fields: the tiles' ``boxes`` [T, M, 4], perhaps ``counts`` [T], masks of instances, and others with an element
            per box, [T, M, ...].
        tiles: the tiles' geometry.
        plan: the plan that begins with the canvases.

    Returns:
        The same fields of the samples, and ``counts``; and the trail of their boxes.
    """
    (count, most), size, samples = fields["boxes"].shape[:2], plan.source[1:], plan.count
    counts: Numbers = np.ascontiguousarray(fields["counts"]) if "counts" in fields else np.full(count, most)
    totals = zeros(samples, np.int64)
    np.add.at(totals, tiles.samples, counts)
    shape = samples, max(int(totals.max(initial=0)), 1)
    sources, real, columns = zeros(shape, np.int64), zeros(shape, np.bool_), np.empty((count, most), np.int64)
    _list_boxes(counts, tiles.samples, sources, real, columns)

    def packed(values: Array, blank: float = 0) -> Array:
        rest = values.shape[2:]
        flat = np.ascontiguousarray(values).reshape(1, count * most, *rest)
        return taken(flat, sources.reshape(1, -1), real.reshape(1, -1), blank).reshape(*shape, *rest)

    motion, given = tiles.motion(*size), fields["boxes"]
    boxes, cut, shares = given.astype(np.float64), zeros((count, most), np.bool_), np.ones((count, most))
    move_boxes(boxes, motion, cut, shares)
    made = {"boxes": packed(boxes.astype(given.dtype)), "counts": totals}
    trail = Trail.before(made["boxes"], plan)
    trail.cut[:, -1] = True
    trail.share[:, :-1] = packed(shares.astype(np.float32))
    exact = {name: value.astype(np.float64) for name, value in points_in(fields).items() if name != POLYGONS}
    moved = fields | moved_fields(exact, motion)
    if "rings" in fields:
        made |= _composed_segments(fields, tiles, columns, samples, size)
    for name in fields.keys() - made.keys():
        made[name] = packed(moved[name].astype(fields[name].dtype, copy=False), PADDING.get(name, 0))
    return made, trail


@numba_compiled("void(int64[::1], int64[::1], int64[:, ::1], boolean[:, ::1], int64[:, ::1])", nogil=False)
def _list_boxes(counts: Numbers, samples: Numbers, sources: Numbers, real: Flags, columns: Numbers) -> None:
    """Writes the boxes of each sample as numbers among all of the tiles, and the column of each tile's box.

    The column is -1 where a tile has no such box.
    """
    sample, column = -1, 0
    for tile in range(len(counts)):
        if samples[tile] != sample:
            sample, column = samples[tile], 0
        for place in range(columns.shape[1]):
            columns[tile, place] = -1
            if place < counts[tile]:
                sources[sample, column], real[sample, column] = tile * columns.shape[1] + place, True
                columns[tile, place] = column
                column += 1


def _composed_segments(fields: Fields, tiles: MovingTiles, columns: Numbers, count: int, size: Sequence[int]) -> Fields:
    """Moves masks of the boxes of T tiles to B samples.

    Args:
        fields: the tiles' fields of :data:`~mmload.pictures.instance_masks.SEGMENTS`, [T, ...].
        tiles: the tiles' geometry.
        columns: int64 [T, M], index of each box of a tile in its sample; -1: there is no such box.
        count: B.
        size: height and width of the output.

    Returns:
        The same fields of the samples, of which run lengths are empty.
    """
    drawn = fields | without_runs(fields, tiles.heights.tolist())
    rings, polygons = drawn["rings"], drawn["polygons"]
    tile, place = (rings[..., 1] > 0).nonzero()
    box, length = rings[tile, place].astype(np.int64).T
    is_real = np.arange(polygons.shape[1]) < rings[..., 1].sum(1)[:, None]
    outlines = _moved(polygons[is_real], np.repeat(np.arange(len(box)), length), tile, tiles, size)
    column = np.where(box >= 0, columns[tile, box], -1)
    length = np.bincount(outlines.ring, minlength=len(box))
    stays = (length >= 3) & (column >= 0)
    samples, is_shown = tiles.samples[tile], stays[outlines.ring]
    points = (outlines.points[is_shown, 2:4] / outlines.points[is_shown, 4:]).astype(polygons.dtype)
    entries = np.stack((column, length), 1)[stays].astype(np.int32)
    packed = {
        "rings": _packed(samples[stays], entries, count),
        "polygons": _packed(samples[outlines.ring[is_shown]], points, count),
    }
    for name in SEGMENTS[1]:
        if name in fields:
            packed[name] = zeros((count, *fields[name].shape[1:]), fields[name].dtype)
    return packed


def _moved(drawn: Array, ring: Array, tile: Array, tiles: MovingTiles, size: Sequence[int]) -> _Outlines:
    """Moves points [N, 2] of polygons, each of a tile, and clips the polygons to the canvas and to the output."""
    own, maps = tile[ring], tiles.maps[tile[ring]]
    on_canvas = drawn * tiles.factors[own] + tiles.corners[own]
    seen = maps[..., 0] * on_canvas[:, :1] + maps[..., 2] + maps[..., 1] * on_canvas[:, 1:]
    outlines, canvas = _Outlines(np.column_stack((on_canvas, seen)), ring), tiles.canvas[tile]
    outlines = outlines.clipped(outlines.points[:, 4] - NEAR)
    for axis in (0, 1):
        outlines = outlines.clipped(outlines.points[:, axis])
        outlines = outlines.clipped(canvas[outlines.ring, axis] - outlines.points[:, axis])
        outlines = outlines.clipped(outlines.points[:, 2 + axis])
        outlines = outlines.clipped(size[1 - axis] * outlines.points[:, 4] - outlines.points[:, 2 + axis])
    return outlines


def _packed(samples: Array, values: Array, count: int) -> Array:
    """Puts values [N, ...] of samples, in ascending order, into rows: [B, M, ...], with zeros behind them."""
    counts = np.bincount(samples, minlength=count)
    rows = zeros((count, max(int(counts.max(initial=0)), 1), *values.shape[1:]), values.dtype)
    rows[samples, np.arange(len(samples)) - (np.cumsum(counts) - counts)[samples]] = values
    return rows
