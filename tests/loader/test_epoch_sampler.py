"""What training scripts ask of a DataLoader and of its dataset, asked of a Loader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from device_batches import stored_at
from torch.utils.data import ConcatDataset, DistributedSampler, Sampler
from torchvision.datasets import ImageFolder

from mmload.loader import Loader
from mmload.store.dataset import Dataset


def rows_of(loader: Loader) -> list[int]:
    return [row for batch in loader for row in batch.ids.tolist()]


def test_a_split_answers_as_an_image_folder(dataset: Dataset, folder: Path) -> None:
    split, theirs = dataset["train"], ImageFolder(str(folder))
    assert list(split.classes) == theirs.classes
    assert split.class_to_idx == theirs.class_to_idx
    assert split.targets == theirs.targets
    assert split.targets is split.targets  # a loop over it reads the files once
    assert "targets" not in vars(pickle.loads(pickle.dumps(split)))


@pytest.mark.parametrize("given", ["path", "dataset", "split", "subset", "joined"])
def test_the_dataset_of_a_loader_is_what_it_reads(dataset: Dataset, given: str) -> None:
    split = dataset["train"]
    subset, joined = split.subset([3, 1]), ConcatDataset([split, split])
    sources: dict[str, Any] = {
        "path": dataset.path, "dataset": dataset, "split": split, "subset": subset, "joined": joined
    }  # fmt: skip
    loader = Loader(sources[given], batch_size=4, drop_last=True)
    assert len(loader.dataset) == {"subset": 2, "joined": 36}.get(given, 18)
    if given in ("path", "dataset"):
        assert loader.dataset is loader.split
        assert loader.dataset.classes == split.classes
    else:
        assert loader.dataset is sources[given]
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (4, True, 0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_of_a_loader_is_its_order(dataset: Dataset, shuffle: bool) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": shuffle, "seed": 2, "ranks": (1, 2)}
    loader, other = Loader(dataset["train"], **options), Loader(dataset["train"], **options)
    assert isinstance(loader.sampler, Sampler)
    loader.sampler.set_epoch(5)
    other.set_epoch(5)
    assert loader.epoch == loader.sampler.epoch == 5
    rows = list(loader.sampler)
    assert rows_of(loader) == rows_of(other) == rows
    assert len(loader.sampler) == len(rows) == 9
    assert loader.sampler.epoch == 6


def test_the_sampler_of_a_subset_gives_places_in_it(dataset: Dataset) -> None:
    chosen = [7, 2, 11]
    loader = Loader(dataset["train"].subset(chosen), batch_size=2, shuffle=True)
    assert sorted(loader.sampler) == [0, 1, 2]
    places = list(loader.sampler)
    assert rows_of(loader) == [chosen[place] for place in places]


def test_a_sampler_that_was_given_is_the_loaders(dataset: Dataset) -> None:
    split = dataset["train"]
    sampler: Any = DistributedSampler(split, num_replicas=2, rank=0, seed=1)
    loader = Loader(split, batch_size=4, order=sampler)
    assert loader.sampler is sampler
    loader.sampler.set_epoch(3)
    expected = list(sampler)
    assert rows_of(loader) == rows_of(loader) == expected  # from now on its user says which epoch it is
    assert len(loader.sampler) == 9


def test_a_split_without_targets_says_so(tmp_path: Path) -> None:
    split = stored_at(tmp_path / "store")
    rows = split[:].targets
    if rows is not None:
        assert torch.equal(torch.tensor(split.targets), rows)
    again = pickle.loads(pickle.dumps(split))
    del again.fields["targets"]
    assert not hasattr(again, "targets")
