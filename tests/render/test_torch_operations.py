"""Every step rendered by torch's operations, as on a device, against the compiled code of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_batches import STEPS as LISTS
from device_batches import batch_for, batch_of
from every_step import CLASSES, PUBLIC_STEPS, SIDE, STEPS

from mmload import augment, presets
from mmload.augment.collate import Collate, collates_of
from mmload.augment.step import batch_of_epoch, view_seeds
from mmload.batch import Batch, fields_of
from mmload.render.torch_rendering import upload

COUNT = 8
CPU, META = torch.device("cpu"), torch.device("meta")
"""The CPU, and a device without values, where whatever reads one is an error."""

RAGGED = ("RandomIoUCrop", "RandomZoomOut")
MIXED = ("MixUp", "MixChoice", "MixChoice of a batch")
WITHOUT_BOXES = (*MIXED, "CutMix", "CutMix of a batch", "AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide")
EXACT = (
    *("AlternatingHorizontalFlip", "CenterCrop", "Normalize", "RandomCrop", "RandomHorizontalFlip"),
    *("RandomVerticalFlip", "noise", "reflected", "nearest"),
)
CHAINS = {"AugMix": 0.02, "AutoAugment": 0.01, "RandAugment": 0.01, "RandomOrder": 0.005, "TrivialAugmentWide": 0.005}
WARPS = {"RandomAffine": 0.001, "RandomPerspective": 0.001, "RandomRotation": 0.003}
ROUNDED = {"bicubic jitter of scales": 0.0005}
"""Shares of pixels that may be more than one level apart: what magnifies a level, nearest pixels, weights that ATen
rounds by the greatest of all of an axis, and torch's operations by that of the part of it on the canvas."""


def given(name: str) -> Batch:
    """Smooth images with some noise, classes, boxes and masks; without what the step cannot take along."""
    batch = batch_of(COUNT)
    coarse = torch.nn.functional.interpolate(batch.images[:, :, :5, :6].float(), (SIDE, SIDE), mode="bilinear")
    images = (0.8 * coarse + 0.2 * batch.images).to(torch.uint8)
    batch = batch.replace(images=images)
    if name in WITHOUT_BOXES:
        batch = batch.replace(boxes=None, labels=None, difficult=None, counts=None, masks=None)
    made: Batch = batch
    return made


def collate_of(name: str, dtype: torch.dtype) -> Collate:
    """The step in a list that gives a batch in this dtype."""
    steps = [STEPS[name]()]
    if name in RAGGED:
        steps += [augment.RandomHorizontalFlip(), augment.Resize((30, 34))]
    if name == "noise":
        steps.insert(0, augment.Normalize.imagenet())
    elif dtype != torch.uint8 and name != "Normalize" and "Mix" not in name:
        steps.append(augment.Normalize.imagenet())
    return Collate(*steps, dtype=dtype, memory_format=torch.channels_last)


def by_operations(collate: Collate, batch: Batch) -> Batch:
    """The batch by torch's operations on the CPU, from a copy of the plan."""
    prepared = collate.prepare(batch.replace(images=None), tuple(batch.images.shape[1:]))
    prepared.copy_to(CPU)
    return prepared.finish(prepared.render_images(batch.images))


def compared(got: Batch, expected: Batch, apart: float, share: float) -> None:
    """Holds that images are ``apart`` at most, but for a share of them, and all else is the same."""
    mine, theirs = fields_of(got), fields_of(expected)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[field], theirs[field]) for field in theirs if field != "images")
    assert (got.images.shape, got.images.dtype) == (expected.images.shape, expected.images.dtype)
    assert got.images.is_contiguous(memory_format=torch.channels_last)
    difference = (got.images.double() - expected.images.double()).abs().amax(1)
    assert float((difference > apart).double().mean()) <= share


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_step_by_operations_is_within_a_level_of_the_compiled_code(name: str) -> None:
    batch = given(name)
    floats_only = name in ("Normalize", "noise", *MIXED)
    dtypes = [torch.float32] if floats_only else [torch.uint8, torch.float16][: 1 if name in CHAINS else 2]
    for dtype in dtypes:
        collate = collate_of(name, dtype)
        with batch_of_epoch(1):
            expected, got = collate(batch), by_operations(collate, batch)
        level = 1.0 if dtype == torch.uint8 else 1 / 255 if name in MIXED else 1 / 255 / 0.22
        precision = 0.004 if dtype == torch.float16 else 1e-5
        apart = 0.0 if name in EXACT else level + precision
        compared(got, expected, apart, (CHAINS | WARPS | ROUNDED).get(name, 0.0))


@pytest.mark.parametrize("name", ["rt_detr", "ssd"])
def test_colors_before_windows_of_variable_sizes_are_those_of_torchs_operations(name: str) -> None:
    collate = getattr(presets.detection, name)(size=28, memory_format=torch.channels_last)
    batch, rows = given(name).replace(masks=None), []
    for k, (height, width) in enumerate([(40, 31), (28, 40), (33, 33), (40, 40)] * 2):
        row = batch[k].replace(images=batch.images[k, :, :height, :width])
        row.boxes = row.boxes.minimum(torch.tensor([width, height] * 2))
        rows.append(row)
    made = collate(rows)
    for k, row in enumerate(rows):
        alone = by_operations(collate, row[None])
        compared(alone, made[k : k + 1], 1 / 255 + 1e-5, 0.005)


def test_every_step_is_looked_at() -> None:
    assert set(STEPS) >= PUBLIC_STEPS


@pytest.mark.parametrize("name", LISTS)
def test_a_batch_on_another_device_is_rendered_there_without_reading_a_value(name: str) -> None:
    steps, batch = LISTS[name](), batch_for(name, 6)
    expected = Collate(*steps)(batch)
    got = Collate(*steps, device=META)(batch)
    mine, theirs = fields_of(got), fields_of(expected)
    assert mine.keys() == theirs.keys()
    assert all(mine[field].device == META and mine[field].shape == theirs[field].shape for field in theirs)
    assert Collate(*steps)(batch.images.to(META)).device == META


def test_samples_of_several_rows_are_rendered_on_the_cpu_and_sent() -> None:
    batch = batch_of(6).replace(masks=None)
    expected, got = (Collate(augment.Mosaic(24), device=device)(batch) for device in (CPU, META))
    assert got.images.device == META
    assert (got.images.shape, got.boxes.shape) == (expected.images.shape, expected.boxes.shape)


OPTIONS: dict[str, dict[str, Any]] = {"dinov2": {"local_size": 16, "local_crops": 2}, "simclr": {}}


@pytest.mark.parametrize("name", ["deit3", "dinov2", "simclr", "torchvision_reference"])
def test_presets_and_all_their_views_are_rendered_on_a_device(name: str) -> None:
    options = {"size": 24, **OPTIONS.get(name, {"num_classes": CLASSES})}
    preset, there = (getattr(presets, name)(**options, device=device) for device in (CPU, META))
    batch = given("AugMix")
    expected, on_meta = (made if isinstance(made, tuple) else (made,) for made in (preset(batch), there(batch)))
    assert [(one.images.shape, one.images.device) for one in on_meta] == [(one.images.shape, META) for one in expected]
    for number, (collate, other) in enumerate(zip(collates_of(preset), expected, strict=True)):
        own = batch.replace(seeds=view_seeds(batch.seeds, number))
        difference = (by_operations(collate, own).images - other.images).abs().amax(1)
        assert float((difference > 2 / 255 / 0.22).float().mean()) < 0.02


def test_seeds_of_images_on_a_device_come_from_the_generator_of_the_cpu() -> None:
    after = []
    for device in (META, CPU):
        torch.manual_seed(5)
        Collate(augment.RandomCrop(9))(batch_of(6).images.to(device))
        after.append(torch.rand(1))
    assert torch.equal(*after)


def test_a_description_is_copied_with_its_values() -> None:
    arrays = [
        np.arange(3),
        np.array([True, False]),
        np.arange(20, dtype=np.float32).reshape(4, 5)[:, ::2],
        np.broadcast_to(np.array([[1.5], [2.5]]), (2, 5)),
        np.array(0.25),
        np.zeros((0, 4), np.float32),
    ]
    for tensor, array in zip(upload(tuple(arrays), CPU)[1], arrays, strict=True):
        assert tensor.dtype == torch.from_numpy(array.copy()).dtype
        assert np.array_equal(tensor.numpy(), array)
    records = np.zeros(2, [("a", np.int64)])
    made = upload((arrays[0], (1.5, "x"), records), META)[0]
    assert made[0].device == META
    assert made[1:] == ((1.5, "x"), records)
