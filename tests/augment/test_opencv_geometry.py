"""Geometry that torchvision has no step for, against OpenCV, 300 draws each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from mosaic_maps import maps_of
from tensordict import TensorDict
from torch import Tensor

from mmload.augment import (
    BoxRule,
    Mosaic,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.batch import Batch

cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
COUNT, SIDE, POINTS = 300, 40, 5
ALL = BoxRule(min_size=0)
HALF = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
"""From OpenCV's coordinates, in which centers of pixels are integers."""


def drawn(count: int = COUNT) -> Batch:
    """Smooth images with a box each that has keypoints, corners and a polygon, and a box around the image."""
    generator = torch.Generator().manual_seed(7)
    levels = torch.randint(0, 256, (count, 3, 6, 6), generator=generator).float()
    images = torch.nn.functional.interpolate(levels, (SIDE, SIDE), mode="bilinear").to(torch.uint8)
    ends = torch.rand((count, 2, 2), generator=generator) * SIDE
    box = torch.cat((ends.amin(1), ends.amax(1)), 1)
    boxes = torch.stack((torch.tensor([0.0, 0, SIDE, SIDE]).expand(count, 4), box), 1)
    corners = boxes[:, :, [0, 1, 2, 1, 2, 3, 0, 3]].view(count, 2, 4, 2)
    places = torch.rand((count, 2, POINTS, 2), generator=generator) * SIDE
    angles = torch.arange(9) * (2 * torch.pi / 9)
    radii = 6 + 12 * torch.rand((count, 9, 1), generator=generator)
    polygons = 20 + radii * torch.stack((angles.cos(), angles.sin()), 1)
    extra = {
        "keypoints": torch.cat((places, torch.full((count, 2, POINTS, 1), 2.0)), 3),
        "corners": corners,
        "rings": torch.tensor([[1, 9]], dtype=torch.int32).expand(count, 1, 2).contiguous(),
        "polygons": polygons,
    }
    return Batch(
        images=images,
        boxes=boxes,
        labels=torch.tensor([0, 1]).expand(count, 2).contiguous(),
        counts=torch.full((count,), 2),
        seeds=sample_seeds(3, 0, torch.arange(count)),
        extra=TensorDict(extra, batch_size=[count]),
        batch_size=[count],
    )


def moved(points: Tensor, matrix: Any) -> np.ndarray[Any, Any]:
    """Points [..., 2] through a map by OpenCV."""
    flat = points.reshape(-1, 1, 2).double().numpy()
    return cv2.perspectiveTransform(flat, matrix).reshape(points.shape)


STEPS = [
    Mosaic(SIDE, p=0, degrees=30, translate=0.2, scale=0.4, shear=10, perspective=0.001),
    RandomAffine(25, translate=(0.2, 0.1), scale=(0.6, 1.4), shear=(-8, 8, -5, 5), interpolation="bilinear"),
    RandomPerspective(0.5, p=0.9),
    RandomRotation(60, interpolation="bilinear"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_keypoints_corners_polygons_and_pixels_go_through_opencvs_map(step: Any) -> None:
    batch = drawn()
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    masks, before = made.instance_masks(), batch.instance_masks()
    pixels = overlap = union = 0
    for k in range(COUNT):
        labels = made.labels[k, : int(made.counts[k])].tolist()
        found = made.extra["corners"][k, labels.index(0)]  # where the corners of the image are
        matrix = cv2.getPerspectiveTransform(batch.extra["corners"][k, 0].numpy(), found.numpy()).astype(np.float64)
        for place, label in enumerate(labels):
            corners = moved(batch.extra["corners"][k, label], matrix)
            assert np.allclose(made.extra["corners"][k, place].numpy(), corners, atol=0.02)
            wanted = moved(batch.extra["keypoints"][k, label, :, :2], matrix)
            points = made.extra["keypoints"][k, place].numpy()
            shown, inside = points[:, 2] > 0, ((wanted >= 0.02) & (wanted <= SIDE - 0.02)).all(1)
            assert np.allclose(points[shown, :2], wanted[shown], atol=0.02)
            assert not (inside & ~shown).any()
            around = np.concatenate((corners.min(0), corners.max(0))).clip(0, SIDE)
            assert np.allclose(made.boxes[k, place].numpy(), around, atol=0.02)
        pixel_map = np.linalg.inv(HALF) @ matrix @ HALF
        ones = np.ones((SIDE, SIDE), np.float32)
        warped = cv2.warpPerspective(batch.images[k].permute(1, 2, 0).numpy(), pixel_map, (SIDE, SIDE))
        within = cv2.warpPerspective(ones, pixel_map, (SIDE, SIDE)) > 0.999
        if not isinstance(step, RandomPerspective):  # it takes the nearest pixel
            apart = np.abs(made.images[k].permute(1, 2, 0).numpy().astype(int) - warped)[within]
            assert apart.max(initial=0) <= 3  # OpenCV rounds places to a 32nd of a pixel
            pixels += int(within.sum())
        if 1 in labels:
            mask = cv2.warpPerspective(before[k][1].numpy().astype(np.float32), pixel_map, (SIDE, SIDE)) > 0.5
            own = masks[k][labels.index(1)].numpy().astype(bool)
            overlap, union = overlap + int((mask & own).sum()), union + int((mask | own).sum())
    assert pixels > 400 * COUNT or isinstance(step, RandomPerspective)
    assert overlap > 0.95 * union
    assert union > 100 * COUNT


def test_mosaic_of_four_is_opencvs_warp_of_the_canvas() -> None:
    batch = drawn()
    step = Mosaic(SIDE, degrees=20, translate=0.2, scale=0.4, shear=5, perspective=0.0005)
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    draws = Draws(batch.seeds.numpy(), 0)
    rows = step.tile_rows(draws, np.arange(COUNT), COUNT, lambda places: places)
    numbers = torch.from_numpy(draws.branch(2).uniform(10))
    maps = maps_of(step, numbers, torch.full((COUNT, 2), 2 * SIDE)).numpy()
    meeting = ((0.5 + numbers[:, :2]) * SIDE).long().tolist()
    checked = 0
    for k, (y, x) in enumerate(meeting):
        canvas = np.full((4 * SIDE, 4 * SIDE, 3), 114, np.uint8)
        near = np.ones((4 * SIDE, 4 * SIDE), np.float32)  # what is not next to an edge of a tile
        corners = [(y, x), (y, x - SIDE), (y - SIDE, x), (y - SIDE, x - SIDE)]
        for row, (top, left) in zip(rows.numbers[rows.samples == k].tolist(), corners, strict=True):
            part = slice(SIDE + top, 2 * SIDE + top), slice(SIDE + left, 2 * SIDE + left)
            canvas[part] = batch.images[row].permute(1, 2, 0).numpy()
            for edge in (SIDE + top, 2 * SIDE + top):
                near[edge - 1 : edge + 1] = 0
            for edge in (SIDE + left, 2 * SIDE + left):
                near[:, edge - 1 : edge + 1] = 0
        canvas, near = canvas[SIDE : 3 * SIDE, SIDE : 3 * SIDE], near[SIDE : 3 * SIDE, SIDE : 3 * SIDE]
        near[[0, -1]] = near[:, [0, -1]] = 0
        pixel_map = np.linalg.inv(HALF) @ maps[k] @ HALF
        warped = cv2.warpPerspective(canvas, pixel_map, (SIDE, SIDE), borderValue=(114,) * 3)
        inside = cv2.warpPerspective(near, pixel_map, (SIDE, SIDE)) > 0.999
        apart = np.abs(made.images[k].permute(1, 2, 0).numpy().astype(int) - warped)[inside]
        assert apart.max(initial=0) <= 3
        checked += int(inside.sum())
    assert checked > 500 * COUNT
