"""Boxes and masks against torchvision's functional results for the same windows and flips."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from batches import detections
from parity_stores import expect_torchvisions
from torch import Tensor, nn
from torchvision import tv_tensors

from mmload.augment import (
    BoxRule,
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from mmload.augment.boxes import Trail, drop_boxes
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, Step, following_fields, with_following
from mmload.batch import Batch, fields_of
from mmload.interop.torchvision import torchvision_equivalent
from mmload.render.plan import Plan

HEIGHT, WIDTH, MOST = 40, 52, 6


def batch_of(count: int) -> Batch:
    return detections(count, (3, HEIGHT, WIDTH), MOST)


TINY = torch.tensor([[0.0, 0.0, 0.5, 0.4], [3.0, 3.0, 9.0, 9.0], [7.0, 7.0, 7.0, 9.0]])


def boxed(*boxes: list[float], **fields: Tensor) -> Batch:
    """A black image of 40 x 52 with boxes, labeled 5, 6, 7."""
    labels = torch.arange(5, 5 + len(boxes))[None]
    given = {"boxes": torch.tensor([boxes]), "labels": labels, "counts": torch.tensor([len(boxes)])}
    return Batch(images=torch.zeros((1, 3, HEIGHT, WIDTH), dtype=torch.uint8), batch_size=[1], **given | fields)


LISTS: list[list[Step]] = [
    [RandomCrop((24, 31)), RandomHorizontalFlip(), RandomVerticalFlip()],
    [RandomCrop((36, 50), padding=9, mask_fill=255), RandomHorizontalFlip()],
    [RandomResizedCrop((33, 27)), RandomHorizontalFlip()],
    [Resize((60, 70)), CenterCrop((48, 50)), RandomVerticalFlip()],
    [RandomHorizontalFlip(1.0)],
]


@pytest.mark.parametrize("steps", LISTS)
def test_boxes_and_masks_are_torchvisions(steps: list[Step]) -> None:
    expect_torchvisions(Collate(*steps, box_rule=BoxRule(min_size=1)), batch_of(16))


@pytest.mark.parametrize("steps", LISTS)
def test_what_belongs_to_boxes_stays_with_them(steps: list[Step]) -> None:
    batch = batch_of(16)
    got = Collate(*steps)(batch)
    for k, count in enumerate(got.counts.tolist()):
        kept = got.labels[k, :count]
        assert got.difficult[k, :count].tolist() == batch.difficult[k, kept].tolist()
        assert (got.labels[k, count:] == -1).all()
        assert not got.boxes[k, count:].any()


def test_boxes_of_integer_pixels_are_exact() -> None:
    batch = batch_of(16)
    got = Collate(*LISTS[0])(batch.replace(boxes=batch.boxes.round())).boxes
    assert got.any()
    assert torch.equal(got, got.round())


@pytest.mark.parametrize(
    ("rule", "labels"),
    [
        (None, [5, 6, -1]),
        (BoxRule(min_visible=0.3), [6, -1, -1]),
        (BoxRule(min_size=0.4), [5, 6, 7]),
        (BoxRule(min_size=19), [5, -1, -1]),
    ],
)
def test_the_rule_weeds_what_keeps_too_little(rule: BoxRule | None, labels: list[int]) -> None:
    batch = boxed([0.0, 0.0, 40.0, 40.0], [18.0, 10.0, 30.0, 30.0], [16.5, 10.0, 17.0, 30.0])
    assert Collate(CenterCrop((20, 20)), box_rule=rule)(batch).labels.tolist() == [labels]


def test_boxes_follow_a_second_pass() -> None:
    batch = batch_of(5)
    once = Collate(Resize((20, 26)), Resize((40, 52)), box_rule=BoxRule(min_size=0.0))(batch)
    assert torch.equal(once.counts, batch.counts)
    assert torch.allclose(once.boxes, batch.boxes, atol=1e-4)


def test_colours_alone_leave_them() -> None:
    batch = batch_of(3)
    got = Collate(nn.Identity())(batch)
    assert torch.equal(got.boxes, batch.boxes)
    assert torch.equal(got.masks, batch.masks)


@pytest.mark.parametrize(
    "step",
    [
        RandomHorizontalFlip(0.0),
        RandomHorizontalFlip(1.0),
        RandomVerticalFlip(1.0),
        CenterCrop((HEIGHT, WIDTH)),
        CenterCrop((HEIGHT + 3, WIDTH + 4)),
        RandomCrop((HEIGHT, WIDTH)),
        RandomResizedCrop((20, 26), scale=(1.0, 1.0), ratio=(WIDTH / HEIGHT, WIDTH / HEIGHT)),
        Resize((20, 26)),
        RandomCrop((HEIGHT + 8, WIDTH + 8), padding=4),
        Normalize.imagenet(),
    ],
)
def test_only_what_cuts_off_drops_boxes(step: Step) -> None:
    batch = batch_of(2).replace(
        boxes=TINY.expand(2, -1, -1).contiguous(),
        labels=torch.tensor([[4, 5, 6]] * 2),
        difficult=torch.zeros(2, 3, dtype=torch.bool),
        counts=torch.full((2,), 3),
    )
    for rule in (None, BoxRule(min_size=30, min_visible=0.9)):
        got = Collate(step, box_rule=rule)(batch)
        assert got.labels.tolist() == [[4, 5, 6]] * 2
        assert got.counts.tolist() == [3, 3]
    assert Collate(CenterCrop((HEIGHT, WIDTH - 2)))(batch).labels.tolist() == [[5, -1, -1]] * 2


@pytest.mark.parametrize(("length", "size"), [(7, 57), (11, 29), (13, 7), (40, 23)])
def test_rounding_at_the_border_cuts_nothing_off(length: int, size: int) -> None:
    boxes = torch.tensor([[[length - 0.01, 0.0, length, length], [0.0, length - 0.01, length, length]]])
    batch = Batch(images=torch.zeros(1, 1, length, length, dtype=torch.uint8), boxes=boxes, batch_size=[1])
    assert int(Collate(Resize((size, size)))(batch).counts) == 2


@pytest.mark.parametrize("between", [[], [nn.ReLU()], [RandomErasing(0.0)]])
def test_padding_that_is_cut_off_again_drops_no_box(between: list[nn.Module]) -> None:
    batch = batch_of(4).replace(boxes=TINY[:1].expand(4, MOST, 4).contiguous(), counts=torch.full((4,), MOST))
    pad, crop = CenterCrop((HEIGHT + 9, WIDTH + 5)), CenterCrop((HEIGHT + 4, WIDTH))
    assert Collate(pad, *between, crop)(batch).counts.tolist() == [MOST] * 4
    assert Collate(pad, *between, CenterCrop((HEIGHT, WIDTH - 2)))(batch).counts.tolist() == [0] * 4


def test_new_pixels_of_masks_are_void() -> None:
    batch = batch_of(4).replace(masks=torch.zeros(4, HEIGHT, WIDTH, dtype=torch.uint8))
    for step in (RandomCrop((HEIGHT + 8, WIDTH + 8), padding=4), CenterCrop((HEIGHT + 8, WIDTH + 8))):
        got = Collate(step)(batch).masks
        assert got.sum() == 4 * 255 * ((HEIGHT + 8) * (WIDTH + 8) - HEIGHT * WIDTH)
        mask = tv_tensors.Mask(batch.masks[0])
        equivalent = torchvision_equivalent(Collate(step, dtype=torch.uint8))
        assert torch.equal(equivalent(tv_tensors.Image(batch.images[0]), mask)[1], got[0])


@pytest.mark.parametrize("height", range(8, 12))
@pytest.mark.parametrize("size", range(8, 16))
def test_boxes_go_where_centre_crops_put_the_pixels(height: int, size: int) -> None:
    images = torch.zeros(1, 1, height, 10, dtype=torch.uint8)
    images[..., 4:6, 3:6] = 255
    batch = Batch(images=images, boxes=torch.tensor([[[3.0, 4.0, 6.0, 6.0]]]), batch_size=[1])
    got = Collate(CenterCrop((size, 11)), dtype=torch.uint8)(batch)
    rows, cols = (got.images[0, 0].amax(axis).nonzero().flatten().tolist() for axis in (1, 0))
    assert got.boxes[0, 0].tolist() == [cols[0], rows[0], cols[-1] + 1, rows[-1] + 1]


def test_what_was_cut_in_one_pass_is_judged_in_the_next() -> None:
    batch = batch_of(8)
    crop, shrink = RandomCrop((24, 31)), Resize((4, 5))
    once = Collate(crop, shrink)(batch)
    twice = Collate(crop, RandomErasing(0.0), shrink)(batch)
    assert int(once.counts.sum()) < int(Collate(crop)(batch).counts.sum())
    assert torch.equal(once.counts, twice.counts)
    assert torch.equal(once.labels, twice.labels)


def test_boxes_that_a_later_resize_enlarges_again_stay() -> None:
    batch = boxed([10.0, 10.0, 12.0, 30.0], [0.0, 0.0, 3.0, 40.0], [4.0, 4.0, 30.0, 30.0], seeds=torch.tensor([1]))
    steps: list[nn.Module] = [CenterCrop((HEIGHT, WIDTH - 8)), Resize((10, 11)), Resize((HEIGHT, WIDTH - 8))]
    got = Collate(*steps)(batch)
    assert got.labels.tolist() == [[5, 7, -1]]
    assert torch.allclose(got.boxes[0, 0], batch.boxes[0, 0] - torch.tensor([4.0, 0.0, 4.0, 0.0]), atol=1e-4)
    assert Collate(*steps[:2])(batch).labels.tolist() == [[7, -1, -1]]


@pytest.mark.parametrize("rule", [None, BoxRule(min_visible=0.4), BoxRule(min_size=3.0, min_visible=0.2)])
def test_passes_may_be_split_anywhere(rule: BoxRule | None) -> None:
    batch = batch_of(16)
    steps = [RandomCrop((30, 40)), RandomHorizontalFlip(), Resize((9, 11)), RandomCrop((7, 8)), RandomVerticalFlip()]
    once = Collate(*steps, box_rule=rule)(batch)
    assert 0 < int(once.counts.sum()) < int(batch.counts.sum())
    between = [RandomErasing(0.0), nn.ReLU(), ColorJitter(0.1)]
    for at, other in product(range(1, len(steps)), between):
        draws = [Fixed(step, batch.seeds, place) for place, step in enumerate(steps)]
        split = Collate(*draws[:at], other, *draws[at:], box_rule=rule)(batch)
        assert torch.equal(split.counts, once.counts)
        assert torch.equal(split.labels, once.labels)
        assert torch.equal(split.difficult, once.difficult)
        torch.testing.assert_close(split.boxes, once.boxes, atol=1e-4, rtol=0)


class Fixed(Step):
    """A step with the draws that it has at another place of a list."""

    def __init__(self, step: Step, seeds: Tensor, place: int) -> None:
        super().__init__()
        self.step, self.seeds, self.place = step, seeds, place

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return self.step.describe(plan, Draws(self.seeds.numpy(), self.place))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drop_boxes_keeps_what_the_rule_permits_box_by_box(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    count, most = 60, 7
    corners = torch.rand((count, most, 2, 2), generator=generator, dtype=dtype) * 20
    boxes = torch.cat((corners.amin(2), corners.amax(2)), 2)
    counts = torch.randint(0, most + 1, (count,), generator=generator)
    labels = torch.arange(count * most).view(count, most)
    cut, dropped = (torch.rand((count, most), generator=generator) < chance for chance in (0.5, 0.2))
    cropped, share = torch.rand(count, generator=generator) < 0.5, torch.rand((count, most), generator=generator)
    trail = Trail.before(boxes, Plan.unchanged(count, (3, 20, 20), 255.0))
    trail.cut[:], trail.dropped[:] = torch.cat((cut, cropped[:, None]), 1).numpy(), dropped.numpy()
    trail.share[:, :-1] = share.numpy()
    rule = BoxRule(min_size=2, min_visible=0.3, max_aspect=4)
    batch = Batch(boxes=boxes, labels=labels, counts=counts, batch_size=[count])
    fields = following_fields(fields_of(batch))
    made = with_following(batch, drop_boxes(fields, trail, rule), fields)
    total = 0
    for k in range(count):
        kept = []
        for place in range(int(counts[k])):
            stays = bool(rule.permits(boxes[k, place].numpy())) and bool(trail.share[k, place] >= 0.3)
            if (stays or not (cut[k, place] or cropped[k])) and not dropped[k, place]:
                kept.append(place)
        total += len(kept)
        assert int(made.counts[k]) == len(kept)
        assert torch.equal(made.boxes[k, : len(kept)], boxes[k, kept])
        assert made.labels[k].tolist() == [*labels[k, kept].tolist(), *[-1] * (most - len(kept))]
        assert not made.boxes[k, len(kept) :].any()
    assert 50 < total < 150
