"""The loader against its contract: every batch is the collate applied to the gathered rows."""

from __future__ import annotations

import copy
import gc
import inspect
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import crop_collate
from loaded import begun, rows_of
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler
from written_datasets import of_tensors

import mmload
from mmload.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.augment.step import sample_seeds
from mmload.batch import Batch
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.loader.orders import balanced, classes, repeated
from mmload.store.dataset import Dataset


def test_without_shuffle_and_collate_it_is_the_rows_in_order(dataset: Dataset, images: torch.Tensor) -> None:
    batches = list(Loader(dataset, batch_size=5))
    assert [len(batch) for batch in batches] == [5, 5, 5, 3]
    assert torch.equal(torch.cat([batch.images for batch in batches]), images)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), torch.arange(18) // 6)


def test_every_batch_is_the_collate_of_its_rows(dataset: Dataset, photos: Path, tmp_path: Path) -> None:
    build(BuildRecipe(kind="imagefolder", root=photos, out=tmp_path / "large", transforms=square(256)))
    for split, size in ((dataset["train"], 24), (mmload.open(tmp_path / "large")["train"], 224)):
        collate = Collate(RandomCrop(size), RandomHorizontalFlip(), Normalize.imagenet())
        loader = Loader(split, batch_size=4, shuffle=True, seed=7, collate=collate)
        for epoch in range(2):
            for batch in loader:
                rows = split[batch.ids].replace(seeds=sample_seeds(7, epoch, batch.ids))
                assert torch.equal(batch.images, collate(rows).images)


def test_an_epoch_has_every_row_once_and_the_next_another_order(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=5, shuffle=True)
    first, second = rows_of(loader), rows_of(loader)
    assert sorted(first) == sorted(second) == list(range(18))
    assert first != second != list(range(18))
    loader.set_epoch(0)
    assert rows_of(loader) == first
    assert rows_of(Loader(dataset, 5, True)) == first  # by position, as a DataLoader takes them


def test_drop_last_leaves_out_the_rest_and_warns_if_nothing_is_left(dataset: Dataset) -> None:
    assert len(Loader(dataset, batch_size=4)) == 5
    loader = Loader(dataset, batch_size=4, drop_last=True)
    assert [len(batch) for batch in loader] == [4] * len(loader) == [4] * 4
    with pytest.warns(UserWarning, match="no batch: 18 rows per rank and epoch, but batch_size is 19; use a smaller"):
        assert len(Loader(dataset, batch_size=19, drop_last=True)) == 0


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": RandomSampler(range(18))}])
def test_two_epochs_at_once_are_two_epochs(dataset: Dataset, options: dict[str, Any]) -> None:
    loader = Loader(dataset, batch_size=1, **options)
    pairs = list(zip(loader, loader, strict=True))
    first, second = (rows_of(pair[which] for pair in pairs) for which in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(18))
    assert loader.epoch == 2


def test_an_error_that_names_no_file_gets_a_note_of_the_rows(dataset: Dataset) -> None:
    def collate(batch: Batch) -> Batch:
        raise ZeroDivisionError("of my own")

    with pytest.raises(ZeroDivisionError, match="of my own") as raised:
        next(iter(Loader(dataset, batch_size=10, collate=collate)))
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
    assert re.search(f"{dataset.path}.*rows 0, 1", told)


@pytest.mark.parametrize("forgotten", ["loader", "iterator"])
def test_breaking_out_and_forgetting_leave_no_thread(dataset: Dataset, forgotten: str) -> None:
    before = set(threading.enumerate())
    loader = Loader(dataset, batch_size=1, shuffle=True, collate=crop_collate(), threads=3)
    held = [begun(loader)]
    if forgotten == "loader":
        held[:] = [loader]
    del loader
    ours = set(threading.enumerate()) - before
    assert len(ours) == 3
    held.clear()
    gc.collect()
    for thread in ours:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in ours)


def test_loader_of_a_dataset_with_several_splits_says_how_to_open_one(tmp_path: Path) -> None:
    tensors = {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    path = of_tensors(tmp_path / "rows", {"train": tensors, "val": tensors})
    with pytest.raises(UsageError, match=re.escape(f'mmload.open({str(path)!r})["train"]')):
        Loader(path)


@pytest.mark.parametrize("given", ["path", "dataset", "split", "subset", "joined"])
def test_the_dataset_of_a_loader_is_what_it_reads(dataset: Dataset, given: str) -> None:
    split = dataset["train"]
    sources: dict[str, Any] = {"path": dataset.path, "dataset": dataset, "split": split}
    sources |= {"subset": split.subset([3, 1]), "joined": ConcatDataset([split, split])}
    loader = Loader(sources[given], batch_size=4, drop_last=True)
    assert len(loader.dataset) == {"subset": 2, "joined": 36}.get(given, 18)
    if given in ("path", "dataset"):
        assert loader.dataset is loader.split
        assert loader.dataset.classes == split.classes
    else:
        assert loader.dataset is sources[given]
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (4, True, 0)


def test_stats_tell_the_tier_and_what_was_read(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=6, collate=crop_collate(), tier="memory")
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    expected = {"tier": "memory", "batches": 9, "hits": 54, "misses": 18}
    assert {name: stats[name] for name in expected} == expected
    assert stats["waited_s"] > 0
    assert "disk" in Loader(dataset).stats()["tier_reason"]


def test_only_the_fields_asked_for_are_read(dataset: Dataset) -> None:
    batch = next(iter(Loader(dataset, fields=(name for name in ["targets"]))))  # type: ignore[arg-type]
    assert batch.images is None
    assert batch.targets.tolist() == [row // 6 for row in range(18)]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"batch_size": 2.5}, ValueError, "batch_size"),
    ({"batch_size": np.zeros((2, 2))}, ValueError, r"batch_size is array\(\[\[0., 0.\], \[0., 0.\]\]\); give an integ"),
    ({"threads": 0}, ValueError, "threads"),
    ({"threads": 10**9}, ValueError, "threads is 1000000000; give an integer from 1 to 1024"),
    ({"prefetch": -1}, ValueError, "prefetch"),
    ({"drop_last": "no"}, TypeError, "drop_last is 'no'; give True or False"),
    ({"tier": "tape"}, ValueError, "tier"),
    ({"tail": "cut"}, ValueError, "tail"),
    ({"ranks": 0}, ValueError, "ranks"),
    ({"ranks": (0,)}, ValueError, "ranks"),
    ({"ranks": (2, 2)}, ValueError, "ranks"),
    ({"fields": "images"}, TypeError, r"fields is 'images'; give a list of names, such as \['images', 'targets'\]"),
    ({"fields": [["images"]]}, UsageError, r"no field \['images'\]; it has images, targets"),
    ({"fields": ["boxes"]}, UsageError, "no field 'boxes'; it has images, targets"),
    (
        {"fields": ["targets"], "collate": [RandomCrop(16)]},
        ValueError,
        "fields are targets, and a collate renders images: add them, or leave it out",
    ),
    ({"collate": 3}, TypeError, "collate is 3; give a Collate, a list of its steps, or a function of a Batch"),
    ({"collate": ""}, TypeError, "collate is ''; give a Collate"),
    ({"collate": RandomHorizontalFlip()}, TypeError, "collate is the step RandomHorizontalFlip; give a list of steps"),
    (
        {"collate": [Normalize([123, 116, 103], [58, 57, 57])]},
        ValueError,
        r"divide by 255, Normalize\(\(0.482, 0.455, 0.404\), \(0.227, ",
    ),
    ({"shuffle": "blocks"}, ValueError, "shuffle"),
    ({"shuffle": "block"}, ValueError, "shuffle is 'block'; give True or False; order="),
    ({"shuffle": True, "order": [1]}, ValueError, "shuffle and order are both given; each decides the order alone"),
    ({"shuffle": True, "order": "block"}, ValueError, "shuffle and order are both given"),
    ({"order": ""}, ValueError, "order is ''; give 'block', 'full', an order of mmload.loader.orders, rows"),
    ({"order": "random"}, ValueError, "order is 'random'; give 'block', 'full', an order"),
    ({"order": "shuffled"}, ValueError, "order is 'shuffled'; give shuffle=True"),
    ({"order": "sequential"}, ValueError, "order is 'sequential'; leave it out, or give shuffle=False"),
    ({"order": 3}, TypeError, "order is 3; give 'block'"),
    ({"order": balanced("breed")}, UsageError, "has no field 'breed'; it has"),
    ({"order": balanced("images")}, ValueError, r"field 'images' is torch.uint8 of the shape \[3, 32, 32\] per row"),
    (
        {"order": classes(2, 2), "batch_size": 5},
        ValueError,
        r"5, and order=classes\(p=2, k=2, .*\) makes batches of 4: give batch_size=4$",
    ),
    ({"device": -1}, ValueError, "device is 'cuda:-1', expected a device of torch"),
    ({"device": "gpu"}, ValueError, "device is 'gpu', expected a device of torch, such as 'cpu', 'cuda' or 'cuda:0'"),
    ({"device": "cuda"}, ValueError, "device is 'cuda', but torch finds no CUDA GPU or driver; use device='cpu'"),
    (
        {"device": "meta"},
        ValueError,
        "device is meta; a loader gives batches on the CPU or a CUDA device: move them from the CPU",
    ),
    ({"batchsize": 1}, TypeError, r"Loader has no argument 'batchsize': .*\. Did you mean batch_size\?"),
    ({"cache_pixels": True}, TypeError, "Loader has no argument 'cache_pixels': the page cache"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_an_argument_that_cannot_be_is_a_clear_error(
    dataset: Dataset, options: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=message):
        Loader(dataset, **options)


def test_every_argument_of_a_dataloader_works_or_says_what_to_write(dataset: Dataset) -> None:
    own = set(inspect.signature(Loader).parameters)
    others = set(inspect.signature(DataLoader).parameters) - own
    assert {"num_workers", "pin_memory", "collate_fn", "sampler"} <= others
    for name in others | {
        "split",
        "rank",
        "world_size",
        "bucket",
        "cache_pixels",
        "subprocess",
        "workers",
        "transform",
    }:
        with pytest.raises(TypeError, match=f"Loader has no argument '{name}': "):
            Loader(dataset["train"], **{name: 1})  # type: ignore[arg-type]
    assert len(own - {"others"}) == 16


def test_repr_of_a_loader_is_a_line_that_says_what_it_loads(dataset: Dataset) -> None:
    made = Loader(dataset["train"], 5, order=repeated(2), threads=1, collate=[CenterCrop(16)])
    start = f"Loader(18 rows of {dataset['train']!r}, batch_size=5, order=repeated(2), tier=disk, device=cpu, threads=1"
    assert repr(made) == f"{start}, collate=Collate(CenterCrop))"
    assert ", order=full, " not in repr(Loader(dataset, shuffle=True))
    assert ", order=rows, " in repr(Loader(dataset, order=[1, 2]))
