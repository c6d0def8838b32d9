"""Masks that a compiled kernel moves have the bits of masks that torch's operations move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import sample_seeds
from mmload.batch import Batch, make_batch
from mmload.render import level_operations as levels
from mmload.render.plan import Plan
from mmload.render.torch_levels import warped
from mmload.render.torch_rendering import upload
from mmload.render.torch_sampling import on_canvas, picked

COUNT, HEIGHT, WIDTH = 24, 37, 53


NEAREST = (levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST)


def batch_of() -> Batch:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (COUNT, 4, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    fields = {"images": pixels[:, :3].contiguous(), "masks": pixels[:, 3].contiguous()}
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


def by_torch(plan: Plan, masks: Tensor) -> Tensor:
    """Moves masks by torch's operations, as if they were images with the fill of masks."""
    there: Plan = upload(plan, masks.device)[0]
    there = replace(there, padding=replace(there.padding, fill=(float(there.padding.mask_fill),)))
    moved = picked(masks[:, None], there)
    if (placed := there.resampling) is not None and isinstance(placed.rows, Tensor):
        moved = torch.where(on_canvas(there, placed)[:, None], moved, placed.mask_fill)
    program = there.program
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place].view(-1, 1, 1, 1), program.numbers[:, place]
        for code in slot.operations & levels.MOVES:
            if code in levels.WARPS:
                nearest = code if code in NEAREST else code - 1
                changed = warped(nearest, moved.float(), numbers, (float(slot.mask_fill),), 255.0).to(moved.dtype)
            else:
                changed = moved.flip(3 if code == levels.FLIP_X else 2)
            moved = torch.where(codes == code, changed, moved)
    return moved[:, 0]


@pytest.mark.parametrize("steps", LISTS.values(), ids=LISTS)
def test_masks_have_the_bits_of_torchs_operations(steps: list[nn.Module]) -> None:
    collate, batch = Collate(*steps), batch_of()
    plan = collate.prepare(batch.replace(images=None), (3, HEIGHT, WIDTH)).rendering.plan
    assert torch.equal(collate(batch).masks, by_torch(plan, batch.masks))


def test_masks_of_no_sample_and_of_one_pixel_are_moved() -> None:
    collate = Collate(augment.RandomResizedCrop(5), augment.RandomRotation(45))
    assert collate(batch_of()[:0]).masks.shape == (0, 5, 5)
    one = make_batch({"images": torch.zeros(2, 3, 1, 1, dtype=torch.uint8), "masks": torch.ones(2, 1, 1).byte()}, 2)
    assert Collate(augment.Resize((4, 4)))(one).masks.eq(1).all()
