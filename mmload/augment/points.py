"""Moves keypoints, corners of rotated boxes and polygons as a plan moves pixels.

Points are moved, never clipped. Keypoints that leave the image at a crop are not labeled any more; where an image is
mirrored, keypoints of the left and the right change places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmload.augment.tile_geometry import MovingTiles
from mmload.batch import Batch, with_fields
from mmload.pictures.instance_masks import SEGMENTS, parts_of, rectangles_of_runs
from mmload.render.kernel_arguments import NEAR, Numbers
from mmload.render.level_program import FLIP_X, FLIP_Y, MOVES, WARPS, Program
from mmload.render.plan import Plan
from mmload.render.torch_levels import warped_points

KEYPOINTS, CORNERS, POLYGONS, FLIPS = "keypoints", "corners", "polygons", "keypoint_flips"
"""Fields of ``batch.extra`` with points: float32 [B, M, K, 3], [B, M, 4, 2] and [B, P, 2]; and uint8 [B, K], for each
keypoint the one that it becomes in a mirrored image."""


def has_points(batch: Batch) -> bool:
    """Returns whether a batch has keypoints, corners or polygons."""
    return bool(_points_of(batch))


def _points_of(batch: Batch) -> dict[str, Tensor]:
    """Returns the fields with points by name; a field of such a name with other values is none."""
    fields: dict[str, Tensor] = {} if batch.extra is None else dict(batch.extra.items())  # type: ignore[arg-type]  # flat
    found = {name: value for name, value in fields.items() if name in _SHAPES and value.is_floating_point()}
    return {
        name: value
        for name, value in found.items()
        if value.dim() == len(_SHAPES[name]) and value.shape[-1] == _SHAPES[name][-1]
    }


def move_points(batch: Batch, plan: Plan) -> Batch:
    """Moves all points of a batch as the plan moves pixels; run lengths become polygons first."""
    moved = {}
    fields: dict[str, Tensor] = {} if batch.extra is None else dict(batch.extra.items())  # type: ignore[arg-type]  # flat
    heights = [plan.source[1]] * plan.count if plan.sizes is None else plan.sizes[:, 0].tolist()
    polygons = without_runs(fields, heights)
    batch = with_fields(batch, polygons) if polygons else batch
    for name, value in _points_of(batch).items():
        flat = value.flatten(1, -2)
        if name == KEYPOINTS:
            points, inside, mirrored = moved_points(flat[..., :2], plan, pixels=True)
            shown = flat[..., 2:] * inside[..., None]
            flat = torch.cat((points * (shown > 0), shown), 2)
            flips = batch.extra.get(FLIPS, None)  # type: ignore[union-attr]  # it has keypoints
            moved[name] = _exchanged(flat.view_as(value), flips, mirrored)
        else:
            moved[name] = moved_points(flat, plan)[0].view_as(value)
    return with_fields(batch, moved) if moved else batch


_SHAPES = {KEYPOINTS: (0, 0, 0, 3), CORNERS: (0, 0, 0, 2), POLYGONS: (0, 0, 2)}
"""Names of the fields -> shapes with as many dimensions; 0: any size."""


def without_runs(fields: Mapping[str, Tensor], heights: Sequence[int]) -> dict[str, Tensor]:
    """Converts run lengths in fields [B, ...] to polygons, a rectangle for each run of a column, by heights.

    Returns:
        The fields of :data:`~mmload.pictures.instance_masks.SEGMENTS`; none if there are no run lengths.
    """
    if "run_boxes" not in fields or POLYGONS not in fields or not fields["run_boxes"][..., 1].any():
        return {}
    arrays = {name: fields[name].cpu().numpy() for pair in SEGMENTS for name in pair}
    rings, polygons = [], []
    for row, height in enumerate(heights):
        own = {name: values[row] for name, values in arrays.items()}
        real = own["rings"][own["rings"][:, 1] > 0]
        points = [own["polygons"][: real[:, 1].sum()]]
        entries = [real]
        for box, runs in parts_of(own, *SEGMENTS[1]):
            rectangles = rectangles_of_runs(runs, height)
            entries.append(np.tile(np.array([[box, 4]], np.int32), (len(rectangles), 1)))
            points.append(rectangles.reshape(-1, 2))
        rings.append(torch.from_numpy(np.concatenate(entries).astype(np.int32)))
        polygons.append(torch.from_numpy(np.concatenate(points)))
    nothing = {name: torch.zeros_like(fields[name]) for name in SEGMENTS[1]}
    padded = {"rings": pad_sequence(rings, True), "polygons": pad_sequence(polygons, True)}
    return {**nothing, **{name: value.to(fields[name].device) for name, value in padded.items()}}


def moved_points(points: Tensor, plan: Plan, *, pixels: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Moves points through window, resize, crop, flips and warps.

    Args:
        points: float32 [B, N, 2], x and y in source pixels.
        plan: the geometry.
        pixels: whether a flip takes them for numbers of pixels, as torchvision does with keypoints, so that x becomes
            width - 1 - x; else width - x, as edges of boxes.

    Returns:
        The points in output pixels, bool [B, N], which of them were inside after every crop, and bool [B], which
        samples are mirrored.
    """
    moved = _windowed(points, plan.left, plan.top)
    inside = _inside(moved, plan.cols, plan.rows)
    resampling = plan.resampling
    if resampling is not None:
        cols, rows = (plan.per_sample(size).to(torch.float64) for size in (plan.cols, plan.rows))  # as torchvision does
        placed = resampling.placement
        wide, high = (resampling.width, resampling.height) if placed is None else (placed.cols, placed.rows)
        moved = moved * torch.stack((wide / cols, high / rows), 1)[:, None].to(points.dtype)
        if placed is not None:
            moved = _windowed(moved, -placed.left, -placed.top)
            inside &= _inside(moved, resampling.width, resampling.height)
        moved = _windowed(moved, resampling.left, resampling.top)
        inside &= _inside(moved, plan.width, plan.height)
    mirrored = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    height, width = plan.frame
    for flip, length, axis in ((plan.flip_x, width, 0), (plan.flip_y, height, 1)):
        if flip is not None:
            moved = torch.where(flip[:, None, None], _mirrored(moved, length, axis, pixels), moved)
            mirrored = mirrored ^ flip
    if plan.program is not None and plan.program.operations & MOVES:
        moved, still, more = _by_program(moved, plan.program, plan, pixels)
        inside, mirrored = inside & still, mirrored ^ more
    return moved, inside, mirrored


def _by_program(points: Tensor, program: Program, plan: Plan, pixels: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Moves points by the operations that move pixels; returns what :func:`moved_points` does."""
    inside = torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    mirrored = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place], program.numbers[:, place]
        for operation, length, axis in ((FLIP_X, plan.width, 0), (FLIP_Y, plan.height, 1)):
            if operation in slot.operations:
                here = codes == operation
                points = torch.where(here[:, None, None], _mirrored(points, length, axis, pixels), points)
                mirrored = mirrored ^ here
        for operation in sorted(slot.operations & WARPS):
            warped = warped_points(operation, numbers, points[:, :, None], plan.height, plan.width)[:, :, 0]
            here = codes == operation
            points = torch.where(here[:, None, None], warped.to(points.dtype), points)
            inside &= _inside(points, plan.width, plan.height) | ~here[:, None]
    return points, inside, mirrored


def _exchanged(points: Tensor, flips: Tensor | None, mirrored: Tensor) -> Tensor:
    """Exchanges the keypoints, [B, M, K, 3], of the left and the right in mirrored samples."""
    if flips is None:
        return points
    index = flips.to(torch.int64)[:, None, :, None].expand_as(points)
    return torch.where(mirrored[:, None, None, None], points.gather(2, index), points)


def _windowed(points: Tensor, left: Tensor | None, top: Tensor | None) -> Tensor:
    """Moves points to the coordinates of a window."""
    if left is None or top is None:
        return points
    return points - torch.stack((left, top), 1)[:, None].to(points.dtype)


def _mirrored(points: Tensor, length: Tensor | int, axis: int, pixels: bool) -> Tensor:
    """Mirrors points in a frame of one length, or one per sample: ``axis`` 0 left to right, 1 upside down."""
    length = length if isinstance(length, int) else length[:, None].to(points.dtype)
    ends = list(points.unbind(2))
    ends[axis] = length - int(pixels) - ends[axis]
    return torch.stack(ends, 2)


_ROUNDED = 1 / 64
"""Tolerance in pixels: rounding moves a point on the edge of an image by less when it is scaled."""


def _inside(points: Tensor, width: Tensor | int, height: Tensor | int) -> Tensor:
    """Returns which points are in a frame of one size, or one per sample; its edges belong to it."""
    x, y = points.unbind(2)
    right, bottom = (_ROUNDED + (size if isinstance(size, int) else size[:, None]) for size in (width, height))
    return (x >= -_ROUNDED) & (y >= -_ROUNDED) & (x <= right) & (y <= bottom)


def move_tile_points(name: str, values: Tensor, tiles: MovingTiles, chosen: Numbers, size: Sequence[int]) -> Tensor:
    """Moves the keypoints or corners [R, ...] of boxes to the samples that their tiles, int64 [R], are composed to.

    A field of another name is returned as it is. The size is the height and width of the output.
    """
    if name not in (KEYPOINTS, CORNERS) or not values.is_floating_point() or not len(values):
        return values
    own = tiles.selected(chosen)
    factors, corners, canvas, maps = (torch.from_numpy(each) for each in own[2:])
    on_canvas = values[..., :2].to(torch.float64) * factors[:, None] + corners[:, None]
    mapped = torch.nn.functional.pad(on_canvas, (0, 1), value=1.0) @ maps.transpose(1, 2)
    points = mapped[..., :2] / mapped[..., 2:].clamp(min=NEAR)  # those behind the point of view go far away
    if name == CORNERS:
        return points.to(values.dtype)
    inside = _inside(on_canvas, *canvas.unbind(1)) & _inside(points, int(size[1]), int(size[0]))
    shown = values[..., 2:] * inside[..., None]
    return torch.cat((points.to(values.dtype) * (shown > 0), shown), 2)
