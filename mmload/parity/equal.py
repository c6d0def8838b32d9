"""Checks that the loader's batches are equal to torchvision's result for the same rows with the same draws.

The batches come through the :class:`~mmload.loader.Loader` itself. Its draws are recomputed from the samples' seeds and
passed to torchvision's own transforms, step by step; verdicts cover images, labels, boxes and masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import Step
from mmload.batch import Batch
from mmload.errors import counted
from mmload.loader import Loader
from mmload.parity.fixed_draws import Drawn, beyond_torch, drawn, followable, results
from mmload.parity.level_reference import Allowance, Items, frame_after
from mmload.parity.verdict import Verdict
from mmload.parity.whole_rows import shape_of
from mmload.render.level_program import WARPS
from mmload.store.dataset import Split
from mmload.store.whole_rows import MAX_PIXELS

ROWS = 64
"""Default number of rows to compare."""

_BATCH = 16
_ROUNDING = 0.01  # of a level: float32 arithmetic in a different order
_SCATTERED = 0.01  # share of an image's values, or of a warped mask's, that may exceed the limit
_BOX_LIMIT = 1e-3  # pixels
_TARGET_LIMIT = 1e-6  # of soft targets, which are computed in float32


def check_equal(name: str, collate: Collate, split: Split, *, rows: int = ROWS, seed: int) -> list[Verdict]:
    """Compare batches with torchvision's result for the same draws.

    Args:
        name: the collate's name, for the verdicts.
        collate: compared up to the first step that has no torchvision transform for one sample.
        split: the split that rows are read from.
        rows: lower bound on the rows; a smaller split is repeated for several epochs.
        seed: the seed of the run; it also selects the rows.
    """
    whole = split.fields["images"].own_sizes
    steps, left_out = followable(collate, shape_of(split), alone=whole)
    followed = Collate(*steps, dtype=collate.dtype, memory_format=collate.memory_format, box_rule=collate.box_rule)
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))[:rows]
    fields = [field for field, spec in split.fields.items() if field == "images" or not spec.own_sizes]
    options: dict[str, Any] = {"sampler": order.tolist(), "collate": followed, "seed": seed, "device": "cpu"}
    loader = Loader(split, batch_size=_BATCH, fields=fields, **options)
    seen = _Seen(_levels(steps, collate.dtype))
    try:
        while seen.rows + seen.left_out < rows:
            epoch = loader.epoch
            of_epoch = [step.at_epoch(epoch) if isinstance(step, Step) else step for step in steps]
            for batch in loader:
                _compare(batch, split, of_epoch, followed, seen, epoch)
    finally:
        loader.close()
    verdicts = seen.verdicts(name) if seen.rows else []
    notes = [f"compared up to {left_out}"] * bool(left_out)
    if seen.left_out:
        limits = f"more than {MAX_PIXELS:,} pixels or a width of 1"
        notes.append(f"{counted(seen.left_out, 'row')} not compared: torch cannot resize an image to {limits}")
    if "boxes" in split.fields and collate.box_rule.min_visible:
        notes.append(f"boxes are not compared: torchvision has no min_visible, here {collate.box_rule.min_visible:g}")
    verdicts.extend(Verdict(part="load", name=f"{name}, equal draws", state="note", text=text) for text in notes)
    return verdicts


class _Seen:
    """Aggregates the comparisons of rows.

    Args:
        levels: [C, 1, 1], the number of levels (of 255) per unit of the output.
    """

    def __init__(self, levels: Tensor | float) -> None:
        self.levels = levels
        self.rows = self.values = self.far = self.left_out = 0
        self.greatest = self.total = self.limit = 0.0
        self.wrong: dict[str, tuple[int, float]] = {}
        self.looks: list[str] = []

    def image(self, got: Tensor, expected: Tensor, allowance: Allowance) -> None:
        """Compare an image of a batch with torchvision's, within an allowance."""
        self.rows += 1
        limit = allowance.levels + _ROUNDING
        self.limit = max(self.limit, limit)
        if got.shape != expected.shape:
            self.greatest, self.far = float("inf"), self.far + 1
            self.looks.append(f"the shape is {list(got.shape)}, torchvision's {list(expected.shape)}")
            return
        apart = (got.to(torch.float64) - expected.to(torch.float64)).abs() * self.levels
        self.values += apart.numel()
        self.total += float(apart.sum())
        self.greatest = max(self.greatest, float(apart.max()))
        share = float((apart > limit).to(torch.float64).mean())
        if share > (_SCATTERED if allowance.scattered else 0.0):
            self.far += 1
            self.looks.append(_image_looks_like(got, expected))

    def field(self, name: str, apart: float, limit: float = 0.0) -> None:
        """Add a row's field: its difference from torchvision's, and the upper bound."""
        wrong, greatest = self.wrong.get(name, (0, 0.0))
        self.wrong[name] = wrong + (apart > limit), max(greatest, apart)

    def verdicts(self, name: str) -> list[Verdict]:
        """One verdict for the images, one per field."""
        right = not self.far
        mean = self.total / max(self.values, 1)
        text = f"{counted(self.rows, 'row')} within {self.greatest:.2g} levels, limit {self.limit:g}"
        numbers: dict[str, float | int | str] = {
            "rows": self.rows,
            "greatest": self.greatest,
            "mean": mean,
            "limit": self.limit,
            "far": self.far,
        }
        looks = "" if right else max(set(self.looks), key=self.looks.count)
        lines = [_line(f"{name}, equal draws", right, text, looks, numbers)]
        for field, (wrong, greatest) in sorted(self.wrong.items()):
            text = (
                f"{wrong:,} of {counted(self.rows, 'row')} differ, by {greatest:g} at most"
                if wrong
                else f"{counted(self.rows, 'row')} equal"
            )
            numbers = {"rows": self.rows, "wrong": wrong, "greatest": greatest}
            lines.append(_line(f"{name}, {field} for equal draws", not wrong, text, "", numbers))
        return lines


def _compare(batch: Batch, split: Split, steps: Sequence[nn.Module], collate: Collate, seen: _Seen, epoch: int) -> None:
    """Compare one batch of the loader with torchvision's result."""
    if batch.ids is None or batch.seeds is None:
        raise ValueError("the batch has no ids and seeds")
    stored = split.rows(batch.ids)
    if split.fields["images"].own_sizes:  # one by one, each in its own size
        for number in range(len(batch)):
            _compare_rows(batch[number : number + 1], _alone(stored[number]), steps, collate, seen, epoch)
    else:
        _compare_rows(batch, stored, steps, collate, seen, epoch)


def _alone(row: Batch) -> Batch:
    """A row as a batch of one."""
    alone: Batch = row.unsqueeze(0)
    return alone


def _compare_rows(
    batch: Batch, stored: Batch, steps: Sequence[nn.Module], collate: Collate, seen: _Seen, epoch: int
) -> None:
    """Compare some rows of one size."""
    if batch.ids is None or batch.seeds is None:
        raise ValueError("the batch has no ids and seeds")
    draws = drawn(steps, stored, batch.seeds, epoch, batch.ids)
    if any(beyond_torch(draw) for draw in draws):
        seen.left_out += len(batch)
        return
    for k, (items, allowance) in enumerate(results(steps, draws, stored, collate.dtype)):
        seen.image(batch.images[k], items["images"], allowance)
        if "targets" in items:
            seen.field("labels", _targets_apart(batch.targets[k], items["targets"]), _TARGET_LIMIT)
        if "masks" in items and batch.masks is not None:
            mask = items["masks"].as_subclass(Tensor)
            same = batch.masks[k].shape == mask.shape
            apart = float((batch.masks[k] != mask).to(torch.float64).mean()) if same else float("inf")
            seen.field("masks", apart, _SCATTERED if _warps(draws) else 0.0)
        if "boxes" in items and not collate.box_rule.min_visible:
            least = collate.box_rule.least if _cut_off(draws, k) else -torch.inf
            seen.field("boxes", _boxes_apart(batch, k, items, stored, least), _BOX_LIMIT)


def _targets_apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference of a class index or a soft target; infinite if these are of another kind."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    return float((got.to(torch.float64) - expected.to(torch.float64)).abs().amax()) if got.numel() else 0.0


def _warps(draws: Sequence[Drawn]) -> bool:
    """Whether masks are warped: a pixel half way between two may be rounded to either."""
    return any(draw.plan.program is not None and draw.plan.program.operations & WARPS for draw in draws)


def _cut_off(draws: Sequence[Drawn], k: int) -> bool:
    """Whether a step cut off a part of sample ``k``'s image, other than padding."""
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


def _boxes_apart(batch: Batch, k: int, items: Items, stored: Batch, least: float) -> float:
    """The largest difference of a box's side in pixels; infinite if different boxes are kept.

    A box whose shorter side is ``least`` up to rounding may be kept or not.
    """
    if batch.boxes is None or batch.counts is None:
        return float("inf")
    boxes = F.clamp_bounding_boxes(items["boxes"]).as_subclass(Tensor)
    sides = (boxes[:, 2:] - boxes[:, :2]).amin(1)
    labels = None if batch.labels is None or stored.labels is None else (batch.labels[k], stored.labels[k])
    at, count, apart = 0, int(batch.counts[k]), 0.0
    for number, side in enumerate(sides.tolist()):
        if side < least - _BOX_LIMIT:
            continue
        same = at < count and (labels is None or bool(labels[0][at] == labels[1][number]))
        off = float((batch.boxes[k, at] - boxes[number]).abs().max()) if same else float("inf")
        if side <= least + _BOX_LIMIT and off > _BOX_LIMIT:
            continue
        at, apart = at + 1, max(apart, off)
    return apart if at == count else float("inf")


def _levels(steps: Sequence[nn.Module], dtype: torch.dtype) -> Tensor | float:
    """The number of levels (of 255) per unit of the output, per channel if they differ."""
    scale: Tensor | float = 1.0 if dtype == torch.uint8 else 255.0
    for step in steps:
        if isinstance(step, augment.Normalize):
            scale = scale * step.std.to(torch.float64).view(-1, 1, 1)
    return scale


def _image_looks_like(got: Tensor, expected: Tensor) -> str:
    """The known fault that explains an image; empty if none does."""
    changes = {
        "mirrored left to right": expected.flip(-1),
        "upside down": expected.flip(-2),
        "channels swapped (BGR)": expected.flip(0),
    }
    changes |= {
        f"off by ({down}, {along}) pixels": expected.roll((-down, -along), (-2, -1))
        for down in (-1, 0, 1)
        for along in (-1, 0, 1)
        if (down, along) != (0, 0)
    }
    inner = slice(1, -1)
    apart = {name: float((got - image)[:, inner, inner].abs().mean()) for name, image in changes.items()}
    name = min(apart, key=lambda each: apart[each])
    return f"looks like {name}" if apart[name] < 0.3 * float((got - expected).abs().mean()) else ""


def _line(name: str, right: bool, text: str, diagnosis: str, numbers: dict[str, float | int | str]) -> Verdict:
    state = "pass" if right else "fail"
    return Verdict(part="load", name=name, state=state, text=text, diagnosis=diagnosis, numbers=numbers)
