"""What a Loader gives in place of batches: the same fields in another form, in memory that stays theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import crop_collate
from device_batches import stored_at
from torch.utils.data import DataLoader

from mmload.augment import RandomCrop, Views
from mmload.augment.collate import Collate
from mmload.augment.returns import Returns
from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.store.dataset import Dataset


def loader(dataset: Any, returns: Any = None, collate: Any = None, **options: Any) -> Loader:
    chosen = {"batch_size": 4, "shuffle": True, "seed": 3, "threads": 2, **options}
    return Loader(dataset, collate=collate or crop_collate(), returns=returns, **chosen)


@pytest.mark.parametrize("batch_size", [2, 5])
def test_tuples_and_dicts_are_the_fields_of_the_batches(dataset: Dataset, batch_size: int) -> None:
    batches = list(loader(dataset, batch_size=batch_size))
    pairs: Any = loader(dataset, ("images", "targets"), batch_size=batch_size)
    for (images, targets), batch in zip(pairs, batches, strict=True):
        assert torch.equal(images, batch.images)
        assert torch.equal(targets, batch.targets)
    named: Any = loader(dataset, {"pixel_values": "images", "labels": "targets"}, batch_size=batch_size)
    for got, batch in zip(named, batches, strict=True):
        assert torch.equal(got["pixel_values"], batch.images)
        assert torch.equal(got["labels"], batch.targets)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_loader_of_a_classification_unpacks_into_images_and_targets(dataset: Dataset, batch_size: int) -> None:
    stock = DataLoader(dataset["train"], batch_size=batch_size, collate_fn=Collate())
    unpacked = loader(dataset, collate=Collate(), batch_size=batch_size, shuffle=False)
    batches = list(loader(dataset, collate=Collate(), batch_size=batch_size, shuffle=False))
    for (images, targets), (others, labels), batch in zip(unpacked, stock, batches, strict=True):
        assert torch.equal(images, batch.images)
        assert torch.equal(targets, batch.targets)
        assert torch.equal(others, images)
        assert torch.equal(labels, targets)
    image, target = dataset["train"][5]
    assert image.shape == (3, 32, 32)
    assert target == dataset["train"].targets[5]


def test_lists_for_detection_models_and_tuples_of_views(tmp_path: Path) -> None:
    split = stored_at(tmp_path / "store")
    detection: Any = loader(split, "torchvision", Collate())
    for (images, targets), batch in zip(detection, loader(split, None, Collate()), strict=True):
        expected, annotations = batch.to_torchvision()
        assert all(map(torch.equal, images, expected))
        assert [target["boxes"].tolist() for target in targets] == [one["boxes"].tolist() for one in annotations]
    views: Any = loader(split, ("images", "targets"), Views(*[Collate(RandomCrop(9))] * 2))
    for (first, second), targets in views:
        assert first.shape == second.shape == (len(targets), 3, 9, 9)
        assert not torch.equal(first, second)


def consumers() -> list[tuple[str, Callable[[Any], Any]]]:
    """Form -> what another framework makes of one of its arrays."""
    return [
        ("numpy", lambda array: array),
        ("numpy", lambda array: array[:, :, ::2]),
        ("numpy", torch.from_numpy),
        ("dlpack", np.from_dlpack),
        ("dlpack", torch.from_dlpack),
        ("dlpack", lambda tensor: tensor.__dlpack__()),
    ]


@pytest.mark.parametrize("number", range(6))
def test_loader_returns_referenced_array_does_not_change(dataset: Dataset, number: int) -> None:
    """Its memory goes back to the loader's pool only with it, whatever framework holds it."""
    form, take = consumers()[number]
    kept, copies = [], []
    with loader(dataset, form, threads=1, prefetch=0) as batches:
        for _ in range(3):
            for batch in batches:
                copies.append(np.from_dlpack(batch["images"]).copy())
                kept.append(take(batch["images"]))
                del batch
    for one, copy in zip(kept, copies, strict=True):
        capsule = type(one).__name__ == "PyCapsule"
        array = torch.utils.dlpack.from_dlpack(one).numpy() if capsule else np.asarray(one)
        assert np.array_equal(array, copy if array.shape == copy.shape else copy[:, :, ::2])


def test_memory_of_arrays_that_are_dropped_is_used_again(dataset: Dataset) -> None:
    seen = []
    with loader(dataset, "numpy", threads=1, prefetch=0, batch_size=6) as batches:
        for _ in range(4):
            for batch in batches:
                seen.append(batch["images"].ctypes.data)
                del batch
    assert len(set(seen)) < len(seen)


def test_jax_reads_batches_without_a_copy(dataset: Dataset) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    kept, copies = [], []
    for batch in loader(dataset, "dlpack"):
        kept.append(jax.numpy.from_dlpack(batch["images"]))
        assert kept[-1].unsafe_buffer_pointer() == batch["images"].data_ptr()
        copies.append(batch["images"].clone().numpy())
        del batch
    assert all(map(np.array_equal, kept, copies))


def test_a_function_runs_in_the_training_thread_in_order_and_its_error_loses_no_batch(dataset: Dataset) -> None:
    threads, fails = set(), [True]

    def ids(batch: Batch) -> list[int]:
        threads.add(threading.current_thread())
        if batch.ids is None or (fails and fails.pop()):
            raise RuntimeError("the function failed")
        rows: list[int] = batch.ids.tolist()
        return rows

    batches: Any = iter(loader(dataset, ids))
    with pytest.raises(RuntimeError, match="the function failed"):
        next(batches)
    assert list(batches) == [batch.ids.tolist() for batch in loader(dataset)]
    assert threads == {threading.current_thread()}


def test_another_callable_than_a_collate_is_looked_at_batch_by_batch(dataset: Dataset) -> None:
    def doubled(batch: Batch) -> Batch:
        made: Batch = batch.replace(features=batch.targets * 2)
        return made

    [(twice, targets), *_] = loader(dataset, ("features", "targets"), doubled)
    assert torch.equal(twice, targets * 2)
    with pytest.raises(ValueError, match="needs the field 'masks'; the batch has"):
        next(iter(loader(dataset, ("masks",), doubled)))
    with pytest.raises(TypeError, match="the collate gives 'Tensor'"):
        next(iter(loader(dataset, ("images",), lambda batch: batch.images)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returns": ("imges",)}, r"'imges': split 'train' has ids, images, seeds, targets"),
        ({"returns": ("images", "targets"), "fields": ["images"]}, "'targets': fields= leaves it out"),
        ({"returns": {"x": "masks"}}, "'masks': split 'train' has"),
        ({"returns": "torchvision"}, "needs the field 'boxes'"),
    ],
    ids=["unknown", "left out", "of a dict", "detection"],
)
def test_a_field_that_batches_do_not_have_is_refused_when_the_loader_is_made(
    dataset: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(dataset, collate=crop_collate(), **options)


def test_other_arguments_are_refused_when_the_loader_is_made(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="returns is .* expected at least one field"):
        loader(dataset, ())
    with pytest.raises(TypeError, match="returns is 7, expected a tuple"):
        loader(dataset, 7)
    with pytest.raises(TypeError, match="collate is a Returns"):
        loader(dataset, None, Returns(("images",), crop_collate()))
    with pytest.raises(ValueError, match="one view"):
        loader(dataset, "torchvision", Views(*[crop_collate()] * 2))
