"""Masks of instances in mosaics, against the pixels of each mask looked up through the map."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import coco_dataset
from mosaic_maps import maps_of
from tensordict import TensorDict
from test_mosaic import ALL, batch_of, drawn, rows_of

from mmload import Loader
from mmload.augment import BoxRule, CopyPaste, Mosaic, RandomHorizontalFlip, sample_seeds
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.batch import Batch
from mmload.pictures.instance_masks import mask_of_runs, runs_of_mask
from mmload.remote.opening import open as open_dataset

SIDE = 40


def instances(count: int) -> Batch:
    """Images of 40 x 40 with polygons of any form, and some masks as run lengths."""
    batch, draws = batch_of(count, SIDE, SIDE), np.random.default_rng(4)
    rings, polygons, owners, runs = [], [], [], []
    for k in range(count):
        own_rings, points, own_runs, values = [], [], [], []
        for box in range(int(batch.counts[k])):
            if draws.random() < 0.3:
                mask = draws.random((5, 5)).repeat(SIDE // 5, 0).repeat(SIDE // 5, 1) < 0.3
                values.append(runs_of_mask(mask))
                own_runs.append((box, len(values[-1])))
                continue
            for _ in range(int(draws.integers(1, 3))):
                corners = int(draws.integers(3, 9))
                points.append(draws.random((corners, 2)) * SIDE * 1.2 - SIDE * 0.1)
                own_rings.append((box, corners))
        rings.append(torch.tensor(own_rings, dtype=torch.int32).view(-1, 2))
        polygons.append(torch.from_numpy(np.concatenate([*points, np.zeros((0, 2))]).astype(np.float32)))
        owners.append(torch.tensor(own_runs, dtype=torch.int32).view(-1, 2))
        runs.append(torch.from_numpy(np.concatenate([*values, np.zeros(0)]).astype(np.int32)))
    lists = {"rings": rings, "polygons": polygons, "run_boxes": owners, "runs": runs}
    padded = {name: torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for name, each in lists.items()}
    batch.extra = TensorDict(padded, batch_size=[count])
    return batch


def is_inside(points: np.ndarray[Any, Any], x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Places inside of a polygon by the even-odd rule."""
    inside = np.zeros(x.shape, bool)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, 0), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            inside ^= ((y0 > y) != (y1 > y)) & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return inside


def looked_up(batch: Batch, row: int, box: int, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Any:
    """The mask of a box at places of its image."""
    found, start = np.zeros(x.shape, bool), 0
    for owner, length in batch.extra["rings"][row].tolist():
        if owner == box and length:
            found |= is_inside(batch.extra["polygons"][row, start : start + length].double().numpy(), x, y)
        start += length
    start = 0
    for owner, length in batch.extra["run_boxes"][row].tolist():
        if owner == box and length:
            mask = mask_of_runs(batch.extra["runs"][row, start : start + length].numpy(), SIDE, SIDE)
            found |= mask[np.floor(y).astype(int).clip(0, SIDE - 1), np.floor(x).astype(int).clip(0, SIDE - 1)]
        start += length
    return found & (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)


@pytest.mark.parametrize(
    "options",
    [
        {"p": 0, "scale": 0.4, "degrees": 30, "shear": 10, "perspective": 0.001},
        {"degrees": 20, "scale": 0.5, "mixup": 0.5},
        {"translate": 0.3, "perspective": 0.001, "scale": 0.6},
    ],
)
def test_mosaic_masks_of_instances_are_where_their_pixels_are(options: dict[str, Any]) -> None:
    count = 60
    batch, step = instances(count), Mosaic(SIDE, **options)
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    masks = made.instance_masks()
    arrays = step.tile_rows(Draws(batch.seeds.numpy(), 0, epoch=0), np.arange(count), count, lambda places: places)
    rows = arrays._make(torch.from_numpy(each) for each in arrays)
    numbers = torch.stack([drawn(batch, layer) for layer in range(2)], 1)
    canvas = torch.where(rows.alone, SIDE, 2 * SIDE)[:, None].expand(-1, 2)
    inverse = torch.linalg.inv(maps_of(step, numbers[rows.samples, rows.layers], canvas)).numpy()
    grid = np.mgrid[:SIDE, :SIDE] + 0.5
    seen = np.stack((grid[1], grid[0], np.ones((SIDE, SIDE))))
    found = {k: dict(zip(made.labels[k].tolist(), masks[k].numpy(), strict=False)) for k in range(count)}
    pixels = apart = 0
    for t, (row, sample, layer) in enumerate(zip(*(part.tolist() for part in rows[:3]), strict=True)):
        if sum(1 for other in rows.numbers[rows.samples == sample].tolist() if other == row) > 1:
            continue  # its labels are there twice
        x, y, depth = np.einsum("ij,jyx->iyx", inverse[t], seen)
        x, y = x / depth, y / depth
        side = float(canvas[t, 0])
        shown = (x >= 0) & (x < side) & (y >= 0) & (y < side) & (depth * np.sign(inverse[t][2, 2]) > 0)
        left = top = 0
        if not rows.alone[t]:
            down, right = ((0.5 + numbers[sample, layer, :2]) * SIDE).long().tolist()
            place = int(rows.places[t])
            top, left = down - SIDE * (place in (0, 1)), right - SIDE * (place in (0, 2))
        for box in range(int(batch.counts[row])):
            wanted = looked_up(batch, row, box, x - left, y - top) & shown
            got = found[sample].get(int(batch.labels[row, box]), np.zeros_like(wanted)).astype(bool)
            if int(batch.labels[row, box]) in found[sample]:
                pixels += int(wanted.sum())
                apart += int((wanted != got).sum())
    assert pixels > 10_000
    assert apart < 0.05 * pixels  # on the edges, which pycocotools rounds to fifths of a pixel


def test_mosaic_masks_without_a_map_are_pycocotools_own() -> None:
    batch = instances(40)
    step = Mosaic(SIDE, p=0, translate=0, scale=0)
    made = Collate(step, RandomHorizontalFlip(0), dtype=torch.uint8, box_rule=ALL)(batch)
    pixels = apart = 0
    for k, (own, masks) in enumerate(zip(batch.instance_masks(), made.instance_masks(), strict=True)):
        before = dict(zip(batch.labels[k].tolist(), own, strict=False))
        for label, mask in zip(made.labels[k].tolist(), masks, strict=False):
            apart += int((mask != before[label]).sum())
            pixels += int(mask.sum())
    assert pixels > 10_000
    assert apart < 0.01 * pixels  # where the edge of the image cuts a polygon
    assert rows_of(step, batch)[3] == [3]


def left_out(batch: Batch, *names: str) -> Batch:
    """The batch without some fields."""
    rest = batch.clone()
    rest.extra = batch.extra.exclude(*names)
    return rest


def test_mosaic_of_nine_works_as_its_message_advises() -> None:
    collate, batch = Collate(Mosaic(SIDE, tiles=9), dtype=torch.uint8), instances(4)
    with pytest.raises(ValueError, match="or leave rings, polygons, run_boxes and runs out of fields$"):
        collate(batch)
    made = collate(left_out(batch, "rings", "polygons", "run_boxes", "runs"))
    assert made.counts.sum() > 0
    assert made.instance_masks() == []


ALL_FIELDS = ("rings", "polygons", "run_boxes", "runs")


@pytest.mark.parametrize("steps", [[Mosaic(SIDE)], [Mosaic(SIDE, tiles=9)], [RandomHorizontalFlip(1.0)], [CopyPaste()]])
def test_masks_of_instances_without_some_of_their_fields_are_refused(steps: list[Any]) -> None:
    batch, collate = instances(4), Collate(*steps)
    for count in range(1, 4):
        for names in combinations(ALL_FIELDS, count):
            if names == ("run_boxes", "runs"):
                continue
            missing = f"rings, polygons, run_boxes and runs, and {', '.join(names)} are missing"
            with pytest.raises(ValueError, match=missing):
                collate(left_out(batch, *names))
            with pytest.raises(ValueError, match=missing):
                left_out(batch, *names).instance_masks()


def test_masks_of_instances_without_run_lengths_are_complete() -> None:
    batch = left_out(instances(4), "run_boxes", "runs")
    for step in (Mosaic(SIDE), RandomHorizontalFlip(1.0), CopyPaste()):
        assert len(Collate(step, dtype=torch.uint8)(batch).instance_masks()) == 4


def test_a_field_of_another_form_that_is_called_runs_is_no_mask() -> None:
    batch = batch_of(4)
    batch.extra = TensorDict({"runs": torch.arange(4)}, batch_size=[4])
    for step in (Mosaic(SIDE), RandomHorizontalFlip(1.0)):
        assert Collate(step)(batch).extra["runs"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [64, None])
def test_mosaics_through_a_loader_take_all_fields_of_masks_or_none(tmp_path: Path, size: int | None) -> None:
    split = open_dataset(coco_dataset(tmp_path, size=size))["train"]
    assert set(ALL_FIELDS) < set(split.fields)
    for names in (("rings",), ("polygons",), ("runs",), ("rings", "polygons")):
        fields = [name for name in split.fields if name not in names]
        with (
            pytest.raises(ValueError, match=f"and {', '.join(names)} are missing; have all in fields"),
            Loader(split, batch_size=2, collate=Collate(Mosaic(48)), fields=fields) as loader,
        ):
            next(iter(loader))
    fields = [name for name in split.fields if name not in ALL_FIELDS]
    with Loader(split, batch_size=2, collate=Collate(Mosaic(48, tiles=9)), fields=fields) as loader:
        assert sum(int(batch.counts.sum()) for batch in loader) > 0


@pytest.mark.parametrize("size", [64, None])
def test_mosaic_masks_are_the_same_however_they_are_loaded(tmp_path: Path, size: int | None) -> None:
    split = open_dataset(coco_dataset(tmp_path, size=size))["train"]
    collate = Collate(Mosaic(48, mixup=0.5), RandomHorizontalFlip(), box_rule=BoxRule(min_size=2))
    seeds = sample_seeds(0, 0, torch.arange(len(split)))
    every = collate([row.replace(seeds=seed) for row, seed in zip(split[:].unbind(0), seeds, strict=True)])
    wanted, checked = every.instance_masks(), 0
    for threads, batch_size in ((1, 2), (3, 1)):
        for batch in Loader(split, batch_size=batch_size, shuffle=True, seed=0, threads=threads, collate=collate):
            for row, masks in zip(batch.ids.tolist(), batch.instance_masks(), strict=True):
                assert torch.equal(masks, wanted[row])
                checked += int(masks.sum())
    assert checked > 1000
