"""The loader against its contract: every batch is the collate applied to the gathered rows."""

from __future__ import annotations

import copy
import gc
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import crop_collate
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from written_datasets import of_tensors, sparse_dataset

import mmload
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.draws import sample_seeds
from mmload.batch import Batch
from mmload.errors import DamagedError, UsageError
from mmload.loader import Loader
from mmload.store.dataset import Dataset


def test_without_shuffle_and_collate_it_is_the_rows_in_order(dataset: Dataset, images: torch.Tensor) -> None:
    batches = list(Loader(dataset, batch_size=5))
    assert [len(batch) for batch in batches] == [5, 5, 5, 3]
    assert torch.equal(torch.cat([batch.images for batch in batches]), images)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), torch.arange(18) // 6)


def test_every_batch_is_the_collate_of_its_rows(dataset: Dataset, images: torch.Tensor) -> None:
    collate = crop_collate()
    loader = Loader(dataset["train"], batch_size=4, shuffle=True, seed=7, collate=collate)
    for epoch in range(2):
        for batch in loader:
            seeds = sample_seeds(7, epoch, batch.ids)
            rows = Batch(images=images[batch.ids], targets=batch.targets, seeds=seeds, batch_size=[len(batch)])
            assert torch.equal(batch.images, collate(rows).images)


def test_an_epoch_has_every_row_once_and_the_next_another_order(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=5, shuffle=True)
    first, second = ([row for batch in loader for row in batch.ids.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(18))
    assert first != second != list(range(18))
    loader.set_epoch(0)
    assert [row for batch in loader for row in batch.ids.tolist()] == first


def test_length_and_drop_last(dataset: Dataset) -> None:
    assert len(Loader(dataset, batch_size=4)) == 5
    loader = Loader(dataset, batch_size=4, drop_last=True)
    assert len(loader) == 4
    assert [len(batch) for batch in loader] == [4] * 4


def test_loader_drop_last_leaves_no_batch_warns(dataset: Dataset) -> None:
    with pytest.warns(UserWarning, match="no batch: 18 rows per rank and epoch, but batch_size is 19; use a smaller"):
        assert len(Loader(dataset, batch_size=19, drop_last=True)) == 0


def test_a_sampler_decides_the_order(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=2, order=[3, 3, 17])
    assert [batch.ids.tolist() for batch in loader] == [[3, 3], [17]]
    with pytest.raises(ValueError, match="shuffle and order"):
        Loader(dataset, shuffle=True, order=[1])


def test_the_users_epoch_of_a_distributed_sampler_stays(dataset: Dataset) -> None:
    sampler = DistributedSampler(range(18), 2, 0, shuffle=True)
    loader = Loader(dataset, batch_size=4, order=sampler)
    for epoch in (5, 5, 2):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        assert [row for batch in loader for row in batch.ids.tolist()] == expected


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": RandomSampler(range(18))}])
def test_two_epochs_at_once_are_two_epochs(dataset: Dataset, options: dict[str, Any]) -> None:
    loader = Loader(dataset, batch_size=1, **options)
    pairs = [(first.ids, second.ids) for first, second in zip(loader, loader, strict=True)]
    epochs = [torch.cat(ids) for ids in zip(*pairs, strict=True)]
    assert not torch.equal(*epochs)
    for rows in epochs:
        assert sorted(rows.tolist()) == list(range(18))
    assert loader.epoch == 2


def test_the_state_is_that_of_the_iterator_begun_last(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=4)
    first, second = iter(loader), iter(loader)
    next(second)
    next(first)
    next(first)
    assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 4)


def test_a_function_may_collate(dataset: Dataset, images: torch.Tensor) -> None:
    loader = Loader(
        dataset, batch_size=18, collate=lambda batch: batch.replace(images=batch.images.float().mean((2, 3)))
    )
    assert torch.equal(next(iter(loader)).images, images.float().mean((2, 3)))


def test_loader_referenced_batches_do_not_change(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=2, shuffle=True, collate=crop_collate())
    kept = list(loader)
    copies = [batch.images.clone() for batch in kept]
    for _ in range(3):
        for batch in loader:
            batch.images.zero_()
    assert all(torch.equal(batch.images, copy) for batch, copy in zip(kept, copies, strict=True))


def test_an_error_in_a_thread_reaches_the_loop_with_its_path(dataset: Dataset, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset.path, tmp_path / "copy")
    loader = Loader(copy, batch_size=2, collate=crop_collate(), prefetch=0, threads=1)
    iterator = iter(loader)
    next(iterator)
    with open(copy / "train" / "000002" / "images.memmap", "r+b") as file:
        file.truncate(100)
    with pytest.raises(DamagedError, match=r"000002/images\.memmap is damaged: it ends at byte 100"):
        list(iterator)


def test_an_error_that_names_no_file_gets_a_note_of_the_rows(dataset: Dataset) -> None:
    def collate(batch: Batch) -> Batch:
        raise ZeroDivisionError("of my own")

    loader = Loader(dataset, batch_size=10, collate=collate)
    with pytest.raises(ZeroDivisionError, match="of my own") as raised:
        next(iter(loader))
    [note] = raised.value.__notes__
    assert str(dataset.path) in note
    assert note.endswith(": rows 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_dataloaders_worker_names_the_dataset(
    dataset: Dataset, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = copy.copy(dataset["train"])

    class NoMemory:
        def gather(self, name: str, rows: torch.Tensor) -> torch.Tensor:
            raise MemoryError("none left")

    monkeypatch.setattr(split, "reader", NoMemory())
    with pytest.raises(MemoryError) as raised:
        next(iter(DataLoader(split, batch_size=2, num_workers=workers, collate_fn=lambda batch: batch)))
    told = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert str(dataset.path) in told
    assert "rows 0, 1" in told


def test_breaking_out_and_forgetting_leave_no_thread(dataset: Dataset) -> None:
    before = set(threading.enumerate())
    loader = Loader(dataset, batch_size=1, shuffle=True, collate=crop_collate(), threads=3)
    for _ in loader:
        break
    ours = set(threading.enumerate()) - before
    assert len(ours) == 3
    del loader
    gc.collect()
    for thread in ours:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in ours)


def test_loader_of_a_dataset_with_several_splits_says_how_to_open_one(tmp_path: Path) -> None:
    tensors = {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    path = of_tensors(tmp_path / "rows", {"train": tensors, "val": tensors})
    with pytest.raises(UsageError, match=re.escape(f'mmload.open({str(path)!r})["train"]')):
        Loader(path)


def test_images_larger_than_a_crop_are_what_collate_gives(tmp_path: Path, photos: Path) -> None:
    from mmload.builder.pipeline import build
    from mmload.builder.recipe import BuildRecipe, square

    out = tmp_path / "photos-256"
    build(BuildRecipe(kind="imagefolder", root=photos, out=out, transforms=square(256)))
    collate = mmload.Collate(RandomCrop(224), RandomHorizontalFlip(), Normalize.imagenet())
    split = mmload.open(out)["train"]
    for batch in Loader(split, batch_size=16, shuffle=True, seed=3, collate=collate):
        rows = split[batch.ids]
        assert torch.equal(batch.images, collate(rows.replace(seeds=sample_seeds(3, 0, batch.ids))).images)


def test_stats_tell_the_tier_and_what_was_read(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=6, collate=crop_collate(), tier="memory")
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    assert stats["tier"] == "memory"
    assert stats["batches"] == 9
    assert (stats["hits"], stats["misses"]) == (54, 18)
    assert stats["waited_s"] > 0
    assert "disk" in Loader(dataset).stats()["tier_reason"]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device is 'gpu', expected a device of torch, such as 'cpu', 'cuda' or 'cuda:0'"),
        ("cuda", "device is 'cuda', but torch finds no CUDA GPU or driver; use device='cpu'"),
        ("meta", "device is meta; a loader gives batches on the CPU or a CUDA device: move them from the CPU"),
    ],
)
def test_a_device_that_is_not_there_is_a_clear_error(
    dataset: Dataset, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=re.escape(message)):
        Loader(dataset, device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 10**9}, "threads is 1000000000; give an integer from 1 to 1024"),
        ({"batch_size": np.zeros((2, 2))}, "batch_size is array([[0., 0.], [0., 0.]]); give an integer"),
        ({"drop_last": "no"}, "drop_last is 'no'; give True or False"),
        ({"fields": "images"}, "fields is 'images'; give a list of names, such as ['images', 'targets']"),
        ({"collate": 3}, "collate is 3; give a Collate, a list of its steps, or a function of a Batch"),
        ({"collate": ""}, "collate is ''; give a Collate"),
        ({"collate": RandomHorizontalFlip()}, "collate is the step RandomHorizontalFlip; give a list of steps"),
        ({"order": ""}, "order is ''; give 'block', 'full', an order of mmload.loader.orders, rows"),
        ({"device": -1}, "device is 'cuda:-1', expected a device of torch"),
    ],
)
def test_an_argument_that_cannot_be_is_a_clear_error(dataset: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        Loader(dataset, **options)


def test_only_the_fields_asked_for_are_read(dataset: Dataset) -> None:
    batch = next(iter(Loader(dataset, fields=(name for name in ["targets"]))))  # type: ignore[arg-type]
    assert batch.images is None
    assert batch.targets.tolist() == [row // 6 for row in range(18)]
    with pytest.raises(UsageError, match=r"no field \['images'\]; it has images, targets"):
        Loader(dataset, fields=[["images"]])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no field 'boxes'; it has images, targets"):
        Loader(dataset, fields=["boxes"])
    with pytest.raises(ValueError, match="fields are targets, and a collate renders images: add them, or leave it out"):
        Loader(dataset, fields=["targets"], collate=[RandomCrop(16)])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"threads": 0},
        {"prefetch": -1},
        {"tier": "tape"},
        {"shuffle": "blocks"},
        {"ranks": 0},
        {"ranks": (0,)},
        {"ranks": (2, 2)},
        {"tail": "cut"},
    ],
)
def test_loader_options_that_cannot_be_meant_are_refused(dataset: Dataset, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Loader(dataset, **options)  # type: ignore[arg-type]


def test_old_spellings_are_refused_with_the_new_ones(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="shuffle is 'block'; give True or False; order="):
        Loader(dataset, shuffle="block")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order is 'shuffled'; give shuffle=True"):
        Loader(dataset, order="shuffled")
    with pytest.raises(ValueError, match="order is 'sequential'; leave it out, or give shuffle=False"):
        Loader(dataset, order="sequential")
    with pytest.raises(TypeError, match="Loader has no argument 'cache_pixels': the page cache"):
        Loader(dataset, cache_pixels=True)  # type: ignore[arg-type]


def test_block_order_over_a_sorted_store_warns_what_to_do(tmp_path: Path) -> None:
    path = sparse_dataset(tmp_path / "sorted", 20_000, targets=torch.arange(20_000) // 20)
    with pytest.warns(UserWarning, match="sorted by class; build it with --shuffle-seed"):
        Loader(path, order="block", batch_size=256)
