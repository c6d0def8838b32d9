"""Views in a Loader: every row is read once, and each view has the bits of its collate alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from device_batches import stored_at
from loaded import begun, resumed, rows_of
from torch import Tensor
from torchvision.transforms import v2
from written_datasets import of_tensors

from mmload.augment import (
    CenterCrop,
    MixUp,
    Normalize,
    PerSample,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Views,
    sample_seeds,
    view_seeds,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.loader import Loader, tiers
from mmload.loader.loader import resolve_device
from mmload.remote.opening import open as open_dataset
from mmload.render.rendering import Rendering
from mmload.store import row_reader
from mmload.store.dataset import Dataset, Split

SEED = 5


def crops() -> Views:
    """Two sizes; one collate makes three views."""
    large = Collate(RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet())
    small = Collate(RandomCrop(9), Normalize.imagenet(), dtype=torch.float16, memory_format=torch.channels_last)
    return Views(large, small, *[large] * 2)


def expected(split: Split, views: Views, ids: Tensor, epoch: int) -> list[Batch]:
    """The plain answer: the collate of each view, alone on the rows with the seeds of the view."""
    seeds = sample_seeds(SEED, epoch, ids)
    rows = split[ids]
    return [view(rows.replace(seeds=view_seeds(seeds, k))) for k, view in enumerate(views.collates)]


def assert_epoch(split: Split, views: Views, epoch: int = 0, **options: Any) -> None:
    """Every batch of an epoch is the plain answer, and the epoch has all rows."""
    with Loader(split, shuffle=True, seed=SEED, collate=views, **options) as loader:
        loader.set_epoch(epoch)
        made: list[Any] = list(loader)
    for batches in made:
        assert isinstance(batches, tuple)
        for got, other in zip(batches, expected(split, views, batches[0].ids, epoch), strict=True):
            assert sorted(got.keys()) == sorted(other.keys())
            for name in other.keys():  # noqa: SIM118  # iterating a tensorclass gives its rows
                assert torch.equal(got.get(name), other.get(name)), name
            assert got.images.stride() == other.images.stride()
    assert sorted(rows_of(batches[0] for batches in made)) == list(range(len(split)))


@pytest.mark.parametrize("tier", ["disk", "memory"])
@pytest.mark.parametrize(("threads", "batch_size"), [(1, 18), (3, 5), (2, 1)])
def test_batches_are_the_collates_of_their_rows(dataset: Dataset, tier: str, threads: int, batch_size: int) -> None:
    for epoch in range(2):
        assert_epoch(dataset["train"], crops(), epoch, tier=tier, threads=threads, batch_size=batch_size)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_rows_are_read_once_for_all_views(tmp_path: Path, dtype: torch.dtype) -> None:
    levels = torch.randint(0, 256, (18, 3, 16, 16), dtype=torch.uint8)
    images = levels if dtype == torch.uint8 else levels / 255
    split = open_dataset(of_tensors(tmp_path, {"train": {"images": images, "targets": torch.arange(18)}}))["train"]
    views = Views(*[Collate(RandomCrop(9))] * 5, Collate(RandomResizedCrop(12), Normalize.imagenet()))
    assert_epoch(split, views, tier="disk", batch_size=4, threads=1)
    with Loader(split, collate=views, batch_size=5, tier="disk") as loader:
        assert len(list(loader)) == 4
        assert loader.stats()["hits"] + loader.stats()["misses"] == 18


def test_a_few_rows_are_rendered_for_all_views_while_they_are_in_cache(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "PART_BYTES", 4 * 3 * 32 * 32)
    monkeypatch.setattr(row_reader, "row_map", lambda *_: None)  # rows that cannot be mapped
    order: list[tuple[int, int]] = []
    render_lines = Rendering.render_lines

    def noted(self: Any, first: int, lines: Any, out: Tensor) -> None:
        if not isinstance(out, Tensor):  # as the batch that it is compared with
            order.append((first, out.shape[-1]))
        render_lines(self, first, lines, out)

    monkeypatch.setattr(Rendering, "render_lines", noted)
    views = Views(Collate(RandomCrop(24)), Collate(RandomCrop(9)))
    assert_epoch(dataset["train"], views, tier="disk", batch_size=18, threads=1)
    assert order == [(first, size) for first in (0, 4, 8, 12, 16) for size in (24, 9)]


def test_a_resumed_epoch_goes_on_with_the_same_views(dataset: Dataset) -> None:
    def loader() -> Loader:
        return Loader(dataset, batch_size=4, shuffle=True, seed=SEED, collate=crops(), threads=2)

    first = loader()
    first.set_epoch(3)
    rest: Any = begun(first)
    again: Any = resumed(loader(), first.state_dict())
    for got, wanted in zip(again, rest, strict=True):
        assert all(torch.equal(one.images, other.images) for one, other in zip(got, wanted, strict=True))


def test_boxes_masks_and_features_follow_in_each_view_or_are_refused_before_a_row_is_read(tmp_path: Path) -> None:
    split = stored_at(tmp_path / "store")
    assert_epoch(split, crops(), batch_size=7, tier="disk")
    views = Views(Collate(RandomCrop(9)), Collate(RandomCrop(9), MixUp(num_classes=3)))
    with pytest.raises(ValueError, match="MixUp blends images but not"):
        Loader(split, collate=views)


def test_steps_after_the_pass_and_one_by_one(dataset: Dataset) -> None:
    mixed = Collate(RandomCrop(20), Normalize.imagenet(), MixUp(num_classes=3))
    sampled = Collate(CenterCrop(20), PerSample(v2.RandomChannelPermutation()))
    assert_epoch(dataset["train"], Views(mixed, sampled, sampled), batch_size=7, threads=3)


def test_the_device_of_the_views_is_the_loaders() -> None:
    assert resolve_device(None, Views(*[Collate(device="cuda")] * 2)) == torch.device("cuda")
