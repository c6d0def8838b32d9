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
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    Resize,
)
from mmload.augment.collate import Collate, PreparedBatch
from mmload.augment.draws import Draws
from mmload.batch import Batch
from mmload.parity import replay
from mmload.render import level_program as levels
from mmload.render.kernel_arguments import ImageLines
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
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


class Swapped(Normalize):
    """Normalizes with the shift of another channel."""

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        right = super().describe(plan, draws)
        return plan.scaled(right.shift[::-1].copy(), right.scale)


class Nearest(RandomResizedCrop):
    """Takes the nearest pixels."""

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return RandomResizedCrop(self.size, interpolation="nearest").describe(plan, draws)


@pytest.mark.parametrize("step", [Swapped.imagenet(), Nearest(16)])
def test_wrong_steps_are_caught(rows: Split, step: nn.Module) -> None:
    assert "x, equal draws" in equal_failures(Collate(step), rows)


def test_a_flip_of_the_wrong_epoch_is_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PreparedBatch, "_draws", lambda self, at: Draws(self._seeds, at, epoch=1, ids=self._batch.ids.numpy())
    )
    found = equal_failures(Collate(AlternatingHorizontalFlip()), boxed)
    assert set(found) == {"x, equal draws", "x, boxes for equal draws", "x, masks for equal draws"}


def test_boxes_that_do_not_follow_a_flip_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = boxes_module.Trail.moved
    monkeypatch.setattr(boxes_module.Trail, "moved", lambda trail, plan: moved(trail, replace(plan, flip_x=None)))
    assert list(equal_failures(Collate(RandomHorizontalFlip()), boxed)) == ["x, boxes for equal draws"]


def test_masks_that_do_not_follow_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        boxes_module, "moved_masks", lambda memory, starts, plan: memory.reshape(plan.count, *plan.frame)
    )
    assert list(equal_failures(Collate(RandomHorizontalFlip()), boxed)) == ["x, masks for equal draws"]


def test_labels_that_leave_their_images_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    unspoiled = Collate.prepare

    def prepare(self: Collate, batch: Batch, *args, **options):
        return unspoiled(self, batch.replace(targets=batch.targets.roll(1)), *args, **options)

    monkeypatch.setattr(Collate, "prepare", prepare)
    assert list(equal_failures(Collate(RandomHorizontalFlip()), rows)) == ["x, labels for equal draws"]


def test_boxes_that_a_crop_must_drop_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    windowed = Plan.windowed
    monkeypatch.setattr(
        Plan, "windowed", lambda self, window, around=None, dropped=None: windowed(self, window, around)
    )
    found = equal_failures(Collate(RandomIoUCrop(), Resize((30, 30))), boxed)
    assert list(found) == ["x, boxes for equal draws"]


def test_wrong_targets_of_a_mix_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    step = MixUp(0.3, num_classes=4, per="batch")
    monkeypatch.setattr(mix_module, "mixed_targets", lambda targets, share, classes: torch.eye(classes)[targets])
    assert list(equal_failures(Collate(step), rows)) == ["x, labels for equal draws"]


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
