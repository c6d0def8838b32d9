"""Moves boxes and masks as a plan moves pixels, and says where images lie on a canvas.

Boxes are moved on the host, in a :class:`Trail` that goes from pass to pass, and are dropped and repacked once, after
the last one. Masks are rendered by the nearest pixel, where they are. It never reads images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import number
from mmload.augment.points import move_points
from mmload.batch import Batch, fields_of, with_fields
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PADDING, PER_BOX
from mmload.render.mask_kernels import moved_masks
from mmload.render.motion import Boxes, Flags, Motion, move_boxes
from mmload.render.plan import Plan
from mmload.render.plan_parts import Array
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.host_arrays import copied, taken, zeros
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.random_words import Numbers


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

    def permits(self, boxes: Boxes) -> Flags:
        """Returns which boxes [..., 4] have sides that remain: bool [...]."""
        sides = boxes[..., 2:] - boxes[..., :2]
        shorter = sides.min(-1)
        stays: Flags = shorter >= self.least
        if self.max_aspect != math.inf:
            stays &= sides.max(-1) <= self.max_aspect * shorter
        return stays

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
    """Boxes of a batch as passes have moved them, and what these did to them, until boxes are dropped.

    The edges of a sample's image are followed as one more box, the last one.

    Attributes:
        boxes: [B, M + 1, 4] xyxy, float32 or float64.
        cut: bool [B, M + 1], whether a part of it was cut off; padding does not count.
        share: [B, M + 1] in the dtype of the boxes, visible share of its area.
        dropped: bool [B, M], whether a step drops the box.
    """

    boxes: Boxes
    cut: Flags
    share: Array
    dropped: Flags

    @classmethod
    def before(cls, boxes: Boxes, plan: Plan) -> Trail:
        """Returns the trail of boxes [B, M, 4] before the first pass, of which this is the plan."""
        given: Boxes = np.ascontiguousarray(boxes)
        shape, kind = (len(given), given.shape[1] + 1), given.dtype
        sizes = np.array([plan.source[1:]]) if plan.sizes is None else np.ascontiguousarray(plan.sizes)
        trail = cls(np.empty((*shape, 4), kind), zeros(shape, np.bool_), np.empty(shape, kind), _none_of(given))
        _BEGIN_TRAIL[kind.name](given, sizes, trail.boxes, trail.share)
        return trail

    def moved(self, plan: Plan) -> Trail:
        """Returns the trail after a pass: boxes in output pixels, clipped at each move, as torchvision does."""
        boxes, cut, share = map(copied, self[:3])
        move_boxes(boxes, Motion.of_plan(plan), cut, share)
        return Trail(boxes, cut, share, self.dropped if plan.dropped is None else self.dropped | plan.dropped)


def _none_of(boxes: Boxes) -> Flags:
    """Returns false for each of boxes [B, M, 4]: bool [B, M]."""
    return zeros(boxes.shape[:2], np.bool_)


def _begin_trail(given: Boxes, sizes: Numbers, boxes: Boxes, share: Array) -> None:
    """Writes boxes and behind them the edges of images, whose sizes, int64 [B, 2] or [1, 2], are given."""
    most = given.shape[1]
    for k in range(len(boxes)):
        for n in range(most + 1):
            share[k, n] = 1
            for side in range(4):
                boxes[k, n, side] = given[k, n, side] if n < most else 0
        boxes[k, most, 2], boxes[k, most, 3] = sizes[k % len(sizes), 1], sizes[k % len(sizes), 0]


_BEGIN_TRAIL = {
    kind: numba_compiled(f"void({kind}[:, :, ::1], int64[:, ::1], {kind}[:, :, ::1], {kind}[:, ::1])", nogil=False)(
        _begin_trail
    )
    for kind in ("float32", "float64")
}


def move_fields(
    batch: Batch, plan: Plan, trail: Trail | None = None, own: OwnMasks | None = None
) -> tuple[Batch, Trail | None]:
    """Moves points, masks and ``image_sizes`` of a batch, and the boxes of its trail, as the plan moves pixels.

    None of the boxes is dropped, and the batch's stay as they are: :func:`drop_boxes` replaces them once, after all
    passes, so that boxes that a later resize enlarges again remain, however the steps were divided into passes. The
    trail is that of the passes before; ``own`` are variable-size masks, in place of the batch's. All are in host
    memory.
    """
    if plan.is_framed:
        batch = batch.replace(image_sizes=_sizes_on_canvas(batch, plan))
    elif batch.image_sizes is not None and (plan.moves or plan.mixing is not None or plan.canvas is not None):
        batch = batch.replace(image_sizes=None)
    if not plan.moves:
        return batch, trail
    batch = move_points(batch, plan)
    if own is None and batch.masks is not None:
        pixels = batch.masks.contiguous()
        own = OwnMasks(pixels.view(-1), torch.arange(len(pixels), device="cpu") * pixels[0:1].numel())
    if own is not None:
        moved = moved_masks(own.memory.numpy(), own.starts.numpy(), plan)
        batch = batch.replace(masks=torch.from_numpy(moved))
    if batch.boxes is None:
        return batch, trail
    return batch, (trail or Trail.before(batch.boxes.numpy(), plan)).moved(plan)


def _sizes_on_canvas(batch: Batch, plan: Plan) -> Tensor | None:
    """Returns height and width of each image on its canvas, int64 [B, 2]; None if images are mixed."""
    placed = None if plan.resampling is None else plan.resampling.placement
    if placed is None or plan.mixing is not None:
        return None
    where = next(iter(fields_of(batch).values()), torch.empty(0, device="cpu")).device
    return torch.from_numpy(np.stack((placed.rows, placed.cols), 1)).to(where)


def boxes_in(batch: Batch, plan: Plan, trail: Trail | None) -> tuple[Trail, Numbers]:
    """Returns the trail of a batch's boxes as ``plan`` moves them, and the numbers of real ones, int64 [B]."""
    trail = trail or Trail.before(batch.boxes.numpy(), plan)  # type: ignore[union-attr]  # only asked for boxes
    trail = trail.moved(plan) if plan.moves else trail
    return trail, _counts_of(batch, trail)


def _counts_of(batch: Batch, trail: Trail) -> Numbers:
    """Returns the numbers of real boxes, int64 [B]; all are, if the batch has no counts."""
    samples, most = trail.dropped.shape
    counts: Numbers = np.full(samples, most) if batch.counts is None else batch.counts.numpy()
    return np.ascontiguousarray(counts)


def check_counts(counts: Tensor, most: int) -> None:
    """Rejects numbers of boxes of a batch on a CPU, by which kernels find the boxes, that are not from 0 to ``most``.

    On other devices nobody looks: the device would be waited for before anything is queued.

    Raises:
        ValueError: if one is not.
    """
    if counts.device.type != "cpu" or not len(counts):
        return
    values = counts.numpy()
    least, greatest = int(values.min()), int(values.max())
    if not 0 <= least <= greatest <= most:
        raise ValueError(
            f"counts are from {least} to {greatest}, and boxes have room for {most} per sample; give the number of "
            f"real boxes, from 0 to {most}"
        )


def drop_boxes(batch: Batch, trail: Trail | None, rule: BoxRule) -> Batch:
    """Replaces a batch's boxes by those of the trail, without those that passes or the rule drop; no pass: none is.

    The remaining ones move to the front in their order, and the rest is empty.
    """
    if trail is None:
        return batch
    counts, shape, kind = _counts_of(batch, trail), trail.dropped.shape, trail.boxes.dtype
    packed, order, real = zeros((*shape, 4), kind), zeros(shape, np.int64), zeros(shape, np.bool_)
    limits = np.array([rule.least, rule.max_aspect, rule.min_visible], kind)
    _KEEP_BOXES[kind.name](limits, counts, *trail, packed, order, real)
    return with_boxes_of(batch, packed, order, real)


def _keep_boxes(
    limits: Array,
    counts: Numbers,
    boxes: Boxes,
    cut: Flags,
    share: Array,
    dropped: Flags,
    packed: Boxes,
    order: Numbers,
    real: Flags,
) -> None:
    """Writes the boxes that remain, their numbers among all, and which of these are real."""
    least, max_aspect, min_visible = limits[0], limits[1], limits[2]
    most = dropped.shape[1]
    for k in range(len(boxes)):
        found = 0
        for place in range(min(counts[k], most)):
            box = boxes[k, place]
            x0, y0, x1, y1 = box[0], box[1], box[2], box[3]
            shorter, longer = min(x1 - x0, y1 - y0), max(x1 - x0, y1 - y0)
            stays = shorter >= least and (max_aspect == np.inf or longer <= max_aspect * shorter)
            stays = (stays and share[k, place] >= min_visible) or not (cut[k, place] or cut[k, most])
            if stays and not dropped[k, place]:
                packed[k, found, 0], packed[k, found, 1], packed[k, found, 2], packed[k, found, 3] = x0, y0, x1, y1
                order[k, found], real[k, found] = place, True
                found += 1


_KEEP_BOXES = {
    kind: numba_compiled(
        f"void({kind}[::1], int64[::1], {kind}[:, :, ::1], boolean[:, ::1], {kind}[:, ::1], boolean[:, ::1], "
        f"{kind}[:, :, ::1], int64[:, ::1], boolean[:, ::1])",
        nogil=False,
    )(_keep_boxes)
    for kind in ("float32", "float64")
}


def with_boxes_of(batch: Batch, boxes: Boxes, sources: Numbers, real: Flags) -> Batch:
    """Returns a batch with other boxes [B, M, 4], and their labels, counts and all else that belongs to them.

    Each is the box ``sources``, int64 [B, M], of the boxes before, or padding where ``real``, bool [B, M], is false.
    Polygons and run lengths of boxes that are gone get the box -1.
    """
    fields = fields_of(batch)
    made = {"boxes": boxes, "counts": np.array([np.count_nonzero(row) for row in real], np.int64)}
    for name in PER_BOX:
        # A field of this name may have nothing to do with boxes.
        if name in fields and fields[name].shape[1:2] == sources.shape[1:]:
            made[name] = taken(np.ascontiguousarray(values_of(fields[name])), sources, real, PADDING.get(name, 0))
    for name, _ in SEGMENTS:
        if name in fields:
            entries = values_of(fields[name])
            is_new = (sources[:, :, None] == entries[:, None, :, 0]) & real[:, :, None]
            box = np.where(is_new.any(1), is_new.argmax(1), -1)
            made[name] = np.stack((box.astype(entries.dtype), entries[..., 1]), 2)
    device = fields["boxes"].device
    tensors = {name: tensor_of(value, fields.get(name)) for name, value in made.items()}
    there = device.type == "cpu"
    return with_fields(batch, tensors if there else {name: value.to(device) for name, value in tensors.items()})


def values_of(field: Tensor) -> Array:
    """Returns a field on the host; NumPy has no bfloat16, whose bits are int16."""
    plain = field.view(torch.int16) if field.dtype == torch.bfloat16 else field
    return (plain if plain.device.type == "cpu" else plain.cpu()).numpy()


def tensor_of(values: Array, field: Tensor | None) -> Tensor:
    """Returns values that :func:`values_of` gave of a field as a tensor; None: they are no bits of another dtype."""
    tensor = torch.from_numpy(values)
    return tensor if field is None or field.dtype != torch.bfloat16 else tensor.view(torch.bfloat16)
