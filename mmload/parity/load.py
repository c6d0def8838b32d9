"""Checks that the loader's batches are equal to torchvision's result for the same rows with the same draws.

The batches come through the :class:`~mmload.loader.Loader` itself. Its draws are recomputed from the samples' seeds and
passed to torchvision's own transforms, step by step; verdicts cover images, labels, boxes and masks. JPEGs that the
Loader decodes smaller are compared with torchvision's resize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import Step
from mmload.batch import Batch
from mmload.errors import counted
from mmload.loader import Loader
from mmload.parity.known_faults import batch_looks_like
from mmload.parity.program_replay import Allowance, Items, frame_after
from mmload.parity.replay import Shape, StepDraws, beyond_torch, drawn, followable, results
from mmload.parity.report import Verdict
from mmload.render.antialiased_resize import RESERVE, SHRINKS
from mmload.render.level_program import WARPS
from mmload.store.dataset import Split
from mmload.store.variable_rows import JPEG, MAX_PIXELS

ROWS = 64
"""Default number of rows to compare."""

_BATCH = 16
_ROUNDING = 0.01  # of a level: float32 arithmetic in a different order
_SCATTERED = 0.01  # share of an image's values, or of a warped mask's, that may exceed the limit
_BOX_LIMIT = 1e-3  # pixels
_TARGET_LIMIT = 1e-6  # of soft targets, which are computed in float32
_SCALED_ROWS = 32
_SCALED_LIMIT = 2.0  # mean difference in levels of JPEGs decoded smaller, as of those that a device decodes


def shape_of(split: Split) -> Shape:
    """Returns (C, H, W) of a split's images; the most common size of variable-size images."""
    spec = split.fields["images"]
    if not spec.variable_size:
        channels, height, width = spec.shape
        return channels, height, width
    ((height, width), _) = Counter(map(tuple, split.files.field("images").sizes.tolist())).most_common(1)[0]
    return spec.channels, int(height), int(width)


def check_equal(name: str, collate: Collate, split: Split, *, rows: int = ROWS, seed: int) -> list[Verdict]:
    """Compares batches with torchvision's result for the same draws, up to the first step that it lacks for one sample.

    A split of fewer rows is repeated for several epochs. The seed also selects the rows.
    """
    variable_size = split.fields["images"].variable_size
    steps, left_out = followable(collate, shape_of(split), alone=variable_size)
    followed = Collate(*steps, dtype=collate.dtype, memory_format=collate.memory_format, box_rule=collate.box_rule)
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))[:rows]
    fields = [field for field, spec in split.fields.items() if field == "images" or not spec.variable_size]
    options: dict[str, Any] = {"sampler": order.tolist(), "collate": followed, "seed": seed, "device": "cpu"}
    loader = Loader(split, batch_size=_BATCH, fields=fields, **options)
    totals = _RowsCompared(steps, collate.dtype)
    try:
        while totals.rows + totals.left_out < rows:
            epoch = loader.epoch
            of_epoch = [step.at_epoch(epoch) if isinstance(step, Step) else step for step in steps]
            for batch in loader:
                _compare(batch, split, of_epoch, followed, totals, epoch)
    finally:
        loader.close()
    verdicts = totals.verdicts(name) if totals.rows else []
    notes = [f"compared up to {left_out}"] * bool(left_out)
    if totals.left_out:
        limits = f"more than {MAX_PIXELS:,} pixels or a width of 1"
        notes.append(f"{counted(totals.left_out, 'row')} not compared: torch cannot resize an image to {limits}")
    if "boxes" in split.fields and collate.box_rule.beyond_torchvision:
        notes.append(f"boxes are not compared: torchvision has no {collate.box_rule.beyond_torchvision}")
    return verdicts + [Verdict.note("load", f"{name}, equal draws", text) for text in notes]


class _RowsCompared:
    """Comparisons of rows with torchvision's results, added up."""

    def __init__(self, steps: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self.levels = _levels(steps, dtype)
        self.rows = self.values = self.far = self.left_out = 0
        self.greatest = self.total = self.limit = 0.0
        self.wrong: dict[str, tuple[int, float]] = {}
        self.looks: list[str] = []

    def image(self, got: Tensor, expected: Tensor, allowance: Allowance) -> None:
        """Compares an image of a batch with torchvision's, within an allowance."""
        self.rows += 1
        limit = allowance.levels + _ROUNDING
        self.limit = max(self.limit, limit)
        if got.shape != expected.shape:
            self.greatest, self.far = float("inf"), self.far + 1
            self.looks.append(f"the shape is {list(got.shape)}, torchvision's {list(expected.shape)}")
            return
        difference = (got.to(torch.float64) - expected.to(torch.float64)).abs() * self.levels
        self.values += difference.numel()
        self.total += float(difference.sum())
        self.greatest = max(self.greatest, float(difference.max()))
        share = float((difference > limit).to(torch.float64).mean())
        if share > (_SCATTERED if allowance.scattered else 0.0):
            self.far += 1
            self.looks.append(batch_looks_like(got, expected))

    def field(self, name: str, difference: float, limit: float = 0.0) -> None:
        """Adds a row's field: its difference from torchvision's, and the upper bound."""
        wrong, greatest = self.wrong.get(name, (0, 0.0))
        self.wrong[name] = wrong + (difference > limit), max(greatest, difference)

    def verdicts(self, name: str) -> list[Verdict]:
        """Returns one verdict for the images and one per field."""
        rows = counted(self.rows, "row")
        text = f"{rows} within {self.greatest:.2g} levels, limit {self.limit:g}"
        looks = max(set(self.looks), key=self.looks.count, default="")
        numbers = {"greatest": self.greatest, "mean": self.total / max(self.values, 1), "limit": self.limit}
        name_of = f"{name}, equal draws"
        lines = [Verdict.judged("load", name_of, not self.far, text, looks, rows=self.rows, **numbers, far=self.far)]
        for field, (wrong, greatest) in sorted(self.wrong.items()):
            text = f"{wrong:,} of {rows} differ, by {greatest:g} at most" if wrong else f"{rows} equal"
            counts = {"rows": self.rows, "wrong": wrong, "greatest": greatest}
            lines.append(Verdict.judged("load", f"{name}, {field} for equal draws", not wrong, text, **counts))
        return lines


def _compare(
    batch: Batch, split: Split, steps: Sequence[nn.Module], collate: Collate, totals: _RowsCompared, epoch: int
) -> None:
    """Compares one batch of the loader with torchvision's result; variable-size images one by one."""
    if batch.ids is None or batch.seeds is None:
        raise ValueError("the batch has no ids and seeds")
    stored = split.rows(batch.ids)
    parts: list[tuple[slice, Batch]] = [(slice(len(batch)), stored)]
    if split.fields["images"].variable_size:
        parts = [(slice(number, number + 1), stored[number].unsqueeze(0)) for number in range(len(batch))]
    for part, rows in parts:
        draws = drawn(steps, rows, batch.seeds[part], epoch, batch.ids[part])
        if any(beyond_torch(draw) for draw in draws):
            totals.left_out += len(rows)
            continue
        got = batch[part]
        for k, (items, allowance) in enumerate(results(steps, draws, rows, collate.dtype)):
            totals.image(got.images[k], items["images"], allowance)
            _compare_fields(got, rows, items, draws, k, collate, totals)


def _compare_fields(
    batch: Batch,
    stored: Batch,
    items: Items,
    draws: Sequence[StepDraws],
    k: int,
    collate: Collate,
    totals: _RowsCompared,
) -> None:
    """Compares labels, mask and boxes of sample ``k`` with torchvision's."""
    if "targets" in items:
        totals.field("labels", _targets_difference(batch.targets[k], items["targets"]), _TARGET_LIMIT)
    if "masks" in items and batch.masks is not None:
        mask = items["masks"].as_subclass(Tensor)
        same = batch.masks[k].shape == mask.shape
        difference = float((batch.masks[k] != mask).to(torch.float64).mean()) if same else float("inf")
        totals.field("masks", difference, _SCATTERED if _warps(draws) else 0.0)
    if "boxes" in items and not collate.box_rule.beyond_torchvision:
        least = collate.box_rule.least if _cut_off(draws, k) else -torch.inf
        totals.field("boxes", _boxes_difference(batch, k, items, stored, least), _BOX_LIMIT)


def _targets_difference(got: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of a class index or a soft target; infinite if the dtypes or shapes differ."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    return float((got.to(torch.float64) - expected.to(torch.float64)).abs().amax()) if got.numel() else 0.0


def _warps(draws: Sequence[StepDraws]) -> bool:
    """Returns whether masks are warped: a pixel half way between two may be rounded to either."""
    return any(draw.plan.program is not None and draw.plan.program.operations & WARPS for draw in draws)


def _cut_off(draws: Sequence[StepDraws], k: int) -> bool:
    """Returns whether a step cut off a part of sample ``k``'s image, other than padding."""
    frame: list[float] | None = None
    for plan, sample_windows, sizes in draws:
        window, (rows, cols) = sample_windows[k], sizes[k]
        _, height, width = plan.source
        x1, y1, x2, y2 = frame or (0.0, 0.0, float(width), float(height))
        x1, y1, x2, y2 = x1 - window.left, y1 - window.top, x2 - window.left, y2 - window.top
        if min(x1, y1) < -_BOX_LIMIT or x2 > window.cols + _BOX_LIMIT or y2 > window.rows + _BOX_LIMIT:
            return True
        placed = None if plan.resampling is None else plan.resampling.placement
        wide, high = (cols, rows) if placed is None else (int(placed.cols[k]), int(placed.rows[k]))
        x1, x2 = x1 * wide / window.cols, x2 * wide / window.cols
        y1, y2 = y1 * high / window.rows, y2 * high / window.rows
        if wide > cols or high > rows:
            return True
        x1, x2 = (cols - x2, cols - x1) if -1 in window.flips else (x1, x2)
        y1, y2 = (rows - y2, rows - y1) if -2 in window.flips else (y1, y2)
        frame = [x1, y1, x2, y2]
        if plan.program is not None:
            frame, lost = frame_after(frame, plan.program, k, plan.height, plan.width)
            if lost > _BOX_LIMIT:
                return True
    return False


def _boxes_difference(batch: Batch, k: int, items: Items, stored: Batch, least: float) -> float:
    """Returns the largest difference of a box's side in pixels; infinite if different boxes remain.

    A box whose shorter side is ``least`` up to rounding may remain or not.
    """
    if batch.boxes is None or batch.counts is None:
        return float("inf")
    boxes = F.clamp_bounding_boxes(items["boxes"]).as_subclass(Tensor)
    sides = (boxes[:, 2:] - boxes[:, :2]).amin(1)
    labels = None if batch.labels is None or stored.labels is None else (batch.labels[k], stored.labels[k])
    at, count, difference = 0, int(batch.counts[k]), 0.0
    for number, side in enumerate(sides.tolist()):
        if side < least - _BOX_LIMIT:
            continue
        same = at < count and (labels is None or bool(labels[0][at] == labels[1][number]))
        off = float((batch.boxes[k, at] - boxes[number]).abs().max()) if same else float("inf")
        if side <= least + _BOX_LIMIT and off > _BOX_LIMIT:
            continue
        at, difference = at + 1, max(difference, off)
    return difference if at == count else float("inf")


def _levels(steps: Sequence[nn.Module], dtype: torch.dtype) -> Tensor | float:
    """Returns the number of levels (of 255) per unit of the output, per channel if they differ."""
    scale: Tensor | float = 1.0 if dtype == torch.uint8 else 255.0
    for step in steps:
        if isinstance(step, augment.Normalize):
            scale = scale * step.std.to(torch.float64).view(-1, 1, 1)
    return scale


def check_scaled(split: Split) -> list[Verdict]:
    """Compares JPEGs that the Loader decodes smaller with torchvision's resize of their pixels.

    Windows shrink by just as much as ``decode="scaled"`` asks for, where the difference is largest.

    Above the limit it is a note, because the Loader decodes them exactly by default.
    """
    reader = split.files.field("images")
    jpegs = np.flatnonzero(reader.encodings == JPEG)
    sizes = reader.sizes
    found = []
    for shrink in SHRINKS:
        large = jpegs[(sizes[jpegs] >= 8 * shrink).all(1)]
        rows = large[np.unique(np.linspace(0, len(large) - 1, min(len(large), _SCALED_ROWS)).astype(np.int64))]
        if not len(rows):
            continue
        means = [
            _scaled_difference(split, int(row), (sizes[row] / (RESERVE * shrink)).astype(int).tolist()) for row in rows
        ]
        mean, most = sum(means) / len(means), max(means)
        text = f"mean {mean:.2f} levels from a full decode, {most:.2f} in one row; limit: mean {_SCALED_LIMIT:g}"
        name, numbers = f"JPEGs decoded to 1/{shrink}", {"rows": len(rows), "mean": mean, "most": most}
        if mean <= _SCALED_LIMIT:
            found.append(Verdict.judged("load", name, True, text, **numbers))
        else:
            found.append(Verdict.note("load", name, f'{text}: leave out decode="scaled" where it matters', **numbers))
    return found


def _scaled_difference(split: Split, row: int, size: list[int]) -> float:
    """Returns the mean difference of a row at this height and width, in levels."""
    collate = Collate(augment.Resize((size[0], size[1])), dtype=torch.uint8)
    options = {"fields": ("images",), "sampler": [row], "batch_size": 1, "tier": "disk", "threads": 1}
    with Loader(split, collate=collate, decode="scaled", **options) as loader:  # type: ignore[arg-type]  # a mapping
        (batch,) = loader
    whole = torch.from_numpy(split.reader.rows("images", np.array([row]))[0])
    expected = F.resize(whole, size, antialias=True)
    return float((batch.images[0].int() - expected.int()).abs().float().mean())
