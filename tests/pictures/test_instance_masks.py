"""Masks of polygons and run lengths are pycocotools', as they are and after steps that move them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from coco_sets import CocoSet, coco_dataset, uncompressed

import mmload
from mmload.augment import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, RandomShortestSize, RandomVerticalFlip
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.pictures.instance_masks import mask_of_runs, masks_of_boxes, rectangles_of_runs
from mmload.remote.opening import open as open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools


def theirs(polygon, height, width):
    functions = pytest.importorskip("pycocotools.mask")
    return functions.decode(functions.frPyObjects([polygon], height, width))[..., 0]


def mask_of_polygon(points, height, width):
    fields = {"counts": np.int64(1), "rings": np.array([[0, len(points)]], np.int32), "polygons": points}
    (mask,) = masks_of_boxes(fields, height, width)
    return mask.astype(np.bool_)


def test_mask_of_a_polygon_that_reaches_far_takes_little_memory():
    far = np.array([[-1e30, -1e30], [np.inf, -1e30], [1e30, 1e30], [-1e30, 1e30]], np.float32)
    assert mask_of_polygon(far, 20, 30).all()
    far[0] = np.nan
    assert mask_of_polygon(far, 20, 30).shape == (20, 30)


def test_mask_of_a_polygon_is_that_of_pycocotools():
    random = np.random.default_rng(0)
    for number in range(2000):
        height, width = random.integers(1, 50, 2).tolist()
        points = random.uniform(-0.3, 1.3, (int(random.integers(3, 12)), 2)) * [width, height]
        points = points.round(int(random.integers(0, 3))) if number % 3 else (2 * points).round(1) + 0.1  # ties
        points = np.maximum(points, 0) if number % 2 else points
        mask = mask_of_polygon(points, height, width)
        expected = theirs(points.reshape(-1).tolist(), height, width)
        if not (np.roll(points, -1, 0) == points).all(1).any():  # equal neighbors are undefined there
            np.testing.assert_array_equal(mask, expected, err_msg=f"{points.tolist()} in {height} x {width}")


def test_rectangles_cover_the_pixels_of_run_lengths():
    random = np.random.default_rng(0)
    for _ in range(200):
        mask = random.random(random.integers(1, 20, 2)) < random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        runs = np.array(uncompressed(mask)["counts"], np.int32)
        covered = np.zeros(mask.shape, np.bool_)
        for rectangle in rectangles_of_runs(runs, len(mask)):
            covered |= mask_of_polygon(rectangle, *mask.shape)
        np.testing.assert_array_equal(covered, mask)


def test_rectangles_of_runs_beyond_any_image_take_little_memory():
    tracemalloc.start()
    assert len(rectangles_of_runs(np.array([0, 2**31 - 1], np.int32), 64)) == 2
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return open_dataset(coco_dataset(tmp_path_factory.mktemp("masks")))["train"]


def test_instance_masks_of_stored_rows_are_their_polygons_and_runs(split):
    batch = split[:]
    for row, masks in enumerate(batch.instance_masks()):
        assert masks.shape == (int(batch.counts[row]), 64, 64)
        ends = batch.extra["rings"][row, :, 1].cumsum(0).tolist()
        expected = torch.zeros_like(masks)
        for (box, count), end in zip(batch.extra["rings"][row].tolist(), ends, strict=True):
            if count:
                polygon = batch.extra["polygons"][row, end - count : end].reshape(-1).tolist()
                expected[box] |= torch.from_numpy(theirs(polygon, 64, 64))
        first = 0
        for box, count in batch.extra["run_boxes"][row].tolist():
            if count:
                runs = batch.extra["runs"][row, first : first + count].numpy()
                expected[box] |= torch.from_numpy(mask_of_runs(runs, 64, 64).astype(np.uint8))
            first += count
        assert torch.equal(masks, expected)


@pytest.mark.parametrize(
    ("steps", "moved"),
    [
        ([RandomHorizontalFlip(1.0)], lambda mask: mask.flip(-1)),
        ([RandomVerticalFlip(1.0)], lambda mask: mask.flip(-2)),
        ([CenterCrop((40, 50))], lambda mask: mask[:, 12:52, 7:57]),
    ],
)
def test_instance_masks_follow_the_pixels(split, steps, moved):
    before = split[:]
    after = mmload.Collate(*steps)(before)
    count = before.boxes.shape[1]
    for row, masks in enumerate(after.instance_masks()):
        expected = moved(before.instance_masks()[row])
        kept = after.extra["area"][row, : int(after.counts[row])]
        sources = [int((before.extra["area"][row, :count] == area).nonzero()[0]) for area in kept]
        different = (masks != expected[sources]).flatten(1).sum(1)
        edges = 4 * (expected[sources].diff(dim=1).abs().flatten(1).sum(1) + 4)
        assert (different <= edges).all()  # the rule is not symmetric: pixels of the edge may differ
        assert (different <= 0.2 * masks.flatten(1).sum(1) + 12).all()


def test_torchvision_targets_have_what_its_models_take(split):
    from torchvision import tv_tensors

    collate = mmload.Collate(RandomResizedCrop((48, 48)), RandomHorizontalFlip())
    (batch,) = mmload.Loader(split, batch_size=len(split), collate=collate, returns="torchvision")
    for image, target in zip(*batch, strict=True):
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert isinstance(target["masks"], tv_tensors.Mask)
        assert target["boxes"].canvas_size == (48, 48)
        count = len(target["boxes"])
        assert image.shape == (3, 48, 48)
        assert target["masks"].shape == (count, 48, 48)
        assert len(target["iscrowd"]) == len(target["area"]) == len(target["labels"]) == count
        assert target["image_id"].shape == ()


def test_instance_masks_of_a_dataset_are_those_of_its_file(tmp_path):
    coco, random = pytest.importorskip("pycocotools.coco"), np.random.default_rng(0)
    made = CocoSet(tmp_path / "coco")
    for image in range(1, 5):
        made.image(image, 60, 80)
        for number in range(50):
            points = random.uniform(0, [80, 60], (int(random.integers(3, 9)), 2)).round(2)
            points = points if number % 2 else ((5 * points).round() + 0.5).clip(0, 299.5).round(1) / 5
            polygon = points.round(2).reshape(-1).tolist()
            made.object(image, [0, 0, 80, 60], segmentation=[polygon])
    recipe = BuildRecipe(
        kind="coco", root=made.write(), out=tmp_path / "built", options={"task": "instances"},
        variable_layout=VariableLayout(encode="raw"),
    )  # fmt: skip
    rows, file = open_dataset(build(recipe).out)["train"][:], coco.COCO(made.file)
    for image, masks in enumerate(rows.instance_masks(), 1):
        np.testing.assert_array_equal(masks, [file.annToMask(each) for each in file.imgToAnns[image]])


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    return open_dataset(coco_dataset(tmp_path_factory.mktemp("sizes"), size=None))["train"]


def test_instance_masks_of_variable_size_rows_have_the_size_of_each(sizes):
    batch = sizes[:]
    for row, masks in enumerate(batch.instance_masks()):
        assert masks.shape == (int(batch[row].counts), *batch[row].images.shape[1:])
        assert masks.sum() > 0 or not len(masks)


def test_instance_masks_of_images_on_a_canvas_have_its_size(sizes):
    (batch,) = mmload.Loader(sizes, batch_size=len(sizes), collate=mmload.Collate(RandomShortestSize([40], 60)))
    assert len({tuple(size) for size in batch.image_sizes.tolist()}) > 1
    _, targets = batch.to_torchvision()
    for masks, (height, width), target in zip(batch.instance_masks(), batch.image_sizes, targets, strict=True):
        assert masks.shape[1:] == batch.images.shape[2:]
        assert masks[:, height:].sum() == masks[:, :, width:].sum() == 0
        assert torch.equal(target["masks"], masks[:, :height, :width])


def test_instance_masks_without_images_say_what_is_missing(split):
    with pytest.raises(ValueError, match="images"):
        split[:].replace(images=None).instance_masks()
