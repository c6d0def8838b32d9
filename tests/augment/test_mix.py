"""MixUp and CutMix against torchvision's arithmetic, sample by sample."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

from mmload.augment import CutMix, MixUp, Normalize, RandomHorizontalFlip, sample_seeds
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.batch import Batch


def batch_of(count: int, size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    ids = torch.arange(count)
    return Batch(images=images, targets=ids % 4, seeds=sample_seeds(1, 0, ids), batch_size=[count])


def test_mixup_blends_images_and_targets_alike() -> None:
    batch = batch_of(12)
    clean = Collate(Normalize.imagenet())(batch).images
    got = Collate(Normalize.imagenet(), MixUp(0.5, num_classes=4))(batch)
    hot = one_hot(batch.targets, 4).float()
    assert torch.allclose(got.targets.sum(1), torch.ones(12))
    for k in range(12):
        share = [one for one in got.targets[k].tolist() if one][0]
        own = float(got.targets[k][batch.targets[k]])
        assert own in (share, 1 - share) or abs(own + share - 1) < 1e-6
        assert torch.allclose(got.targets[k], own * hot[k] + (1 - own) * hot[k - 1], atol=1e-6)
        assert torch.allclose(got.images[k], own * clean[k] + (1 - own) * clean[k - 1], atol=1e-5)
    assert got.targets.max(1).values.unique().numel() > 6


def test_cutmix_pastes_a_rectangle_and_blends_by_area() -> None:
    batch = batch_of(12)
    step = CutMix(num_classes=4)
    clean = Collate(RandomHorizontalFlip(), Normalize.imagenet())(batch).images
    got = Collate(RandomHorizontalFlip(), Normalize.imagenet(), step)(batch)
    boxes = step.boxes(Draws(batch.seeds, 2), 16, 16).tolist()
    for k, (x1, y1, x2, y2) in enumerate(boxes):
        expected = clean[k].clone()
        expected[:, y1:y2, x1:x2] = clean[k - 1][:, y1:y2, x1:x2]
        assert torch.equal(got.images[k], expected)
        share = 1 - (x2 - x1) * (y2 - y1) / 256
        hot = one_hot(batch.targets, 4).float()
        assert torch.allclose(got.targets[k], share * hot[k] + (1 - share) * hot[k - 1])


@pytest.mark.parametrize("step", [MixUp(p=0.0), CutMix(p=0.0)])
def test_soft_targets_and_p(step: MixUp | CutMix) -> None:
    images, soft = torch.rand(5, 3, 8, 8), torch.rand(5, 7)
    changed, targets = step(images, soft)
    assert torch.equal(changed, images)
    assert torch.equal(targets, soft)


def test_a_batch_of_one_mixes_with_itself_and_one_of_none_stays_so() -> None:
    images = torch.rand(1, 3, 8, 8)
    assert torch.allclose(MixUp()(images), images)
    assert torch.equal(CutMix()(images), images)
    assert MixUp()(images[:0]).shape == (0, 3, 8, 8)
    assert CutMix()(images[:0]).shape == (0, 3, 8, 8)


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ValueError, match="alpha is 0"):
        MixUp(0)
    with pytest.raises(ValueError, match="set num_classes"):
        MixUp()(torch.rand(2, 3, 4, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="takes floating images"):
        MixUp()(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
