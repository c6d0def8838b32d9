"""CopyPaste against a plain paste of pixels and masks, as torchvision's reference does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import coco_dataset
from test_mosaic_masks import SIDE, instances
from torch import Tensor

from mmload import Loader
from mmload.augment import (
    BoxRule,
    CopyPaste,
    Mosaic,
    Normalize,
    RandomAffine,
    RandomHorizontalFlip,
    ScaleJitter,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.batch import Batch, fields_of
from mmload.remote.opening import open as open_dataset

RULE = BoxRule(min_size=2)


def with_all_fields(count: int) -> Batch:
    batch = instances(count)
    most = batch.boxes.shape[1]
    real = torch.arange(most) < batch.counts[:, None]
    generator = torch.Generator().manual_seed(2)
    points = torch.rand((count, most, 3, 2), generator=generator) * SIDE
    batch.extra["keypoints"] = torch.cat((points, torch.full((count, most, 3, 1), 2.0)), 3) * real[..., None, None]
    batch.extra["area"] = torch.full((count, most), 100.0) * real
    batch.extra["iscrowd"] = (torch.rand((count, most), generator=generator) < 0.2) & real
    batch.extra["place"] = torch.arange(count)
    batch.masks = torch.randint(0, 20, (count, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    return batch


def partners_of(collate: Collate, batch: Batch) -> tuple[Tensor, Tensor]:
    count = len(batch)
    rows, seeds = with_partners(collate, batch)
    assert torch.equal(rows[:count], torch.arange(count))
    assert torch.equal(seeds[:count], batch.seeds)
    return rows[count:], seeds[count:]


def with_partners(collate: Collate, batch: Batch) -> tuple[Tensor, Tensor]:
    """Rows and seeds of samples and partners."""
    count = len(batch)
    rows, seeds = collate.with_partners(np.arange(count), batch.seeds.numpy(), count, lambda places: places)
    return torch.from_numpy(rows), torch.from_numpy(seeds)


def pasted(
    own: Batch, other: Batch, both: tuple[Any, Any], k: int, uniform: list[float], rule: BoxRule
) -> tuple[Any, ...]:
    """One sample by plain loops: image, classes, and per object label, mask, box, area and keypoints."""
    masks, others = both
    image, classes = own.images[k].numpy().copy(), own.masks[k].numpy().copy()
    candidates = [i for i, mask in enumerate(others) if mask.any() and not other.extra["iscrowd"][k, i]]
    chosen = sorted({candidates[int(u * len(candidates))] for u in uniform[: len(candidates)]})
    hidden = np.zeros(masks.shape[1:] or (SIDE, SIDE), bool)
    for i in chosen:
        hidden |= others[i]
    image[:, hidden] = other.images[k].numpy()[:, hidden]
    classes[hidden] = other.masks[k].numpy()[hidden]
    objects = []
    for i, mask in enumerate(masks):
        rest, box = mask & ~hidden, own.boxes[k, i].tolist()
        area, points = float(own.extra["area"][k, i]), own.extra["keypoints"][k, i].numpy().copy()
        for point in points if chosen else []:
            x, y = (min(max(int(end), 0), side - 1) for end, side in zip(point, hidden.shape[::-1], strict=False))
            point[2] = min(point[2], 1) if hidden[y, x] else point[2]
        if rest.sum() < mask.sum():
            if not rest.any():
                continue
            y, x = np.nonzero(rest)
            box = [x.min(), y.min(), x.max() + 1, y.max() + 1]
            area *= rest.sum() / mask.sum()
            sides = box[2] - box[0], box[3] - box[1]
            if min(sides) < rule.min_size or rest.sum() / mask.sum() < rule.min_visible:
                continue
        objects.append((int(own.labels[k, i]), rest, box, area, points))
    for i in chosen:
        area, points = float(other.extra["area"][k, i]), other.extra["keypoints"][k, i].numpy()
        objects.append((int(other.labels[k, i]), others[i], other.boxes[k, i].tolist(), area, points))
    return image, classes, objects


@pytest.mark.parametrize("rule", [RULE, BoxRule(min_size=3, min_visible=0.3)])
@pytest.mark.parametrize("first", [[], [ScaleJitter((48, 48), (0.5, 2.0)), RandomHorizontalFlip()]])
def test_copy_paste_of_80_draws_is_a_plain_paste(first: list[Any], rule: BoxRule) -> None:
    count = 80
    batch, collate = with_all_fields(count), Collate(*first, CopyPaste(0.8), dtype=torch.uint8, box_rule=rule)
    rows, seeds = partners_of(Collate(*first, CopyPaste()), batch)
    before = Collate(*first, dtype=torch.uint8, box_rule=rule)
    own, other = before(batch), before(batch[rows].replace(seeds=seeds))
    made = collate(batch)
    assert len(made) == count
    draws = Draws(batch.seeds.numpy(), len(first))
    applied, uniform = draws.chance(0.8), draws.uniform(other.boxes.shape[1])
    assert 48 < applied.sum() < 75
    masks, changed = made.instance_masks(), 0
    own_masks, other_masks = own.instance_masks(), other.instance_masks()
    for k in range(count):
        if not applied[k]:
            assert torch.equal(made.images[k], own.images[k])
            assert torch.equal(masks[k], own_masks[k])
            continue
        both = own_masks[k].numpy().astype(bool), other_masks[k].numpy().astype(bool)
        image, classes, objects = pasted(own, other, both, k, uniform[k].tolist(), rule)
        assert np.array_equal(made.images[k].numpy(), image)
        assert np.array_equal(made.masks[k].numpy(), classes)
        assert made.counts[k] == len(objects)
        for i, (label, mask, box, area, points) in enumerate(objects):
            assert made.labels[k, i] == label
            assert np.array_equal(masks[k][i].numpy().astype(bool), mask)
            assert made.boxes[k, i].tolist() == box
            assert float(made.extra["area"][k, i]) == pytest.approx(area)
            assert np.array_equal(made.extra["keypoints"][k, i].numpy(), points)
        assert (made.labels[k, len(objects) :] == -1).all()
        changed += not torch.equal(made.images[k], own.images[k])
    assert changed > 32
    assert torch.equal(made.extra["place"], batch.extra["place"])
    assert torch.equal(made.seeds, batch.seeds)


def test_copy_paste_masks_go_through_later_steps() -> None:
    batch = with_all_fields(40)
    alone = Collate(CopyPaste(), dtype=torch.uint8, box_rule=RULE)(batch)
    flipped = Collate(CopyPaste(), RandomHorizontalFlip(1.0), dtype=torch.uint8, box_rule=RULE)(batch)
    assert torch.equal(flipped.images, alone.images.flip(3))
    apart = pixels = 0
    for one, other in zip(alone.instance_masks(), flipped.instance_masks(), strict=True):
        apart += int((one.flip(2) != other).sum())
        pixels += int(one.sum())
    assert apart < 0.03 * pixels  # which side of a pixel's center an edge is, a flip exchanges
    normalize = Normalize.imagenet()
    made = Collate(CopyPaste(), RandomAffine(20), normalize, box_rule=RULE)(batch)
    apart_from_it = Collate(torch.nn.Identity(), RandomAffine(20), dtype=torch.uint8, box_rule=RULE)(alone)
    assert made.images.dtype == torch.float32
    torch.testing.assert_close(made.images, Collate(normalize)(apart_from_it.images), rtol=0, atol=1.01 / 255 / 0.22)


def test_copy_paste_after_a_mosaic_pastes_of_another_mosaic() -> None:
    batch = with_all_fields(12).replace(masks=None)
    collate = Collate(Mosaic(SIDE), CopyPaste(), dtype=torch.uint8, box_rule=RULE)
    rows, seeds = partners_of(collate, batch)
    draws = collate.composer.tile_rows(  # type: ignore[union-attr]
        Draws(seeds.numpy(), 0), rows.numpy(), 12, lambda places: places
    )
    assert [int(number) for number in draws.numbers[draws.places == 0]] == rows.tolist()
    made = collate(batch)
    assert len(made) == 12
    # Without a loader the rows of mosaics are those of the batch, which has the partners, too.
    both = batch[torch.cat((torch.arange(12), rows))].replace(seeds=torch.cat((batch.seeds, seeds)))
    mosaics = Collate(Mosaic(SIDE), dtype=torch.uint8, box_rule=RULE)(both)
    mosaics.masks = torch.zeros((24, SIDE, SIDE), dtype=torch.uint8)
    own, other = mosaics[:12], mosaics[12:]
    later = Draws(batch.seeds.numpy(), 1)
    later.chance(1.0)
    uniform, pasted_into = later.uniform(mosaics.boxes.shape[1]), 0
    masks = [[one.numpy().astype(bool) for one in each.instance_masks()] for each in (own, other, made)]
    for k in range(12):
        image, _, objects = pasted(own, other, (masks[0][k], masks[1][k]), k, uniform[k].tolist(), RULE)
        assert np.array_equal(made.images[k].numpy(), image)
        assert made.counts[k] == len(objects)
        assert made.boxes[k, : len(objects)].tolist() == [pytest.approx(list(box)) for _, _, box, _, _ in objects]
        assert all(np.array_equal(got, mask) for got, (_, mask, *_) in zip(masks[2][k], objects, strict=True))
        pasted_into += not torch.equal(made.images[k], own.images[k])
    assert pasted_into > 6


@pytest.mark.parametrize("area", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_copy_paste_dtypes_of_all_fields_stay(area: torch.dtype) -> None:
    batch = with_all_fields(20)
    batch.extra["area"] = batch.extra["area"].to(area)
    made = Collate(CopyPaste(0.5), dtype=torch.uint8)(batch)
    assert not torch.equal(made.images, batch.images)
    before, after = fields_of(batch), fields_of(made)
    assert {name: value.dtype for name, value in after.items()} == {name: v.dtype for name, v in before.items()}
    for row in range(20):
        alone = Collate(CopyPaste(0.0), dtype=torch.uint8)(batch[row : row + 1])
        assert fields_of(alone).keys() == before.keys()
        assert all(value.dtype == before[name].dtype for name, value in fields_of(alone).items())


def test_copy_paste_crowds_may_be_of_any_dtype() -> None:
    batch = with_all_fields(20)
    wanted = Collate(CopyPaste(), dtype=torch.uint8)(batch)
    for dtype in (torch.uint8, torch.int64, torch.float32):
        batch.extra["iscrowd"] = batch.extra["iscrowd"].to(dtype)
        made = Collate(CopyPaste(), dtype=torch.uint8)(batch)
        assert torch.equal(made.images, wanted.images)
        assert torch.equal(made.extra["iscrowd"], wanted.extra["iscrowd"].to(dtype))


@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1, "batch_size": 2},
        {"threads": 3, "batch_size": 1},
        {"batch_size": 2, "ranks": (1, 2)},
    ],
)
def test_copy_paste_is_the_same_however_it_is_loaded(tmp_path: Path, size: int | None, options: dict[str, Any]) -> None:
    split = open_dataset(coco_dataset(tmp_path, size=size))["train"]
    collate = Collate(ScaleJitter((48, 48)), RandomHorizontalFlip(), CopyPaste(), Normalize.imagenet(), box_rule=RULE)
    seeds = sample_seeds(0, 0, torch.arange(len(split)))
    every = collate([row.replace(seeds=seed) for row, seed in zip(split[:].unbind(0), seeds, strict=True)])
    wanted, checked = every.instance_masks(), 0
    with Loader(split, shuffle=True, seed=0, collate=collate, **options) as loader:
        for batch in loader:
            assert torch.equal(batch.images, every.images[batch.ids])
            assert torch.equal(batch.counts, every.counts[batch.ids])
            for row, masks in zip(batch.ids.tolist(), batch.instance_masks(), strict=True):
                assert torch.equal(masks, wanted[row])
                checked += 1
    assert checked >= 3


def with_field(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Batch:
    """Instances with one more field of their boxes."""
    batch = instances(3)
    batch.extra[name] = torch.zeros((*batch.boxes.shape[:2], *shape), dtype=dtype)
    return batch


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collate(CopyPaste())(instances(3).replace(boxes=None)), "CopyPaste needs boxes, and the batches"),
        (lambda: Collate(CopyPaste())(instances(3).replace(extra=None)), "CopyPaste needs masks of instances, and"),
        (lambda: Collate(CopyPaste())(instances(3).replace(counts=None)), "CopyPaste needs counts, to tell objects"),
        (lambda: Collate(CopyPaste())(with_field("corners", (4, 2))), "CopyPaste cuts boxes, and not the corners of"),
    ],
)
def test_copy_paste_what_cannot_be_done_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_copy_paste_keeps_the_dtype_of_a_field() -> None:
    made = Collate(CopyPaste())(with_field("area", (), torch.bfloat16))
    assert made.area.dtype == torch.bfloat16
    assert made.area.shape == made.labels.shape


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_copy_paste_renders_the_partners_that_it_pastes_of(p: float) -> None:
    batch, collate = with_all_fields(50), Collate(CopyPaste(p), dtype=torch.uint8)
    rows, seeds = with_partners(collate, batch)
    applied = Draws(batch.seeds.numpy(), 0).chance(p)
    assert len(rows) == len(seeds) == 50 + int(applied.sum())
    every, _ = partners_of(Collate(CopyPaste()), batch)
    assert torch.equal(rows[50:], every[applied])
    assert np.array_equal(CopyPaste(p).applied(Draws(seeds.numpy(), 0)), applied)
    assert len(collate(batch)) == 50
    collate.steps[0] = RandomHorizontalFlip()
    assert not collate.has_partners
