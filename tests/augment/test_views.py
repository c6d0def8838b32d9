"""Views: N batches of N sizes, each what its collate makes of the samples with the seeds of its view."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from device_batches import batch_of
from torchvision.transforms import v2

from mmload.augment import (
    CutMix,
    Normalize,
    PerSample,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Views,
    view_seeds,
)
from mmload.augment.collate import Collate, collates_of
from mmload.batch import Batch, fields_of

COUNT = 7


def ten_crops() -> Views:
    """DINO's sizes, small: two large views by two collates, eight small ones by one."""
    large = [Collate(RandomResizedCrop(28), RandomHorizontalFlip(), *more) for more in ((), (Normalize.imagenet(),))]
    return Views(*large, *[Collate(RandomResizedCrop(12), Normalize.imagenet())] * 8)


def one_by_one(views: Views, batch: Batch) -> list[Batch]:
    """The plain answer: each collate alone, with the seeds of its view."""
    seeds = batch.seeds
    assert seeds is not None
    return [view(batch.replace(seeds=view_seeds(seeds, k))) for k, view in enumerate(views.collates)]


def assert_same(got: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        fields, wanted = fields_of(one), fields_of(other)
        assert sorted(fields) == sorted(wanted)
        assert all(torch.equal(fields[name], wanted[name]) for name in wanted)


def test_each_view_is_its_collate_with_the_seeds_of_the_view() -> None:
    batch, views = batch_of(COUNT), ten_crops()
    got = views(batch)
    assert [tuple(view.images.shape[2:]) for view in got] == [(28, 28)] * 2 + [(12, 12)] * 8
    assert_same(got, one_by_one(views, batch))
    assert torch.equal(got[0].seeds, batch.seeds)
    assert len({view.images.numpy().tobytes() for view in got}) == 10  # a collate given eight times draws eight times


def test_any_form_and_any_part_of_a_batch_gives_the_same() -> None:
    batch, views = batch_of(COUNT), ten_crops()
    expected = views(batch)
    assert_same(views([batch[k] for k in range(COUNT)]), expected)
    assert_same(views(batch[2:5]), [view[2:5] for view in expected])
    bare = views(batch.images, torch.Generator().manual_seed(3))
    seeded = views(batch.replace(seeds=None), torch.Generator().manual_seed(3))
    assert all(torch.equal(one, other.images) for one, other in zip(bare, seeded, strict=True))
    assert not torch.equal(bare[8], bare[9])


def test_steps_after_the_pass_run_for_each_view() -> None:
    batch = batch_of(COUNT).replace(boxes=None, labels=None, difficult=None, counts=None, masks=None)
    mixed = Collate(RandomCrop(20), Normalize.imagenet(), CutMix(num_classes=3))
    sampled = Collate(PerSample(v2.RandomChannelPermutation()), dtype=torch.float16, memory_format=torch.channels_last)
    views = Views(mixed, sampled, mixed)
    got = views(batch)
    assert_same(got, one_by_one(views, batch))
    assert not torch.equal(got[0].targets, got[2].targets)
    assert got[1].images.is_contiguous(memory_format=torch.channels_last)


def test_views_referenced_batches_do_not_change() -> None:
    batch, views = batch_of(COUNT), Views(*[Collate(RandomResizedCrop(28))] * 5)
    kept = [views(batch) for _ in range(2)]
    copies = [[view.images.clone() for view in made] for made in kept]
    for _ in range(3):
        for view in views(batch.replace(seeds=torch.randint(1000, (COUNT,)))):
            view.images.zero_()
    for made, those in zip(kept, copies, strict=True):
        assert all(torch.equal(view.images, copied) for view, copied in zip(made, those, strict=True))


def test_a_views_is_a_module_as_others() -> None:
    batch, views = batch_of(COUNT), ten_crops()
    expected = views(batch)
    for twin in (pickle.loads(pickle.dumps(views)), copy.deepcopy(views)):
        assert_same(twin(batch), expected)
        assert len({id(collate) for collate in twin.collates}) == 3
    assert sum(isinstance(module, Normalize) for module in views.modules()) == 2
    assert views.device is None
    assert Views(Collate(device="cpu"), Collate(device="cpu")).device == torch.device("cpu")


def test_an_empty_batch_gives_empty_views() -> None:
    assert [view.images.shape for view in Views(Collate(), Collate(RandomCrop(9)))(batch_of(0))] == [
        (0, 3, 40, 40),
        (0, 3, 9, 9),
    ]


def test_collates_of() -> None:
    first, second = Collate(), Collate()
    assert collates_of(Views(first, second, first)) == (first, second, first)
    assert collates_of(first) == (first,)
    assert collates_of(torch.stack) == collates_of(None) == ()
    assert collates_of(torch.compile(first, backend="eager")) == ()  # which has all attributes of a Collate
