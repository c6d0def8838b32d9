"""Mosaic against images put together by hand, torchvision's perspective, and plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from batches import detections
from mosaic_maps import maps_of
from tensordict import TensorDict
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from mmload.augment import (
    BoxRule,
    Mosaic,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomHSV,
    RandomResizedCrop,
)
from mmload.augment.collate import Collate
from mmload.augment.step import Draws
from mmload.batch import Batch

STILL: dict[str, Any] = {"translate": 0.0, "scale": 0.0}
ALL = BoxRule(min_size=0)


def batch_of(count: int, height: int = 40, width: int = 40, most: int = 4, channels: int = 3) -> Batch:
    """Boxes whose labels are unique."""
    batch = detections(count, (channels, height, width), most, targets=None, masks=None)
    numbers = torch.arange(count)[:, None] * most + torch.arange(most)
    batch.labels = torch.where(batch.labels >= 0, numbers, -1)
    return batch


def rows_of(step: Mosaic, batch: Batch) -> list[list[int]]:
    """The rows of each sample, own last."""
    draws = Draws(batch.seeds.numpy(), 0, epoch=0)
    rows = step.tile_rows(draws, np.arange(len(batch)), len(batch), lambda places: places)
    return [rows.numbers[rows.samples == k].tolist() for k in range(len(batch))]


def drawn(batch: Batch, layer: int = 0) -> Tensor:
    """The numbers of the canvases' maps, [B, 10]."""
    return torch.from_numpy(Draws(batch.seeds.numpy(), 0).branch(2 + layer).uniform(10))


def centers(batch: Batch) -> Tensor:
    """Rows and columns at which four images of 40 x 40 meet."""
    return ((0.5 + drawn(batch)[:, :2]) * 40).to(torch.int64)


def real_boxes(batch: Batch, k: int) -> dict[int, Tensor]:
    count = int(batch.counts[k])
    return dict(zip(batch.labels[k, :count].tolist(), batch.boxes[k, :count], strict=True))


def test_mosaic_without_a_map_is_the_middle_of_four_images() -> None:
    batch, step = batch_of(12), Mosaic(40, **STILL)
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    at, rows = centers(batch), rows_of(step, batch)
    assert made.images.shape == (12, 3, 40, 40)
    for k in range(12):
        y, x = at[k].tolist()
        canvas = torch.full((3, 160, 160), 114, dtype=torch.uint8)
        places = [(y, x), (y, x - 40), (y - 40, x), (y - 40, x - 40)]  # of the rows, which end with the sample's own
        for row, (top, left) in zip(rows[k], places, strict=True):
            canvas[:, 40 + top : 80 + top, 40 + left : 80 + left] = batch.images[row]
        assert rows[k][3] == k
        assert torch.equal(made.images[k], canvas[:, 60:100, 60:100])
        if len(set(rows[k])) < 4:
            continue
        wanted = {}
        for row, (top, left) in zip(rows[k], places, strict=True):
            for label, box in real_boxes(batch, row).items():
                on_canvas = (box + torch.tensor([left, top] * 2)).clamp(0, 80) - 20
                clipped = on_canvas.clamp(0, 40)
                if (clipped[2:] > clipped[:2]).all():
                    wanted[label] = clipped
        found = real_boxes(made, k)
        assert found.keys() == wanted.keys()
        for label, box in wanted.items():
            torch.testing.assert_close(found[label], box, rtol=0, atol=1e-4)


def test_mosaic_boxes_of_400_draws_are_those_of_torchvisions_perspective() -> None:
    count = 400
    batch = batch_of(count)
    step = Mosaic(40, p=0, degrees=30, translate=0.2, scale=0.4, shear=10, perspective=0.001)
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    maps = maps_of(step, drawn(batch), torch.full((count, 2), 40))
    inverse = torch.linalg.inv(maps)
    checked = 0
    for k in range(count):
        boxes = tv_tensors.BoundingBoxes(
            batch.boxes[k, : int(batch.counts[k])], format="XYXY", canvas_size=(40, 40), dtype=torch.float64
        )
        coefficients = (inverse[k] / inverse[k, 2, 2]).reshape(-1)[:8].tolist()
        moved = F.perspective(boxes, None, None, coefficients=coefficients).as_subclass(Tensor)
        moved = moved.clamp(0, 40)
        stays = ((moved[:, 2:] - moved[:, :2]) >= 1e-6).all(1)
        got = made.boxes[k, : int(made.counts[k])]
        torch.testing.assert_close(got, moved[stays].float(), rtol=0, atol=2e-3)
        assert made.labels[k, : int(made.counts[k])].tolist() == batch.labels[k, : len(stays)][stays].tolist()
        checked += int(stays.sum())
    assert checked > 400


def test_mosaic_pixels_are_those_of_torchvisions_perspective() -> None:
    batch = batch_of(60)
    smooth = torch.nn.functional.interpolate(batch.images[:, :, :8, :8].float(), (40, 40), mode="bilinear")
    batch.images = smooth.to(torch.uint8)
    step = Mosaic(40, p=0, degrees=30, translate=0.2, scale=0.4, shear=10, perspective=0.001)
    made = Collate(step, dtype=torch.uint8)(batch)
    inverse = torch.linalg.inv(maps_of(step, drawn(batch), torch.full((60, 2), 40)))
    y, x = torch.meshgrid(torch.arange(40) + 0.5, torch.arange(40) + 0.5, indexing="ij")
    for k in range(60):
        coefficients = (inverse[k] / inverse[k, 2, 2]).reshape(-1)[:8].tolist()
        wanted = F.perspective(batch.images[k], None, None, coefficients=coefficients)
        points = torch.einsum("ij,jyx->iyx", inverse[k], torch.stack([x, y, torch.ones_like(x)]).double())
        inside = ((points[:2] / points[2] > 0.6) & (points[:2] / points[2] < 39.4)).all(0)
        apart = (made.images[k].int() - wanted.int()).abs()
        assert apart[:, inside].max() <= 1
        outside = ((points[:2] / points[2] < -0.01) | (points[:2] / points[2] > 40.01)).any(0)
        assert (made.images[k][:, outside] == 114).all()


def test_mosaic_of_nine_covers_the_middle_and_has_the_boxes_of_nine() -> None:
    batch, step = batch_of(20, most=2), Mosaic(40, tiles=9, **STILL)
    batch.boxes[:] = torch.tensor([0.0, 0, 40, 40])
    batch.counts[:] = 1
    batch.labels = torch.stack([torch.arange(20), torch.full((20,), -1)], 1)
    batch.images = torch.arange(20, dtype=torch.uint8)[:, None, None, None].expand(20, 3, 40, 40).contiguous()
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    rows = rows_of(step, batch)
    at = centers(batch) - 20
    for k in range(20):
        assert len(rows[k]) == 9
        assert rows[k][-1] == k
        y, x = at[k].tolist()
        own = made.images[k, 0, max(y - 20, 0) : max(y + 20, 0), max(x - 20, 0) : max(x + 20, 0)]
        assert (own == k).all()  # the sample's own is in the middle and on top
        shown = set(made.images[k].unique().tolist())
        assert shown <= {114, *rows[k]}
        assert set(made.labels[k, : int(made.counts[k])].tolist()) <= set(rows[k])
        for label in made.labels[k, : int(made.counts[k])].tolist():
            assert label in shown or rows[k].count(label) > 1 or label != k


def test_mosaic_images_of_another_shape_are_letterboxed() -> None:
    batch = batch_of(3, 30, 60)
    made = Collate(Mosaic((40, 40), p=0, **STILL), dtype=torch.uint8, box_rule=ALL)(batch)
    assert (made.images[:, :, :10] == 114).all()
    assert (made.images[:, :, 30:] == 114).all()
    assert (made.images[:, :, 10:30] != 114).float().mean() > 0.9
    expected = batch.boxes * (40 / 60) + torch.tensor([0.0, 10, 0, 10])
    for k in range(3):
        stays = (batch.boxes[k, :, 2:] > batch.boxes[k, :, :2]).all(1)
        torch.testing.assert_close(made.boxes[k, : int(made.counts[k])], expected[k][stays], rtol=0, atol=1e-4)


def test_mosaic_probabilities_are_those_asked_for() -> None:
    batch = batch_of(2000, 4, 4)
    lengths = torch.tensor([len(rows) for rows in rows_of(Mosaic(16, p=0.3), batch)])
    assert set(lengths.tolist()) == {1, 4}
    assert 0.27 < (lengths == 4).float().mean() < 0.33
    step = Mosaic(16, mixup=0.2)
    blended = torch.tensor([len(rows) for rows in rows_of(step, batch)]) == 8
    assert 0.17 < blended.float().mean() < 0.23


def test_mosaic_stops_at_its_epoch() -> None:
    batch = batch_of(6)
    collate = Collate(Mosaic(40, stop_epoch=3, mixup=1.0, **STILL), dtype=torch.uint8, box_rule=ALL)
    with pytest.raises(ValueError, match="stop_epoch follows the epoch, which is not known"):
        collate(batch)
    collate.set_epoch(2)
    assert not torch.equal(collate(batch).images, batch.images)
    collate.set_epoch(3)
    assert torch.equal(collate(batch).images, batch.images)


def test_mixup_blends_two_mosaics_with_the_boxes_of_both() -> None:
    batch = batch_of(30)
    alone = Collate(Mosaic(40, **STILL), dtype=torch.uint8, box_rule=ALL)(batch)
    step = Mosaic(40, mixup=0.5, alpha=1e9, **STILL)  # half of each
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    blended = torch.tensor([len(rows) == 8 for rows in rows_of(step, batch)])
    assert 5 < blended.sum() < 25
    assert torch.equal(made.images[~blended], alone.images[~blended])
    other = 2 * made.images[blended].int() - alone.images[blended].int()
    assert (other >= -1).all()
    assert (other <= 256).all()
    assert (made.counts >= alone.counts).all()
    assert (made.counts[blended] > alone.counts[blended]).any()
    assert torch.equal(made.counts[~blended], alone.counts[~blended])


def test_steps_after_a_mosaic_join_its_pass() -> None:
    batch = batch_of(8)
    first = Collate(Mosaic(40, degrees=10), dtype=torch.uint8, box_rule=ALL)(batch)
    later = [RandomCrop(36), RandomHorizontalFlip(), RandomHSV()]
    apart = Collate(torch.nn.Identity(), *later, dtype=torch.uint8, box_rule=ALL)(first)
    made = Collate(Mosaic(40, degrees=10), *later, dtype=torch.uint8, box_rule=ALL)(batch)
    assert made.images.shape == (8, 3, 36, 36)
    assert torch.equal(made.images, apart.images)
    for k in range(8):
        assert real_boxes(made, k).keys() >= real_boxes(apart, k).keys()
    floats = Collate(Mosaic(40), Normalize.imagenet(), RandomHorizontalFlip())(batch)
    assert floats.images.dtype == torch.float32
    resized = Collate(Mosaic(40), RandomResizedCrop(20), dtype=torch.uint8)(batch)
    assert resized.images.shape == (8, 3, 20, 20)


def test_mosaic_fields_per_box_stay_with_their_boxes() -> None:
    batch = batch_of(8)
    more = {"area": batch.labels.float(), "iscrowd": batch.labels % 3 == 0, "place": torch.arange(8)}
    batch.extra = TensorDict(more, batch_size=[8])
    made = Collate(Mosaic(40, degrees=5))(batch)
    real = torch.arange(made.boxes.shape[1]) < made.counts[:, None]
    assert torch.equal(made.extra["area"][real], made.labels[real].float())
    assert torch.equal(made.extra["iscrowd"], (made.labels % 3 == 0) & real)
    assert torch.equal(made.difficult, (made.labels % 2 == 0) & real)
    assert made.extra["place"].tolist() == list(range(8))


def test_mosaic_keypoints_and_corners_move_with_their_boxes() -> None:
    batch = batch_of(60)
    x0, y0, x1, y1 = batch.boxes.unbind(2)
    corners = torch.stack((torch.stack((x0, x1, x1, x0), 2), torch.stack((y0, y0, y1, y1), 2)), 3)
    keypoints = torch.cat((corners[:, :, :3], torch.tensor([2.0, 1, 0]).expand(60, 4, 3)[..., None]), 3)
    batch.extra = TensorDict({"keypoints": keypoints, "corners": corners}, batch_size=[60])
    step = Mosaic(40, degrees=20, shear=5, perspective=0.001)
    made = Collate(step, dtype=torch.uint8, box_rule=ALL)(batch)
    real = torch.arange(made.boxes.shape[1]) < made.counts[:, None]
    points, boxes = made.extra["corners"][real], made.boxes[real]
    around = torch.cat((points.amin(1), points.amax(1)), 1)
    whole = (around >= 0).all(1) & (around <= 40).all(1)
    assert whole.sum() > 20
    cut_on_canvas = (boxes[whole] - around[whole]).abs().amax(1) > 1e-3
    assert cut_on_canvas.float().mean() < 0.3
    found = made.extra["keypoints"][real]
    inside = ((points[:, :3] >= 0) & (points[:, :3] <= 40)).all(2)
    shown = found[..., 2] > 0
    assert not shown[~inside].any()
    assert not shown[:, 2].any()  # which was not labeled
    assert shown[:, :2].any()
    torch.testing.assert_close(found[..., :2][shown], points[:, :3][shown])
    assert (found[~shown] == 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collate(Mosaic(40))(batch_of(2).replace(boxes=None)), "Mosaic needs boxes"),
        (lambda: Collate(Mosaic(40))(batch_of(2, channels=5)), "at most 4 channels, these have 5"),
        (lambda: Collate(Mosaic(40, fill=(1, 2)))(batch_of(2)), "fill has 2 numbers and the images 3 channels"),
        (
            lambda: Collate(Mosaic(40))(batch_of(2).replace(images=torch.rand(2, 3, 40, 40))),
            "Mosaic takes uint8 images on a CPU, these are torch.float32",
        ),
        (
            lambda: Collate(Mosaic(40))(batch_of(2).replace(masks=torch.zeros((2, 40, 40), dtype=torch.uint8))),
            "leave masks out of fields",
        ),
    ],
)
def test_mosaic_what_cannot_be_done_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("later", [[], [RandomHorizontalFlip()], [RandomHSV()]])
def test_mosaic_sizes_of_images_on_a_canvas_do_not_stay(later: list[Any]) -> None:
    batch = batch_of(3).replace(image_sizes=torch.full((3, 2), 20))
    made = Collate(Mosaic(40), *later, dtype=torch.uint8)(batch)
    assert made.image_sizes is None
    assert [tuple(image.shape) for image in made.to_torchvision()[0]] == [(3, 40, 40)] * 3


@pytest.mark.parametrize("counts", [5, 3_000_000, -1])
def test_mosaic_counts_of_tiles_that_are_no_numbers_of_boxes_are_refused(counts: int) -> None:
    batch, step = batch_of(4), Mosaic(40)
    draws = Draws(batch.seeds.numpy(), 0)
    tiles = step.tiles_of(batch, draws, (3, 40, 40), torch.uint8, None)
    wrong = tiles._replace(fields={**tiles.fields, "counts": torch.full((len(tiles.sizes),), counts)})
    with pytest.raises(ValueError, match=rf"counts are from {counts} to {counts}, and boxes have room for 4"):
        step.composed(wrong, draws, 3)
