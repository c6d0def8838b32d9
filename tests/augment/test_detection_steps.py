"""The steps for detection against torchvision, with the draws that they made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload.augment import (
    AlternatingHorizontalFlip,
    BoxRule,
    CenterCrop,
    Letterbox,
    Normalize,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    sample_seeds,
)
from mmload.augment.boxes import boxes_in, following_fields
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.step import Step
from mmload.batch import Batch, fields_of
from mmload.render.plan import Plan
from mmload.render.plan_copies import with_tensors
from mmload.render.rendering import Rendering

HEIGHT, WIDTH, MOST = 40, 52, 5
FILL = (123, 117, 104)
Items = dict[str, Any]


def batch_of(count: int, height: int = HEIGHT, width: int = WIDTH) -> Batch:
    generator = torch.Generator().manual_seed(9)
    corners = torch.rand((count, MOST, 2, 2), generator=generator) * torch.tensor([width, height])
    counts = torch.randint(0, MOST + 1, (count,), generator=generator)
    real = torch.arange(MOST) < counts[:, None]
    return Batch(
        images=torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator),
        boxes=torch.cat((corners.amin(2), corners.amax(2)), dim=2) * real[:, :, None],
        labels=torch.where(real, torch.arange(MOST), -1),
        counts=counts,
        masks=torch.randint(0, 9, (count, height, width), dtype=torch.uint8, generator=generator),
        seeds=sample_seeds(1, 0, torch.arange(count)),
        ids=torch.arange(count),
        batch_size=[count],
    )


def plans_of(steps: list[Step], batch: Batch) -> list[Plan]:
    """The plan after each of the steps of one pass."""
    plan = Plan.unchanged(len(batch), tuple(batch.images.shape[1:]), 255.0)
    plans, fields = [], following_fields(fields_of(batch))
    for place, step in enumerate(steps):
        plan = step.describe(plan, Draws(batch.seeds.numpy(), place, boxes=lambda seen: boxes_in(fields, seen, None)))
        plans.append(plan)
    return plans


def items_of(batch: Batch, k: int) -> Items:
    size = batch.images.shape[-2], batch.images.shape[-1]
    boxes = tv_tensors.BoundingBoxes(batch.boxes[k, : int(batch.counts[k])], format="XYXY", canvas_size=size)
    labels = batch.labels[k, : int(batch.counts[k])]
    return {
        "images": tv_tensors.Image(batch.images[k]),
        "boxes": boxes,
        "masks": tv_tensors.Mask(batch.masks[k]),
        "labels": labels,
    }


def on_all(items: Items, change: Any) -> Items:
    return {name: item if name == "labels" else change(item, name) for name, item in items.items()}


def resized(items: Items, size: list[int], mode: str, antialias: bool) -> Items:
    """torchvision's resize; of masks as its 0.29 has it, where ``nearest-exact`` holds for them, too."""
    how = InterpolationMode(mode)
    exact = mode == "nearest-exact"
    masks = F.resize_image(items["masks"].as_subclass(Tensor)[None], size, how)[0] if exact else items["masks"]
    items = on_all(items, lambda item, name: F.resize(item, size, how, antialias=antialias))
    return {**items, "masks": tv_tensors.Mask(masks)} if exact else items


def expect(got: Batch, k: int, items: Items, least: float = 1.0) -> None:
    """Sample ``k`` is torchvision's, with the boxes that have a pixel at least."""
    assert torch.equal(got.masks[k], items["masks"].as_subclass(Tensor))
    boxes = F.clamp_bounding_boxes(items["boxes"]).as_subclass(Tensor)
    stays = (boxes[:, 2:] - boxes[:, :2] >= least).all(1)
    count = int(got.counts[k])
    assert got.labels[k, :count].tolist() == items["labels"][stays].tolist()
    torch.testing.assert_close(got.boxes[k, :count], boxes[stays], rtol=0, atol=1e-3)
    assert (got.labels[k, count:] == -1).all()
    assert torch.equal(got.images[k], items["images"].as_subclass(Tensor))


MODES = [("bilinear", True), ("bilinear", False), ("nearest", True), ("bicubic", True), ("nearest-exact", True)]


@pytest.mark.parametrize(("mode", "antialias"), MODES)
@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (30, 30)])
def test_scale_jitter_is_torchvisions_resize_in_a_fixed_size(
    shape: tuple[int, int], mode: str, antialias: bool
) -> None:
    batch = batch_of(24, *shape)
    step = ScaleJitter((36, 44), (0.2, 2.0), mode, antialias, FILL, mask_fill=7)
    (plan,) = plans_of([step], batch)
    placed = plan.resampling.placement
    got = Collate(step, dtype=torch.uint8)(batch)
    assert {bool(one < 0) for one in placed.top} == {True, False}
    for k in range(24):
        size = [int(placed.rows[k]), int(placed.cols[k])]
        items = resized(items_of(batch, k), size, mode, antialias)
        top, left = -int(placed.top[k]), -int(placed.left[k])
        rows, cols = min(size[0], 36), min(size[1], 44)
        items = on_all(items, lambda item, name: F.crop(item, top, left, rows, cols))  # noqa: B023
        borders = [0, 0, 44 - cols, 36 - rows]
        items = on_all(items, lambda item, name: F.pad(item, borders, 7 if name == "masks" else FILL))  # noqa: B023
        expect(got, k, items, 1.0 if (rows, cols) != tuple(size) else -1.0)


@pytest.mark.parametrize(("mode", "antialias"), MODES)
def test_shortest_sizes_are_torchvisions_beside_the_fill(mode: str, antialias: bool) -> None:
    batch = batch_of(24)
    step = RandomShortestSize((20, 31, 47), 55, mode, antialias, FILL)
    transform = v2.RandomShortestSize([20, 31, 47], 55)
    (plan,) = plans_of([step], batch)
    placed = plan.resampling.placement
    got = Collate(step, dtype=torch.uint8)(batch)
    assert got.images.shape[2:] == (42, 55)
    sizes = {transform.make_params([batch.images[0]])["size"] for _ in range(60)}
    assert {(int(rows), int(cols)) for rows, cols in zip(placed.rows, placed.cols, strict=True)} == sizes
    for k in range(24):
        size = [int(placed.rows[k]), int(placed.cols[k])]
        items = resized(items_of(batch, k), size, mode, antialias)
        borders = [0, 0, 55 - size[1], 42 - size[0]]
        items = on_all(items, lambda item, name: F.pad(item, borders, 255 if name == "masks" else FILL))  # noqa: B023
        expect(got, k, items, -1.0)


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (30, 30), (31, 200), (2, 3)])
@pytest.mark.parametrize(("mode", "scaleup", "center"), [
    ("bilinear", True, True), ("bicubic", False, True), ("nearest", True, False), ("bilinear", False, False),
])  # fmt: skip
def test_a_letterbox_is_torchvisions_resize_and_pad(
    shape: tuple[int, int], mode: str, scaleup: bool, center: bool
) -> None:
    """Where both fit: a side of the canvas, or the image as it is."""
    batch = batch_of(5, *shape)
    step = Letterbox((36, 44), FILL, mode, mask_fill=7, scaleup=scaleup, center=center)
    got = Collate(step, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    keeps = not scaleup and shape[0] <= 36 and shape[1] <= 44
    short = 36 * shape[1] <= 44 * shape[0]
    exact = (36, 36 * shape[1] / shape[0]) if short else (44 * shape[0] / shape[1], 44)
    size = list(shape) if keeps else [round(side) for side in exact]
    spare = 36 - size[0], 44 - size[1]
    left, top = (spare[1] // 2, spare[0] // 2) if center else (0, 0)
    borders = [left, top, spare[1] - left, spare[0] - top]
    for k in range(5):
        items = resized(items_of(batch, k), size, mode, True)
        items = on_all(items, lambda item, name: F.pad(item, borders, 7 if name == "masks" else FILL))
        expect(got, k, items, -1.0)


def test_a_canvas_after_normalize_has_its_own_fill() -> None:
    """torchvision's ScaleJitter and pad would put 0 beside normalized values, not what black becomes."""
    images = torch.full((2, 3, 20, 30), 200, dtype=torch.uint8)
    made = Collate(Normalize.imagenet(), ScaleJitter((20, 20), (0.5, 0.5), fill=0))(images)
    assert made[0, :, -1, -1].tolist() == [0, 0, 0]
    gray = Collate(RandomGrayscale(1.0), Letterbox((40, 20), FILL), dtype=torch.uint8)(images)
    assert gray[0, :, 0, 0].tolist() == list(FILL)
    with pytest.raises(ValueError, match="fill is 114, a level of uint8 images, but these images are floats"):
        Collate(Letterbox(20))(images / 255)
    assert Collate(Letterbox((40, 20), 0.5))(images / 255)[0, 0, 0, 0] == 0.5


@pytest.mark.parametrize("step", [ScaleJitter((36, 44), fill=9), RandomShortestSize((20, 40), fill=9)])
def test_what_follows_a_canvas_is_as_in_passes_of_their_own(step: Step) -> None:
    batch = batch_of(16)
    later = [RandomHorizontalFlip(), CenterCrop((18, 20)), RandomVerticalFlip()]
    first = Collate(step, dtype=torch.uint8, box_rule=BoxRule(min_size=0))(batch)
    expected = Collate(nn.Identity(), *later, dtype=torch.uint8)(first)
    got = Collate(step, *later, dtype=torch.uint8)(batch)
    assert torch.equal(got.images, expected.images)
    assert torch.equal(got.masks, expected.masks)
    before = Collate(RandomHorizontalFlip(1.0), step, dtype=torch.uint8)(batch)
    mirrored = batch.replace(
        images=batch.images.flip(-1), masks=batch.masks.flip(-1), boxes=None, labels=None, counts=None
    )
    assert torch.equal(before.images, Collate(nn.Identity(), step, dtype=torch.uint8)(mirrored).images)
    assert torch.equal(before.masks, Collate(nn.Identity(), step, dtype=torch.uint8)(mirrored).masks)


def zoomed(items: Items, plan: Plan, k: int, fill: Any, mask_fill: int) -> Items:
    """torchvision's pad with the canvas of a plan."""
    height, width = plan.source[1:]
    top, left = -int(plan.top[k]), -int(plan.left[k])
    borders = [left, top, int(plan.cols[k]) - width - left, int(plan.rows[k]) - height - top]
    return on_all(items, lambda item, name: F.pad(item, borders, mask_fill if name == "masks" else fill))


@pytest.mark.parametrize(("mode", "antialias"), MODES)
def test_a_zoom_out_and_a_resize_are_torchvisions(mode: str, antialias: bool) -> None:
    batch = batch_of(24)
    steps: list[Step] = [RandomZoomOut(FILL, (1.0, 3.0), mask_fill=3), Resize((30, 41), mode, antialias=antialias)]
    zoom = plans_of(steps, batch)[0]
    got = Collate(*steps, dtype=torch.uint8)(batch)
    changed = [(int(zoom.rows[k]), int(zoom.cols[k])) != (HEIGHT, WIDTH) for k in range(24)]
    assert 4 < sum(changed) < 20
    for k in range(24):
        items = zoomed(items_of(batch, k), zoom, k, list(FILL), 3)
        items = resized(items, [30, 41], mode, antialias)
        expect(got, k, items, -1.0)


@pytest.mark.parametrize("short", [None, 40])
def test_a_zoom_out_and_a_crop_are_torchvisions(short: int | None) -> None:
    batch, size = batch_of(24), [33, 31]
    between = [] if short is None else [Resize(short)]
    steps: list[Step] = [RandomZoomOut(FILL, (1.0, 3.0), mask_fill=3), *between, CenterCrop(size)]
    zoom = plans_of(steps, batch)[0]
    got = Collate(*steps, dtype=torch.uint8)(batch)
    for k in range(24):
        items = zoomed(items_of(batch, k), zoom, k, list(FILL), 3)
        items = items if short is None else resized(items, [short], "bilinear", True)
        expect(got, k, on_all(items, lambda item, name: F.center_crop(item, size)))


def cropped(items: Items, before: Plan | None, after: Plan, k: int) -> Items:
    """torchvision's RandomIoUCrop with the window of a plan; boxes whose center is outside become nothing."""
    top, left = int(after.top[k]), int(after.left[k])
    if before is not None:
        top, left = top - int(before.top[k]), left - int(before.left[k])
    height, width = F.get_size(items["images"])
    rows, cols = int(after.rows[k]), int(after.cols[k])
    if (rows, cols) == (height, width):
        return items
    boxes = items["boxes"].as_subclass(Tensor)
    x, y = (boxes[:, :2] + boxes[:, 2:]).unbind(1)
    x, y = 0.5 * x, 0.5 * y
    within = (left < x) & (x < left + cols) & (top < y) & (y < top + rows)
    assert within.any()
    params = {"top": top, "left": left, "height": rows, "width": cols, "is_within_crop_area": within}
    return on_all(items, lambda item, name: v2.RandomIoUCrop().transform(item, params))


def test_ssds_recipe_is_torchvisions() -> None:
    """references/detection/presets.py: distort, zoom out, crop by IoU, flip; then the size that the model takes."""
    batch = batch_of(40)
    steps: list[Step] = [
        RandomZoomOut(FILL),
        RandomIoUCrop(),
        RandomHorizontalFlip(),
        Resize((30, 30)),
    ]
    zoom, crop, _, whole = plans_of(steps, batch)
    got = Collate(*steps, dtype=torch.uint8)(batch)
    for k in range(40):
        items = cropped(zoomed(items_of(batch, k), zoom, k, list(FILL), 255), zoom, crop, k)
        if whole.flip_x[k]:
            items = on_all(items, lambda item, name: F.horizontal_flip(item))
        resized = on_all(items, lambda item, name: F.resize(item, [30, 30]))
        if whole.flip_x[k]:  # masks count their pixels from the other side; pixels are rounded by themselves
            apart = (got.images[k].int() - resized["images"].int()).abs()
            assert int(apart.max()) <= 1
            resized["images"] = tv_tensors.Image(got.images[k])
        cut = (int(crop.rows[k]), int(crop.cols[k])) != (int(zoom.rows[k]), int(zoom.cols[k]))
        expect(got, k, resized, 1.0 if cut else -1.0)
    distorted = Collate(RandomPhotometricDistort(), *steps, dtype=torch.uint8)(batch)
    assert distorted.images.shape == (40, 3, 30, 30)
    lite = Collate(RandomIoUCrop(), RandomHorizontalFlip(), Resize((30, 30)), Normalize.imagenet())(batch)
    assert lite.images.dtype == torch.float32


def test_a_sample_depends_on_nothing_but_itself() -> None:
    batch = batch_of(30)
    for steps in (
        [
            RandomPhotometricDistort(),
            RandomZoomOut(FILL),
            RandomIoUCrop(),
            AlternatingHorizontalFlip(),
            Resize((30, 30)),
        ],
        [ScaleJitter((40, 40), fill=FILL), RandomHorizontalFlip()],
        [RandomShortestSize((20, 30))],
    ):
        collate = Collate(*steps)
        collate.set_epoch(1)
        whole = collate(batch)
        for part in (slice(0, 7), slice(7, 8), slice(8, 30)):
            got = collate(batch[part])
            for name in ("images", "masks", "boxes", "labels", "counts"):
                assert torch.equal(got.get(name), whole.get(name)[part])


@pytest.mark.parametrize("steps", [
    [RandomZoomOut(FILL, (1.0, 2.5)), RandomIoUCrop(), RandomHorizontalFlip(), Resize((30, 34))],
    [ScaleJitter((36, 44), fill=FILL), RandomHorizontalFlip(), CenterCrop(30)],
    [RandomShortestSize((20, 31, 47), 55, fill=FILL), RandomVerticalFlip()],
    [Letterbox((60, 44), FILL), RandomHorizontalFlip()],
])  # fmt: skip
def test_a_device_makes_the_pixels_of_the_cpu(steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(24)
    plan = plans_of(steps, batch)[-1]
    expected = torch.empty(plan.shape, dtype=torch.uint8)
    Rendering(plan, torch.uint8).render_batch(batch.images, expected)
    from mmload.render import torch_rendering

    copied = with_tensors(plan, torch.device("cpu"))
    got = torch_rendering.resized_batch(batch.images, copied, copied.resampling)
    assert (got.int() - expected.int()).abs().max() <= 1
    by_operations = torch.empty_like(expected)
    Rendering(plan, torch.uint8).by_operations(batch.images, by_operations)
    assert (by_operations.int() - expected.int()).abs().max() <= 1


def test_iou_crop_sees_no_boxes_beyond_the_count() -> None:
    """Whatever stands there; a batch of one's own need not be padded by zeros."""
    batch, collate = batch_of(24), Collate(RandomIoUCrop(trials=8), Resize((32, 32)))
    beyond = torch.arange(MOST) >= batch.counts[:, None]
    middle = torch.tensor([10.0, 10.0, 40.0, 30.0]).expand_as(batch.boxes)
    other = batch.replace(boxes=torch.where(beyond[:, :, None], middle, batch.boxes))
    got, expected = collate(other), collate(batch)
    assert torch.equal(got.images, expected.images)
    assert torch.equal(got.counts, expected.counts)


def test_iou_crop_leaves_samples_without_boxes_and_those_that_nothing_fits() -> None:
    batch = batch_of(12)
    none = batch.replace(counts=torch.zeros(12, dtype=torch.int64))
    expected = Collate(Resize((20, 20)), dtype=torch.uint8)(none)
    got = Collate(RandomIoUCrop(sampler_options=[0.1]), Resize((20, 20)), dtype=torch.uint8)(none)
    assert torch.equal(got.images, expected.images)
    impossible = RandomIoUCrop(min_scale=0.9, min_aspect_ratio=9, max_aspect_ratio=10)
    got = Collate(impossible, Resize((20, 20)), dtype=torch.uint8)(batch)
    assert torch.equal(got.counts, batch.counts)


def test_what_first_shows_at_a_batch_is_refused_there() -> None:
    batch = batch_of(2)
    for collate, message in (
        (Collate(ScaleJitter((20, 20), (0.001, 1))), "scale_range .* leaves no pixel of images of 40 x 52"),
        (Collate(RandomShortestSize(9, max_size=1)), "max_size 1 leaves no pixel of images of 40 x 52"),
        (Collate(ScaleJitter((20, 20), fill=(1, 2))), "fill has 2 numbers and the images 3 channels"),
        (Collate(RandomZoomOut(0.5), Resize((9, 9))), "fill is 0.5"),
        (Collate(RandomZoomOut(), Resize(lambda epoch: 9)), "the images are variable-size, and a batch has one size"),
    ):
        collate.set_epoch(0)
        with pytest.raises(ValueError, match=message):
            collate(batch)
    bare = batch.replace(boxes=None, labels=None, counts=None)
    with pytest.raises(ValueError, match="RandomIoUCrop needs boxes, and the batches have none; build"):
        Collate(RandomIoUCrop(), Resize((9, 9)))(bare)
    with pytest.raises(ValueError, match="RandomIoUCrop needs boxes, and the batch has none"):
        RandomIoUCrop()(batch.images)
    with pytest.raises(ValueError, match="the images are variable-size"):
        RandomZoomOut()(batch.images)
