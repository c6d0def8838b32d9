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


def loader(dataset: Any, returns: Any = None, collate: Any = None, **options: Any) -> Any:
    chosen = {"batch_size": 4, "shuffle": True, "seed": 3, "threads": 2, **options}
    return Loader(dataset, collate=collate or crop_collate(), returns=returns, **chosen)


@pytest.mark.parametrize("batch_size", [2, 5])
def test_tuples_and_dicts_are_the_fields_of_the_batches(dataset: Dataset, batch_size: int) -> None:
    pairs, named, plain = (
        loader(dataset, returns, batch_size=batch_size)
        for returns in (("images", "targets"), {"pixel_values": "images", "labels": "targets"}, None)
    )
    for pair, fields, batch in zip(pairs, named, plain, strict=True):
        assert list(fields) == ["pixel_values", "labels"]
        for found in (pair, fields.values()):
            assert all(map(torch.equal, found, (batch.images, batch.targets)))


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_loader_of_a_classification_unpacks_into_images_and_targets(dataset: Dataset, batch_size: int) -> None:
    stock = DataLoader(dataset["train"], batch_size=batch_size, collate_fn=Collate())
    own = loader(dataset, collate=Collate(), batch_size=batch_size, shuffle=False)
    for batch, (images, targets), (others, labels) in zip(own, own, stock, strict=True):
        for one, other in ((images, targets), (others, labels)):
            assert torch.equal(one, batch.images)
            assert torch.equal(other, batch.targets)
    image, target = dataset["train"][5]
    assert image.shape == (3, 32, 32)
    assert target == dataset["train"].targets[5]


def test_lists_for_detection_models_and_tuples_of_views(tmp_path: Path) -> None:
    split = stored_at(tmp_path / "store")
    detection = loader(split, "torchvision", Collate())
    for (images, targets), batch in zip(detection, loader(split, None, Collate()), strict=True):
        expected, annotations = batch.to_torchvision()
        assert all(map(torch.equal, images, expected))
        assert [target["boxes"].tolist() for target in targets] == [one["boxes"].tolist() for one in annotations]
    for (first, second), targets in loader(split, ("images", "targets"), Views(*[Collate(RandomCrop(9))] * 2)):
        assert first.shape == second.shape == (len(targets), 3, 9, 9)
        assert not torch.equal(first, second)


CONSUMERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("numpy", lambda array: array),
    ("numpy", lambda array: array[:, :, ::2]),
    ("numpy", torch.from_numpy),
    ("dlpack", np.from_dlpack),
    ("dlpack", torch.from_dlpack),
    ("dlpack", lambda tensor: tensor.__dlpack__()),
]
"""Form, and what another framework makes of one of its arrays."""


@pytest.mark.parametrize(("form", "take"), CONSUMERS)
def test_loader_returns_referenced_array_does_not_change(
    dataset: Dataset, form: str, take: Callable[[Any], Any]
) -> None:
    """Its memory goes back to the loader's pool only with it, whatever framework holds it."""
    kept, copies = [], []
    batches = loader(dataset, form, threads=1, prefetch=0)
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
    batches = loader(dataset, "numpy", threads=1, prefetch=0, batch_size=6)
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
        if fails and fails.pop():
            raise RuntimeError("the function failed")
        rows: list[int] = batch.ids.tolist()
        return rows

    batches = iter(loader(dataset, ids))
    with pytest.raises(RuntimeError, match="the function failed"):
        next(batches)
    assert list(batches) == [batch.ids.tolist() for batch in loader(dataset)]
    assert threads == {threading.current_thread()}


def doubled(batch: Batch) -> Batch:
    """Twice the targets, as features."""
    made: Batch = batch.replace(features=batch.targets * 2)
    return made


def test_another_callable_than_a_collate_is_looked_at_batch_by_batch(dataset: Dataset) -> None:
    [(twice, targets), *_] = loader(dataset, ("features", "targets"), doubled)
    assert torch.equal(twice, targets * 2)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"returns": ("imges",)}, UsageError, r"'imges': split 'train' has ids, images, seeds, targets"),
    ({"returns": ("images", "targets"), "fields": ["images"]}, UsageError, "'targets': fields= leaves it out"),
    ({"returns": {"x": "masks"}}, UsageError, "'masks': split 'train' has"),
    ({"returns": "torchvision"}, UsageError, "needs the field 'boxes'"),
    ({"returns": ()}, ValueError, "returns is .* expected at least one field"),
    ({"returns": 7}, TypeError, "returns is 7, expected a tuple"),
    ({"collate": Returns(("images",), Collate())}, TypeError, "collate is a Returns"),
    ({"returns": "torchvision", "collate": Views(Collate(), Collate())}, ValueError, "one view"),
]
WITHOUT: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"returns": ("masks",), "collate": doubled}, ValueError, "needs the field 'masks'; the batch has"),
    ({"returns": ("images",), "collate": lambda batch: batch.images}, TypeError, "the collate gives 'Tensor'"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_batches_do_not_have_is_refused_when_the_loader_is_made(
    dataset: Dataset, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loader(dataset, **options)


@pytest.mark.parametrize(("options", "error", "message"), WITHOUT)
def test_what_a_function_does_not_give_is_refused_with_its_first_batch(
    dataset: Dataset, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    made = loader(dataset, **options)
    with pytest.raises(error, match=message):
        next(iter(made))
