"""The load side: whether, for equal draws, the loader's batches are what torchvision makes of the same rows.

Comes in: a split and a collate. Goes out: verdicts on images, labels, boxes and masks. The batches come through the
:class:`~mmload.loader.Loader` itself; the draws it used are taken from the samples' seeds and forced on torchvision's
own transforms, one step after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import BoxRule
from mmload.collate import Collate
from mmload.dataset import Split
from mmload.loader import Loader
from mmload.parity.forced import Items, drawn, followable, result
from mmload.parity.verdict import Verdict
from mmload.records import Batch

ROWS = 64
"""Rows that are compared."""

_BATCH = 16
_ROUNDING = 0.01  # of a level: float32 arithmetic in another order
_JITTERED = 0.01  # share of values that may be farther off, where colours are jittered: hue magnifies a level
_BOX_LIMIT = 1e-3  # pixels


def check_equal(name: str, collate: Collate, split: Split, *, rows: int = ROWS, seed: int) -> list[Verdict]:
    """Compare batches with torchvision's result for the same draws.

    Args:
        name: the collate's, for the verdicts.
        collate: compared up to the first step that has no torchvision transform for one sample.
        split: where rows come from.
        rows: how many at least; a smaller split is gone through for several epochs.
        seed: the run's; it also chooses the rows.
    """
    steps, left_out = followable(collate)
    followed = Collate(*steps, dtype=collate.dtype, memory_format=collate.memory_format, box_rule=collate.box_rule)
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))[:rows]
    loader = Loader(split, batch_size=_BATCH, sampler=order.tolist(), collate=followed, seed=seed, device="cpu")
    seen = _Seen(levels=_levels(steps, collate.dtype), inexact=sum(map(_is_inexact, steps)))
    try:
        while seen.rows < rows:
            for batch in loader:
                _compare(batch, split, steps, followed, seen)
    finally:
        loader.close()
    verdicts = seen.verdicts(name, any(isinstance(step, augment.ColorJitter) for step in steps))
    if left_out:
        text = f"compared up to {left_out}, which torchvision does not do to one sample alone"
        verdicts.append(Verdict(part="load", name=f"{name}, equal draws", state="note", text=text))
    return verdicts


class _Seen:
    """What was compared, in numbers.

    Args:
        levels: [C, 1, 1], how many levels of 255 one unit of the output is.
        inexact: how many steps may be a level off.
    """

    def __init__(self, levels: Tensor | float, inexact: int) -> None:
        self.levels, self.inexact = levels, inexact
        self.rows = self.values = self.far = 0
        self.greatest = self.total = 0.0
        self.wrong: dict[str, tuple[int, float]] = {}
        self.looks: list[str] = []

    def image(self, got: Tensor, expected: Tensor) -> None:
        """One image of a batch, and torchvision's."""
        self.rows += 1
        if got.shape != expected.shape:
            self.greatest = float("inf")
            self.looks.append(f"the shape is {list(got.shape)}, torchvision's {list(expected.shape)}")
            return
        apart = (got.to(torch.float64) - expected.to(torch.float64)).abs() * self.levels
        self.values += apart.numel()
        self.far += int((apart > self.limit).sum())
        self.total += float(apart.sum())
        self.greatest = max(self.greatest, float(apart.max()))
        if apart.max() > self.limit:
            self.looks.append(_image_looks_like(got, expected))

    @property
    def limit(self) -> float:
        """Levels that a value may be off."""
        return self.inexact + _ROUNDING

    def field(self, name: str, apart: float) -> None:
        """One row's field, and how far it is from torchvision's."""
        wrong, greatest = self.wrong.get(name, (0, 0.0))
        limit = _BOX_LIMIT if name == "boxes" else 0.0
        self.wrong[name] = wrong + (apart > limit), max(greatest, apart)

    def verdicts(self, name: str, jittered: bool) -> list[Verdict]:
        """One line for the images, one for each field."""
        share = self.far / max(self.values, 1)
        right = self.greatest <= self.limit or (jittered and share <= _JITTERED and self.greatest < float("inf"))
        mean = self.total / max(self.values, 1)
        text = f"{self.rows:,} rows within {self.greatest:.2g} levels, limit {self.limit:g}"
        numbers: dict[str, float | int | str] = {
            "rows": self.rows,
            "greatest": self.greatest,
            "mean": mean,
            "limit": self.limit,
        }
        looks = "" if right else max(set(self.looks), key=self.looks.count)
        lines = [_line(f"{name}, equal draws", right, text, looks, numbers)]
        for field, (wrong, greatest) in sorted(self.wrong.items()):
            text = (
                f"{wrong:,} of {self.rows:,} rows differ, by {greatest:g} at most"
                if wrong
                else f"{self.rows:,} rows equal"
            )
            numbers = {"rows": self.rows, "wrong": wrong, "greatest": greatest}
            lines.append(_line(f"{name}, {field} for equal draws", not wrong, text, "", numbers))
        return lines


def _compare(batch: Batch, split: Split, steps: Sequence[nn.Module], collate: Collate, seen: _Seen) -> None:
    """One batch of the loader beside torchvision's result."""
    if batch.ids is None or batch.seeds is None:
        raise ValueError("the batch has no ids and seeds")
    stored = split.rows(batch.ids)
    channels, height, width = stored.images.shape[1:]
    draws = drawn(steps, (channels, height, width), batch.seeds)
    for k in range(len(batch.ids)):
        items = result(steps, draws, stored, k, collate.dtype)
        seen.image(batch.images[k], items["images"])
        if stored.targets is not None:
            seen.field("labels", float(not torch.equal(batch.targets[k], stored.targets[k])))
        if "masks" in items and batch.masks is not None:
            mask = items["masks"].as_subclass(Tensor)
            same = batch.masks[k].shape == mask.shape and torch.equal(batch.masks[k], mask)
            seen.field("masks", float(not same))
        if "boxes" in items and not collate.box_rule.min_visible:
            seen.field("boxes", _boxes_apart(batch, k, items, stored, collate.box_rule))


def _boxes_apart(batch: Batch, k: int, items: Items, stored: Batch, rule: BoxRule) -> float:
    """The greatest difference of a box's side in pixels; infinite where other boxes stay."""
    boxes = F.clamp_bounding_boxes(items["boxes"]).as_subclass(Tensor)
    stays = (boxes[:, 2:] - boxes[:, :2] >= max(rule.min_size, 1e-6)).all(1)
    if batch.boxes is None or batch.counts is None or int(batch.counts[k]) != int(stays.sum()):
        return float("inf")
    count = int(batch.counts[k])
    if batch.labels is not None and stored.labels is not None:
        right = stored.labels[k, : len(boxes)][stays]
        if not torch.equal(batch.labels[k, :count], right):
            return float("inf")
    return float((batch.boxes[k, :count] - boxes[stays]).abs().max()) if count else 0.0


def _is_inexact(step: nn.Module) -> bool:
    """Whether a step may be a level off: it resamples or adds up channels."""
    return isinstance(step, augment.RandomResizedCrop | augment.Resize | augment.RandomGrayscale | augment.ColorJitter)


def _levels(steps: Sequence[nn.Module], dtype: torch.dtype) -> Tensor | float:
    """How many levels of 255 one unit of the output is, per channel where they differ."""
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
