"""RandomZoomOut and RandomIoUCrop of SSD, named and set as in ``torchvision.transforms.v2``.

Both leave an image of its own size for each sample. A batch has one size, so a step that gives one must follow them, as
for variable-size images: ``Resize((height, width))``, or a crop. The pass pads or crops, then resizes once, as
torchvision does in two steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmload.augment.arguments import chance, check_ascending, integer, mask_level, number, numbers, per_channel, span
from mmload.augment.boxes import numba_compiled_for_boxes
from mmload.augment.step import Doubles, Draws, Flags, Step, whole_numbers
from mmload.render.motion import Boxes
from mmload.render.plan import Padding, Plan
from mmload.runtime.host_memory import copied, zeros
from mmload.runtime.intrinsics import Arena, carve
from mmload.runtime.kernels import inlined
from mmload.runtime.random_words import Numbers, Words, unit_of_word

ROUNDS = 50
"""Upper bound on the minimal overlaps drawn before a sample stays unchanged; torchvision draws without a limit."""


class RandomZoomOut(Step):
    """Placed at random on a larger canvas, with probability ``p``; a step that gives one size must follow.

    Args:
        fill: fill of the canvas, in the images' values; one number or one per channel.
        side_range: least and greatest factor of the sides, from 1.
        p: probability that a sample is changed.
        mask_fill: fill of a mask's canvas, 0 to 255: 255 is void (torchvision: ``fill``).

    Raises:
        ValueError: if an argument is out of range.
    """

    is_drop_in = False  # a step that gives one size must follow, torchvision's need none

    def __init__(
        self,
        fill: float | Sequence[float] = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
        mask_fill: int = 255,
    ) -> None:
        super().__init__()
        self.fill = per_channel("fill", fill)
        self.side_range = span("side_range", side_range, least=1.0, greatest=100.0, unit="factors")
        self.p = chance(p)
        self.mask_fill = mask_level(mask_fill)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws per sample whether it is changed, a factor and a place."""
        height, width = plan.frame
        on, uniform = draws.chance(self.p), draws.uniform(3)
        low, high = self.side_range
        factor = np.where(on, low + (high - low) * uniform[:, 0], 1.0)
        rows, cols = (height * factor).astype(np.int64), (width * factor).astype(np.int64)
        top, left = -whole_numbers(uniform[:, 2], rows - height), -whole_numbers(uniform[:, 1], cols - width)
        tallest, widest = (int(np.max(side, initial=0)) for side in plan.frame)
        margin = int(tallest * high) - tallest, int(widest * high) - widest
        around = Padding(fill=self.fill, mask_fill=self.mask_fill, margin=margin)
        return plan.windowed((top, left, rows, cols), around)


class RandomIoUCrop(Step):
    """Cropped to a random window that overlaps a box by a minimal IoU, drawn from several; or left as it is.

    A step that gives one size must follow. Boxes whose center is outside the window are dropped, with their labels;
    a sample without boxes stays as it is. So does one for which 50 minimal overlaps in a row, each with all its trials,
    gave no window; torchvision draws without end. By default one overlap in seven is "as it is", so 50 without it come
    once in 2,000 samples at most, and only where no window fits.

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

    needs_boxes = "for detection"
    is_drop_in = False  # a step that gives one size must follow, torchvision's need none

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
        self.min_scale = number("min_scale", min_scale, least=1e-3, greatest=1.0, unit="a share")
        self.max_scale = number("max_scale", max_scale, least=1e-3, greatest=1.0, unit="a share")
        self.min_aspect_ratio = number("min_aspect_ratio", min_aspect_ratio, least=0.0, unit="a ratio")
        self.max_aspect_ratio = number("max_aspect_ratio", max_aspect_ratio, least=1e-9, unit="a ratio")
        check_ascending(self, "min_scale", "max_scale")
        check_ascending(self, "min_aspect_ratio", "max_aspect_ratio")
        given = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if sampler_options is None else sampler_options
        self.sampler_options = numbers("sampler_options", given, least=0.0, expected="overlaps from 0, one at least")
        self.trials = integer("trials", trials, least=1, greatest=10_000)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Rounds of one overlap and ``trials`` windows each, until every sample has its window."""
        trail, counts = draws.boxes(type(self).__name__, plan)
        rows, cols = map(plan.per_sample, plan.frame)
        windows = np.stack((np.zeros_like(rows), np.zeros_like(cols), rows, cols))
        settled, dropped = zeros(plan.count, np.bool_), copied(trail.dropped)
        options = np.array(self.sampler_options, np.float32).astype(trail.boxes.dtype)
        span = self.max_scale - self.min_scale
        bounds = np.array([self.min_scale, span, self.min_aspect_ratio, self.max_aspect_ratio])
        for _ in range(ROUNDS):
            if settled.all():
                break
            (option,) = draws.integers((0, len(options) - 1))
            overlaps = options[option]
            settled |= overlaps >= 1
            words = draws.bits(4 * self.trials).view(np.uint64)
            _try_windows[trail.boxes.dtype.name](
                words, bounds, overlaps, trail.boxes, counts, trail.dropped, settled, windows, dropped
            )
        top, left, rows, cols = windows
        return plan.windowed((top, left, rows, cols), dropped=dropped)


@numba_compiled_for_boxes(
    "uint64[:, ::1], float64[::1], BOXES[::1], BOXES[:, :, ::1], int64[::1], boolean[:, ::1], boolean[::1], "
    "int64[:, ::1], boolean[:, ::1], arena"
)
def _try_windows(
    words: Words,
    bounds: Doubles,
    overlaps: Boxes,
    boxes: Boxes,
    counts: Numbers,
    before: Flags,
    settled: Flags,
    windows: Numbers,
    dropped: Flags,
    arena: Arena,
) -> None:
    """Settles the samples without boxes, and those of which one of n windows reaches the overlap with a box.

    Args:
        words: uint64 [B, 4 n]; n draw widths, n heights, n left edges and n top edges.
        bounds: least share of a side and the range of shares, least and greatest aspect ratio.
        overlaps: least overlap, [B]; of the boxes' type, in which overlaps are computed.
        boxes: the samples' boxes, [B, M + 1, 4]; the last one is not looked at.
        counts: numbers of real boxes, [B].
        before: whether a box was dropped before, [B, M].
        settled: whether a sample has its window, [B].
        windows: top, left, rows and cols, [4, B]; the complete image until a sample is settled.
        dropped: whether a box is dropped, [B, M].
        arena: working memory.
    """
    count = words.shape[1] // 4
    low, span, narrowest, widest = bounds[0], bounds[1], bounds[2], bounds[3]
    window = carve(arena, 4, boxes.dtype)
    for k in range(len(words)):
        high, wide, real = windows[2, k], windows[3, k], 0
        for n in range(counts[k]):
            real += not before[k, n]
        settled[k] |= real == 0
        for trial in range(0 if settled[k] else count):
            cols = np.int64(wide * (low + span * unit_of_word(words[k, trial])))
            rows = np.int64(high * (low + span * unit_of_word(words[k, count + trial])))
            if rows < 1 or cols < 1 or not narrowest <= cols / rows <= widest:
                continue
            left = np.int64(unit_of_word(words[k, 2 * count + trial]) * (wide - cols))
            top = np.int64(unit_of_word(words[k, 3 * count + trial]) * (high - rows))
            window[0], window[1], window[2], window[3] = left, top, left + cols, top + rows
            for n in range(counts[k]):
                inside = not before[k, n] and _has_center_inside(boxes[k, n], window)
                dropped[k, n] = not inside
                settled[k] |= inside and _iou(boxes[k, n], window) >= overlaps[k]
            if settled[k]:
                windows[0, k], windows[1, k], windows[2, k], windows[3, k] = top, left, rows, cols
                break
            for n in range(counts[k]):
                dropped[k, n] = before[k, n]


@inlined
def _has_center_inside(box: Boxes, window: Boxes) -> bool:
    x, y = (box[0] + box[2]) * 0.5, (box[1] + box[3]) * 0.5
    return window[0] < x and x < window[2] and window[1] < y and y < window[3]  # type: ignore[no-any-return]


@inlined
def _iou(box: Boxes, window: Boxes) -> float:
    """Returns the intersection over union of a box and a window that has a pixel, rounded as their type."""
    cols = min(box[2], window[2]) - max(box[0], window[0])
    rows = min(box[3], window[3]) - max(box[1], window[1])
    if cols <= 0 or rows <= 0:
        return 0.0
    both = cols * rows
    areas = (box[2] - box[0]) * (box[3] - box[1]) + (window[2] - window[0]) * (window[3] - window[1])
    return both / (areas - both)  # type: ignore[no-any-return]
