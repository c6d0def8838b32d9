"""Moves boxes, points and masks as a plan moves pixels, and says where images lie on a canvas. It never reads images.

Fields are NumPy arrays in host memory from the first pass to the last, as each operation of torch gives the interpreter
lock away. Boxes are moved in a :class:`Trail` that goes from pass to pass, and are dropped and repacked once, after the
last one. Points are moved, never clipped: keypoints that leave the image at a crop are not labeled any more, and where
an image is mirrored, keypoints of the left and the right change places. Masks are rendered by the nearest pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmload.augment.arguments import number
from mmload.pictures.instance_masks import parts_of, rectangles_of_runs
from mmload.records import PADDING, PER_BOX, SEGMENTS
from mmload.render.level_operations import Array
from mmload.render.mask_kernels import moved_masks
from mmload.render.motion import Boxes, Flags, Motion, move_boxes, moved_points
from mmload.render.plan import Plan
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.host_memory import copied, taken, zeros
from mmload.runtime.kernels import Kernel, numba_compiled
from mmload.runtime.random_words import Numbers

Fields = dict[str, Any]
"""Fields of a batch that its steps may change, arrays [B, ...] by name."""

KEYPOINTS, CORNERS, POLYGONS, FLIPS = "keypoints", "corners", "polygons", "keypoint_flips"
"""Fields of ``batch.extra`` with points: float32 [B, M, K, 3], [B, M, 4, 2] and [B, P, 2]; and uint8 [B, K], for each
keypoint the one that it becomes in a mirrored image."""

_SHAPES = {KEYPOINTS: (0, 0, 0, 3), CORNERS: (0, 0, 0, 2), POLYGONS: (0, 0, 2)}
"""Names of the fields -> shapes with as many dimensions; 0: any size."""


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
        size = number("min_size", self.min_size, least=0, unit="pixels")
        share = number("min_visible", self.min_visible, least=0, greatest=1, unit="a share")
        object.__setattr__(self, "min_size", size)
        object.__setattr__(self, "min_visible", share)
        aspect = number("max_aspect", self.max_aspect, least=1, greatest=math.inf, unit="a quotient")
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
        (count, most, _), kind = given.shape, given.dtype
        edges = zeros((count, most + 1), np.bool_), np.empty((count, most + 1), kind)
        trail = cls(np.empty((count, most + 1, 4), kind), *edges, zeros((count, most), np.bool_))
        _begin_trail[kind.name](given, _sizes_of(plan), trail.boxes, trail.share)
        return trail

    def moved(self, plan: Plan) -> Trail:
        """Returns the trail after a pass: boxes in output pixels, clipped at each move, as torchvision does."""
        boxes, cut, share = map(copied, self[:3])
        move_boxes(boxes, Motion.of_plan(plan), cut, share)
        return Trail(boxes, cut, share, self.dropped if plan.dropped is None else self.dropped | plan.dropped)


def numba_compiled_for_boxes(signature: str) -> Callable[[Callable[..., None]], Mapping[str, Kernel[None]]]:
    """Declares kernels of boxes that keep the interpreter lock, by their dtype, which BOXES is in the signature."""
    return lambda function: {
        kind: numba_compiled(signature.replace("BOXES", kind), nogil=False)(function) for kind in ("float32", "float64")
    }


@numba_compiled_for_boxes("BOXES[:, :, ::1], int64[:, ::1], BOXES[:, :, ::1], BOXES[:, ::1]")
def _begin_trail(given: Boxes, sizes: Numbers, boxes: Boxes, share: Array) -> None:
    """Writes boxes and behind them the edges of images, whose sizes, int64 [B, 2], are given."""
    most = given.shape[1]
    for k in range(len(boxes)):
        for n in range(most + 1):
            share[k, n] = 1
            for side in range(4):
                boxes[k, n, side] = given[k, n, side] if n < most else 0
        boxes[k, most, 2], boxes[k, most, 3] = sizes[k, 1], sizes[k, 0]


def move_fields(fields: Fields, plan: Plan, trail: Trail | None = None) -> tuple[Fields, Trail | None]:
    """Moves points, masks and ``image_sizes`` of a batch, and the boxes of its trail, as the plan moves pixels.

    None of the boxes is dropped, and the fields' stay as they are: :func:`drop_boxes` replaces them once, after all
    passes, so that boxes that a later resize enlarges again remain, however the steps were divided into passes. The
    trail is that of the passes before. Masks are [B, H, W], or :class:`OwnMasks` of variable-size images.
    """
    moved, resampling = fields.copy(), plan.resampling
    if plan.is_framed or plan.moves or plan.mixing is not None or plan.canvas is not None:
        moved.pop("image_sizes", None)
    if plan.is_framed and resampling is not None and plan.mixing is None:
        moved["image_sizes"] = np.stack((resampling.rows, resampling.cols), 1)
    if not plan.moves:
        return moved, trail
    if points_in(fields):
        moved |= without_runs(moved, _sizes_of(plan)[:, 0].tolist())
        moved |= moved_fields(points_in(moved), Motion.of_plan(plan), fields.get(FLIPS))
    if "masks" in fields:
        moved["masks"] = moved_masks(*_lines_of(fields["masks"]), plan)
    if "boxes" in fields:
        trail = (trail or Trail.before(fields["boxes"], plan)).moved(plan)
    return moved, trail


def _lines_of(masks: Array | OwnMasks) -> OwnMasks:
    """Returns masks as kernels read them; those of one size, uint8 [B, H, W], are in order."""
    if isinstance(masks, OwnMasks):
        return masks
    return OwnMasks(np.ascontiguousarray(masks).reshape(-1), np.arange(len(masks)) * math.prod(masks.shape[1:]))


def _sizes_of(plan: Plan) -> Numbers:
    """Returns height and width of each image that comes in, int64 [B, 2]."""
    sizes = np.array([plan.source[1:]]).repeat(plan.count, 0) if plan.sizes is None else plan.sizes
    return np.ascontiguousarray(sizes)


def points_in(fields: Fields) -> Fields:
    """Returns the fields with points by name; a field of such a name with other values is none."""
    return {
        name: value
        for name, value in fields.items()
        if name in _SHAPES
        and value.dtype.kind == "f"
        and value.ndim == len(_SHAPES[name])
        and value.shape[-1] == _SHAPES[name][-1]
    }


def moved_fields(points: Fields, motion: Motion, flips: Array | None = None) -> Fields:
    """Moves fields of :func:`points_in`, in their dtypes; ``flips`` are those of keypoints, if there are any."""
    moved = {}
    for name, value in points.items():
        array = value.astype(np.promote_types(value.dtype, np.float32), copy=False)
        if name == KEYPOINTS:
            places, inside = moved_points(array[..., :2], motion, pixels=True)
            shown = array[..., 2:] * inside[..., None]
            array = np.concatenate((places * (shown > 0), shown), -1)
            if flips is not None:
                exchanged = np.take_along_axis(array, flips.astype(np.int64)[:, None, :, None], 2)
                array = np.where(motion.mirrors[:, None, None, None], exchanged, array)
        else:
            array, _ = moved_points(array, motion)
        moved[name] = array.astype(value.dtype, copy=False)
    return moved


def without_runs(fields: Fields, heights: Sequence[int]) -> Fields:
    """Converts run lengths in fields [B, ...] to polygons, a rectangle for each run of a column, by heights.

    Returns:
        The fields of :data:`~mmload.records.SEGMENTS`; none if there are no run lengths.
    """
    if "run_boxes" not in fields or POLYGONS not in fields or not fields["run_boxes"][..., 1].any():
        return {}
    rings, polygons = [], []
    for row, height in enumerate(heights):
        own = {name: fields[name][row] for pair in SEGMENTS for name in pair}
        real = own["rings"][own["rings"][:, 1] > 0]
        points = [own["polygons"][: real[:, 1].sum()]]
        entries = [real]
        for box, runs in parts_of(own, *SEGMENTS[1]):
            rectangles = rectangles_of_runs(runs, height)
            entries.append(np.tile(np.array([[box, 4]], np.int32), (len(rectangles), 1)))
            points.append(rectangles.reshape(-1, 2))
        rings.append(np.concatenate(entries).astype(np.int32))
        polygons.append(np.concatenate(points))
    nothing = {name: np.zeros_like(fields[name]) for name in SEGMENTS[1]}
    return {**nothing, "rings": padded(rings), "polygons": padded(polygons)}


def padded(rows: Sequence[Array], blank: float = 0) -> Array:
    """Returns the elements [n, ...] of samples, one sample at least, as [B, M, ...]: M of the longest, at least 1."""
    made = np.full((len(rows), max(1, *map(len, rows)), *rows[0].shape[1:]), blank, rows[0].dtype)
    for room, row in zip(made, rows, strict=True):
        room[: len(row)] = row
    return made


def boxes_in(fields: Fields, plan: Plan, trail: Trail | None) -> tuple[Trail, Numbers]:
    """Returns the trail of a batch's boxes as ``plan`` moves them, and the numbers of real ones, int64 [B]."""
    trail = trail or Trail.before(fields["boxes"], plan)
    trail = trail.moved(plan) if plan.moves else trail
    return trail, counts_of(fields)


def counts_of(fields: Fields) -> Numbers:
    """Returns the numbers of real boxes, int64 [B]; all are, if there are no counts."""
    count, most, _ = fields["boxes"].shape
    counts: Numbers = np.ascontiguousarray(fields["counts"]) if "counts" in fields else np.full(count, most)
    return counts


def check_counts(fields: Fields) -> None:
    """Rejects numbers of boxes, by which kernels find the boxes, that are not from 0 to the room that boxes have.

    Raises:
        ValueError: if one is not.
    """
    counts, most = counts_of(fields).tolist(), fields["boxes"].shape[1]
    least, greatest = min(counts, default=0), max(counts, default=0)
    if not 0 <= least <= greatest <= most:
        raise ValueError(
            f"counts are from {least} to {greatest}, and boxes have room for {most} per sample; give the number of "
            f"real boxes, from 0 to {most}"
        )


def drop_boxes(fields: Fields, trail: Trail, rule: BoxRule) -> Fields:
    """Replaces a batch's boxes by those of the trail, without those that passes or the rule drop.

    The remaining ones move to the front in their order, and the rest is empty.
    """
    counts, shape, kind = counts_of(fields), trail.dropped.shape, trail.boxes.dtype
    packed, order, real = zeros((*shape, 4), kind), zeros(shape, np.int64), zeros(shape, np.bool_)
    limits = np.array([rule.least, rule.max_aspect, rule.min_visible], kind)
    _keep_boxes[kind.name](limits, counts, *trail, packed, order, real)
    return with_boxes_of(fields, packed, order, real)


@numba_compiled_for_boxes(
    "BOXES[::1], int64[::1], BOXES[:, :, ::1], boolean[:, ::1], BOXES[:, ::1], boolean[:, ::1], "
    "BOXES[:, :, ::1], int64[:, ::1], boolean[:, ::1]"
)
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


def names_per_box(fields: Mapping[str, Any]) -> list[str]:
    """Returns the names of the fields with an element per box; one of such a name may have nothing to do with boxes."""
    most = fields["boxes"].shape[1:2]
    return [name for name in PER_BOX if name in fields and fields[name].shape[1:2] == most]


def with_boxes_of(fields: Fields, boxes: Boxes, sources: Numbers, real: Flags) -> Fields:
    """Returns fields with other boxes [B, M, 4], and their labels, counts and all else that belongs to them.

    Each is the box ``sources``, int64 [B, M], of the boxes before, or padding where ``real``, bool [B, M], is false.
    Polygons and run lengths of boxes that are gone get the box -1.
    """
    made = {**fields, "boxes": boxes, "counts": np.array(list(map(np.count_nonzero, real)), np.int64)}
    for name in names_per_box(fields):
        made[name] = taken(np.ascontiguousarray(fields[name]), sources, real, PADDING.get(name, 0))
    for name, _ in SEGMENTS:
        if name in fields:
            entries = fields[name]
            is_new = (sources[:, :, None] == entries[:, None, :, 0]) & real[:, :, None]
            box = np.where(is_new.any(1), is_new.argmax(1), -1)
            made[name] = np.stack((box.astype(entries.dtype), entries[..., 1]), 2)
    return made
