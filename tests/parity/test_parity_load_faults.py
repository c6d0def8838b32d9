"""Parity of the load side: wrong windows, colors, boxes and labels are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from parity_stores import equal_failures
from torch import Tensor, nn

import mmload.augment.boxes as boxes_module
import mmload.augment.mix as mix_module
from mmload.augment import (
    AlternatingHorizontalFlip,
    ColorJitter,
    GaussianBlur,
    MixUp,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPerspective,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    Resize,
)
from mmload.augment.collate import Collate, PreparedBatch
from mmload.augment.step import Draws
from mmload.parity import replay
from mmload.render import level_operations as levels
from mmload.render.plan import Plan
from mmload.render.rendering import ImageLines, Rendering
from mmload.store.dataset import Split


def spoiled(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Every rendered image is changed after the fact."""
    render_lines = Rendering.render_lines

    def wrong_lines(self: Rendering, first: int, lines: ImageLines, out: np.ndarray) -> None:
        render_lines(self, first, lines, out)
        out[:] = change(torch.from_numpy(np.array(out))).numpy()

    monkeypatch.setattr(Rendering, "render_lines", wrong_lines)


@pytest.mark.parametrize(
    ("change", "collate"),
    [
        (lambda images: images.roll(1, -1), Collate(RandomCrop(24), Normalize.imagenet())),
        (lambda images: images.flip(-1), Collate(RandomHorizontalFlip())),
        (lambda images: images.flip(-1), Collate(RandomHorizontalFlip(), dtype=torch.uint8)),
        (lambda images: images.flip(-3), Collate(RandomHorizontalFlip())),
    ],
    ids=["a window off by one", "no flip", "no flip of levels", "swapped channels"],
)
def test_other_pixels_are_caught(
    rows: Split, monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor], collate: Collate
) -> None:
    spoiled(monkeypatch, change)
    assert "x, equal draws" in equal_failures(collate, rows)


PREPARE, MOVED, WINDOWED = Collate.prepare, boxes_module.Trail.moved, Plan.windowed
IMAGES, BOXES, MASKS, LABELS = (f"x, {what}equal draws" for what in ("", "boxes for ", "masks for ", "labels for "))
FAULTS: dict[str, tuple[object, str, Callable[..., object], str, list[nn.Module], set[str]]] = {
    "a flip of another epoch": (
        PreparedBatch,
        "_draws",
        lambda self, at: Draws(self._seeds, at, epoch=1, ids=self._batch.ids.numpy()),
        "boxed",
        [AlternatingHorizontalFlip()],
        {IMAGES, BOXES, MASKS},
    ),
    "boxes that do not follow a flip": (
        boxes_module.Trail,
        "moved",
        lambda trail, plan: MOVED(trail, replace(plan, flip_x=False)),
        "boxed",
        [RandomHorizontalFlip()],
        {BOXES},
    ),
    "boxes that a crop must drop": (
        Plan,
        "windowed",
        lambda self, window, around=None, dropped=None: WINDOWED(self, window, around),
        "boxed",
        [RandomIoUCrop(), Resize((30, 30))],
        {BOXES},
    ),
    "masks that do not follow": (
        boxes_module,
        "moved_masks",
        lambda memory, starts, plan: memory.reshape(plan.count, *plan.frame),
        "boxed",
        [RandomHorizontalFlip()],
        {MASKS},
    ),
    "labels that leave their images": (
        Collate,
        "prepare",
        lambda self, batch, *given, **named: PREPARE(
            self, batch.replace(targets=batch.targets.roll(1)), *given, **named
        ),
        "rows",
        [RandomHorizontalFlip()],
        {LABELS},
    ),
    "wrong targets of a mix": (
        mix_module,
        "mixed_targets",
        lambda targets, share, classes: np.eye(classes, dtype=np.float32)[targets],
        "rows",
        [MixUp(0.3, num_classes=4, per="batch")],
        {LABELS},
    ),
}
"""Faults of the load side: what is replaced by what, the rows and steps that show it, and what is found to differ."""


@pytest.mark.parametrize("fault", FAULTS)
def test_fields_that_do_not_follow_their_images_are_caught(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    where, name, wrong, split, steps, expected = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    assert set(equal_failures(Collate(*steps), request.getfixturevalue(split))) == expected


def test_images_that_become_nan_or_another_size_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images * torch.nan)
    text = equal_failures(Collate(RandomHorizontalFlip()), rows)["x, equal draws"].text
    assert "differ in size or number" in text


@pytest.mark.parametrize(
    ("step", "code", "place", "by"),
    [
        (ColorJitter(0.4), levels.BRIGHTNESS, 0, 0.01),
        (ColorJitter(hue=0.1), levels.HUE, 0, 0.01),
        (GaussianBlur(5, (1.0, 2.0)), levels.BLUR, 2, 0.2),
        (RandomSolarize(100, 1.0), levels.SOLARIZE, 0, 1.0),
        (RandomPosterize(3, 1.0), levels.POSTERIZE, 0, 1.0),
        (RandomRotation(20), levels.AFFINE_NEAREST, 2, 1.0),
        (RandomRotation(20, "bilinear"), levels.AFFINE_BILINEAR, 1, 0.02),
        (RandomPerspective(p=1.0), levels.PERSPECTIVE_BILINEAR, 5, 0.5),
        (RandAugment(1), levels.POSTERIZE, 0, 1.0),
    ],
)
def test_a_planted_fault_fails(
    rows: Split, monkeypatch: pytest.MonkeyPatch, step: nn.Module, code: int, place: int, by: float
) -> None:
    right = replay.changed

    def changed(items, program, k, allowance):
        numbers = program.numbers.copy()
        numbers[..., place] += by * (program.codes == code)
        return right(items, replace(program, numbers=numbers), k, allowance)

    monkeypatch.setattr(replay, "changed", changed)
    assert "x, equal draws" in equal_failures(Collate(step), rows)
