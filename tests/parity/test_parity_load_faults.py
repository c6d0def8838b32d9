"""Parity of the load side: wrong windows, colors, boxes and labels are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from parity_stores import boxed_split, equal_failures
from torch import Tensor

import mmload.augment.boxes as boxes_module
import mmload.augment.mix as mix_module
from mmload.augment import (
    AlternatingHorizontalFlip,
    MixUp,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.prepared_batch import PreparedBatch
from mmload.batch import Batch
from mmload.render.kernel_arguments import ImageLines
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.store.dataset import Dataset, Split


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return boxed_split(tmp_path_factory.mktemp("boxed"))


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


def spoiled(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Every rendered image is changed after the fact."""
    render_lines = Rendering.render_lines

    def wrong_lines(self: Rendering, first: int, lines: ImageLines, out: np.ndarray) -> None:
        render_lines(self, first, lines, out)
        out[:] = change(torch.from_numpy(np.array(out))).numpy()

    monkeypatch.setattr(Rendering, "render_lines", wrong_lines)


def test_a_window_that_is_off_by_one_is_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images.roll(1, -1))
    assert "x, equal draws" in equal_failures(Collate(RandomCrop(24), Normalize.imagenet()), rows)


def test_a_flip_that_is_not_done_is_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images.flip(-1))
    assert "x, equal draws" in equal_failures(Collate(RandomHorizontalFlip()), rows)


def test_a_flip_of_the_wrong_epoch_is_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PreparedBatch, "_draws", lambda self, at: Draws(self._seeds, at, epoch=1, ids=self._batch.ids.numpy())
    )
    found = equal_failures(Collate(AlternatingHorizontalFlip()), boxed)
    assert set(found) == {"x, equal draws", "x, boxes for equal draws", "x, masks for equal draws"}


def test_wrong_constants_and_channels_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(Normalize):
        def describe(self, plan: Plan, draws: Draws) -> Plan:
            right = super().describe(plan, draws)
            assert right.shift is not None
            return plan.scaled(right.shift[::-1].copy(), right.scale)

    assert "x, equal draws" in equal_failures(Collate(Swapped.imagenet()), rows)
    spoiled(monkeypatch, lambda images: images.flip(-3))
    assert "x, equal draws" in equal_failures(Collate(RandomHorizontalFlip()), rows)


def test_nearest_in_a_resized_crop_is_caught(rows: Split) -> None:
    class Nearest(RandomResizedCrop):
        def describe(self, plan: Plan, draws: Draws) -> Plan:
            return RandomResizedCrop(self.size, interpolation="nearest").describe(plan, draws)

    assert "x, equal draws" in equal_failures(Collate(Nearest(16)), rows)


def test_boxes_that_do_not_follow_a_flip_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = boxes_module.Trail.moved
    monkeypatch.setattr(boxes_module.Trail, "moved", lambda trail, plan: moved(trail, replace(plan, flip_x=None)))
    assert list(equal_failures(Collate(RandomHorizontalFlip()), boxed)) == ["x, boxes for equal draws"]


def test_masks_that_do_not_follow_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes_module, "_moved_masks", lambda masks, own, plan: masks)
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


def test_wrong_uint8_images_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images.flip(-1))
    assert "x, equal draws" in equal_failures(Collate(RandomHorizontalFlip(), dtype=torch.uint8), rows)


def test_images_that_become_nan_or_another_size_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images * torch.nan)
    text = equal_failures(Collate(RandomHorizontalFlip()), rows)["x, equal draws"].text
    assert "differ in size or number" in text
