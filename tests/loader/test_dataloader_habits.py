"""Arguments that users of torch's DataLoader write."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import DataLoader

from mmload import Collate, Loader
from mmload.augment import CenterCrop, Normalize
from mmload.loader.orders import repeated
from mmload.store.dataset import Dataset


def test_loader_takes_batch_size_and_shuffle_by_position(dataset: Dataset) -> None:
    by_position, by_name = Loader(dataset["train"], 5, True), Loader(dataset["train"], batch_size=5, shuffle=True)
    for one, other in zip(by_position, by_name, strict=True):
        assert torch.equal(one.ids, other.ids)


def test_loader_with_a_list_of_steps_makes_a_collate(dataset: Dataset) -> None:
    steps = [CenterCrop(16), Normalize([0.5] * 3, [0.2] * 3)]
    of_list, of_collate = (next(iter(Loader(dataset["train"], 4, collate=one))) for one in (steps, Collate(*steps)))
    assert torch.equal(of_list.images, of_collate.images)


def test_every_argument_of_a_dataloader_works_or_says_what_to_write(dataset: Dataset) -> None:
    own = inspect.signature(Loader).parameters
    others = {name for name in inspect.signature(DataLoader).parameters if name not in own}
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


def test_loader_has_few_arguments() -> None:
    assert len(set(inspect.signature(Loader).parameters) - {"others"}) == 16


def test_repr_of_a_loader_is_a_line_that_says_what_it_loads(dataset: Dataset) -> None:
    made = Loader(dataset["train"], 5, order=repeated(2), threads=1, collate=[CenterCrop(16)])
    start = f"Loader(18 rows of {dataset['train']!r}, batch_size=5, order=repeated(2), tier=disk, device=cpu, threads=1"
    assert repr(made) == f"{start}, collate=Collate(CenterCrop))"
    assert ", order=full, " not in repr(Loader(dataset, shuffle=True))
    assert ", order=rows, " in repr(Loader(dataset, order=[1, 2]))


def test_an_unknown_argument_is_refused(dataset: Dataset) -> None:
    with pytest.raises(TypeError, match=r"Loader has no argument 'batchsize'; .*\. Did you mean batch_size\?"):
        Loader(dataset["train"], batchsize=1)  # type: ignore[arg-type]


def test_loader_with_a_mean_of_levels_is_refused_when_it_is_made(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match=r"divide by 255, Normalize\(\(0.482, 0.455, 0.404\), \(0.227, "):
        Loader(dataset["train"], 4, collate=[Normalize([123, 116, 103], [58, 57, 57])])
