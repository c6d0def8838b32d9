"""Steps that follow the epoch, through loaders: threads, tiers, ranks, resume points, and torch's own DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loaded import images_of, resumed
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from mmload.augment import AlternatingHorizontalFlip, Normalize, PerSample, RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.loader import Loader
from mmload.store.dataset import Split

EPOCHS = 4


def side(epoch: int) -> int:
    """Another size in each epoch, so that a batch shows which one it was made for."""
    return 12 + 2 * epoch


def collate_of(*more: torch.nn.Module) -> Collate:
    return Collate(RandomResizedCrop(side), AlternatingHorizontalFlip(), *more, Normalize.imagenet())


def epochs_of(rows: Split, **options: Any) -> list[dict[int, Tensor]]:
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "collate": collate_of(), "device": "cpu", **options}
    with Loader(rows, **options) as loader:
        return [images_of(loader) for _ in range(EPOCHS)]


@pytest.fixture
def expected(rows: Split) -> list[dict[int, Tensor]]:
    """By one thread that prefetches nothing; of each epoch its size."""
    made = epochs_of(rows, threads=1, prefetch=0)
    assert [{image.shape[1] for image in epoch.values()} for epoch in made] == [{side(one)} for one in range(EPOCHS)]
    return made


def same(got: dict[int, Tensor], expected: dict[int, Tensor]) -> bool:
    return got.keys() <= expected.keys() and all(torch.equal(image, expected[row]) for row, image in got.items())


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 3, "prefetch": 5},
        {"batch_size": 7, "threads": 2},
        {"shuffle": False, "tier": "memory"},
        {"shuffle": False, "order": "block", "batch_size": 18},
        {"ranks": (1, 2)},
        {"drop_last": True, "batch_size": 5},
        {"fields": ["images"]},
    ],
)
def test_an_epoch_is_the_same_however_it_is_loaded(
    rows: Split, expected: list[dict[int, Tensor]], options: dict[str, Any]
) -> None:
    for got, wanted in zip(epochs_of(rows, **options), expected, strict=True):
        assert same(got, wanted)
        assert len(got) >= 9


def test_epochs_that_run_at_once_have_sizes_of_their_own(rows: Split, expected: list[dict[int, Tensor]]) -> None:
    with Loader(rows, batch_size=4, shuffle=True, seed=3, collate=collate_of(), threads=2, prefetch=2) as loader:
        loader.set_epoch(1)
        pairs = list(zip(loader, loader, strict=True))
    for which, epoch in enumerate((1, 2)):
        assert same(images_of(pair[which] for pair in pairs), expected[epoch])


def test_a_resumed_epoch_goes_on_as_it_was(rows: Split, expected: list[dict[int, Tensor]]) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "collate": collate_of()}
    loader = Loader(rows, batch_size=4, **options)
    loader.set_epoch(2)
    next(iter(loader))
    again = resumed(Loader(rows, batch_size=3, **options), loader.state_dict())
    rest = images_of(again)
    assert same(rest, expected[2])
    assert len(rest) == 14
    assert same(images_of(again), expected[3])


def test_memory_is_used_again_in_the_next_epoch_of_the_same_size(rows: Split) -> None:
    """Batches of other sizes must neither share memory nor keep all of it."""
    collate = Collate(RandomResizedCrop(lambda epoch: 16 if epoch % 2 else 24), AlternatingHorizontalFlip())
    loader = Loader(rows, batch_size=6, collate=collate, threads=1, prefetch=0)
    kept = [batch.images for _ in range(4) for batch in loader]
    copies = [one.clone() for one in kept]
    for _ in range(4):
        for batch in loader:
            batch.images.zero_()
    assert all(map(torch.equal, kept, copies))


def test_the_loaders_epoch_beats_the_users(rows: Split, expected: list[dict[int, Tensor]]) -> None:
    collate = collate_of()
    collate.set_epoch(9)
    assert same(epochs_of(rows, collate=collate)[1], expected[1])
    assert collate.epoch == 9


def test_any_function_views_and_steps_of_the_training_thread_know_the_epoch(
    rows: Split, expected: list[dict[int, Tensor]]
) -> None:
    collate = collate_of()
    for function in (lambda batch: collate(batch), lambda batch: Views(collate, collate)(batch)[0]):
        assert all(map(same, epochs_of(rows, collate=function), expected))
    last = Collate(PerSample(v2.Identity()), RandomResizedCrop(side), AlternatingHorizontalFlip(), Normalize.imagenet())
    for epoch, got in enumerate(epochs_of(rows, collate=last)):
        assert {image.shape for image in got.values()} == {(3, side(epoch), side(epoch))}
    views = Views(*[Collate(RandomResizedCrop(side), PerSample(v2.Identity()))] * 2)
    with Loader(rows, batch_size=9, collate=views) as loader:
        for epoch in range(2):
            for first, second in loader:
                assert first.images.shape[2] == second.images.shape[2] == side(epoch)


def test_two_epochs_show_both_sides_of_every_row_once(rows: Split, images: Tensor) -> None:
    shown = epochs_of(rows, collate=Collate(AlternatingHorizontalFlip(), dtype=torch.uint8))
    first = [torch.equal(shown[0][row], images[row].flip(-1)) for row in range(len(rows))]
    assert 3 <= sum(first) <= 15
    for epoch in range(EPOCHS):
        for row in range(len(rows)):
            flipped = first[row] ^ bool(epoch % 2)
            assert torch.equal(shown[epoch][row], images[row].flip(-1) if flipped else images[row])


@pytest.mark.parametrize(("context", "persistent"), [("fork", True), ("fork", False), ("forkserver", True)])
def test_worker_processes_of_a_dataloader_see_the_epoch(
    rows: Split, images: Tensor, context: str, persistent: bool
) -> None:
    """The same workers make all epochs if they are persistent; each image shows the epoch by its size and side."""
    collate = Collate(AlternatingHorizontalFlip(), RandomResizedCrop(side, (1, 1), (1, 1)), dtype=torch.uint8)
    collate.set_epoch(0)
    options: dict[str, Any] = {"persistent_workers": persistent, "multiprocessing_context": context}
    stock: Any = DataLoader(rows, batch_size=4, num_workers=2, collate_fn=collate, **options)
    for epoch in (0, 1, 2, 0, 3):
        collate.set_epoch(epoch)
        here = Collate(*collate.steps, dtype=torch.uint8)
        here.set_epoch(epoch)
        got = images_of(stock)
        assert same(got, images_of([here(rows[list(range(18))])]))
        assert len(got) == 18
        assert {image.shape[1] for image in got.values()} == {side(epoch)}


def test_dataloader_without_set_epoch_raises(rows: Split) -> None:
    for workers in (0, 2):
        stock: Any = DataLoader(rows, batch_size=4, num_workers=workers, collate_fn=collate_of())
        with pytest.raises(ValueError, match="size follows the epoch, which is not known"):
            next(iter(stock))


def test_views_in_worker_processes_see_the_epoch(rows: Split) -> None:
    views = Views(Collate(RandomResizedCrop(side)), Collate(RandomHorizontalFlip(), RandomResizedCrop(side)))
    views.set_epoch(0)
    stock: Any = DataLoader(rows, batch_size=9, num_workers=1, persistent_workers=True, collate_fn=views)
    for epoch in (0, 3):
        views.set_epoch(epoch)
        for pair in stock:
            assert [view.images.shape[2] for view in pair] == [side(epoch)] * 2
