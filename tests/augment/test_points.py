"""Keypoints, corners and polygons follow the pixels, as torchvision's keypoints and as boxes do."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from tensordict import TensorDict
from torch import Tensor
from torchvision import tv_tensors

from mmload.augment import (
    CenterCrop,
    Letterbox,
    Mosaic,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, Step
from mmload.batch import Batch
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows

HEIGHT, WIDTH, MOST, POINTS = 40, 52, 4, 3
FLIPS = (0, 2, 1)


def people(count: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand((count, MOST, 2, 2), generator=generator) * torch.tensor([WIDTH, HEIGHT])
    boxes = torch.cat((corners.amin(2), corners.amax(2)), dim=2)
    x0, y0, x1, y1 = boxes.unbind(2)
    places = torch.rand((count, MOST, POINTS, 2), generator=generator) * torch.tensor([WIDTH, HEIGHT])
    shown = torch.randint(0, 3, (count, MOST, POINTS, 1), generator=generator).float()
    extra = {
        "keypoints": torch.cat((places * (shown > 0), shown), 3),
        "keypoint_flips": torch.tensor(FLIPS, dtype=torch.uint8).expand(count, POINTS),
        "corners": torch.stack((torch.stack((x0, x1, x1, x0), 2), torch.stack((y0, y0, y1, y1), 2)), 3),
        "area": torch.arange(count * MOST).view(count, MOST).float(),
    }
    return Batch(
        images=torch.randint(0, 256, (count, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator),
        boxes=boxes,
        labels=torch.arange(MOST).expand(count, MOST).contiguous(),
        counts=torch.full((count,), MOST),
        seeds=sample_seeds(5, 0, torch.arange(count)),
        extra=TensorDict(extra, batch_size=[count]),
        batch_size=[count],
    )


def plan_of(steps: list[Step], batch: Batch) -> Plan:
    plan = Plan.unchanged(len(batch), (3, HEIGHT, WIDTH), 255.0)
    for place, step in enumerate(steps):
        plan = step.describe(plan, Draws(batch.seeds.numpy(), place))
    return plan


def theirs(value: Tensor, window: Window, plan: Plan) -> Tensor:
    """torchvision's keypoints, step by step."""
    value = tv.crop(value, *window[:4])
    if plan.resampling is not None:
        rows, cols, top, left = window.placed
        value = tv.crop(tv.resize(value, [rows, cols]), -top, -left, plan.height, plan.width)
    value = tv.horizontal_flip(value) if -1 in window.flips else value
    value = tv.vertical_flip(value) if -2 in window.flips else value
    return value.as_subclass(Tensor)


LISTS: list[list[Step]] = [
    [RandomCrop((24, 31)), RandomHorizontalFlip(), RandomVerticalFlip()],
    [RandomCrop((36, 50), padding=9), RandomHorizontalFlip()],
    [RandomResizedCrop((33, 27)), RandomHorizontalFlip()],
    [Resize((60, 70)), CenterCrop((48, 50)), RandomVerticalFlip()],
    [RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)],
]


@pytest.mark.parametrize("steps", LISTS)
def test_keypoints_are_torchvisions(steps: list[Step]) -> None:
    batch = people(200)
    plan = plan_of(steps, batch)
    got = Collate(*steps)(batch)
    for k, window in enumerate(windows(plan)):
        before = batch.extra["keypoints"][k]
        points = tv_tensors.KeyPoints(before[..., :2], canvas_size=(HEIGHT, WIDTH))
        expected, shown = theirs(points, window, plan), before[..., 2]
        if len(window.flips) == 1:
            expected, shown = expected[:, list(FLIPS)], shown[:, list(FLIPS)]
        kept = got.labels[k, : int(got.counts[k])]
        ours = got.extra["keypoints"][k, : len(kept)]
        seen = ours[..., 2] > 0
        assert torch.allclose(ours[..., :2][seen], expected[kept][seen], atol=1e-3, rtol=0)
        assert torch.equal(ours[..., 2][seen], shown[kept][seen])
        assert not ours[..., :2][~seen].any()
        x, y = expected[kept].unbind(2)
        inside = (
            (x >= 1) & (y >= 1) & (x <= plan.width - 2) & (y <= plan.height - 2)
        )  # the edge of a flip is a pixel off
        assert torch.equal(seen & inside, (shown[kept] > 0) & inside)
        outside = (x < -1) | (y < -1) | (x > plan.width + 1) | (y > plan.height + 1)
        assert not (seen & outside).any()
        assert torch.equal(got.extra["area"][k, : len(kept)], batch.extra["area"][k, kept])
        assert not got.extra["area"][k, len(kept) :].any()


ALL: list[list[Step]] = [
    *LISTS,
    [RandomRotation(30)],
    [RandomAffine(20, translate=(0.1, 0.2), scale=(0.6, 1.4), shear=10), RandomHorizontalFlip()],
    [RandomPerspective(0.4, p=0.8), RandomVerticalFlip()],
    [Letterbox(64), RandomHorizontalFlip()],
]


@pytest.mark.parametrize("steps", ALL)
def test_corners_are_those_of_boxes_that_are_not_cut(steps: list[Step]) -> None:
    batch = people(1000)
    got = Collate(*steps)(batch)
    real = torch.arange(MOST) < got.counts[:, None]
    corners = got.extra["corners"]
    around = torch.cat((corners.amin(2), corners.amax(2)), 2)
    height, width = got.images.shape[2:]
    inside = real & (around[..., :2] >= 0).all(2) & (around[..., 2] <= width) & (around[..., 3] <= height)
    assert inside.any()
    assert torch.allclose(around[inside], got.boxes[inside], atol=2e-3, rtol=0)
    clipped = around.clamp(min=0).minimum(torch.tensor([width, height] * 2))
    if not any(isinstance(step, RandomAffine | RandomPerspective | RandomRotation) for step in steps):
        assert torch.allclose(clipped[real], got.boxes[real], atol=2e-3, rtol=0)
    assert not corners[~real].any()


def test_fields_of_these_names_that_are_no_points_stay() -> None:
    batch = people(4)
    extra = TensorDict({"keypoints": torch.ones(4, 17), "area": torch.arange(4)}, batch_size=[4])
    got = Collate(RandomHorizontalFlip(1.0))(batch.replace(extra=extra))
    assert torch.equal(got.extra["keypoints"], extra["keypoints"])
    assert torch.equal(got.extra["area"], extra["area"])


def test_keypoints_without_a_table_stay_in_their_places_in_a_flip() -> None:
    batch = people(4)
    del batch.extra["keypoint_flips"]
    got = Collate(RandomHorizontalFlip(1.0))(batch)
    before = batch.extra["keypoints"]
    expected = torch.where(before[..., 2] > 0, WIDTH - 1 - before[..., 0], 0.0)
    assert torch.allclose(got.extra["keypoints"][..., 0], expected)


def test_a_foreign_module_that_moves_boxes_is_refused_beside_keypoints() -> None:
    from torchvision.transforms import v2

    from mmload.augment import PerSample

    with pytest.raises(ValueError, match="would not move keypoints"):
        Collate(PerSample(v2.RandomHorizontalFlip(1.0)))(people(2))
    got = Collate(PerSample(v2.RandomGrayscale(1.0)))(people(2))
    assert torch.equal(got.extra["keypoints"], people(2).extra["keypoints"])


def test_keypoints_follow_a_mosaic_and_the_flip_after_it() -> None:
    still = Mosaic(32, p=0, scale=0, translate=0)  # the image as it is, letterboxed
    mirrored, plain = (Collate(still, *more)(people(3)) for more in ([RandomHorizontalFlip(1.0)], []))
    assert torch.equal(mirrored.counts, plain.counts)
    flips = plain.extra["keypoint_flips"].to(torch.int64)[:, None, :, None].expand_as(plain.extra["keypoints"])
    exchanged = plain.extra["keypoints"].gather(2, flips)
    x = torch.where(exchanged[..., 2] > 0, 31 - exchanged[..., 0], 0.0)
    torch.testing.assert_close(mirrored.extra["keypoints"][..., 0], x)


@pytest.mark.parametrize("side", [612, 427])
@pytest.mark.parametrize("size", [320, 640])
def test_keypoints_on_the_edge_of_an_image_stay_labeled_in_a_letterbox(side: int, size: int) -> None:
    edge = [[x, y, 2] for x in (0, side) for y in (0, side)]
    extra = TensorDict({"keypoints": torch.tensor([[[*edge, [side + 1, 9, 2]]]]).float()}, batch_size=[1])
    images, boxes = torch.zeros(1, 3, side, side, dtype=torch.uint8), torch.tensor([[[0.0, 0, side, side]]])
    batch = Batch(images=images, boxes=boxes, counts=torch.tensor([1]), extra=extra, batch_size=[1])
    assert Collate(Letterbox(size))(batch).extra["keypoints"][0, 0, :, 2].tolist() == [2, 2, 2, 2, 0]
