"""Views in a Loader: every row is read once, and each view has the bits of its collate alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from device_batches import stored_at
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

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
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.loader import Loader, tiers
from mmload.loader.arguments import device_for
from mmload.remote.opening import open as open_dataset
from mmload.render.rendering import Rendering
from mmload.store.dataset import Dataset, Split
from mmload.store.field_rows import FieldRows

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
        seen: list[int] = []
        for batches in loader:
            assert isinstance(batches, tuple)
            for got, other in zip(batches, expected(split, views, batches[0].ids, epoch), strict=True):
                assert sorted(got.keys()) == sorted(other.keys())
                for name in other.keys():  # noqa: SIM118  # iterating a tensorclass gives its rows
                    assert torch.equal(got.get(name), other.get(name)), name
                assert got.images.stride() == other.images.stride()
            seen += batches[0].ids.tolist()
    assert sorted(seen) == list(range(len(split)))


@pytest.mark.parametrize("tier", ["disk", "memory"])
@pytest.mark.parametrize(("threads", "batch_size"), [(1, 18), (3, 5), (2, 1)])
def test_batches_are_the_collates_of_their_rows(dataset: Dataset, tier: str, threads: int, batch_size: int) -> None:
    for epoch in range(2):
        assert_epoch(dataset["train"], crops(), epoch, tier=tier, threads=threads, batch_size=batch_size)


def test_rows_are_read_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    located = FieldRows.located

    def counted(self: FieldRows, rows: Any) -> Any:
        if self.name == "images":
            read.extend(rows.tolist())
        return located(self, rows)

    monkeypatch.setattr(FieldRows, "located", counted)
    with Loader(dataset, collate=Views(*[Collate(RandomCrop(9))] * 6), batch_size=5, tier="disk") as loader:
        assert all(len(batches) == 6 for batches in loader)
        assert loader.stats()["hits"] + loader.stats()["misses"] == 18
    assert sorted(read) == list(range(18))


def test_a_few_rows_are_rendered_for_all_views_while_they_are_in_cache(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "PART_BYTES", 4 * 3 * 32 * 32)
    monkeypatch.setattr(tiers, "row_map", lambda *_: None)  # rows that cannot be mapped
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
    batches: Any = iter(first)
    next(batches)
    state = first.state_dict()
    rest = [[view.images for view in views] for views in batches]
    second = loader()
    second.load_state_dict(state)
    again: Any = second
    for got, wanted in zip([[view.images for view in views] for views in again], rest, strict=True):
        assert all(map(torch.equal, got, wanted))


def test_views_of_every_field(tmp_path: Path) -> None:
    """Boxes, masks and features follow in each view."""
    split = stored_at(tmp_path / "store")
    assert_epoch(split, crops(), batch_size=7, tier="disk")


def test_steps_after_the_pass_and_one_by_one(dataset: Dataset) -> None:
    mixed = Collate(RandomCrop(20), Normalize.imagenet(), MixUp(num_classes=3))
    sampled = Collate(CenterCrop(20), PerSample(v2.RandomChannelPermutation()))
    assert_epoch(dataset["train"], Views(mixed, sampled, sampled), batch_size=7, threads=3)


class Floats(torch.utils.data.Dataset[dict[str, Any]]):
    """Images in [0, 1]."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"images": torch.rand((3, 16, 16), generator=torch.Generator().manual_seed(index))}


def test_float_rows_are_read_once_for_all_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"dataset": f"{__name__}:Floats"}
    build(BuildRecipe(kind="python", root=Path(__file__).parent, options=options, out=tmp_path / "store"), threads=1)
    split = open_dataset(tmp_path / "store")["train"]
    gathered: list[int] = []
    gather = tiers.HostTier.gather_into
    monkeypatch.setattr(
        tiers.HostTier,
        "gather_into",
        lambda self, rows, *where: (gathered.append(len(rows)), gather(self, rows, *where))[1],
    )
    views = Views(Collate(RandomCrop(9)), Collate(RandomResizedCrop(12), Normalize.imagenet()))
    assert_epoch(split, views, tier="disk", batch_size=4, threads=1)
    assert gathered == [4, 2]


def test_the_device_of_the_views_is_the_loaders() -> None:
    assert device_for(None, Views(*[Collate(device="cuda")] * 2)) == torch.device("cuda")


def test_a_step_that_would_leave_boxes_behind_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    split = stored_at(tmp_path / "store")
    views = Views(Collate(RandomCrop(9)), Collate(RandomCrop(9), MixUp(num_classes=3)))
    with pytest.raises(ValueError, match="MixUp blends images but not"):
        Loader(split, collate=views)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_collates_views(dataset: Dataset, workers: int) -> None:
    split, views = dataset["train"], crops()
    loader: Any = DataLoader(split, batch_size=4, collate_fn=views, num_workers=workers)
    sizes = [[tuple(view.images.shape) for view in batches] for batches in loader]
    assert sizes[0] == [(4, 3, 24, 24), (4, 3, 9, 9), (4, 3, 24, 24), (4, 3, 24, 24)]
    assert len(sizes) == 5
