"""RandomZoomOut and RandomIoUCrop of SSD, named and set as in ``torchvision.transforms.v2``.

Both leave an image of its own size for each sample. A batch has one size, so a ``Resize((height, width))`` must follow
them; only flips may stand between. The pass pads or crops, then resizes once, as torchvision does in two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmload.augment.arguments import argument_error, chance, integer, mask_level, number, numbers, per_channel, span
from mmload.augment.draws import Draws, whole_numbers
from mmload.augment.resize import greatest
from mmload.augment.step import Step
from mmload.render.plan import Plan
from mmload.render.plan_parts import Padding
from mmload.runtime.memory_pool import constant

ROUNDS = 50
"""Upper bound on the minimal overlaps drawn before a sample stays unchanged; torchvision draws without a limit."""


class RandomZoomOut(Step):
    """Placed at random on a larger canvas, with probability ``p``; a ``Resize((height, width))`` must follow.

    Args:
        fill: fill of the canvas, in the images' values; one number or one per channel.
        side_range: least and greatest factor of the sides, from 1.
        p: probability that a sample is changed.
        mask_fill: fill of a mask's canvas, 0 to 255: 255 is void (torchvision: ``fill``).

    Raises:
        ValueError: if an argument is out of range.
    """

    takes_sizes = True
    is_drop_in = False  # a Resize must follow, torchvision's need none

    def __init__(
        self,
        fill: float | Sequence[float] = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
        mask_fill: int = 255,
    ) -> None:
        super().__init__()
        self.fill = per_channel("fill", fill)
        self.side_range = span("side_range", side_range, least=1.0, greatest=100.0, bounds="factors from 1 to 100")
        self.p = chance(p)
        self.mask_fill = mask_level(mask_fill)

    def fits(self, plan: Plan) -> bool:
        # The canvas must be around the whole image.
        return plan.fits_padding()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws per sample whether it is changed, a factor and a place."""
        height, width = plan.frame
        on, uniform = draws.chance(self.p), draws.uniform(3)
        low, high = self.side_range
        factor = torch.where(on, low + (high - low) * uniform[:, 0], 1.0)
        rows, cols = (height * factor).to(torch.int64), (width * factor).to(torch.int64)
        top, left = -whole_numbers(uniform[:, 2], rows - height), -whole_numbers(uniform[:, 1], cols - width)
        tallest, widest = greatest(height), greatest(width)
        margin = int(tallest * high) - tallest, int(widest * high) - widest
        around = Padding(fill=self.fill, mask_fill=self.mask_fill, margin=margin)
        return plan.windowed((top, left, rows, cols), around)


class _Trial(NamedTuple):
    """The windows that a round of trials found: int64 [B] each, and bool."""

    found: Tensor
    top: Tensor
    left: Tensor
    rows: Tensor
    cols: Tensor
    inside: Tensor


class RandomIoUCrop(Step):
    """Cropped to a random window that overlaps a box by a minimal IoU, drawn from several; or left as it is.

    A ``Resize((height, width))`` must follow. Boxes whose center is outside the window are dropped, with their labels;
    a sample without boxes stays as it is. So does one for which 50 minimal overlaps in a row, each with all its trials,
    gave no window; torchvision draws without end, but a device is not asked whether one more round is needed. By
    default one overlap in seven is "as it is", so 50 without it come once in 2,000 samples at most, and only where no
    window fits.

    Args:
        min_scale: least share of each side.
        max_scale: greatest share of each side, at most 1.
        min_aspect_ratio: least width / height of the window.
        max_aspect_ratio: greatest.
        sampler_options: minimal overlaps to choose from, of which 1 and more mean "as it is"; None: 0, 0.1, 0.3, 0.5,
            0.7, 0.9 and 1.
        trials: number of windows drawn for one minimal overlap before another overlap is drawn.

    Raises:
        ValueError: if an argument is out of range, or (when run) the batch has no boxes.
    """

    needs_boxes = True
    takes_sizes = True
    is_drop_in = False  # a Resize must follow, torchvision's need none

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
    ) -> None:
        super().__init__()
        self.min_scale = number("min_scale", min_scale, least=1e-3, greatest=1.0, expected="a share from 0.001 to 1")
        self.max_scale = number("max_scale", max_scale, least=1e-3, greatest=1.0, expected="a share from 0.001 to 1")
        self.min_aspect_ratio = number("min_aspect_ratio", min_aspect_ratio, least=0.0, expected="a ratio from 0")
        self.max_aspect_ratio = number("max_aspect_ratio", max_aspect_ratio, least=1e-9, expected="a ratio above 0")
        for name in ("scale", "aspect_ratio"):
            ends = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if ends[0] > ends[1]:
                raise argument_error(f"(min_{name}, max_{name})", ends, "the smaller one first")
        given = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if sampler_options is None else sampler_options
        self.sampler_options = numbers("sampler_options", given, least=0.0, expected="overlaps from 0, one at least")
        self.trials = integer("trials", trials, least=1, greatest=10_000, expected="an integer from 1 to 10000")

    def fits(self, plan: Plan) -> bool:
        # A window fits before a resize.
        return plan.fits_variable_windows()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Rounds of one overlap and ``trials`` windows each, until every sample has its window."""
        boxes, real = draws.boxes(type(self).__name__, plan)
        rows, cols = (plan.per_sample(side) for side in plan.frame)
        top = left = torch.zeros_like(rows)
        settled, outside = ~real.any(1), torch.zeros_like(real)
        high, wide = rows, cols
        for _ in range(ROUNDS if boxes.shape[1] else 0):
            if settled.device.type == "cpu" and settled.all():  # a device is not waited for
                break
            (option,) = draws.integers((0, len(self.sampler_options) - 1))
            overlap = constant(self.sampler_options, torch.float64, option.device)[option]
            stays = overlap >= 1
            trial = self._tried(draws.uniform(4 * self.trials), overlap.to(boxes.dtype), (high, wide), boxes, real)
            here = trial.found & ~settled & ~stays
            top, left = torch.where(here, trial.top, top), torch.where(here, trial.left, left)
            rows, cols = torch.where(here, trial.rows, rows), torch.where(here, trial.cols, cols)
            outside = torch.where(here[:, None], real & ~trial.inside, outside)
            settled = settled | here | stays
        return plan.windowed((top, left, rows, cols), dropped=outside)

    def _tried(
        self, uniform: Tensor, least: Tensor, frame: tuple[Tensor, Tensor], boxes: Tensor, real: Tensor
    ) -> _Trial:
        """Returns the first valid window of each sample."""
        count = self.trials
        height, width = frame[0][:, None], frame[1][:, None]
        scale = self.min_scale + (self.max_scale - self.min_scale) * uniform[:, : 2 * count]
        cols, rows = (width * scale[:, :count]).to(torch.int64), (height * scale[:, count:]).to(torch.int64)
        aspect = cols.to(torch.float64) / rows.clamp(min=1)
        left = whole_numbers(uniform[:, 2 * count : 3 * count], width - cols)
        top = whole_numbers(uniform[:, 3 * count :], height - rows)
        fitting = (aspect >= self.min_aspect_ratio) & (aspect <= self.max_aspect_ratio) & (rows > 0) & (cols > 0)
        window = torch.stack((left, top, left + cols, top + rows), 2).to(boxes.dtype)[:, :, None]
        around = boxes[:, None]
        center = 0.5 * (around[..., :2] + around[..., 2:])
        inside = ((window[..., :2] < center) & (center < window[..., 2:])).all(3) & real[:, None]
        overlap = torch.where(inside, _iou(around, window), -1.0).amax(2)
        fitting = fitting & inside.any(2) & (overlap >= least[:, None])
        place = fitting.to(torch.uint8).argmax(1, keepdim=True)
        top, left, rows, cols = (value.gather(1, place)[:, 0] for value in (top, left, rows, cols))
        chosen = inside.gather(1, place[:, :, None].expand(-1, 1, inside.shape[2]))[:, 0]
        return _Trial(fitting.any(1), top, left, rows, cols, chosen)


def _iou(first: Tensor, second: Tensor) -> Tensor:
    """Returns the intersection over union of boxes, of any shapes that can be broadcast."""
    sides = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp(
        min=0
    )
    both = sides.prod(-1)
    areas = [(one[..., 2:] - one[..., :2]).prod(-1) for one in (first, second)]
    return both / (areas[0] + areas[1] - both).clamp(min=1e-12)
