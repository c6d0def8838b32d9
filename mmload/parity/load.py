"""Checks that the loader's batches are equal to torchvision's result for the same rows with the same draws.

The batches come through the :class:`~mmload.loader.Loader` itself. Its draws are recomputed from the samples' seeds and
passed to torchvision's own transforms, step by step; verdicts cover images, labels, boxes and masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import BoxRule
from mmload.augment.collate import Collate
from mmload.augment.step import Step
from mmload.batch import Batch, fields_of
from mmload.loader import Loader
from mmload.parity.replay import Allowance, Items, Shape, StepDraws, drawn, followable, results
from mmload.parity.report import Tally, Verdict, apart, unreported
from mmload.records import Progress
from mmload.render.level_operations import WARPS
from mmload.store.dataset import Split

ROWS = 64
"""Default number of rows to compare."""

_BATCH = 16
_ROUNDING = 0.01  # of a level: float32 arithmetic in a different order
_SCATTERED = 0.01  # share of an image's values, or of a warped mask's, that may exceed the limit
_BOX_LIMIT = 1e-3  # pixels
_TARGET_LIMIT = 1e-6  # of soft targets, which are computed in float32


def shape_of(split: Split) -> Shape:
    """Returns (C, H, W) of a split's images; the most common size of variable-size images."""
    spec = split.fields["images"]
    if not spec.variable_size:
        channels, height, width = spec.shape
        return channels, height, width
    ((height, width), _) = Counter(map(tuple, split.reader.image_sizes().tolist())).most_common(1)[0]
    return spec.channels, int(height), int(width)


def check_equal(
    name: str,
    collate: Collate,
    split: Split,
    *,
    rows: int = ROWS,
    seed: int,
    progress: Callable[[str], Progress] = unreported,
) -> list[Verdict]:
    """Compares batches with torchvision's result for the same draws, up to the first step that it lacks for one sample.

    A split of fewer rows is repeated for several epochs. The seed also selects the rows.
    """
    steps, left_out = followable(collate, alone=split.fields["images"].variable_size)
    followed = Collate(*steps, dtype=collate.dtype, memory_format=collate.memory_format, box_rule=collate.box_rule)
    report = progress(f"comparing batches ({name}) with torchvision's")
    tallies = {"": Tally(" levels")}  # of the images; of other fields by their names
    order = np.random.default_rng(seed).permutation(len(split))[:rows].tolist()
    fields = [field for field, spec in split.fields.items() if field == "images" or not spec.variable_size]
    with Loader(
        split, batch_size=_BATCH, fields=fields, order=order, collate=followed, seed=seed, device="cpu"
    ) as loader:
        while tallies[""].rows < rows:
            epoch = loader.epoch
            for batch in loader:
                for row, field, difference, limit in _differences(batch, split, followed, steps, epoch):
                    tallies.setdefault(field, Tally()).add(difference, row, limit)
                report(min(rows, tallies[""].rows), rows)
    verdicts = [
        tally.verdict("load", f"{name}, {field} for equal draws" if field else f"{name}, equal draws")
        for field, tally in sorted(tallies.items())
    ]
    beyond = collate.box_rule.beyond_torchvision
    notes = [
        (f"compared up to {left_out}", left_out),
        (f"boxes are not compared: torchvision has no {beyond}", beyond and "boxes" in split.fields),
    ]
    texts = [text for text, applies in notes if applies]
    return verdicts + [Verdict(part="load", name=f"{name}, equal draws", state="note", text=text) for text in texts]


def _differences(
    batch: Batch, split: Split, collate: Collate, steps: Sequence[Step], epoch: int
) -> Iterator[tuple[str, str, float, float]]:
    """Yields (row, field, difference, limit) of the rows of a batch from torchvision's, variable-size ones one by one.

    The field of images is empty, and their difference in levels of 255.
    """
    stored = split.rows(fields_of(batch)["ids"])
    steps = [step.at_epoch(epoch) for step in steps]
    levels = _levels(steps, collate.dtype)
    parts: list[tuple[slice, Batch]] = [(slice(len(batch)), stored)]
    if split.fields["images"].variable_size:
        parts = [(slice(number, number + 1), stored[number].unsqueeze(0)) for number in range(len(batch))]
    for part, rows in parts:
        own, ids = batch[part], fields_of(batch[part])["ids"]
        draws = drawn(steps, rows, fields_of(own)["seeds"], epoch, ids)
        for k, (items, allowance) in enumerate(results(steps, draws, rows, collate.dtype)):
            difference = _images_difference(own.images[k], items["images"], levels, allowance)
            yield f"row {int(ids[k])}", "", difference, allowance.levels + _ROUNDING
            for field, off, limit in _field_differences(own, rows, items, draws, k, collate.box_rule):
                yield f"row {int(ids[k])}", field, off, limit


def _field_differences(
    batch: Batch, stored: Batch, items: Items, draws: Sequence[StepDraws], k: int, rule: BoxRule
) -> Iterator[tuple[str, float, float]]:
    """Yields (field, difference, limit) of labels, mask and boxes of sample ``k``."""
    if "targets" in items:
        got, expected = batch.targets[k], items["targets"]
        yield "labels", float(apart(got, expected).max()) if got.dtype == expected.dtype else torch.inf, _TARGET_LIMIT
    if "masks" in items and batch.masks is not None:
        share = float((apart(batch.masks[k], items["masks"].as_subclass(Tensor)) > 0).to(torch.float64).mean())
        yield "masks", share, _SCATTERED if _warps(draws) else 0.0
    if "boxes" in items and not rule.beyond_torchvision:
        yield "boxes", _boxes_difference(batch, k, items, stored, rule.least), _BOX_LIMIT


def _images_difference(got: Tensor, expected: Tensor, levels: Tensor | float, allowance: Allowance) -> float:
    """Returns the largest difference in levels, without the values that may exceed the limit."""
    difference = (apart(got, expected) * levels).flatten()
    exempt = int(_SCATTERED * len(difference)) if allowance.scattered else 0
    return float(difference.kthvalue(len(difference) - exempt).values)


def _warps(draws: Sequence[StepDraws]) -> bool:
    """Returns whether masks are warped: a pixel half way between two may be rounded to either."""
    return any(draw.plan.program.operations & WARPS for draw in draws)


def _boxes_difference(batch: Batch, k: int, items: Items, stored: Batch, least: float) -> float:
    """Returns the largest difference of a box's side in pixels; infinite if different boxes remain.

    A box whose shorter side is at most ``least`` may remain or not: it goes only if something of the image was cut off.
    """
    if batch.boxes is None or batch.counts is None:
        return float("inf")
    boxes = F.clamp_bounding_boxes(items["boxes"]).as_subclass(Tensor)
    sides = (boxes[:, 2:] - boxes[:, :2]).amin(1)
    unlabeled = torch.zeros(len(batch), len(sides), device="cpu")
    labels, expected = (fields_of(each).get("labels", unlabeled)[k] for each in (batch, stored))
    at, count, difference = 0, int(batch.counts[k]), 0.0
    for number, side in enumerate(sides.tolist()):
        same = at < count and bool(labels[at] == expected[number])
        off = float((batch.boxes[k, at] - boxes[number]).abs().max()) if same else float("inf")
        if side <= least + _BOX_LIMIT and off > _BOX_LIMIT:
            continue
        at, difference = at + 1, max(difference, off)
    return difference if at == count else float("inf")


def _levels(steps: Sequence[Step], dtype: torch.dtype) -> Tensor | float:
    """Returns the number of levels (of 255) per unit of the output, per channel if they differ."""
    scale: Tensor | float = 1.0 if dtype == torch.uint8 else 255.0
    for step in steps:
        if isinstance(step, augment.Normalize):
            scale = scale * torch.tensor(step.std, dtype=torch.float64, device="cpu").view(-1, 1, 1)
    return scale
