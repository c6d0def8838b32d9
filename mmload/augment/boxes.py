"""Moves boxes and masks as a plan moves pixels, and says where images lie on a canvas.

It takes a :class:`~mmload.batch.Batch` and a :class:`~mmload.render.plan.Plan` and returns the batch with boxes moved
and clipped and masks rendered by the nearest pixel. Boxes are dropped and repacked once, after the last pass. It never
reads images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import number
from mmload.augment.points import move_points
from mmload.batch import Batch, fields_of, with_fields
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PADDING, PER_BOX
from mmload.render.kernel_arguments import Numbers
from mmload.render.level_program import FLIP_X, FLIP_Y, MOVES, WARPS, Program
from mmload.render.plan import Plan
from mmload.render.torch_levels import moved_masks, warped_points
from mmload.render.torch_sampling import OwnMasks, gathered_masks, gathered_own_masks
from mmload.runtime.declarations import Signature, tuple_type, void
from mmload.runtime.memory_pool import constant
from mmload.runtime.numba_compile import numba_compiled, variant

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
    that a later resize enlarges again remain, however the steps were divided into passes. The trail is that of the
    passes before; ``own`` are variable-size masks, in place of the batch's.
    """
    if plan.is_framed:
        batch = batch.replace(image_sizes=sizes_on_canvas(plan))
    elif batch.image_sizes is not None and (plan.moves or plan.mixing is not None or plan.canvas is not None):
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


def check_counts(counts: Tensor, most: int) -> None:
    """Rejects numbers of boxes of a batch on a CPU, by which kernels find the boxes, that are not from 0 to ``most``.

    On other devices nobody looks: no kernel finds boxes by them, and the device would be waited for at every batch.

    Raises:
        ValueError: if one is not.
    """
    if counts.device.type != "cpu" or not len(counts):
        return
    least, greatest = (int(end) for end in counts.aminmax())
    if not 0 <= least <= greatest <= most:
        raise ValueError(
            f"counts are from {least} to {greatest}, and boxes have room for {most} per sample; give the number of "
            f"real boxes, from 0 to {most}"
        )


def drop_boxes(batch: Batch, trail: Trail | None, rule: BoxRule) -> Batch:
    """Drops boxes by the rule and by what passes did to them; no pass: none is dropped.

    The remaining ones move to the front in their order, and the rest is empty.
    """
    if trail is None or batch.boxes is None:
        return batch
    boxes, count = batch.boxes, batch.boxes.shape[1]
    counts = boxes.new_full((len(boxes),), count, dtype=torch.int64) if batch.counts is None else batch.counts
    if boxes.device.type == "cpu":
        packed, order, real = _remaining_boxes(boxes, counts, trail, rule)
    else:
        stays = rule.permits(boxes) & (trail.share >= rule.min_visible)
        stays = (stays | ~(trail.cut | trail.cropped[:, None])) & ~trail.dropped
        stays = stays & (torch.arange(count, device=boxes.device) < counts[:, None])
        order = (~stays).to(torch.int64).argsort(dim=1, stable=True)
        real = stays.gather(1, order)
        packed = boxes.gather(1, order[:, :, None].expand_as(boxes)) * real[:, :, None]
    return with_boxes_of(batch, packed, order, real)


def _remaining_boxes(boxes: Tensor, counts: Tensor, trail: Trail, rule: BoxRule) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the remaining boxes, their numbers among all, int64 [B, M], and which of these are real, on a CPU."""
    kind = np.dtype(str(boxes.dtype).removeprefix("torch."))
    packed, order = torch.zeros_like(boxes), torch.zeros(boxes.shape[:2], dtype=torch.int64, device="cpu")
    real = torch.zeros(boxes.shape[:2], dtype=torch.bool, device="cpu")
    limits = np.array([rule.least, rule.max_aspect, rule.min_visible], kind)
    frames, share = trail.frames.to(boxes.dtype), trail.share.to(boxes.dtype)
    own: list[Any] = [each.contiguous().numpy() for each in trail._replace(frames=frames, share=share)]
    given, *out = (each.contiguous().numpy() for each in (boxes, packed, order, real))
    numbers = counts.to(torch.int64).contiguous().numpy()
    variant(_keep_boxes, _keep(kind.name))(limits, given, numbers, Trail(*own), *out)
    return packed, order, real


def _keep(kind: str) -> Signature:
    """Returns the signature of :func:`_keep_boxes` for boxes of a dtype."""
    boxes, flags = f"{kind}[:, :, ::1]", "boolean[:, ::1]"
    trail = tuple_type(Trail, boxes, "boolean[::1]", flags, f"{kind}[:, ::1]", flags)
    return void(f"{kind}[::1]", boxes, "int64[::1]", trail, boxes, "int64[:, ::1]", flags)


@numba_compiled(_keep("float32"), _keep("float64"), nogil=False)
def _keep_boxes(limits: Any, boxes: Any, counts: Numbers, trail: Any, packed: Any, order: Numbers, real: Any) -> None:
    """Drops boxes as :func:`drop_boxes` does, which took a tenth of a batch of YOLO's by thirty operations of torch."""
    least, max_aspect, min_visible = limits[0], limits[1], limits[2]
    for k in range(len(boxes)):
        found = 0
        for place in range(min(counts[k], boxes.shape[1])):
            x0, y0, x1, y1 = boxes[k, place]
            shorter, longer = min(x1 - x0, y1 - y0), max(x1 - x0, y1 - y0)
            stays = shorter >= least and (max_aspect == np.inf or longer <= max_aspect * shorter)
            stays = (stays and trail.share[k, place] >= min_visible) or not (trail.cut[k, place] or trail.cropped[k])
            if stays and not trail.dropped[k, place]:
                packed[k, found, 0], packed[k, found, 1], packed[k, found, 2], packed[k, found, 3] = x0, y0, x1, y1
                order[k, found], real[k, found] = place, True
                found += 1


def moved_boxes(boxes: Tensor, plan: Plan, trail: Trail) -> tuple[Tensor, Trail]:
    """Moves boxes [B, M, 4], xyxy in source pixels, through window, resize, crop, flips and warps, clipped at each.

    torchvision does the same.

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


def with_boxes_of(batch: Batch, boxes: Tensor, sources: Tensor, real: Tensor) -> Batch:
    """Returns a batch with other boxes [B, M, 4], and their labels, counts and all else that belongs to them.

    Each is the box ``sources``, int64 [B, M], of the boxes before, or padding where ``real``, bool [B, M], is false.
    Polygons and run lengths of boxes that are gone get the box -1.
    """
    count, padding = sources.shape[1], ~real
    stored = {name: value for name, value in fields_of(batch).items() if name in PER_BOX and value.dim() > 1}
    moved = {"boxes": boxes, "counts": real.sum(1)}
    for name, value in stored.items():
        if value.shape[1] != count:  # a field of this name that has nothing to do with boxes
            continue
        index, empty = sources, padding
        if value.dim() > 2:
            extra = (1,) * (value.dim() - 2)
            index = sources.view(*sources.shape, *extra).expand(*sources.shape, *value.shape[2:])
            empty = padding.view(*padding.shape, *extra)
        # Filled by a number, as a device would wait for a tensor.
        moved[name] = value.gather(1, index).masked_fill(empty, PADDING.get(name, 0))
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
