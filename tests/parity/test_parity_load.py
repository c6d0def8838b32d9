"""Parity of the load side: right collates pass, and wrong draws, windows, colors, boxes and labels are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mmload.augment.boxes as boxes_module
import mmload.augment.resize as resize_module
import mmload.parity.draws as draws_module
from mmload.augment import (
    AlternatingHorizontalFlip,
    BoxRule,
    CenterCrop,
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
)
from mmload.augment.collate import Collate, PreparedBatch
from mmload.augment.draws import Draws, sample_seeds, whole_numbers
from mmload.batch import Batch
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.parity.draws import run_seeds
from mmload.parity.equal import check_equal
from mmload.parity.load import check_draws, usual_collates
from mmload.parity.verdict import Verdict
from mmload.render.plan import Plan
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset import open as open_dataset

DRAWS = 4000


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Ten rows of 40 x 48 with boxes and masks, from a Python dataset."""
    root = tmp_path_factory.mktemp("boxed")
    (root / "boxed_rows.py").write_text(
        """
import torch

def train():
    rows = []
    for k in range(10):
        g = torch.Generator().manual_seed(k)
        corner = torch.randint(0, 20, (3, 2), generator=g).float()
        side = torch.randint(4, 20, (3, 2), generator=g).float()
        count = 1 + k % 3
        real = (torch.arange(3) < count)
        rows.append({
            "images": torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=g),
            "targets": torch.tensor(k % 4),
            "boxes": torch.cat((corner, corner + side), 1) * real[:, None],
            "labels": torch.where(real, torch.arange(3), -1),
            "difficult": torch.zeros(3, dtype=torch.bool),
            "counts": torch.tensor(count),
            "masks": torch.randint(0, 5, (40, 48), dtype=torch.uint8, generator=g),
        })
    return rows
"""
    )
    options = {"dataset": "boxed_rows:train"}
    build(BuildRecipe(kind="python", root=root, out=root / "out", options=options), threads=1)
    return open_dataset(root / "out")["train"]


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    return dataset["train"]


def wrong_draws(collate: Collate, split: Split) -> dict[str, str]:
    """Name -> diagnosis of the draws that differ from torchvision's."""
    found = check_draws({"x": collate}, split, seed=1, draws=DRAWS)
    return {verdict.name: verdict.diagnosis for verdict in found if verdict.state == "fail"}


def by_name(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in verdicts}


def test_seeds_are_those_of_the_loader() -> None:
    seeds = run_seeds(7, 20, 3)
    assert torch.equal(seeds[:7], sample_seeds(3, 0, torch.arange(7)))
    assert torch.equal(seeds[14:], sample_seeds(3, 2, torch.arange(6)))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_usual_collates_pass(rows: Split, seed: int) -> None:
    found = check_draws(usual_collates(rows), rows, seed=seed, draws=DRAWS)
    assert {verdict.state for verdict in found} == {"pass"}
    assert len(found) == 13 + 6
    for name, collate in usual_collates(rows).items():
        equal = by_name(check_equal(name, collate, rows, seed=seed))
        assert {verdict.state for verdict in equal.values()} == {"pass"}
        assert set(equal) == {f"{name}, equal draws", f"{name}, labels for equal draws"}


def test_every_random_step_passes(rows: Split) -> None:
    collate = Collate(
        RandomCrop((40, 30), padding=(3, 6), fill=(1, 2, 3), padding_mode="reflect"),
        RandomVerticalFlip(0.2),
        RandomResizedCrop((20, 25), (0.3, 0.7), (0.5, 1.5), "bicubic"),
        RandomHorizontalFlip(0.7),
        RandomGrayscale(0.3),
        ColorJitter(0.3, 0.2, (0.5, 1.2), 0.1),
        Normalize.imagenet(),
        RandomErasing(0.6, (0.05, 0.3), (0.4, 2.0), value=0.5),
        MixUp(num_classes=3),
    )
    found = check_draws({"x": collate}, rows, seed=0, draws=DRAWS)
    assert [verdict.state for verdict in found] == ["pass"] * (21 + 7) + ["note"]
    assert "MixUp draws for each sample, torchvision for each batch" in found[-1].text


@pytest.mark.parametrize(
    "step",
    [
        ScaleJitter((36, 44), (0.2, 2.0), fill=9),
        RandomShortestSize((20, 31, 47), 50, "bicubic", fill=(1, 2, 3), mask_fill=7),
        ScaleJitter((50, 50), (0.5, 0.9), "nearest"),
    ],
)
def test_resizes_to_random_sizes_are_compared(boxed: Split, step: nn.Module) -> None:
    collate = Collate(step, RandomHorizontalFlip())
    found = check_draws({"x": collate}, boxed, seed=0, draws=1000)
    assert {verdict.state for verdict in found} == {"pass"}
    assert len(found) == 4 + 1 + 1 + 1
    expect_all_pass(collate, boxed)


def test_steps_that_leave_a_size_each_are_compared_by_their_draws(boxed: Split) -> None:
    collate = Collate(
        RandomHorizontalFlip(), RandomZoomOut(), RandomIoUCrop(sampler_options=[0.1, 1.0]), Resize((9, 9))
    )
    found = by_name(check_draws({"x": collate}, boxed, seed=0, draws=1000))
    assert {verdict.state for verdict in found.values()} == {"pass"}
    assert {"x, RandomZoomOut: rows", "x, RandomIoUCrop: share cropped", "x, RandomIoUCrop: width"} <= set(found)
    equal = check_equal("x", collate, boxed, seed=0)
    assert {verdict.state for verdict in equal[:-1]} == {"pass"}
    assert equal[-1].text == "compared up to RandomZoomOut, whose images of a size each are not replayed"


def expect_all_pass(collate: Collate, split: Split) -> None:
    """Equal draws give equal images, labels, boxes and masks."""
    equal = check_equal("x", collate, split, seed=0)
    assert {verdict.state for verdict in equal} == {"pass"}, [(one.name, one.text) for one in equal]
    assert len(equal) == 4


def test_steps_that_follow_the_epoch_are_compared_in_each(rows: Split) -> None:
    collate = Collate(
        AlternatingHorizontalFlip(), RandomResizedCrop(lambda epoch: 20 + epoch), Resize(lambda epoch: 9 + epoch)
    )
    found = check_draws({"x": collate}, rows, seed=0, draws=DRAWS)
    assert [verdict.state for verdict in found] == ["pass"] * 7 + ["note"] * 3
    assert "AlternatingHorizontalFlip draws nothing, and torchvision has no counterpart" in found[7].text
    assert "RandomResizedCrop has another size in other epochs" in found[8].text
    equal = check_equal("x", collate, rows, seed=0)  # 64 rows of 18: four epochs
    assert {verdict.state for verdict in equal} == {"pass"}
    assert equal[0].numbers["rows"] >= 64


EQUAL = [
    Collate(),
    Collate(RandomCrop(28, padding=(1, 2, 3, 4), fill=7, padding_mode="edge"), RandomVerticalFlip(0.5)),
    Collate(RandomCrop(45, pad_if_needed=True), Normalize.cifar10(), dtype=torch.float64),
    Collate(RandomResizedCrop((15, 20), interpolation="bicubic"), Normalize.imagenet()),
    Collate(Resize(20), RandomCrop(16), RandomHorizontalFlip(), dtype=torch.uint8),
    Collate(CenterCrop(20), RandomGrayscale(0.5), Normalize.imagenet()),
    Collate(RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize.imagenet()),
    Collate(RandomHorizontalFlip(), Normalize.imagenet(), RandomErasing(0.7, value=(0.1, 0.2, 0.3))),
    Collate(RandomErasing(0.7, value=9), Normalize.imagenet()),
    Collate(RandomErasing(0.7, value=0.5), memory_format=torch.channels_last),
]


@pytest.mark.parametrize("which", range(len(EQUAL)))
def test_equal_draws_give_equal_batches(rows: Split, which: int) -> None:
    found = by_name(check_equal("x", EQUAL[which], rows, rows=36, seed=3))
    assert {verdict.state for verdict in found.values()} == {"pass"}, found
    assert found["x, equal draws"].numbers["rows"] == 36


@pytest.mark.parametrize(
    "steps",
    [
        (RandomCrop((30, 31)), RandomHorizontalFlip()),
        (RandomCrop((40, 48), padding=9, mask_fill=255), RandomVerticalFlip()),
        (RandomResizedCrop((33, 21)), RandomHorizontalFlip()),
        (Resize((20, 30)), RandomCrop(16)),
    ],
)
def test_boxes_and_masks_follow(boxed: Split, steps: tuple[nn.Module, ...]) -> None:
    found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
    assert {name.split(", ")[1].split(" for")[0] for name in found} == {"equal draws", "labels", "boxes", "masks"}
    assert {verdict.state for verdict in found.values()} == {"pass"}, found


def test_boxes_are_held_to_the_rule(boxed: Split) -> None:
    collate = Collate(RandomCrop(12), box_rule=BoxRule(min_size=5))
    assert by_name(check_equal("x", collate, boxed, seed=0))["x, boxes for equal draws"].state == "pass"


def test_boxes_under_a_pixel_are_compared(boxed: Split) -> None:
    for steps in (
        (Resize((2, 3)), RandomHorizontalFlip()),
        (RandomCrop((30, 31)), Resize((3, 2))),
        (RandomCrop((40, 48), padding=9), RandomCrop((44, 50), pad_if_needed=True)),
        (CenterCrop((50, 60)), RandomHorizontalFlip(), CenterCrop((40, 48)), Resize((2, 2))),
    ):
        found = by_name(check_equal("x", Collate(*steps), boxed, seed=0))
        assert found["x, boxes for equal draws"].state == "pass", found
    found = by_name(check_equal("x", Collate(RandomCrop(12), box_rule=BoxRule(min_visible=0.5)), boxed, seed=0))
    assert "boxes are not compared: torchvision has no min_visible, here 0.5" in found["x, equal draws"].text


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_padding_that_mirrors_twice_is_said(boxed: Split, mode: str) -> None:
    shrunk = (Resize((2, 3)), RandomCrop(2, padding=4, padding_mode=mode))
    found = check_equal("x", Collate(*shrunk), boxed, seed=0)
    assert "compared up to RandomCrop with padding wider than the image" in found[-1].text


def test_what_torchvision_does_not_do_to_one_sample_is_said(rows: Split) -> None:
    for last in (MixUp(num_classes=3), CutMix(num_classes=3), nn.Identity(), RandomErasing(value="random")):
        found = check_equal("x", Collate(RandomHorizontalFlip(), last), rows, seed=0)
        assert [verdict.state for verdict in found] == ["pass", "pass", "note"]
        assert f"compared up to {type(last).__name__}" in found[-1].text


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


def equal_failures(collate: Collate, split: Split) -> dict[str, Verdict]:
    found = by_name(check_equal("x", collate, split, seed=0))
    return {name: verdict for name, verdict in found.items() if verdict.state == "fail"}


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
