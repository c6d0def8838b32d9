"""Parity of the load side: wrong draws, windows, colors, boxes and labels are caught and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_stores import boxed_split, equal_failures
from PIL import Image
from torch import Tensor, nn

import mmload.augment.boxes as boxes_module
import mmload.augment.mix as mix_module
import mmload.augment.resize as resize_module
import mmload.parity.draws as draws_module
from mmload.augment import (
    AlternatingHorizontalFlip,
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws, sample_seeds, whole_numbers
from mmload.augment.prepared_batch import PreparedBatch
from mmload.batch import Batch
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.parity.equal import check_equal
from mmload.parity.load import check_draws
from mmload.render.plan import Plan
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset import open as open_dataset

DRAWS = 4000


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return boxed_split(tmp_path_factory.mktemp("boxed"))


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


def wrong_draws(collate: Collate, split: Split) -> dict[str, str]:
    """Name -> diagnosis of the draws that differ from torchvision's."""
    found = check_draws({"x": collate}, split, seed=1, draws=DRAWS)
    return {verdict.name: verdict.diagnosis for verdict in found if verdict.state == "fail"}


class DoubledFlip(RandomHorizontalFlip):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.flipped(x=draws.chance(min(1.0, 2 * self.p)))


class NeverFlip(RandomVerticalFlip):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.flipped(y=draws.chance(0.0))


class LastNever(RandomCrop):
    """The tutorial's: its randint leaves out the last offset."""

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        spare = plan.height - self.size[0], plan.width - self.size[1]
        places = draws.uniform(2)
        return plan.cropped(whole_numbers(places[:, 0], spare[0]), whole_numbers(places[:, 1], spare[1]), *self.size)


class OffByOne(RandomCrop):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        spare = plan.height - self.size[0], plan.width - self.size[1]
        places = draws.uniform(2)
        tops, lefts = whole_numbers(places[:, 0], spare[0] + 1), whole_numbers(places[:, 1], spare[1] + 1)
        return plan.cropped(tops + 1, lefts, *self.size)


class Centered(RandomCrop):
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        start = torch.full((plan.count,), 4)
        return plan.cropped(start, start, *self.size)


@pytest.mark.parametrize(
    ("step", "name", "looks"),
    [
        (DoubledFlip(), "DoubledFlip: share flipped", "the probability is doubled"),
        (DoubledFlip(0.2), "DoubledFlip: share flipped", "the probability is doubled"),
        (NeverFlip(), "NeverFlip: share flipped", "never"),
        (LastNever(24), "LastNever: first row", "the last place (8) is never drawn"),
        (OffByOne(24), "OffByOne: first row", "every place is off by +1"),
        (Centered(24), "Centered: first column", "always 4"),
    ],
)
def test_wrong_draws_are_caught_and_named(rows: Split, step: nn.Module, name: str, looks: str) -> None:
    assert wrong_draws(Collate(step), rows)[f"x, {name}"] == looks


def test_a_missing_end_is_seen_among_many_places(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((260, 200, 3), dtype=np.uint8)).save(folder / "0.png")
    build(BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / "out"), threads=1)
    split = open_dataset(tmp_path / "out")["train"]
    found = check_draws({"x": Collate(LastNever((100, 40)))}, split, seed=0, draws=20_000)
    assert [verdict.state for verdict in found] == ["fail", "fail", "pass"]
    assert {verdict.diagnosis for verdict in found[:2]} == {"the last place (160) is never drawn"}
    right = check_draws({"x": Collate(RandomCrop((100, 40)))}, split, seed=0, draws=20_000)
    assert [verdict.state for verdict in right] == ["pass", "pass", "pass"]


def test_draws_that_every_epoch_repeats_are_caught_and_named(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_module, "sample_seeds", lambda seed, epoch, ids: sample_seeds(seed, 0, ids))
    found = wrong_draws(Collate(RandomCrop(24), RandomHorizontalFlip()), rows)
    assert found["x, RandomCrop: first row, the same an epoch later"] == "every epoch draws the same"
    assert found["x, RandomHorizontalFlip: share flipped, the same an epoch later"] == "every epoch draws the same"


def test_a_wrong_ratio_is_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def even(draws: Draws, area: int, scale: tuple[float, float], ratio: tuple[float, float]) -> tuple[Tensor, Tensor]:
        uniform = draws.uniform(20)
        target = area * (scale[0] + (scale[1] - scale[0]) * uniform[:, :10])
        aspect = ratio[0] + (ratio[1] - ratio[0]) * uniform[:, 10:]  # torchvision's is even in the logarithm
        return (target * aspect).sqrt().round().long(), (target / aspect).sqrt().round().long()

    monkeypatch.setattr(resize_module, "rectangles", even)
    collate = Collate(RandomResizedCrop(16, ratio=(0.5, 2.0)))
    assert "x, RandomResizedCrop: width over height" in wrong_draws(collate, rows)


def test_a_wrong_scale_is_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    right = resize_module.rectangles
    monkeypatch.setattr(
        resize_module, "rectangles", lambda draws, area, scale, ratio: right(draws, area, (0.35, 1.0), ratio)
    )
    looks = wrong_draws(Collate(RandomResizedCrop(16)), rows)["x, RandomResizedCrop: share of the area"]
    assert looks.startswith("the mean is 0.6")


def test_wrong_jitter_is_caught(rows: Split) -> None:
    class Strong(ColorJitter):
        def draw(self, draws: Draws):
            factors = super().draw(draws)
            return factors._replace(values=factors.values * 1.05)

    assert "x, Strong: brightness" in wrong_draws(Collate(Strong(0.2)), rows)


def spoiled(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Every rendered image is changed after the fact."""
    render_batch, render_rows = PreparedBatch.render_batch, PreparedBatch.render_rows

    def wrong_batch(self: PreparedBatch, images: Tensor, out: Tensor) -> None:
        render_batch(self, images, out)
        out.copy_(change(out.clone()))

    def wrong_rows(self: PreparedBatch, first: int, images: Tensor, indices: Tensor, out: Tensor) -> None:
        render_rows(self, first, images, indices, out)
        out.copy_(change(out.clone()))

    monkeypatch.setattr(PreparedBatch, "render_batch", wrong_batch)
    monkeypatch.setattr(PreparedBatch, "render_rows", wrong_rows)


def test_a_window_that_is_off_by_one_is_caught_and_named(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images.roll(1, -1))
    found = equal_failures(Collate(RandomCrop(24), Normalize.imagenet()), rows)
    assert found["x, equal draws"].diagnosis == "looks like off by (0, -1) pixels"


def test_a_flip_that_is_not_done_is_caught_and_named(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda images: images.flip(-1))
    found = equal_failures(Collate(RandomHorizontalFlip()), rows)
    assert found["x, equal draws"].diagnosis == "looks like mirrored left to right"


def test_a_flip_of_the_wrong_epoch_is_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparedBatch, "_draws", lambda self, at: Draws(self._seeds, at, epoch=1, ids=self._batch.ids))
    failed = [
        one for one in check_equal("x", Collate(AlternatingHorizontalFlip()), boxed, seed=0) if one.state == "fail"
    ]
    assert {one.name for one in failed} == {"x, equal draws", "x, boxes for equal draws", "x, masks for equal draws"}
    assert failed[0].diagnosis == "looks like mirrored left to right"


def test_wrong_constants_and_channels_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(Normalize):
        def describe(self, plan: Plan, draws: Draws) -> Plan:
            right = super().describe(plan, draws)
            assert right.shift is not None
            return plan.scaled(right.shift.flip(0), right.scale)

    assert "x, equal draws" in equal_failures(Collate(Swapped.imagenet()), rows)
    spoiled(monkeypatch, lambda images: images.flip(-3))
    found = equal_failures(Collate(RandomHorizontalFlip()), rows)
    assert found["x, equal draws"].diagnosis == "looks like channels swapped (BGR)"


def test_nearest_in_a_resized_crop_is_caught(rows: Split) -> None:
    class Nearest(RandomResizedCrop):
        def describe(self, plan: Plan, draws: Draws) -> Plan:
            return RandomResizedCrop(self.size, interpolation="nearest").describe(plan, draws)

    assert "x, equal draws" in equal_failures(Collate(Nearest(16)), rows)


def test_boxes_that_do_not_follow_a_flip_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes_module, "_flipped", lambda boxes, plan: boxes)
    assert list(equal_failures(Collate(RandomHorizontalFlip()), boxed)) == ["x, boxes for equal draws"]


def test_masks_that_do_not_follow_are_caught(boxed: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes_module, "gathered_masks", lambda masks, plan: masks)
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


def test_wrong_shares_and_targets_of_a_mix_are_caught(rows: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    step = MixUp(0.3, num_classes=4, per="batch")
    monkeypatch.setattr(mix_module, "mixed_targets", lambda targets, share, classes: torch.eye(classes)[targets])
    assert list(equal_failures(Collate(step), rows)) == ["x, labels for equal draws"]
    monkeypatch.setattr(mix_module, "beta", lambda draws, alpha: draws.uniform(1)[:, 0])
    assert "x, MixUp: lam" in wrong_draws(Collate(step), rows)
    assert "x, CutMix: share of the area" in wrong_draws(Collate(CutMix(0.3)), rows)
