"""Moves the boxes of tiles, and all that belongs to them, to the samples that the tiles are composed to.

Masks of instances are polygons there; run lengths become rectangles first. What of a polygon is outside of its canvas
or of the output is cut off, as no pixels of it are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.augment.boxes import Trail, check_counts
from mmload.augment.points import move_tile_points, without_runs
from mmload.augment.tile_geometry import MovingTiles, moved_tile_boxes
from mmload.batch import Batch, with_fields
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PADDING
from mmload.render.kernel_arguments import NEAR, Numbers
from mmload.runtime.memory_pool import constant

Array = npt.NDArray[Any]


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


def composed_boxes(
    batch: Batch, fields: Mapping[str, Tensor], tiles: MovingTiles, size: Sequence[int]
) -> tuple[Batch, Trail]:
    """Moves the boxes of tiles to the samples that they are composed to, clipped to the canvas and to the output.

    Keypoints, corners of rotated boxes and masks of instances move with them.

    Args:
        batch: B samples, whose boxes are replaced.
        fields: the tiles' ``boxes`` [T, M, 4], perhaps ``counts`` [T], masks of instances, and others with an element
            per box, [T, M, ...].
        tiles: the tiles' geometry.
        size: height and width of the output.

    Raises:
        ValueError: if a tile has a number of boxes that there is no room for.
    """
    boxes, count = fields["boxes"], batch.batch_size[0]
    counts = np.full(len(boxes), boxes.shape[1])
    if "counts" in fields:
        check_counts(fields["counts"], boxes.shape[1])
        counts = fields["counts"].to(torch.int64).numpy()
    moved = moved_tile_boxes(boxes, counts, tiles, count, size)
    longest = moved.boxes.shape[1]
    tile, place, samples, column = (torch.from_numpy(each) for each in moved[2:])
    packed = {
        "counts": torch.from_numpy(np.bincount(moved.samples, minlength=count)),
        "boxes": torch.from_numpy(moved.boxes).to(boxes.dtype),
    }
    if "rings" in fields:
        columns = np.full(boxes.shape[:2], -1)
        columns[moved.tiles, moved.places] = moved.columns
        packed |= _composed_segments(fields, tiles, columns, count, size)
    for name, value in fields.items():
        if name not in packed:
            packed[name] = value.new_full((count, longest, *value.shape[2:]), PADDING.get(name, 0))
            own = move_tile_points(name, value[tile, place], tiles, moved.tiles, size)
            packed[name][samples, column] = own
    nothing, whole = (
        torch.zeros((count, longest), dtype=torch.bool, device="cpu"),
        torch.ones(count, dtype=torch.bool, device="cpu"),
    )
    frames = constant((0.0, 0.0, float(size[1]), float(size[0])), boxes.dtype, boxes.device).expand(count, 1, 4)
    return with_fields(batch, packed), Trail(frames, whole, nothing, torch.from_numpy(moved.shares), nothing)


def _composed_segments(
    fields: Mapping[str, Tensor], tiles: MovingTiles, columns: Numbers, count: int, size: Sequence[int]
) -> dict[str, Tensor]:
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
    names = [name for pair in SEGMENTS for name in pair if name in fields]
    drawn = {**fields, **without_runs(fields, tiles.heights.tolist())}
    arrays = {name: drawn[name].numpy() for name in names}
    rings = arrays["rings"]
    tile, place = (rings[..., 1] > 0).nonzero()
    box, length = rings[tile, place].astype(np.int64).T
    is_real = np.arange(arrays["polygons"].shape[1]) < rings[..., 1].sum(1)[:, None]
    outlines = _moved(arrays["polygons"][is_real], np.repeat(np.arange(len(box)), length), tile, tiles, size)
    column = np.where(box >= 0, columns[tile, box], -1)
    length = np.bincount(outlines.ring, minlength=len(box))
    stays = (length >= 3) & (column >= 0)
    samples, is_shown = tiles.samples[tile], stays[outlines.ring]
    points = outlines.points[is_shown, 2:4] / outlines.points[is_shown, 4:]
    entries = np.stack((column, length), 1)[stays].astype(np.int32)
    packed = {
        "rings": _packed(samples[stays], entries, count),
        "polygons": _packed(samples[outlines.ring[is_shown]], points.astype(arrays["polygons"].dtype), count),
    }
    return packed | {name: fields[name].new_zeros((count, *fields[name].shape[1:])) for name in names[2:]}


def _moved(drawn: Array, ring: Array, tile: Array, tiles: MovingTiles, size: Sequence[int]) -> _Outlines:
    """Moves points [N, 2] of polygons, each of a tile, and clips the polygons to the canvas and to the output."""
    own = tiles.selected(tile[ring])
    on_canvas = drawn * own.factors + own.corners
    seen = np.einsum("nij,nj->ni", own.maps, np.column_stack((on_canvas, np.ones(len(drawn)))))
    outlines, canvas = _Outlines(np.column_stack((on_canvas, seen)), ring), tiles.canvas[tile]
    outlines = outlines.clipped(outlines.points[:, 4] - NEAR)
    for axis in (0, 1):
        outlines = outlines.clipped(outlines.points[:, axis])
        outlines = outlines.clipped(canvas[outlines.ring, axis] - outlines.points[:, axis])
        outlines = outlines.clipped(outlines.points[:, 2 + axis])
        outlines = outlines.clipped(size[1 - axis] * outlines.points[:, 4] - outlines.points[:, 2 + axis])
    return outlines


def _packed(samples: Array, values: Array, count: int) -> Tensor:
    """Puts values [N, ...] of samples, in ascending order, into rows: [B, M, ...], and zeros behind them."""
    counts = np.bincount(samples, minlength=count)
    rows = np.zeros((count, max(int(counts.max(initial=0)), 1), *values.shape[1:]), values.dtype)
    rows[samples, np.arange(len(samples)) - (np.cumsum(counts) - counts)[samples]] = values
    return torch.from_numpy(rows)
