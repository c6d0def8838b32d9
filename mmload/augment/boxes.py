"""Moves boxes and masks as a plan moves pixels, and says where images lie on a canvas.

It takes a :class:`~mmload.batch.Batch` and a :class:`~mmload.render.plan.Plan` and returns the batch with boxes moved
and clipped and masks rendered by the nearest pixel. Boxes are dropped and repacked once, after the last pass. It never
reads images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import number
from mmload.augment.points import move_points, move_tile_points
from mmload.augment.tile_geometry import MovingTiles, moved_tile_boxes
from mmload.augment.tile_segments import composed_segments
from mmload.batch import Batch, fields_of, with_fields
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PADDING, PER_BOX
from mmload.render.level_program import FLIP_X, FLIP_Y, MOVES, WARPS, Program
from mmload.render.plan import Plan
from mmload.render.torch_levels import moved_masks, warped_points
from mmload.render.torch_sampling import OwnMasks, gathered_masks, gathered_own_masks
from mmload.runtime.memory_pool import constant

_ROUNDING = 1e-3
"""Pixels by which the clip of a scaled box moves its sides although nothing is cut off: float32 rounds its factor."""


@dataclass(frozen=True, kw_only=True)
class BoxRule:
    """Rule for the boxes that remain in samples whose image a step has cropped.

    If nothing is cut off (flips, resizes, padding, a crop of the complete image), all boxes remain.

    Attributes:
        min_size: pixels that both sides must still have (torchvision's SanitizeBoundingBoxes: 1).
        min_visible: share of its area before the clip that a box must still show, 0 to 1.
        max_aspect: greatest quotient of the longer and the shorter side.
    """

    min_size: float = 1.0
    min_visible: float = 0.0
    max_aspect: float = math.inf

    def __post_init__(self) -> None:
        size = number("min_size", self.min_size, least=0, expected="pixels from 0")
        share = number("min_visible", self.min_visible, least=0, greatest=1, expected="a share from 0 to 1")
        object.__setattr__(self, "min_size", size)
        object.__setattr__(self, "min_visible", share)
        if self.max_aspect != math.inf:
            aspect = number("max_aspect", self.max_aspect, least=1, expected="a quotient from 1")
            object.__setattr__(self, "max_aspect", aspect)

    def permits(self, boxes: Tensor) -> Tensor:
        """Returns which boxes [..., 4] have sides that remain: bool [...]."""
        wide, high = (boxes[..., 2:] - boxes[..., :2]).unbind(-1)
        shorter = torch.minimum(wide, high)
        stays = shorter >= self.least
        if self.max_aspect == math.inf:
            return stays
        return stays & (torch.maximum(wide, high) <= self.max_aspect * shorter)

    @property
    def beyond_torchvision(self) -> str:
        """Setting that torchvision's SanitizeBoundingBoxes does not have, such as "min_visible, here 0.1"; else ""."""
        if self.min_visible:
            return f"min_visible, here {self.min_visible:g}"
        return "" if self.max_aspect == math.inf else f"max_aspect, here {self.max_aspect:g}"

    @property
    def least(self) -> float:
        """Pixels that both sides of a box must have to remain: more than none."""
        return max(self.min_size, 1e-6)


class Trail(NamedTuple):
    """Record of what passes did to a batch's boxes, until boxes are dropped.

    Attributes:
        frames: [B, 1, 4], edges of each sample's image, clipped as a box is.
        cropped: bool [B], whether a part of a sample's image was cut off; padding does not count.
        cut: bool [B, M], whether a part of a box was cut off.
        share: [B, M], visible share of a box's area.
        dropped: bool [B, M], whether a step drops the box.
    """

    frames: Tensor
    cropped: Tensor
    cut: Tensor
    share: Tensor
    dropped: Tensor

    @classmethod
    def before(cls, boxes: Tensor, plan: Plan) -> Trail:
        """Returns the trail of boxes [B, M, 4] before the first pass, of which this is the plan."""
        if plan.sizes is None:
            _, height, width = plan.source
            frame = constant((0.0, 0.0, float(width), float(height)), boxes.dtype, boxes.device)
        else:
            high, wide = plan.sizes.to(boxes.dtype).unbind(1)
            zero = torch.zeros_like(wide)
            frame = torch.stack((zero, zero, wide, high), 1)[:, None]
        nothing = boxes.new_zeros(boxes.shape[:2], dtype=torch.bool)
        cropped = boxes.new_zeros(boxes.shape[0], dtype=torch.bool)
        return cls(frame.expand(len(boxes), 1, 4), cropped, nothing, boxes.new_ones(boxes.shape[:2]), nothing)


def move_fields(
    batch: Batch, plan: Plan, trail: Trail | None = None, own: OwnMasks | None = None
) -> tuple[Batch, Trail | None]:
    """Moves boxes, masks and ``image_sizes`` as the plan moves pixels.

    Boxes are moved and clipped, and none is dropped: :func:`drop_boxes` does that once, after all passes, so that boxes
    that a later resize enlarges again remain, however the steps were divided into passes.

    Args:
        batch: before it.
        plan: plan of one pass.
        trail: trail of the passes before it; None: there was none.
        own: the masks, in place of the batch's, if they are variable-size.
    """
    if plan.is_framed:
        batch = batch.replace(image_sizes=sizes_on_canvas(plan))
    elif batch.image_sizes is not None and (plan.moves or plan.mixing is not None):
        batch = batch.replace(image_sizes=None)
    if not plan.moves:
        return batch, trail
    batch = move_points(batch, plan)
    masks = batch.masks if own is None else gathered_own_masks(own, plan)
    if masks is not None:
        masks = gathered_masks(masks, plan) if own is None else masks
        batch = batch.replace(masks=masks if plan.program is None else moved_masks(plan.program, masks))
    if batch.boxes is None:
        return batch, trail
    boxes, trail = moved_boxes(batch.boxes, plan, trail or Trail.before(batch.boxes, plan))
    return batch.replace(boxes=boxes), trail


def sizes_on_canvas(plan: Plan) -> Tensor | None:
    """Returns height and width of each image on its canvas, int64 [B, 2]; None if images are mixed."""
    placed = None if plan.resampling is None else plan.resampling.placement
    return None if placed is None or plan.mixing is not None else torch.stack((placed.rows, placed.cols), 1)


def boxes_in(batch: Batch, plan: Plan, trail: Trail | None) -> tuple[Tensor, Tensor]:
    """Returns a batch's boxes as ``plan`` moves them, and which of them are real and were not dropped."""
    if batch.boxes is None:
        raise ValueError("the batch has no boxes; build the dataset for detection")
    boxes, trail = batch.boxes, trail or Trail.before(batch.boxes, plan)
    if plan.moves:
        boxes, trail = moved_boxes(boxes, plan, trail)
    real = ~trail.dropped
    if batch.counts is not None:
        real = real & (torch.arange(boxes.shape[1], device=boxes.device) < batch.counts[:, None])
    return boxes, real


def drop_boxes(batch: Batch, trail: Trail | None, rule: BoxRule) -> Batch:
    """Drops boxes by the rule and by what passes did to them; no pass: none is dropped."""
    if trail is None or batch.boxes is None:
        return batch
    stays = rule.permits(batch.boxes) & (trail.share >= rule.min_visible)
    return _repacked(batch, batch.boxes, (stays | ~(trail.cut | trail.cropped[:, None])) & ~trail.dropped)


def moved_boxes(boxes: Tensor, plan: Plan, trail: Trail) -> tuple[Tensor, Trail]:
    """Moves boxes through window, resize, crop, flips and warps, clipped at each, as torchvision does.

    Args:
        boxes: float32 [B, M, 4], xyxy in source pixels.
        plan: the geometry.
        trail: trail of the passes before.

    Returns:
        The boxes in output pixels, and the trail with this pass.
    """
    program = plan.program if plan.program is not None and plan.program.operations & MOVES else None
    if plan.canvas is not None and plan.top is None and plan.resampling is None and program is None:
        return _flipped(boxes, plan), trail  # they were clipped to the canvas, of which nothing is cut off
    moved = torch.cat((boxes, trail.frames), dim=1)
    moved = _windowed(moved, plan.left, plan.top)
    moved, cut, share = _cut(moved, plan.cols, plan.rows)
    resampling = plan.resampling
    if resampling is not None:
        cols, rows = (plan.per_sample(size).to(torch.float64) for size in (plan.cols, plan.rows))  # as torchvision does
        placed = resampling.placement
        wide, high = (resampling.width, resampling.height) if placed is None else (placed.cols, placed.rows)
        moved = moved * _quad(wide / cols, high / rows).to(boxes.dtype)
        if placed is not None:
            moved, lost, shown = _cut(_windowed(moved, -placed.left, -placed.top), resampling.width, resampling.height)
            cut, share = cut | lost, share * shown
        moved, lost, shown = _cut(_windowed(moved, resampling.left, resampling.top), plan.width, plan.height)
        cut, share = cut | lost, share * shown
    moved = _flipped(moved, plan)
    if program is not None:
        moved, lost, shown = _by_program(moved, program, plan)
        cut, share = cut | lost, share * shown
    cropped = trail.cropped | cut[:, -1]
    dropped = trail.dropped if plan.dropped is None else trail.dropped | plan.dropped
    return moved[:, :-1], Trail(moved[:, -1:], cropped, trail.cut | cut[:, :-1], trail.share * share[:, :-1], dropped)


def _cut(boxes: Tensor, width: Tensor | int, height: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
    """Clips boxes to a frame; returns them, which of them were cut, bool [B, M], and the visible share, [B, M]."""
    inside = _clipped(boxes, width, height)
    return inside, ((inside - boxes).abs() > _ROUNDING).any(2), _share(_area(inside), _area(boxes))


def _windowed(boxes: Tensor, left: Tensor | None, top: Tensor | None) -> Tensor:
    """Moves boxes to the coordinates of a window."""
    if left is None or top is None:
        return boxes
    return boxes - _quad(left.to(boxes.dtype), top.to(boxes.dtype))


def _clipped(boxes: Tensor, width: Tensor | int, height: Tensor | int) -> Tensor:
    """Clips boxes to a frame of one size, or one per sample."""
    if isinstance(width, int) or isinstance(height, int):
        edge = constant((float(width), float(height)) * 2, boxes.dtype, boxes.device)
    else:
        edge = _quad(width, height).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), edge)


def _flipped(boxes: Tensor, plan: Plan) -> Tensor:
    """Mirrors boxes by the plan's flips."""
    height, width = plan.frame
    if plan.flip_x is not None:
        boxes = torch.where(plan.flip_x[:, None, None], _mirrored(boxes, width, 0), boxes)
    if plan.flip_y is not None:
        boxes = torch.where(plan.flip_y[:, None, None], _mirrored(boxes, height, 1), boxes)
    return boxes


def _mirrored(boxes: Tensor, length: Tensor | int, axis: int) -> Tensor:
    """Mirrors all boxes in a frame of one length, or one per sample: ``axis`` 0 left to right, 1 upside down."""
    length = length if isinstance(length, int) else length[:, None].to(boxes.dtype)
    ends = list(boxes.unbind(2))
    ends[axis], ends[axis + 2] = length - ends[axis + 2], length - ends[axis]
    return torch.stack(ends, dim=2)


def _by_program(boxes: Tensor, program: Program, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Moves boxes by the operations that move pixels, clipped after each warp; returns what :func:`_cut` does."""
    cut = boxes.new_zeros(boxes.shape[:2], dtype=torch.bool)
    share = boxes.new_ones(boxes.shape[:2])
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place, None, None], program.numbers[:, place]
        for operation, length, axis in ((FLIP_X, plan.width, 0), (FLIP_Y, plan.height, 1)):
            if operation in slot.operations:
                boxes = torch.where(codes == operation, _mirrored(boxes, length, axis), boxes)
        for operation in sorted(slot.operations & WARPS):
            corners = warped_points(operation, numbers, _corners(boxes), plan.height, plan.width)
            around = torch.cat((corners.amin(2), corners.amax(2)), 2).to(boxes.dtype)
            inside, lost, shown = _cut(around, plan.width, plan.height)
            here = codes == operation
            boxes = torch.where(here, inside, boxes)
            cut, share = cut | (lost & here[:, :, 0]), torch.where(here[:, :, 0], share * shown, share)
    return boxes, cut, share


def _corners(boxes: Tensor) -> Tensor:
    """Returns the four corners of each box: [B, M, 4, 2]."""
    x1, y1, x2, y2 = boxes.unbind(2)
    return torch.stack((torch.stack((x1, x2, x2, x1), 2), torch.stack((y1, y1, y2, y2), 2)), 3)


def _repacked(batch: Batch, boxes: Tensor, stays: Tensor) -> Batch:
    """Moves the remaining boxes to the front in their order, empties the rest, and counts."""
    if batch.counts is not None:
        stays = stays & (torch.arange(boxes.shape[1], device=boxes.device) < batch.counts[:, None])
    order = (~stays).to(torch.int64).argsort(dim=1, stable=True)
    real = stays.gather(1, order)
    batch = batch.replace(boxes=boxes.gather(1, order[:, :, None].expand_as(boxes)) * real[:, :, None])
    return with_boxes_of(batch, order, real)


def with_boxes_of(batch: Batch, sources: Tensor, real: Tensor) -> Batch:
    """Returns a batch with the labels and all else that belongs to other boxes, and their counts.

    Args:
        batch: batch with the new boxes; polygons and run lengths of boxes that are gone get the box -1.
        sources: int64 [B, M], number of each new box among the boxes before.
        real: bool [B, M], which of them are no padding.
    """
    count = sources.shape[1]
    stored = {name: value for name, value in fields_of(batch).items() if name in PER_BOX and value.dim() > 1}
    moved = {"counts": real.sum(1)}
    for name, value in stored.items():
        if value.shape[1] != count:  # a field of this name that has nothing to do with boxes
            continue
        extra = (1,) * (value.dim() - 2)
        index = sources.view(*sources.shape, *extra).expand(*sources.shape, *value.shape[2:])
        chosen = value.gather(1, index)  # filled by a number, as a device would wait for a tensor
        moved[name] = chosen.masked_fill(~real.view(*real.shape, *extra), PADDING.get(name, 0))
    for name, _ in SEGMENTS:
        entries = None if batch.extra is None else batch.extra.get(name, None)
        if entries is not None:
            is_new = (sources[:, :, None] == entries[:, None, :, 0]) & real[:, :, None]
            box = torch.where(is_new.any(1), is_new.to(torch.uint8).argmax(1), -1)
            moved[name] = torch.stack((box.to(entries.dtype), entries[..., 1]), 2)
    return with_fields(batch, moved)


def _quad(x: Tensor, y: Tensor) -> Tensor:
    """Returns x [B] and y [B] as [B, 1, 4]: x, y, x, y."""
    return torch.stack((x, y, x, y), dim=1)[:, None]


def _area(boxes: Tensor) -> Tensor:
    return ((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])).clamp(min=0)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1e-12), 0.0)


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
    """
    boxes, count = fields["boxes"], batch.batch_size[0]
    counts = np.full(len(boxes), boxes.shape[1]) if "counts" not in fields else fields["counts"].to(torch.int64).numpy()
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
        packed |= composed_segments(fields, tiles, columns, count, size)
    for name, value in fields.items():
        if name not in packed:
            packed[name] = value.new_full((count, longest, *value.shape[2:]), PADDING.get(name, 0))
            own = move_tile_points(name, value[tile, place], tiles, moved.tiles, size)
            packed[name][samples, column] = own
    nothing, whole = torch.zeros((count, longest), dtype=torch.bool), torch.ones(count, dtype=torch.bool)
    frames = constant((0.0, 0.0, float(size[1]), float(size[0])), boxes.dtype, boxes.device).expand(count, 1, 4)
    return with_fields(batch, packed), Trail(frames, whole, nothing, torch.from_numpy(moved.shares), nothing)
