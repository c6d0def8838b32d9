"""Every step by the code for devices against the compiled code of the CPU, and without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_batches import batch_of
from every_step import CLASSES, PUBLIC_STEPS, SIDE, STEPS
from simulated_device import PretendedDevice
from torch import Tensor

from mmload import augment, presets
from mmload.augment.collate import Collate
from mmload.augment.draws import batch_of_epoch
from mmload.augment.views import Views
from mmload.batch import Batch

COUNT = 8
RAGGED = ("RandomIoUCrop", "RandomZoomOut")
MIXED = ("MixUp", "MixChoice", "MixChoice of a batch")
WITHOUT_BOXES = (*MIXED, "CutMix", "CutMix of a batch", "AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide")
CHAINS = {"AugMix": 0.02, "AutoAugment": 0.01, "RandAugment": 0.01, "RandomOrder": 0.005, "TrivialAugmentWide": 0.005}
WARPS = {"RandomAffine": 0.001, "RandomPerspective": 0.001, "RandomRotation": 0.003}
ROUNDED = {"bicubic jitter of scales": 0.0005}
"""Shares of pixels that may be more than one level apart: what magnifies a level, nearest pixels, weights that ATen
rounds by the greatest of all of an axis, and a device by that of the part of it on the canvas."""


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


def compared(got: Batch, expected: Batch, apart: float, share: float) -> None:
    """Holds that images are ``apart`` at most, but for a share of them, and all else is the same."""
    assert got.images.shape == expected.images.shape
    assert got.images.dtype == expected.images.dtype
    difference = (got.images.double() - expected.images.double()).abs().amax(1)
    assert float((difference > apart).double().mean()) <= share
    assert sorted(got.keys()) == sorted(expected.keys())
    for field in ("counts", "labels", "difficult", "boxes", "targets"):
        if expected.get(field, None) is not None:
            torch.testing.assert_close(got.get(field), expected.get(field), rtol=1e-4, atol=1e-3)
    if expected.masks is not None:
        assert float((got.masks != expected.masks).double().mean()) <= max(share, 0.001)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_step_on_a_device_is_within_a_level_of_the_cpu(name: str) -> None:
    batch = given(name)
    floats_only = name in ("Normalize", "noise", *MIXED)
    dtypes = [torch.float32] if floats_only else [torch.uint8, torch.float16][: 1 if name in CHAINS else 2]
    for dtype in dtypes:
        collate = collate_of(name, dtype)
        with batch_of_epoch(1):
            expected = collate(batch)
            with PretendedDevice():
                got = collate(batch)
        level = 1.0 if dtype == torch.uint8 else 1 / 255 if name in MIXED else 1 / 255 / 0.22
        precision = 0.004 if dtype == torch.float16 else 1e-5
        compared(got, expected, level + precision, (CHAINS | WARPS | ROUNDED).get(name, 0.0))


def test_every_step_is_looked_at() -> None:
    assert set(STEPS) >= PUBLIC_STEPS


@pytest.mark.parametrize("name", ["deit3", "dinov2", "simclr", "torchvision_reference"])
def test_recipes_and_all_their_views_do_not_wait(name: str) -> None:
    small: dict[str, Any] = {"size": 24, **OPTIONS.get(name, {"num_classes": CLASSES})}
    recipe: Any = getattr(presets, name)(**small)
    batch = given("AugMix")
    views = recipe if isinstance(recipe, Views) else lambda batch: (recipe(batch),)
    expected = views(batch)
    with PretendedDevice():
        got = views(batch)
    for one, other in zip(got, expected, strict=True):
        assert one.images.shape == other.images.shape
        difference = (one.images - other.images).abs().amax(1)
        assert float((difference > 2 / 255 / 0.22).float().mean()) < 0.02


OPTIONS: dict[str, dict[str, Any]] = {"dinov2": {"local_size": 16, "local_crops": 2}, "simclr": {}}

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda there: there.sum().item(),
    "tolist": lambda there: there.tolist(),
    "numpy": lambda there: there.numpy(),
    "cpu": lambda there: there.cpu(),
    "__bool__": lambda there: bool(there.any()),
    "__int__": lambda there: int(there[0]),
    "__float__": lambda there: float(there[0]),
    "nonzero": lambda there: torch.nonzero(there),
    "an index of booleans": lambda there: there[there > 1],
    "tensor": lambda there: torch.tensor([1.0], device=there.device),
}


@pytest.mark.parametrize("name", READS)
def test_the_pretended_device_sees_what_it_has_to_see(name: str) -> None:
    there = torch.arange(4)
    with PretendedDevice(), pytest.raises(AssertionError, match=f"^{name}"):
        READS[name](there)
