"""Every step on images of one to four channels and of several dtypes: done right, or refused in one line at once."""

from __future__ import annotations

import pytest
import torch
from device_batches import batch_of
from every_step import SIDE, STEPS
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import batch_of_epoch
from mmload.batch import Batch

COUNT = 5
RAGGED = ("RandomIoUCrop", "RandomZoomOut")
COLORS = (
    *(
        "AugMix",
        "AutoAugment",
        "ColorJitter",
        "RandAugment",
        "RandomHSV",
        "RandomAdjustSharpness",
        "RandomAutocontrast",
    ),
    *("RandomGrayscale", "RandomPhotometricDistort", "TrivialAugmentWide", "RandomApply", "RandomChoice"),
)
"""Steps that take one channel or three, those that hold one of them included."""


def collate_of(name: str) -> Collate:
    steps = [STEPS[name]()]
    return Collate(*steps, augment.Resize((30, 34))) if name in RAGGED else Collate(*steps)


def batch(name: str, channels: int, dtype: torch.dtype) -> Batch:
    """Noise for a step, with boxes if it needs them."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (COUNT, channels, SIDE, SIDE), generator=generator)
    images = images / 255 if dtype.is_floating_point else images.to(dtype)
    made: Batch = batch_of(COUNT).replace(images=images, masks=None)
    return made if name in RAGGED else made.replace(boxes=None, labels=None, difficult=None, counts=None)


def plain_fill(step: nn.Module, channels: int) -> None:
    """Fills and values of three channels become one for all, in the images' values."""
    for part in step.modules():
        for name in ("fill", "value", "mean", "std"):
            given = getattr(part, name, None)
            if name in ("mean", "std") and given is not None:
                setattr(part, name, given[:1] * channels)
            elif given is not None and not isinstance(given, float):  # RandomHSV's value is a number
                setattr(part, name, (0.0,))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("name", sorted(STEPS))
def test_each_channel_is_that_of_a_gray_image_or_the_number_is_refused(name: str, dtype: torch.dtype) -> None:
    for channels in (2, 4):
        collate, rows = collate_of(name), batch(name, channels, dtype)
        gray = collate_of(name)
        if name in COLORS:
            with pytest.raises(ValueError, match=f"takes images of 1 or 3 channels, these have {channels}$"):
                collate.prepare(rows.replace(images=None), rows.images.shape[1:], source=dtype)
            continue
        has_fill = any(getattr(part, "fill", None) not in (None, (0.0,)) for part in collate.modules())
        if name == "Normalize" or has_fill or name == "RandomErasing":
            with pytest.raises(
                ValueError, match=rf"(Normalize|fill|value) has 3 (numbers|channels) and the images {channels}"
            ):
                collate.prepare(rows.replace(images=None), rows.images.shape[1:], source=dtype)
        plain_fill(collate, channels)
        plain_fill(gray, 1)
        if name in ("RandomSolarize",) and dtype == torch.float32:
            for one in (collate, gray):
                one.steps[0].threshold = 0.4  # type: ignore[union-attr]
        with batch_of_epoch(1):
            got = collate(rows).images
            for channel in range(channels if name != "noise" else 1):
                alone = gray(rows.replace(images=rows.images[:, channel : channel + 1])).images
                torch.testing.assert_close(got[:, channel], alone[:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.int32, torch.bool], ids=str)
def test_integers_whose_white_is_not_known_are_refused(name: str, dtype: torch.dtype) -> None:
    rows = batch(name, 3, dtype)
    with pytest.raises(TypeError, match=rf"images are {dtype}, expected torch.uint8 \(0 to 255\) or a floating dtype"):
        collate_of(name).prepare(rows.replace(images=None), (3, SIDE, SIDE), source=dtype)
