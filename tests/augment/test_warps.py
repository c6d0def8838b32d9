"""Rotations, affine and perspective warps: pixels, masks and boxes are torchvision's for the numbers drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from level_expected import batch_of
from torch import Tensor, nn
from torchvision import tv_tensors

from mmload.augment import (
    AugMix,
    AutoAugment,
    BoxRule,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.batch import Batch
from mmload.render.plan import Plan

COUNT, HEIGHT, WIDTH, MOST = 8, 31, 42, 4
VOID = 255


def detection(count: int = COUNT) -> Batch:
    """Images with boxes and masks."""
    generator = torch.Generator().manual_seed(2)
    corners = torch.rand((count, MOST, 2, 2), generator=generator) * torch.tensor([WIDTH, HEIGHT])
    return batch_of(
        count,
        height=HEIGHT,
        width=WIDTH,
        boxes=torch.cat((corners.amin(2), corners.amax(2)), dim=2),
        labels=torch.arange(MOST).repeat(count, 1),
        counts=torch.full((count,), MOST),
        masks=torch.randint(0, 20, (count, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator),
    )


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def rotation(step: RandomRotation, draws: Draws, k: int) -> Call:
    least, most = step.degrees
    angle = least + (most - least) * float(draws.uniform(1)[k, 0])
    return tv.rotate, (angle,), {"center": step.center and list(step.center)}


def affine(step: RandomAffine, draws: Draws, k: int) -> Call:
    uniform = draws.uniform(6)[k].tolist()

    def between(ends: Any, place: int) -> float:
        return float(ends[0] + (ends[1] - ends[0]) * uniform[place])

    across, over = (share * side for share, side in zip(step.translate or (0, 0), (WIDTH, HEIGHT), strict=True))
    moves = [round(between((-across, across), 1)), round(between((-over, over), 2))]
    shear = step.shear or (0, 0, 0, 0)
    arguments = {
        "angle": between(step.degrees, 0),
        "translate": moves,
        "scale": between(step.scale or (1, 1), 3),
        "shear": [between(shear[:2], 4), between(shear[2:], 5)],
    }
    return tv.affine, (), arguments | {"center": step.center and list(step.center)}


def perspective(step: RandomPerspective, draws: Draws, k: int) -> Call:
    assert step.p == 1
    draws.chance(1.0)
    uniform = draws.uniform(8)[k].tolist()
    wide, high = (int(step.distortion_scale * (side // 2)) + 1 for side in (WIDTH, HEIGHT))
    left, low = [int(one * wide) for one in uniform[:4]], [int(one * high) for one in uniform[4:]]
    start = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
    end = [
        [left[0], low[0]],
        [WIDTH - 1 - left[1], low[1]],
        [WIDTH - 1 - left[2], HEIGHT - 1 - low[2]],
        [left[3], HEIGHT - 1 - low[3]],
    ]
    return tv.perspective, (start, end), {}


WARPS: list[tuple[Any, Any]] = [
    (RandomRotation(35), rotation),
    (RandomRotation((80, 100), "bilinear", center=(3, 9.5), fill=(1, 20, 30)), rotation),
    (RandomRotation((90, 90), "bilinear", fill=None), rotation),
    (RandomRotation((180, 180)), rotation),
    (RandomAffine(20), affine),
    (RandomAffine(0, (0.3, 0.5)), affine),
    (RandomAffine((10, 50), (0.1, 0.2), (0.4, 1.9), (5, 20, -10, 30), "bilinear", 9, (11, 2)), affine),
    (RandomAffine(0, None, (0.5, 0.5), 40, fill=None), affine),
    (RandomPerspective(0.7, 1.0, fill=(7,)), perspective),
    (RandomPerspective(0.4, 1.0, "nearest", fill=(1, 2, 3)), perspective),
]


@pytest.mark.parametrize(
    ("step", "call_of"), WARPS, ids=lambda part: str(part)[:70] if isinstance(part, nn.Module) else ""
)
def test_a_warp_is_torchvisions(step: Any, call_of: Any) -> None:
    batch = detection()
    got = Collate(step, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    assert torch.equal(got.images, step(batch.images, seeds=batch.seeds))
    fill = None if step.fill is None else list(step.fill)
    apart = []
    for k in range(COUNT):
        change, args, options = call_of(step, Draws(batch.seeds.numpy(), 0), k)
        mode = tv.InterpolationMode(step.interpolation)
        image = change(batch.images[k], *args, **options, interpolation=mode, fill=fill)
        mask = change(tv_tensors.Mask(batch.masks[k]), *args, **options, fill=VOID).as_subclass(Tensor)
        apart.append((got.images[k].int() - image.int()).abs().amax(0))
        assert (got.masks[k] != mask).float().mean() < 0.004  # a coordinate half way between two pixels
        boxes = tv_tensors.BoundingBoxes(batch.boxes[k], format="XYXY", canvas_size=(HEIGHT, WIDTH))
        moved = change(boxes, *args, **options).as_subclass(Tensor)
        real = int(got.counts[k])
        kept = got.labels[k, :real]
        assert torch.allclose(got.boxes[k, :real], moved[kept], atol=2e-3)
        gone = torch.ones(MOST, dtype=torch.bool)
        gone[kept] = False
        assert (moved[gone, 2:] - moved[gone, :2]).amin(1).le(1e-3).all()
    limit = 0 if step.interpolation == "nearest" else 1
    assert (torch.stack(apart) > limit).float().mean() < 0.002


@pytest.mark.parametrize(
    "step",
    [
        RandomApply([RandomHorizontalFlip(1.0), RandomVerticalFlip(0.5)], 0.5),
        RandomChoice([RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0), RandomInvert(1.0)]),
        RandomOrder([RandomHorizontalFlip(), RandomVerticalFlip(), RandomInvert()]),
    ],
    ids=lambda step: type(step).__name__,
)
def test_boxes_and_masks_follow_drawn_flips(step: nn.Module) -> None:
    batch = detection(16)
    # Where each pixel came from, by an image that says so.
    rows, columns = torch.arange(HEIGHT).view(-1, 1).expand(HEIGHT, WIDTH), torch.arange(WIDTH).expand(HEIGHT, WIDTH)
    places = torch.stack((rows, columns, torch.zeros_like(rows)), 0).to(torch.uint8).expand(16, 3, -1, -1)
    got = Collate(step, dtype=torch.uint8)(batch.replace(images=places.contiguous()))
    seen = set()
    for k in range(16):
        corner = got.images[k, :, 0, 0].int()
        corner = 255 - corner if corner[2] else corner
        flips = [dim for dim, at in ((0, corner[0]), (1, corner[1])) if at]
        seen.add(tuple(flips))
        assert torch.equal(got.masks[k], batch.masks[k].flip(flips))
        boxes = tv_tensors.BoundingBoxes(batch.boxes[k], format="XYXY", canvas_size=(HEIGHT, WIDTH))
        boxes = tv.vertical_flip(boxes) if 0 in flips else boxes
        boxes = tv.horizontal_flip(boxes) if 1 in flips else boxes
        assert torch.allclose(got.boxes[k], boxes.as_subclass(Tensor), atol=1e-4)
    assert len(seen) > 2


def test_a_warp_then_a_flip_then_a_hole_is_one_pass_and_a_crop_another() -> None:
    batch = detection()
    warp, flip, hole = RandomAffine(30, (0.2, 0.2)), RandomHorizontalFlip(1.0), RandomErasing(1.0, value=200)
    crop = RandomCrop((20, 30))
    warped = warp(batch.images, seeds=batch.seeds)
    together = Collate(warp, flip, hole, dtype=torch.uint8)(batch)
    holes = Collate(RandomInvert(0.0), RandomInvert(0.0), hole, dtype=torch.uint8)
    assert torch.equal(together.images, holes(batch.replace(images=warped.flip(3))).images)
    assert torch.equal(together.masks, Collate(warp, dtype=torch.uint8)(batch).masks.flip(2))
    cropped = Collate(warp, flip, crop, dtype=torch.uint8)(batch)
    alone = Collate(RandomInvert(0.0), RandomInvert(0.0), crop, dtype=torch.uint8)
    flipped = Collate(warp, flip, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    later = alone(flipped)
    assert torch.equal(cropped.images, later.images)
    assert torch.equal(cropped.masks, later.masks)
    for k in range(COUNT):  # a box that a crop shows less than a pixel of is judged once
        real = int(cropped.counts[k])
        assert set(cropped.labels[k, :real].tolist()) <= set(later.labels[k].tolist())


def test_the_box_rule_counts_what_a_warp_cuts_off() -> None:
    batch = detection(32)
    warp = RandomAffine(0, (0.5, 0.5))
    strict = Collate(warp, box_rule=BoxRule(min_visible=0.6))(batch)
    for k in range(32):
        _, _, options = affine(warp, Draws(batch.seeds.numpy(), 0), k)
        moved = batch.boxes[k] + torch.tensor(options["translate"] * 2)
        inside = torch.minimum(moved.clamp(min=0), torch.tensor([WIDTH, HEIGHT] * 2))
        area, left = ((one[:, 2:] - one[:, :2]).clamp(min=0).prod(1) for one in (moved, inside))
        stays = (left >= 0.6 * area) & ((inside[:, 2:] - inside[:, :2]).amin(1) >= 1)  # all, as the image is cut
        if any(options["translate"]):
            assert strict.labels[k, : int(strict.counts[k])].tolist() == stays.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "step",
    [
        RandomPerspective(1.0, 1.0),
        RandomPerspective(1.0, 1.0, "nearest", fill=None),
        RandomAffine(1e6, (1, 1), (1e-3, 1e3), (-89.99, 89.99, -89.99, 89.99), "bilinear"),
        RandomAffine(0, (1.0, 1.0), (1e-3, 1e-3)),
        RandomRotation(1e6, center=(-65535, 65535)),
    ],
    ids=lambda part: str(part)[:50],
)
@pytest.mark.parametrize(("height", "width"), [(2, 2), (3, 5), (30, 20)])
def test_extreme_warps_have_no_nan(step: nn.Module, dtype: torch.dtype, height: int, width: int) -> None:
    """Corners that fall together, and pixels on the horizon."""
    count = 64
    frame = torch.tensor([[0.0, 0.0, width, height], [0.0, 0.0, 1.0, 1.0]])
    batch = batch_of(
        count,
        height=height,
        width=width,
        boxes=frame.repeat(count, 1, 1),
        masks=torch.zeros((count, height, width), dtype=torch.uint8),
    )
    batch = batch if dtype == torch.uint8 else batch.replace(images=batch.images / 255)
    got = Collate(step)(batch)
    assert got.images.isfinite().all()
    assert got.images.min() >= 0
    assert got.images.max() <= 1.0001
    assert got.boxes.isfinite().all()
    assert set(got.masks.unique().tolist()) <= {0, VOID}


@pytest.mark.parametrize("made", [partial(RandomRotation, 5), RandomPerspective, RandAugment, AutoAugment, AugMix])
def test_warps_a_fill_that_images_cannot_have_is_refused_before_a_pixel_is_read(made: Any) -> None:
    rows = batch_of(2).replace(images=None)
    for step in (lambda fill: made(fill=fill), lambda fill: RandomApply([made(fill=fill)])):
        with pytest.raises(ValueError, match="fill has 2 numbers and the images 3 channels"):
            Collate(step((1, 2))).prepare(rows, (3, 9, 9))
        for fill in (0.5, 256, -1):
            with pytest.raises(ValueError, match=f"fill is {fill}, and the images are uint8"):
                Collate(step(fill)).prepare(rows, (3, 9, 9))
        for fill in (9, -0.5, 1.5):
            with pytest.raises(ValueError, match=f"fill is {fill} and the images are floats from 0 to 1"):
                Collate(step(fill)).prepare(rows, (3, 9, 9), source=torch.float32)
        Collate(step(0.5)).prepare(rows, (3, 9, 9), source=torch.float32)


def test_warps_unsupported_arguments_raise() -> None:
    with pytest.raises(ValueError, match="expand is True, expected False"):
        RandomRotation(10, expand=True)
    with pytest.raises(ValueError, match="interpolation is 'bicubic', expected one of nearest, bilinear"):
        RandomAffine(10, interpolation="bicubic")
    with pytest.raises(ValueError, match="shear is 90, expected angles below 90"):
        RandomAffine(10, shear=90)
    with pytest.raises(ValueError, match=r"translate is \(0.1,\), expected two shares"):
        RandomAffine(10, translate=(0.1,))


def test_images_of_more_pixels_than_a_warp_can_count_are_refused() -> None:
    plan = Plan.unchanged(1, (1, 46_400, 46_400), 255.0)
    for step in (RandomRotation(5), RandAugment()):
        with pytest.raises(ValueError, match="46400 x 46400 are too large"):
            step.describe(plan, Draws(np.zeros(1, np.int64), 0))
