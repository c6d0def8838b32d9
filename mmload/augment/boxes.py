"""Takes boxes and masks through the same plan as the pixels.

Comes in: a :class:`~mmload.records.Batch` with boxes, their counts, or masks, and a
:class:`~mmload.augment.plan.Plan`. Goes out: the batch with boxes moved, clipped, weeded and repacked, and masks
rendered nearest-neighbour. Never looks at images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmload.augment.constants import constant
from mmload.augment.plan import Plan
from mmload.augment.sampling import gathered_masks
from mmload.records import Batch


@dataclass(frozen=True, kw_only=True)
class BoxRule:
    """Which boxes stay after they were clipped.

    Attributes:
        min_size: pixels that both sides must still have (torchvision's SanitizeBoundingBoxes: 1).
        min_visible: share of its area before the clip that a box must still show, 0 to 1.
    """

    min_size: float = 1.0
    min_visible: float = 0.0

    def __post_init__(self) -> None:
        if self.min_size < 0:
            raise ValueError(f"min_size is {self.min_size!r}, expected pixels from 0")
        if not 0.0 <= self.min_visible <= 1.0:
            raise ValueError(f"min_visible is {self.min_visible!r}, expected a share from 0 to 1")


def followed(batch: Batch, plan: Plan, rule: BoxRule) -> Batch:
    """The batch with boxes and masks as the plan moves them; unchanged where it moves nothing."""
    if not plan.moves:
        return batch
    if batch.masks is not None:
        batch = batch.replace(masks=gathered_masks(batch.masks, plan))
    return batch if batch.boxes is None else _repacked(batch, *moved_boxes(batch.boxes, plan, rule))


def moved_boxes(boxes: Tensor, plan: Plan, rule: BoxRule) -> tuple[Tensor, Tensor]:
    """Boxes through the window, the resize, its kept part and the flips, clipped at each, as torchvision does.

    Args:
        boxes: float32 [B, M, 4], xyxy in source pixels.
        plan: the geometry.
        rule: which stay.

    Returns:
        The boxes in output pixels, and bool [B, M], which of them stay.
    """
    boxes = _windowed(boxes, plan.left, plan.top)
    whole = _area(boxes)
    boxes = _clipped(boxes, plan.cols, plan.rows)
    how, shown = plan.resampling, _area(boxes)
    if how is not None:
        cols, rows = (plan.of_batch(size).to(torch.float64) for size in (plan.cols, plan.rows))  # as torchvision does
        ratio = _quad(how.width / cols, how.height / rows).to(boxes.dtype)
        scaled = _windowed(boxes * ratio, how.left, how.top)
        before = _area(boxes * ratio)
        boxes = _clipped(scaled, plan.width, plan.height)
        shown = shown * _share(_area(boxes), before)
    boxes = _flipped(boxes, plan)
    sides = boxes[..., 2:] - boxes[..., :2]
    stays = (sides >= max(rule.min_size, 1e-6)).all(2) & (_share(shown, whole) >= rule.min_visible)
    return boxes, stays


def _windowed(boxes: Tensor, left: Tensor | None, top: Tensor | None) -> Tensor:
    """Boxes seen from a window's corner."""
    if left is None or top is None:
        return boxes
    return boxes - _quad(left.to(boxes.dtype), top.to(boxes.dtype))


def _clipped(boxes: Tensor, width: Tensor | int, height: Tensor | int) -> Tensor:
    """Boxes cut off at the frame; one size, or one per sample."""
    if isinstance(width, int) or isinstance(height, int):
        edge = constant((float(width), float(height)) * 2, boxes.dtype, boxes.device)
    else:
        edge = _quad(width, height).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), edge)


def _flipped(boxes: Tensor, plan: Plan) -> Tensor:
    """Boxes mirrored within the output."""
    x1, y1, x2, y2 = boxes.unbind(2)
    if plan.flip_x is not None:
        flip = plan.flip_x[:, None]
        x1, x2 = torch.where(flip, plan.width - x2, x1), torch.where(flip, plan.width - x1, x2)
    if plan.flip_y is not None:
        flip = plan.flip_y[:, None]
        y1, y2 = torch.where(flip, plan.height - y2, y1), torch.where(flip, plan.height - y1, y2)
    return torch.stack((x1, y1, x2, y2), dim=2)


def _repacked(batch: Batch, boxes: Tensor, stays: Tensor) -> Batch:
    """The boxes that stay moved to the front in their order, the rest emptied, and counted."""
    if batch.counts is not None:
        stays = stays & (torch.arange(boxes.shape[1], device=boxes.device) < batch.counts[:, None])
    order = (~stays).to(torch.int64).argsort(dim=1, stable=True)
    real = stays.gather(1, order)
    fields = {"boxes": boxes.gather(1, order[:, :, None].expand_as(boxes)) * real[:, :, None]}
    if batch.labels is not None:
        fields["labels"] = torch.where(real, batch.labels.gather(1, order), -1)
    if batch.difficult is not None:
        fields["difficult"] = batch.difficult.gather(1, order) & real
    repacked: Batch = batch.replace(**fields, counts=real.sum(1))
    return repacked


def _quad(x: Tensor, y: Tensor) -> Tensor:
    """[B] and [B] as [B, 1, 4]: x, y, x, y."""
    return torch.stack((x, y, x, y), dim=1)[:, None]


def _area(boxes: Tensor) -> Tensor:
    return ((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])).clamp(min=0)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1e-12), 0.0)
