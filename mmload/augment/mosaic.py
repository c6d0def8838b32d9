"""Mosaic: samples composed of several rows on a canvas that is seen through one random map, as YOLO models train.

It is the first step of a list. Which rows a sample is composed of is drawn from its seed before images are read; a
loader reads these rows, and without one they are rows of the batch. All tiles go straight from their images through one
map to the output, in the pass that the steps after it join.

Boxes of tiles, and all that belongs to them, move to the samples that the tiles are composed to. Masks of instances are
polygons there; run lengths become rectangles first. What of a polygon is outside of its canvas or of the output is cut
off, as no pixels of it are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import argument_error, chance, integer, number, pair, per_channel
from mmload.augment.boxes import (
    POLYGONS,
    Fields,
    Trail,
    check_counts,
    counts_of,
    moved_fields,
    numba_compiled_for_boxes,
    points_in,
    without_runs,
)
from mmload.augment.step import DeclaredStep, Doubles, Draws, Flags, beta, box_fields, following_fields
from mmload.augment.tile_geometry import (
    MAP_NUMBERS,
    TO_CANVAS,
    TO_OUTPUT,
    TO_TILE,
    MapRanges,
    TileRows,
    listed_tiles,
    placed_tiles,
)
from mmload.batch import Batch, fields_of
from mmload.records import ALL_SEGMENTS, PADDING, SEGMENTS
from mmload.render.kernel_arguments import NEAR
from mmload.render.level_operations import Array
from mmload.render.motion import Boxes, Motion, move_boxes
from mmload.render.plan import Canvas, Plan
from mmload.runtime.host_memory import taken, zeros
from mmload.runtime.kernels import numba_compiled
from mmload.runtime.random_words import Numbers


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


def composed_boxes(tiles: Tiles, motion: Motion, plan: Plan) -> tuple[Fields, Trail]:
    """Moves the boxes of tiles to the samples that they are composed to, clipped to the canvas and to the output.

    Keypoints, corners of rotated boxes and masks of instances move with them.

    Args:
        tiles: the tiles, with their fields.
        motion: motion of their points.
        plan: the plan that begins with the canvases.

    Returns:
        The same fields of the samples, and ``counts``; and the trail of their boxes.

    Raises:
        ValueError: if a tile has a number of boxes that there is no room for.
    """
    fields = following_fields(tiles.fields)
    check_counts(fields)
    given, samples = np.ascontiguousarray(fields["boxes"]), tiles.rows.samples
    (count, most, _), kind = given.shape, given.dtype
    counts, totals = counts_of(fields), zeros(plan.count, np.int64)
    _add_up(counts, samples, totals)
    shape = plan.count, max(int(totals.max(initial=0)), 1)
    sources, real, columns = zeros(shape, np.int64), zeros(shape, np.bool_), np.empty((count, most), np.int64)
    boxes, cut, shares = np.empty((count, most, 4)), zeros((count, most), np.bool_), np.empty((count, most))
    _list_boxes[kind.name](counts, samples, given, sources, real, columns, boxes, shares)
    move_boxes(boxes, motion, cut, shares)
    trail = Trail.before(zeros((*shape, 4), kind), plan)
    trail.cut[:, -1] = True
    _pack_boxes[kind.name](sources, real, boxes, shares, trail.boxes, trail.share)

    def packed(values: Array, blank: float = 0) -> Array:
        rest = values.shape[2:]
        flat = np.ascontiguousarray(values).reshape(1, count * most, *rest)
        return taken(flat, sources.reshape(1, -1), real.reshape(1, -1), blank).reshape(*shape, *rest)

    made = {"boxes": trail.boxes[:, :-1], "counts": totals}
    exact = {name: value.astype(np.float64) for name, value in points_in(fields).items() if name != POLYGONS}
    moved = fields | moved_fields(exact, motion)
    if "rings" in fields:
        made |= _composed_segments(fields, tiles, motion, columns, plan)
    for name in [name for name in fields if name not in made]:
        made[name] = packed(moved[name].astype(fields[name].dtype, copy=False), PADDING.get(name, 0))
    return made, trail


@numba_compiled("int64[::1], int64[::1], int64[::1]", nogil=False)
def _add_up(counts: Numbers, samples: Numbers, totals: Numbers) -> None:
    """Adds the number of boxes of each tile to that of its sample."""
    for tile in range(len(counts)):
        totals[samples[tile]] += counts[tile]


@numba_compiled_for_boxes(
    "int64[::1], int64[::1], BOXES[:, :, ::1], int64[:, ::1], boolean[:, ::1], int64[:, ::1], float64[:, :, ::1], "
    "float64[:, ::1]"
)
def _list_boxes(
    counts: Numbers,
    samples: Numbers,
    given: Boxes,
    sources: Numbers,
    real: Flags,
    columns: Numbers,
    boxes: Boxes,
    shares: Array,
) -> None:
    """Writes the boxes of each sample as numbers among all of the tiles, and the column of each tile's box.

    The column is -1 where a tile has no such box. All boxes are copied as float64, completely visible.
    """
    sample, column = -1, 0
    for tile in range(len(counts)):
        if samples[tile] != sample:
            sample, column = samples[tile], 0
        for place in range(columns.shape[1]):
            columns[tile, place], shares[tile, place] = -1, 1
            for side in range(4):
                boxes[tile, place, side] = given[tile, place, side]
            if place < counts[tile]:
                sources[sample, column], real[sample, column] = tile * columns.shape[1] + place, True
                columns[tile, place] = column
                column += 1


@numba_compiled_for_boxes(
    "int64[:, ::1], boolean[:, ::1], float64[:, :, ::1], float64[:, ::1], BOXES[:, :, ::1], BOXES[:, ::1]"
)
def _pack_boxes(sources: Numbers, real: Flags, boxes: Boxes, shares: Array, to_boxes: Boxes, to_shares: Array) -> None:
    """Writes the boxes of tiles and their visible shares, float64, to those of samples."""
    most = boxes.shape[1]
    for k in range(len(sources)):
        for n in range(sources.shape[1]):
            tile, place = sources[k, n] // most, sources[k, n] % most
            to_shares[k, n] = np.float32(shares[tile, place]) if real[k, n] else 0
            for side in range(4):
                to_boxes[k, n, side] = boxes[tile, place, side] if real[k, n] else 0


def _composed_segments(fields: Fields, tiles: Tiles, motion: Motion, columns: Numbers, plan: Plan) -> Fields:
    """Moves masks of the boxes of T tiles to the samples of a plan.

    Args:
        fields: the tiles' fields of :data:`~mmload.records.SEGMENTS`, [T, ...].
        tiles: the tiles.
        motion: motion of their points.
        columns: int64 [T, M], index of each box of a tile in its sample; -1: there is no such box.
        plan: the plan that begins with the canvases.

    Returns:
        The same fields of the samples, of which run lengths are empty.
    """
    count = plan.count
    drawn = fields | without_runs(fields, tiles.sizes[:, 0].tolist())
    rings, polygons = drawn["rings"], drawn["polygons"]
    tile, place = (rings[..., 1] > 0).nonzero()
    box, length = rings[tile, place].astype(np.int64).T
    is_real = np.arange(polygons.shape[1]) < rings[..., 1].sum(1)[:, None]
    outlines = _moved(polygons[is_real], np.repeat(np.arange(len(box)), length), tile, motion)
    column = np.where(box >= 0, columns[tile, box], -1)
    length = np.bincount(outlines.ring, minlength=len(box))
    stays = (length >= 3) & (column >= 0)
    samples, is_shown = tiles.rows.samples[tile], stays[outlines.ring]
    points = (outlines.points[is_shown, 2:4] / outlines.points[is_shown, 4:]).astype(polygons.dtype)
    entries = np.stack((column, length), 1)[stays].astype(np.int32)
    packed = {
        "rings": _packed(samples[stays], entries, count),
        "polygons": _packed(samples[outlines.ring[is_shown]], points, count),
    }
    runs = {name: fields[name] for name in SEGMENTS[1] if name in fields}
    return packed | {name: zeros((count, *value.shape[1:]), value.dtype) for name, value in runs.items()}


def _moved(drawn: Array, ring: Array, tile: Array, motion: Motion) -> _Outlines:
    """Moves points [N, 2] of polygons, each of a tile, and clips the polygons to the canvas and to the output."""
    numbers = motion.numbers[tile[ring]]
    on_canvas, maps = (
        drawn * numbers[:, TO_TILE, :2] - numbers[:, TO_CANVAS, :2],
        numbers[:, TO_OUTPUT].reshape(-1, 3, 3),
    )
    seen = maps[..., 0] * on_canvas[:, :1] + maps[..., 2] + maps[..., 1] * on_canvas[:, 1:]
    outlines, frames = _Outlines(np.column_stack((on_canvas, seen)), ring), motion.frames[tile]
    canvas, output = frames[:, TO_CANVAS], frames[:, TO_OUTPUT]
    outlines = outlines.clipped(outlines.points[:, 4] - NEAR)
    for axis in (0, 1):
        outlines = outlines.clipped(outlines.points[:, axis])
        outlines = outlines.clipped(canvas[outlines.ring, axis] - outlines.points[:, axis])
        outlines = outlines.clipped(outlines.points[:, 2 + axis])
        edge = output[outlines.ring, axis] * outlines.points[:, 4]
        outlines = outlines.clipped(edge - outlines.points[:, 2 + axis])
    return outlines


def _packed(samples: Array, values: Array, count: int) -> Array:
    """Puts values [N, ...] of samples, in ascending order, into rows: [B, M, ...], with zeros behind them."""
    counts = np.bincount(samples, minlength=count)
    rows = zeros((count, max(int(counts.max(initial=0)), 1), *values.shape[1:]), values.dtype)
    rows[samples, np.arange(len(samples)) - (np.cumsum(counts) - counts)[samples]] = values
    return rows


_MOST_CHANNELS = 4
"""Upper bound on the channels of images: a pixel is packed into one word."""


_LEAST_SIDE = 16
"""Lower bound of a mosaic's sides: a smaller number is ``tiles``, given for ``size``."""


class Tiles(NamedTuple):
    """Tiles that samples are composed of: their rows, and the sizes and boxes of these.

    Attributes:
        rows: int64 [T], row of each tile, with its place in its sample.
        sizes: int64 [T, 2], height and width of each image.
        fields: their ``boxes`` [T, M, 4], perhaps ``counts`` [T], masks of instances, and others with an element per
            box, [T, M, ...].
    """

    rows: TileRows
    sizes: Numbers
    fields: Mapping[str, Tensor | Array]


class Mosaic(DeclaredStep):
    """Four or nine images side by side, then a random affine or perspective map, and perhaps a blend with another one.

    Each image is resized to fit into ``size``, as Letterbox does. Four meet in a point that is uniform in the middle
    half of a canvas of twice the size, each with a corner; of nine, one lies with its middle at such a point, one
    beside each of its sides, and one at each of its corners. Without a mosaic the image alone lies in the middle of a
    canvas of ``size``. Then the canvas is warped around its middle: a perspective, a rotation and scale, a shear and a
    translation, in this order, and ``size`` of it is kept. Boxes are clipped to the canvas, warped, and clipped again;
    keypoints and corners of rotated boxes are moved, and keypoints outside are not labeled any more. Masks of instances
    are moved as polygons, clipped to the canvas and the output.

    The sample's own row is one of the images; the others are drawn from all rows that the loader reads, or from the
    rows of the batch if there is no loader. They depend on the sample's seed alone, and not on the batch, except where
    they come from it.

    It must be the first step. There is no antialiasing, as in OpenCV's bilinear warp.

    Args:
        size: (height, width) of the output, or one number for both; at least 16.
        tiles: 4 or 9.
        p: probability of a mosaic.
        degrees: greatest angle either way.
        translate: greatest translation either way, as a share of the output's sides, 0 to 1.
        scale: the scale is drawn from 1 - ``scale`` to 1 + ``scale``, below 1.
        shear: greatest angle of the shears in x and y either way, in degrees below 90.
        perspective: greatest change of a point's depth per pixel, either way, up to 0.001.
        mixup: probability that the sample is blended with another one, composed in the same way of a row drawn for it,
            with the boxes of both.
        alpha: both parameters of the Beta distribution of the blend's share.
        fill: fill beside the images, levels from 0 to 255; one number or one per channel.
        stop_epoch: first epoch without mosaic and blend; None: all have them.

    Raises:
        ValueError: if an argument is out of range, or (when run) images are not uint8 on a CPU or have more than four
            channels, or the batch has masks of classes or no boxes, or masks of instances and ``tiles`` is 9.
    """

    needs_boxes = "for detection"
    leaves_behind = {"masks": "composes images and boxes, but not masks; leave masks out of fields"}

    def __init__(
        self,
        size: int | Sequence[int],
        tiles: int = 4,
        p: float = 1.0,
        degrees: float = 0.0,
        translate: float = 0.1,
        scale: float = 0.5,
        shear: float = 0.0,
        perspective: float = 0.0,
        mixup: float = 0.0,
        alpha: float = 32.0,
        fill: float | Sequence[float] = 114,
        stop_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.size = pair(size)
        if min(self.size) < _LEAST_SIDE:
            raise argument_error("size", size, f"{_LEAST_SIDE} pixels or more; the number of images is tiles")
        self.tiles = integer("tiles", tiles)
        if self.tiles not in _LAYOUTS:
            raise argument_error("tiles", tiles, "4 or 9")
        self.p = chance(p)
        self.degrees = number("degrees", degrees, least=0.0, greatest=360.0, unit="degrees")
        self.translate = number("translate", translate, least=0.0, greatest=1.0, unit="a share")
        self.scale = number("scale", scale, least=0.0, greatest=0.999)
        self.shear = number("shear", shear, least=0.0, greatest=89.0, unit="degrees")
        self.perspective = number("perspective", perspective, least=0.0, greatest=0.001)
        self.mixup = number("mixup", mixup, least=0.0, greatest=1.0, unit="a probability")
        self.alpha = number("alpha", alpha, least=1e-12)
        self.fill = per_channel("fill", fill)
        self.stop_epoch = None if stop_epoch is None else integer("stop_epoch", stop_epoch, least=0)

    def tile_rows(self, draws: Draws, own: Numbers, total: int, ids: Callable[[Numbers], Numbers]) -> TileRows:
        """Draws the rows that samples are composed of, uniform over all rows; the last of each mosaic is its own.

        Args:
            draws: the step's.
            own: int64 [B], row of each sample.
            total: number of rows to draw from.
            ids: returns the row at each of these places, int64 [B].
        """
        active = self.stop_epoch is None or draws.epoch("stop_epoch") < self.stop_epoch
        p, mixup = (self.p, self.mixup) if active else (0.0, 0.0)
        rows, composed, blended = [], [], []
        for layer in range(2 if mixup else 1):
            own_draws = draws.branch(layer)
            composed.append(own_draws.chance(p))
            blended.append(own_draws.chance(mixup))
            rows.append([ids(places) for places in own_draws.integers(*[(0, total - 1)] * self.tiles)])
        rows[0][-1] = own
        return listed_tiles(rows, composed, blended)

    def tiles_of(
        self, batch: Batch, draws: Draws, shape: Sequence[int], source: torch.dtype, sizes: Numbers | None
    ) -> Tiles:
        """Draws the rows that samples are composed of among those of a batch.

        Args:
            batch: everything but the images.
            draws: the step's.
            shape: (C, H, W) of the images.
            source: their dtype.
            sizes: int64 [B, 2], of variable-size images; None: images are fixed-size.

        Raises:
            ValueError: if images are not uint8 on a CPU.
        """
        values, count = fields_of(batch), batch.batch_size[0]
        names = box_fields({name: value.shape[1:] for name, value in values.items()})
        device = values["boxes"].device
        if source != torch.uint8 or device.type != "cpu":
            raise ValueError(f"Mosaic takes uint8 images on a CPU, these are {source} on {device}")
        rows = self.tile_rows(draws, np.arange(count), count, lambda places: places)
        sizes = np.full((count, 2), shape[1:], np.int64) if sizes is None else sizes
        chosen = torch.from_numpy(rows.numbers)
        return Tiles(rows, sizes[rows.numbers], {name: values[name][chosen] for name in names})

    def composed(self, tiles: Tiles, draws: Draws, channels: int) -> tuple[Plan, Fields, Trail]:
        """Draws the geometry of a batch; returns the plan that begins with it, and the fields of all boxes.

        Args:
            tiles: the tiles' rows.
            draws: the step's.
            channels: number of channels of the images.

        Raises:
            ValueError: if images have more than four channels, instances have masks and images may overlap, or a tile
                has a number of boxes that there is no room for.
        """
        if channels > _MOST_CHANNELS:
            raise ValueError(f"Mosaic takes images of at most {_MOST_CHANNELS} channels, these have {channels}")
        if self.tiles == 9 and "rings" in tiles.fields:
            raise ValueError(
                "Mosaic's nine images overlap, which hides parts of masks; use tiles=4, or leave "
                f"{ALL_SEGMENTS} out of fields"
            )
        rows, count = tiles.rows, len(draws.seeds)
        uniform = draws.branch(2).uniform(MAP_NUMBERS), draws.branch(3).uniform(MAP_NUMBERS)
        shares = np.full(count, math.nan, np.float32)
        if self.mixup:
            _set_shares(rows, beta(draws.branch(4), self.alpha), shares)
        records, needed, motion = placed_tiles(rows, tiles.sizes, uniform, self._ranges, _LAYOUTS[self.tiles])
        parts = Canvas(
            height=self.size[0],
            width=self.size[1],
            samples=rows.samples,
            tiles=records,
            needed=needed,
            fill=self.fill,
            shares=shares,
        )
        plan = Plan.composed(count, channels, parts)
        return plan, *composed_boxes(tiles, motion, plan)

    @property
    def _ranges(self) -> MapRanges:
        angle, shear = math.pi / 180 * self.degrees, math.pi / 180 * self.shear
        return MapRanges(*self.size, self.perspective, angle, self.scale, shear, self.translate)


@numba_compiled(TileRows, "float64[::1], float32[::1]", nogil=False)
def _set_shares(rows: TileRows, drawn: Doubles, shares: Array) -> None:
    """Writes the drawn share of each sample that has a second layer."""
    for tile in range(len(rows.samples)):
        if rows.layers[tile] == 1:
            shares[rows.samples[tile]] = drawn[rows.samples[tile]]


_FOUR = [[(1, 0), (1, 0)], [(1, 0), (0, 0)], [(0, 0), (1, 0)], [(0, 0), (0, 0)]]
_NINE = [
    [(0, 0), (0, 0)],
    [(1, 0), (0, 0)],
    [(0, 0), (0, 1)],
    [(0, 1), (1, 1)],
    [(1, 1), (1, 0)],
    [(1, 0), (1, 0)],
    [(1, 0), (0, 1)],
    [(0, 1), (0, 1)],
    [(0, 1), (1, 0)],
]
_LAYOUTS = {4: np.array(_FOUR), 9: np.array(_NINE)}
"""Layouts as :func:`~mmload.augment.tile_geometry.placed_tiles` takes them. Of nine, the point where images meet is the
corner of the one in the middle; 1 to 4 are above, right, below and left, 5 to 8 at the corners."""
