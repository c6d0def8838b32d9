"""Loader(subprocess=True): the batches of threads, in memory that two processes share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2
from variable_datasets import some_images, variable_dataset

import mmload
from mmload.augment import (
    ColorJitter,
    MixUp,
    Normalize,
    PerSample,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Views,
)
from mmload.batch import Batch
from mmload.errors import DamagedError, UsageError
from mmload.loader import Collate, Loader, orders, subprocess_worker
from mmload.loader.arguments import check_subprocess
from mmload.loader.subprocess_worker import SLOTS
from mmload.remote.copies import push
from mmload.runtime.memory_pool import SharedArena, SharedBuffers
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")


class Darker(nn.Module):
    """A step that is not mmload's: pixels that no pass of mmload has rendered."""

    def forward(self, images: Tensor) -> Tensor:
        return images / 2


class Sums:
    """A collate that is no Collate."""

    def __call__(self, batch: Batch) -> dict[str, Any]:
        sums = batch.images.sum((1, 2, 3), dtype=torch.float64)
        return {"sums": sums, "pair": (batch.ids, [batch.targets]), "name": "sums", "half": sums.bfloat16()}


class Changes:
    """A collate whose batches differ in form, shapes, dtypes, strides, keys and objects."""

    def __call__(self, batch: Batch) -> Any:
        first, images, turned = int(batch.ids[0]), batch.images, batch.images.mT
        dtype = (torch.float32, torch.bfloat16, torch.int64)[first % 3]
        values = {f"key {first % 5}": images[:, :, : 1 + first % 4], first: turned, "first": [first], (first,): None}
        pair = [batch.targets.to(dtype), values]
        forms = batch, values, pair, (images[:0], batch.ids), batch.replace(images=turned)
        return forms[first % len(forms)]


class Listed:
    """A collate that gives a list of its own and a dict with each batch, beside equal tensors."""

    def __call__(self, batch: Batch) -> Any:
        return {"numbers": batch.ids.tolist(), "size": {len(batch.ids): batch.targets}}


class Refuses:
    """A collate that fails for the row 4."""

    def __call__(self, batch: Batch) -> Batch:
        if (batch.ids == 4).any():
            raise ValueError("row 4 is refused")
        return batch


def resized() -> Collate:
    return Collate(RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet())


COLLATES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "crop": crop_collate,
    "channels_last": lambda: Collate(RandomCrop(20), dtype=torch.float16, memory_format=torch.channels_last),
    "bfloat16": lambda: Collate(ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize.imagenet(), dtype=torch.bfloat16),
    "mixed": lambda: Collate(RandomErasing(p=0.5), MixUp(num_classes=3)),
    "foreign": lambda: Collate(RandomCrop(20), Darker()),
    "per_sample": lambda: Collate(RandomCrop(20), PerSample(v2.RandomInvert(0.5))),
    "views": lambda: Views(resized(), Collate(RandomCrop(9)), resized()),
    "function": Sums,
    "changes": Changes,
}


def parts_of(made: Any) -> Iterator[Any]:
    """All tensors and other values of a batch, whatever form it has."""
    if isinstance(made, Batch):
        for name in sorted(made.keys()):
            if made.get(name) is not None:
                yield name
                yield from parts_of(made.get(name))
    elif isinstance(made, dict):
        for name in made:
            yield name
            yield from parts_of(made[name])
    elif isinstance(made, tuple | list):
        yield type(made)
        for each in made:
            yield from parts_of(each)
    else:
        yield made


def assert_equal(got: Any, expected: Any) -> None:
    pairs = list(zip(parts_of(got), parts_of(expected), strict=True))
    assert pairs
    for ours, theirs in pairs:
        if isinstance(theirs, Tensor):
            assert ours.dtype == theirs.dtype
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)
        else:
            assert ours == theirs


def assert_same_epochs(dataset: Any, epochs: int = 2, **options: Any) -> None:
    """Checks that two epochs of a subprocess are those of threads; all batches are kept until the end."""
    options = {"batch_size": 4, "threads": 2, "seed": 3} | options
    with Loader(dataset, **options) as plain, Loader(dataset, subprocess=True, **options) as loader:
        for _ in range(epochs):
            expected = list(plain)
            got = list(loader)
            assert len(got) == len(expected) > 0
            for ours, theirs in zip(got, expected, strict=True):
                assert_equal(ours, theirs)


@pytest.mark.parametrize("name", COLLATES)
def test_batches_are_those_of_threads(dataset: Dataset, name: str) -> None:
    assert_same_epochs(dataset["train"], shuffle=True, collate=COLLATES[name]())


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "mixed"])
def test_variable_size_images_are_those_of_threads(tmp_path: Path, encoding: str) -> None:
    images = some_images()
    path = variable_dataset(tmp_path / "rows", images, encoding=encoding, masks=[image[0] for image in images])
    assert_same_epochs(path, shuffle=True, collate=resized())
    assert_same_epochs(path, collate=Collate(), order=orders.by_aspect(), fields=("images", "targets"))


@pytest.mark.parametrize(
    "options",
    [
        {"order": orders.weighted([1.0] + [0.1] * 14), "drop_last": True},
        {"order": [3, 1, 3, 3, 0]},
        {"order": "block", "ranks": (1, 2)},
        {"returns": ("images", "targets"), "batch_size": 7},
        {"tier": "memory", "fields": ("images",)},
    ],
    ids=["weighted", "sampler", "ranks", "returns", "memory"],
)
def test_orders_and_forms_are_those_of_threads(dataset: Dataset, options: dict[str, Any]) -> None:
    rows = len(dataset["train"])
    if options.get("order", "block") != "block":
        options = options | {"order": orders.weighted([1.0] + [0.1] * (rows - 1))}
    assert_same_epochs(dataset["train"], collate=crop_collate(), **options)


def test_subsets_of_concatenations_are_those_of_threads(dataset: Dataset) -> None:
    split = dataset["train"]
    assert_same_epochs(Subset(ConcatDataset([split, split]), [0, 20, 3, 3, 7]), shuffle=True, collate=crop_collate())


@pytest.mark.usefixtures("fresh_caches")
def test_object_storage_is_read_by_the_subprocess(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    push(dataset.path, f"file://{tmp_path}/pushed")
    remote = mmload.open(f"file://{tmp_path}/pushed", cache=tmp_path / "cache")["train"]
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "collate": crop_collate()}
    with Loader(dataset["train"], **options) as plain, Loader(remote, subprocess=True, **options) as loader:
        for ours, theirs in zip(loader, plain, strict=True):
            assert_equal(ours, theirs)


def test_a_state_resumes_in_either_mode(dataset: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "collate": crop_collate()}
    with Loader(dataset, subprocess=True, **options) as loader, Loader(dataset, **options) as plain:
        iterator = iter(loader)
        next(iterator)
        plain.load_state_dict(loader.state_dict())
        for ours, theirs in zip(iterator, plain, strict=True):
            assert_equal(ours, theirs)


def test_a_batch_that_is_used_is_never_overwritten(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=2, shuffle=True, collate=crop_collate(), subprocess=True) as loader:
        first = next(iter(loader))
        crop, before = first.images[1:], first.images[1:].clone()
        targets, labels = first.targets, first.targets.clone()
        del first
        for _ in range(5):
            for _ in loader:
                pass
    assert torch.equal(crop, before)  # the subprocess has ended, too
    assert torch.equal(targets, labels)


def test_memory_of_batches_that_are_gone_is_used_again() -> None:
    arena = SharedArena()
    buffers, places = SharedBuffers(arena, 1 << 16), set()
    for _ in range(20):
        place, memory = buffers.allocate(10_000)
        memory[:] = 7
        buffers.hand_over(place)
        del memory
        reader = arena.view(place)
        part = torch.from_numpy(reader[5:10])
        del reader
        assert buffers.allocate(10_000)[0].buffer != place.buffer  # a view of it is left
        assert part.tolist() == [7] * 5
        del part
        places.add(place.buffer)
    assert len(places) <= 2
    small, _ = buffers.allocate(10)
    assert small.buffer not in places  # it is not given the memory of images
    larger = {buffers.allocate(30_000)[0].buffer for _ in range(3)}
    assert len(larger) == 1  # each is free at once; smaller ones were given up


def test_memory_ends_with_an_error() -> None:
    arena = SharedArena()
    buffers = SharedBuffers(arena, 0)
    with pytest.raises(MemoryError, match="no shared memory is left for a batch of"):
        buffers.allocate(len(arena.bytes))


def test_the_layout_of_equal_batches_is_read_once_and_not_shared(dataset: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 2, "drop_last": True, "collate": Listed()}
    with Loader(dataset["train"], subprocess=True, **options) as loader, Loader(dataset["train"], **options) as plain:
        subprocess_worker._parsed.cache_clear()
        first, *others = list(loader)
        assert subprocess_worker._parsed.cache_info().misses == 1
        first["numbers"].clear()
        first["size"].clear()
        for ours, theirs in zip([*others, *loader], [*list(plain)[1:], *plain], strict=True):
            assert_equal(ours, theirs)


def test_several_epochs_run_at_once(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=4, collate=crop_collate(), subprocess=True, threads=1) as loader:
        expected = [batch.ids.tolist() for batch in loader]
        pairs = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(loader, loader, strict=True)]
        assert pairs == [(ids, ids) for ids in expected]
        for _ in range(3 * SLOTS):  # an epoch that is left behind gives its requests back
            assert next(iter(loader)).ids.tolist() == expected[0]


def test_too_many_epochs_at_once_are_refused(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=1, subprocess=True, threads=1) as loader:
        iterators = [iter(loader) for _ in range(SLOTS)]
        with pytest.raises(UsageError, match=f"{SLOTS} batches are requested already"):
            list(map(next, iterators))
        del iterators
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("options", [{"threads": SLOTS}, {"threads": 1, "prefetch": SLOTS}])
def test_a_subprocess_makes_as_many_batches_ahead_as_asked(dataset: Dataset, options: dict[str, Any]) -> None:
    rows = list(range(18)) * 8
    with Loader(dataset["train"], batch_size=1, order=rows, subprocess=True, **options) as loader:
        assert [int(batch.ids) for batch, _ in zip(loader, loader, strict=True)] == rows


def test_threads_share_an_iterator(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=1, subprocess=True) as loader:
        iterator, found, lock = iter(loader), [], threading.Lock()

        def take() -> None:
            for batch in iterator:
                with lock:
                    found.append(int(batch.ids))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(len(dataset["train"])))


def test_an_error_of_the_subprocess_is_raised_and_no_batch_is_lost(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=2, collate=Refuses(), subprocess=True) as loader:
        iterator = iter(loader)
        assert [batch.ids.tolist() for batch in islice(iterator, 2)] == [[0, 1], [2, 3]]
        for _ in range(2):
            with pytest.raises(ValueError, match="row 4 is refused") as caught:
                next(iterator)
        assert any("rows 4 and 5" in note or "4, 5" in note for note in caught.value.__notes__)
        assert "in __call__" in str(caught.value.__cause__)


def test_subprocess_a_damaged_row_is_named(tmp_path: Path) -> None:
    path = variable_dataset(tmp_path / "rows", some_images(), encoding="jpeg")
    file = path / "train" / "000000" / "images.bytes.memmap"
    data = bytearray(file.read_bytes())
    data[:2] = b"xx"
    file.write_bytes(data)
    with (
        Loader(path, collate=resized(), subprocess=True) as loader,
        pytest.raises(DamagedError, match="row 0 of split 'train'"),
    ):
        next(iter(loader))


def test_a_collate_that_cannot_be_sent_is_refused(dataset: Dataset) -> None:
    loader = Loader(dataset["train"], collate=lambda batch: batch, subprocess=True)
    with pytest.raises(UsageError, match=r"it cannot be pickled .*subprocess=False"):
        next(iter(loader))


def test_a_device_or_another_value_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="subprocess=True, but batches go to cuda"):
        check_subprocess(True, torch.device("cuda"))
    with pytest.raises(TypeError, match="subprocess is 1; give True or False"):
        Loader(dataset["train"], subprocess=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size is 1000000000000, too large for subprocess=True"):
        iter(Loader(dataset["train"], batch_size=10**12, subprocess=True))
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match="no memory files"):
        Loader(dataset["train"], subprocess=True)


def test_an_error_at_the_start_is_raised(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset["train"], subprocess=True, tier="disk")
    monkeypatch.setattr(loader, "_settings", replace(loader._settings, tier="nowhere", fields=("nothing",)))
    with pytest.raises(KeyError, match="nothing"):
        next(iter(loader))


@pytest.mark.usefixtures("fresh_caches")
def test_the_subprocess_prefetches_what_the_epoch_reads(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    push(dataset.path, f"file://{tmp_path}/pushed")
    remote = mmload.open(f"file://{tmp_path}/pushed", cache=tmp_path / "cache")["train"]
    with Loader(remote, batch_size=1, threads=1, prefetch=0, subprocess=True) as loader:
        for _ in range(2):
            batches = iter(loader)
            next(batches)
            until = time.monotonic() + 60
            while len(list((tmp_path / "cache").rglob("images/*.block"))) < len(dataset["train"].record.shards):
                assert time.monotonic() < until
                time.sleep(0.01)
            for path in (tmp_path / "cache").rglob("images/*.block"):
                path.unlink()


class GivesTwice:
    """A collate that gives the images of every other batch a second time."""

    def __init__(self) -> None:
        self.kept: torch.Tensor | None = None

    def __call__(self, batch: Batch) -> Batch:
        given, self.kept = self.kept, None
        if given is not None:
            return batch.replace(images=given)
        self.kept = batch.images
        return batch


def test_images_that_are_given_twice_stay_as_long_as_either_batch(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=2, threads=1, collate=GivesTwice(), subprocess=True, prefetch=0) as loader:
        batches = iter(loader)
        first = next(batches)
        assert first.images is not None
        expected = first.images.clone()
        assert torch.equal(next(batches).images, expected)
        for _ in batches:
            pass
        assert torch.equal(first.images, expected)
