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

from mmload.batch import Batch, with_fields
from mmload.pictures.instance_masks import SEGMENTS, parts_of, rectangles_of_runs
from mmload.render.motion import Motion, moved_points
from mmload.render.plan import Plan
from mmload.render.plan_parts import Array

KEYPOINTS, CORNERS, POLYGONS, FLIPS = "keypoints", "corners", "polygons", "keypoint_flips"
"""Fields of ``batch.extra`` with points: float32 [B, M, K, 3], [B, M, 4, 2] and [B, P, 2]; and uint8 [B, K], for each
keypoint the one that it becomes in a mirrored image."""

_SHAPES = {KEYPOINTS: (0, 0, 0, 3), CORNERS: (0, 0, 0, 2), POLYGONS: (0, 0, 2)}
"""Names of the fields -> shapes with as many dimensions; 0: any size."""


def has_points(batch: Batch) -> bool:
    """Returns whether a batch has keypoints, corners or polygons."""
    return bool(points_in(_extra_of(batch)))


def _extra_of(batch: Batch) -> dict[str, Tensor]:
    return {} if batch.extra is None else dict(batch.extra.items())  # type: ignore[arg-type]  # flat


def points_in(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the fields with points by name; a field of such a name with other values is none."""
    return {
        name: value
        for name, value in fields.items()
        if name in _SHAPES
        and value.is_floating_point()
        and value.dim() == len(_SHAPES[name])
        and value.shape[-1] == _SHAPES[name][-1]
    }


def move_points(batch: Batch, plan: Plan) -> Batch:
    """Moves all points of a batch as the plan moves pixels; run lengths become polygons first."""
    fields = _extra_of(batch)
    if not points_in(fields):
        return batch
    heights = [plan.source[1]] * plan.count if plan.sizes is None else plan.sizes[:, 0].tolist()
    changed = without_runs(fields, heights)
    changed |= moved_fields(points_in(fields | changed), Motion.of_plan(plan), fields.get(FLIPS))
    return with_fields(batch, changed)


def moved_fields(points: Mapping[str, Tensor], motion: Motion, flips: Tensor | None = None) -> dict[str, Tensor]:
    """Moves fields of :func:`points_in`, float32 or float64; ``flips`` are those of keypoints, if there are any."""
    moved = {}
    for name, value in points.items():
        array = _array(value)
        if name == KEYPOINTS:
            places, inside = moved_points(array[..., :2], motion, pixels=True)
            shown = array[..., 2:] * inside[..., None]
            array = np.concatenate((places * (shown > 0), shown), -1)
            if flips is not None:
                index = _array(flips).astype(np.int64)[:, None, :, None]
                exchanged = np.take_along_axis(array, index, 2)
                array = np.where(motion.mirrors[:, None, None, None], exchanged, array)
        else:
            array, _ = moved_points(array, motion)
        moved[name] = torch.from_numpy(array).to(value)
    return moved


def _array(value: Tensor) -> Array:
    """Returns a tensor on the host; floats of half precision as float32."""
    return (value.float() if value.is_floating_point() and value.element_size() < 4 else value).cpu().numpy()


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
