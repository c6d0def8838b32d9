"""Masks that a compiled kernel moves: uint8 masks have the bits of masks of another dtype, which torch moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.draws import sample_seeds
from mmload.batch import Batch, make_batch

COUNT, HEIGHT, WIDTH = 24, 37, 53


def batch_of(masks: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (COUNT, 4, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    fields = {"images": pixels[:, :3].contiguous(), "masks": pixels[:, 3].to(masks)}
    return make_batch(fields, COUNT, seeds=sample_seeds(5, 0, torch.arange(COUNT)))


BOTH_FLIPS = [augment.RandomHorizontalFlip(), augment.RandomVerticalFlip()]
CROP = {"padding": (40, 50, 60, 70), "mask_fill": 7}
PLACED = {"fill": 0, "mask_fill": 9}
LISTS: dict[str, list[nn.Module]] = {
    "crop": [augment.RandomCrop(30), *BOTH_FLIPS],
    **{
        f"crop of {mode} padding": [*BOTH_FLIPS, augment.RandomCrop((31, 60), padding_mode=mode, **CROP)]
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
    "resized crop": [augment.RandomResizedCrop((29, 44)), *BOTH_FLIPS],
    "flips, resize, crop": [*BOTH_FLIPS, augment.Resize((70, 31), "bilinear"), augment.RandomCrop(28)],
    "exact resize": [augment.Resize((51, 38), "nearest-exact"), *BOTH_FLIPS],
    "letterbox": [*BOTH_FLIPS, augment.Letterbox((40, 70), **PLACED)],
    "jitter of scales": [augment.ScaleJitter((40, 44), **PLACED), *BOTH_FLIPS],
    "zoom out": [augment.RandomZoomOut(mask_fill=9), *BOTH_FLIPS, augment.Resize((33, 40))],
    "rotation": [augment.RandomCrop(31), augment.RandomRotation(170, mask_fill=6), *BOTH_FLIPS],
    "affine": [augment.RandomAffine(30, (0.2, 0.2), (0.5, 2.0), (-9, 9, -9, 9), "bilinear", mask_fill=6)],
    "perspective": [*BOTH_FLIPS, augment.RandomPerspective(0.9, p=0.7)],
    "flips after a blur": [augment.GaussianBlur(3), *BOTH_FLIPS, augment.RandomAffine(0, shear=20), *BOTH_FLIPS],
}


@pytest.mark.parametrize("steps", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("other", [torch.int16, torch.int64])
def test_masks_of_uint8_have_the_bits_of_other_masks(steps: list[nn.Module], other: torch.dtype) -> None:
    collate = Collate(*steps)
    ours, theirs = (collate(batch_of(kind)).masks for kind in (torch.uint8, other))
    assert ours.dtype == torch.uint8
    assert theirs.dtype == other
    assert torch.equal(ours, theirs.to(torch.uint8))


def test_masks_of_no_sample_and_of_one_pixel_are_moved() -> None:
    collate = Collate(augment.RandomResizedCrop(5), augment.RandomRotation(45))
    assert collate(batch_of(torch.uint8)[:0]).masks.shape == (0, 5, 5)
    one = make_batch({"images": torch.zeros(2, 3, 1, 1, dtype=torch.uint8), "masks": torch.ones(2, 1, 1).byte()}, 2)
    assert Collate(augment.Resize((4, 4)))(one).masks.eq(1).all()
