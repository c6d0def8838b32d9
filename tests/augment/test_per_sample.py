"""Other people's transforms: refused where they would draw for a batch, seeded by the sample in PerSample."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import mmload.augment
from mmload import Loader
from mmload.augment import (
    BoxRule,
    CenterCrop,
    CutMix,
    MixUp,
    Normalize,
    PerSample,
    RandomHorizontalFlip,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import Batch
from mmload.interop.torchvision import torchvision_equivalent
from mmload.store.dataset import Dataset

FILL = {tv_tensors.Mask: 255, "others": 0}


def batch_of(count: int = 8, boxes: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(2)
    corners = torch.randint(0, 24, (count, 3, 2, 2), generator=generator).float()
    found = torch.cat((corners.amin(2), corners.amax(2) + 2), dim=2)
    fields = {} if not boxes else {"boxes": found, "labels": torch.arange(3).repeat(count, 1)}
    return Batch(
        images=torch.randint(0, 256, (count, 3, 28, 28), dtype=torch.uint8, generator=generator),
        counts=torch.full((count,), 3) if boxes else None,
        difficult=torch.tensor([[True, False, True]]).repeat(count, 1) if boxes else None,
        masks=torch.randint(0, 20, (count, 28, 28), dtype=torch.uint8, generator=generator) if boxes else None,
        seeds=sample_seeds(1, 0, torch.arange(count)),
        batch_size=[count],
        **fields,
    )


def test_all_counterparts_exist() -> None:
    theirs = {name for name in dir(v2) if isinstance(getattr(v2, name), type)}
    public = set(mmload.augment.__all__) & theirs
    others = {name for name in public if not getattr(mmload.augment, name).is_drop_in}
    assert others == {"RandomIoUCrop", "RandomShortestSize", "RandomZoomOut", "ScaleJitter"}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (v2.RandomHorizontalFlip(), "import RandomHorizontalFlip from mmload.augment"),
        (v1.RandomHorizontalFlip(), "import RandomHorizontalFlip from mmload.augment"),
        (v2.Normalize([0.5], [0.5]), "import Normalize from mmload.augment"),
        (v2.Compose([v2.RandomRotation(10)]), r"use PerSample\(Compose"),
        (nn.Sequential(v1.ElasticTransform()), r"in Sequential\) would treat .* use PerSample\(ElasticTransform"),
        (v2.RandomZoomOut(), r"use PerSample\(RandomZoomOut"),
        (v1.RandomRotation(10), "import RandomRotation from mmload.augment"),
        (nn.Dropout(0.1), r"Dropout draws from torch's generator.*PerSample\(Dropout"),
        (nn.Sequential(nn.Identity(), nn.BatchNorm2d(3)), "put it into the model"),
        (nn.Sequential(RandomHorizontalFlip()), "only as a step of the collate"),
    ],
)
def test_what_draws_for_a_batch_is_refused(step: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Collate(step)


def test_per_sample_what_draws_nothing_is_taken() -> None:
    images = batch_of(boxes=False).images
    got = Collate(v2.Grayscale(3), nn.Hardtanh(0, 1))(images)
    assert torch.equal(got[:, 0], got[:, 2])


class Global(nn.Module):
    """Draws from all three global generators."""

    def forward(self, image: Tensor) -> Tensor:
        offset = int(torch.randint(0, 40, ())) + random.randrange(40) + int(np.random.randint(40))
        return image // 2 + offset


MODULES: list[nn.Module] = [
    v2.Compose([v2.RandomRotation(30), v2.RandomPhotometricDistort(p=1.0), v2.GaussianBlur(3)]),
    v1.RandomRotation(30),
    Global(),
    nn.Sequential(v2.RandomAffine(20), v2.ElasticTransform()),
]


@pytest.mark.parametrize("which", range(4))
def test_pixels_depend_on_the_sample_alone(which: int) -> None:
    batch = batch_of(boxes=False)
    collate = Collate(RandomHorizontalFlip(), PerSample(MODULES[which]), Normalize.imagenet())
    torch.manual_seed(5)
    whole = collate(batch).images
    assert not torch.equal(whole[0], Collate(Normalize.imagenet())(batch).images[0])
    random.seed(9)
    np.random.seed(9)
    for part in (slice(0, 1), slice(3, 8), slice(7, 8)):
        assert torch.equal(collate(batch[part]).images, whole[part])
    same = batch.replace(images=batch.images[:1].expand(8, -1, -1, -1))
    assert len({one.numpy().tobytes() for one in collate(same).images}) > 4


def test_the_generators_are_as_they_were() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    PerSample(Global())(batch_of(boxes=False).images, seeds=torch.arange(8))
    with pytest.raises(ZeroDivisionError):
        PerSample(Fails())(batch_of(boxes=False).images, seeds=torch.arange(8))
    got = torch.rand(3), random.random(), np.random.rand()
    assert torch.equal(got[0], expected[0])
    assert got[1:] == expected[1:]


class Fails(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image / (int(torch.rand(1)) // 0)


@pytest.mark.slow
@pytest.mark.parametrize("views", [False, True])
def test_loaders_of_any_size_and_threads_give_the_same(dataset: Dataset, views: bool) -> None:
    collate = Collate(PerSample(MODULES[0]), PerSample(Global()), Normalize.imagenet())
    made = Views(collate, collate) if views else collate

    def epoch(**settings: int) -> Tensor:
        loader = Loader(dataset["train"], collate=made, shuffle=True, seed=3, **settings)
        got = []
        for batch in loader:
            torch.rand(7)  # what a training step does to the same generator
            got.append(torch.cat([one.images for one in batch], 1) if isinstance(batch, tuple) else batch.images)
        return torch.cat(got)

    expected = epoch(batch_size=18, threads=1)
    for batch_size, threads in ((3, 2), (5, 4), (1, 3)):
        assert torch.equal(epoch(batch_size=batch_size, threads=threads), expected)
    halves = [epoch(batch_size=3, threads=2, ranks=(rank, 2)) for rank in range(2)]
    together = {one.numpy().tobytes() for one in torch.cat(halves)}
    assert together == {one.numpy().tobytes() for one in expected}


def test_per_sample_boxes_and_masks_follow() -> None:
    batch = batch_of()
    flips = Collate(PerSample(v2.RandomHorizontalFlip(1.0)), dtype=torch.uint8)(batch)
    ours = Collate(RandomHorizontalFlip(1.0), dtype=torch.uint8)(batch)
    for name in ("images", "boxes", "labels", "difficult", "counts", "masks"):
        assert torch.equal(getattr(flips, name), getattr(ours, name)), name


def test_dropped_boxes_take_their_labels_along() -> None:
    batch = batch_of()
    module = v2.Compose([v2.RandomCrop(9), v2.ClampBoundingBoxes()])
    got = Collate(PerSample(module))(batch)
    assert got.masks.shape == (8, 9, 9)
    assert 0 < int(got.counts.sum()) < 24
    for k in range(8):
        real = int(got.counts[k])
        assert (got.boxes[k, :real, 2:] - got.boxes[k, :real, :2] >= 1).all()
        assert not got.boxes[k, real:].any()
        assert (got.labels[k, real:] == -1).all()
        assert got.difficult[k].tolist() == [int(one) in (0, 2) for one in got.labels[k]]
    sanitised = Collate(PerSample(v2.Compose([v2.RandomCrop(9), v2.SanitizeBoundingBoxes()])))
    without = batch.replace(masks=None)
    assert torch.equal(sanitised(without).labels, got.labels)
    assert torch.equal(sanitised(without).boxes, got.boxes)


def test_the_box_rule_holds_for_boxes_that_a_module_moves() -> None:
    batch = batch_of().replace(masks=None)
    crop = PerSample(v2.Compose([v2.CenterCrop(13), v2.ClampBoundingBoxes()]))
    for least in (0.0, 0.5, 1.0, 4.0):
        rule = BoxRule(min_size=least)
        got, ours = (Collate(step, box_rule=rule)(batch) for step in (crop, CenterCrop(13)))
        assert torch.equal(got.labels, ours.labels)
        assert torch.equal(got.boxes, ours.boxes)
    share = BoxRule(min_visible=0.3)
    with pytest.raises(ValueError, match=r"min_visible is 0.3, and PerSample\(Compose\) moves boxes"):
        Collate(crop, box_rule=share)(batch)
    blurred = Collate(CenterCrop(13), PerSample(v2.GaussianBlur(3)), box_rule=share)(batch)
    assert torch.equal(blurred.boxes, Collate(CenterCrop(13), box_rule=share)(batch).boxes)


def test_boxes_and_masks_are_never_left_behind() -> None:
    batch = batch_of()
    refused: list[tuple[nn.Module, str]] = [
        (PerSample(v1.RandomRotation(9)), "would not move boxes and masks"),
        (PerSample(v2.Compose([v2.RandomApply([v2.RandomAffine(9)])])), "RandomAffine would fill masks with a class"),
        (PerSample(v2.RandomRotation(9)), "would fill masks with a class: give it fill="),
        (Global(), "Global may move pixels but not boxes and masks; set keeps_geometry"),
        (nn.AvgPool2d(2), "AvgPool2d may move pixels"),
        (MixUp(num_classes=3), "MixUp blends images but not their boxes"),
        (CutMix(num_classes=3), "CutMix pastes over boxes"),
    ]
    for step, message in refused:
        with pytest.raises(ValueError, match=message):
            Collate(step).prepare(batch.replace(images=None), (3, 28, 28))
    turned = Collate(PerSample(v2.RandomRotation((45, 45), fill=FILL)))(batch)
    assert (turned.masks == 255).any()
    still = Global()
    still.keeps_geometry = True
    assert torch.equal(Collate(still)(batch).boxes, batch.boxes)
    still.forward = lambda images: images[..., 1:]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="but not their boxes or masks"):
        Collate(still)(batch)


def test_cutmix_pastes_masks() -> None:
    batch = batch_of().replace(boxes=None, labels=None, counts=None, difficult=None)
    same = batch.replace(images=batch.masks[:, None])
    got = Collate(CutMix(num_classes=3), dtype=torch.uint8)(same)
    assert torch.equal(got.images[:, 0], got.masks)
    assert not torch.equal(got.masks, batch.masks)
    with pytest.raises(ValueError, match="MixUp blends images but not their masks"):
        Collate(MixUp(num_classes=3))(batch)


class Odd(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image[:, : int(torch.randint(4, 20, ()))]


def test_samples_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch has one size and one dtype"):
        Collate(PerSample(Odd()))(batch_of(boxes=False))
    with pytest.raises(TypeError, match="expected a tensor"):
        Collate(PerSample(v2.ToPILImage()))(batch_of(boxes=False))


def test_its_torchvision_equivalent_is_what_it_runs() -> None:
    inner = v2.RandomRotation(9)
    assert inner in torchvision_equivalent(Collate(PerSample(inner))).transforms


def test_a_batch_of_none_stays_so() -> None:
    assert len(Collate(PerSample(MODULES[0]))(batch_of(boxes=False)[:0]).images) == 0
    empty = Collate(CenterCrop(9), PerSample(v2.RandomHorizontalFlip()))(batch_of()[:0])
    assert empty.images.shape == (0, 3, 9, 9)
    assert empty.masks.shape == (0, 9, 9)
    assert empty.boxes.shape == (0, 3, 4)
