"""Geometry against torchvision's functional results for the same windows and flips."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor, nn

from mmload.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.step import Step, plan_for
from mmload.batch import Batch
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_sampling import windows

SHAPES = [(3, 20, 20), (1, 17, 31), (4, 9, 5), (3, 1, 1)]


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def seeds_for(count: int, epoch: int = 0) -> Tensor:
    return sample_seeds(7, epoch, torch.arange(count))


def described(step: Step, images: Tensor, seeds: Tensor) -> Plan:
    return step.describe(plan_for(images), Draws(seeds.numpy(), 0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padded_crop_is_torchvisions(shape: tuple[int, int, int], mode: str) -> None:
    pad = [3, 2, 1, 4] if min(shape[1:]) > 4 else [0, 0, 0, 0] if mode == "reflect" else [1, 1, 1, 1]
    images, seeds = pictures(24, shape), seeds_for(24)
    fill = tuple(float(10 * one + 5) for one in range(shape[0]))
    step = RandomCrop((max(shape[1] - 2, 1), max(shape[2] - 1, 1)), pad, fill=fill, padding_mode=mode)
    got = step(images, seeds)
    for k, window in enumerate(windows(described(step, images, seeds))):
        ground = list(fill) if mode == "constant" else None
        padded = tv.pad(images[k], pad, fill=ground, padding_mode=mode)
        expected = tv.crop(padded, window.top + pad[1], window.left + pad[0], *step.size)
        assert torch.equal(got[k], expected)


def test_far_padding_mirrors_again_and_again() -> None:
    images = pictures(40, (1, 3, 1))
    step = RandomCrop((3, 1), padding=9, padding_mode="reflect")
    for k, window in enumerate(windows(described(step, images, seeds_for(40)))):
        rows = [[0, 1, 2, 1][(window.top + y) % 4] for y in range(3)]
        assert torch.equal(step(images, seeds_for(40))[k, 0, :, 0], images[k, 0, rows, 0])


def test_pad_if_needed_pads_both_sides_as_torchvision_does() -> None:
    images, seeds = pictures(300, (2, 5, 6)), seeds_for(300)
    step = RandomCrop((8, 6), pad_if_needed=True)
    tops = {one.top for one in windows(described(step, images, seeds))}
    assert tops == {-3, -2, -1, 0}
    window = windows(described(step, images, seeds))[0]
    expected = tv.crop(tv.pad(images[0], [0, 3, 0, 3]), window.top + 3, window.left, 8, 6)
    assert torch.equal(step(images, seeds)[0], expected)


@pytest.mark.parametrize("size", [(10, 10), (21, 15), (8, 40), (20, 31), (13, 2)])
def test_center_crop_is_torchvisions(size: tuple[int, int]) -> None:
    images = pictures(2, (3, 20, 31))
    assert torch.equal(CenterCrop(size)(images), tv.center_crop(images, list(size)))


def test_flips_are_torchvisions() -> None:
    images, seeds = pictures(16, (3, 7, 10)), seeds_for(16)
    across, over = RandomHorizontalFlip(), RandomVerticalFlip()
    x = described(across, images, seeds).flip_x
    y = described(over, images, seeds).flip_y
    for k in range(16):
        expected = tv.horizontal_flip(images[k]) if x[k] else images[k]
        assert torch.equal(across(images, seeds)[k], expected)
        expected = tv.vertical_flip(images[k]) if y[k] else images[k]
        assert torch.equal(over(images, seeds)[k], expected)


def test_alternating_flips_mirror_half_of_the_rows_in_an_epoch_and_the_others_in_the_next() -> None:
    ids = torch.arange(20_000) * 3
    plan = plan_for(torch.empty((len(ids), 1, 1, 1), dtype=torch.uint8))

    def flips(epoch: int, seed: int = 0) -> Tensor:
        draws = Draws(seeds_for(len(ids), epoch).numpy(), 2, epoch=epoch, ids=ids.numpy())
        return torch.from_numpy(AlternatingHorizontalFlip(seed).describe(plan, draws).flip_x)

    first = flips(0)
    assert abs(float(first.double().mean()) - 0.5) < 0.015
    assert abs(float((first[1:] == first[:-1]).double().mean()) - 0.5) < 0.015
    assert all(torch.equal(flips(epoch), first ^ bool(epoch % 2)) for epoch in (1, 2, 3, 2**40, 2**40 + 1))
    assert abs(float((first == flips(0, seed=1)).double().mean()) - 0.5) < 0.015


def test_boxes_and_masks_follow_alternating_flips() -> None:
    images, ids = pictures(16, (3, 7, 10)), torch.arange(16)
    boxes = torch.tensor([[1.0, 2, 5, 6]]).expand(16, 1, 4).clone()
    batch = Batch(images=images, masks=images[:, 0], boxes=boxes, ids=ids, seeds=seeds_for(16), batch_size=[16])
    collate = Collate(AlternatingHorizontalFlip(), dtype=torch.uint8)
    collate.set_epoch(3)
    got = collate(batch)
    flipped = [not torch.equal(got.images[k], images[k]) for k in range(16)]
    assert 0 < sum(flipped) < 16
    for k in range(16):
        expected = tv.horizontal_flip(images[k]) if flipped[k] else images[k]
        assert torch.equal(got.images[k], expected)
        assert torch.equal(got.masks[k], expected[0])
        assert got.boxes[k].tolist() == ([[5, 2, 9, 6]] if flipped[k] else [[1, 2, 5, 6]])


@pytest.mark.parametrize("first_flip", [0.0, 1.0])
@pytest.mark.parametrize("then_flip", [0.0, 1.0])
def test_steps_compose_as_they_would_run_one_by_one(first_flip: float, then_flip: float) -> None:
    images, seeds = pictures(8, (3, 30, 41)), seeds_for(8)
    steps: list[Step] = [
        RandomHorizontalFlip(first_flip),
        RandomVerticalFlip(then_flip),
        RandomCrop((28, 40), padding=[1, 2, 3, 4], fill=9, padding_mode="constant"),
        RandomHorizontalFlip(then_flip),
        RandomCrop((20, 25)),
        RandomVerticalFlip(0.5),
        CenterCrop((11, 18)),
    ]
    expected = images
    for place, step in enumerate(steps):
        plan = step.describe(plan_for(expected), Draws(seeds.numpy(), place))
        out = torch.empty(plan.shape, dtype=torch.uint8)
        Rendering(plan, torch.uint8).render_batch(expected, out)
        expected = out
    composed = Collate(*steps, dtype=torch.uint8)
    batch = Batch(images=images, seeds=seeds, batch_size=[8])
    assert torch.equal(composed(batch).images, expected)


def test_padding_after_a_crop_does_not_bring_back_what_was_cropped() -> None:
    images = pictures(4, (3, 12, 12))
    collate = Collate(CenterCrop(6), RandomCrop(10, padding=2, fill=77), dtype=torch.uint8)
    expected = tv.pad(tv.center_crop(images, [6, 6]), [2, 2, 2, 2], fill=77)
    assert torch.equal(collate(images), expected)


def test_a_crop_that_equals_the_image_changes_nothing() -> None:
    images = pictures(3, (3, 8, 9))
    assert torch.equal(RandomCrop((8, 9))(images), images)


def test_steps_work_in_sequential_on_floats() -> None:
    images = pictures(4, (3, 9, 9)).float()
    flipped = nn.Sequential(RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0))(images)
    assert torch.equal(flipped, images.flip(-1, -2))


def test_geometry_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="padding_mode is 'wrap', expected"):
        RandomCrop(3, padding_mode="wrap")
    with pytest.raises(ValueError, match="size is \\(3, 0\\)"):
        CenterCrop((3, 0))
    with pytest.raises(ValueError, match="p is 1.5"):
        RandomHorizontalFlip(1.5)
    with pytest.raises(ValueError, match="a crop of 9 x 9 does not fit into images of 8 x 8"):
        RandomCrop(9)(pictures(1, (3, 8, 8)))
    with pytest.raises(ValueError, match="padding is \\(1, 2, 3\\)"):
        RandomCrop(9, padding=(1, 2, 3))
    with pytest.raises(ValueError, match="expected \\[B, C, H, W\\]"):
        RandomCrop(2)(pictures(1, (3, 8, 8))[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [24, 160])
@pytest.mark.parametrize("padding", [None, 3])
def test_windows_of_any_dtype_are_the_images_own_values(dtype: torch.dtype, size: int, padding: int | None) -> None:
    images = pictures(9, (3, size, size)).to(dtype)
    steps = nn.ModuleList([RandomCrop(size - 4, padding), RandomHorizontalFlip(), RandomVerticalFlip()])
    seeds = seeds_for(9)
    plan = plan_for(images)
    for number, step in enumerate(steps):
        plan = step.describe(plan, Draws(seeds.numpy(), number))
    out = torch.empty(plan.shape, dtype=dtype)
    Rendering(plan, dtype).render_batch(images, out)
    for k, window in enumerate(windows(plan)):
        ground = tv.pad(images[k], [padding or 0] * 4, fill=0)
        top, left = window.top + (padding or 0), window.left + (padding or 0)
        expected = ground[:, top : top + window.rows, left : left + window.cols]
        if plan.flip_x is not None and plan.flip_x[k]:
            expected = expected.flip(-1)
        if plan.flip_y is not None and plan.flip_y[k]:
            expected = expected.flip(-2)
        torch.testing.assert_close(out[k], expected, rtol=0, atol=0)
