"""States that a loader refuses: of other rows, another order, another seed, or no states at all."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.utils.data import ConcatDataset, DistributedSampler, RandomSampler, SequentialSampler
from written_datasets import of_tensors

from mmload.loader import Loader
from mmload.loader.order import Order, block_order
from mmload.remote.opening import open as open_dataset
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 19}, "samples 19, an epoch has 18"),
        ({"samples": -1}, "samples -1, expected an integer from 0"),
        ({"samples": 2.0}, "samples 2.0"),
        ({"samples": True}, "samples True"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": "1"}, "epoch '1'"),
        ({"rows": 17}, "rows 17, this loader has 18"),
        ({"more": 1}, "'more'.*expected epoch, samples, rows, seed, order"),
        ({"order": "full"}, "order 'full', this loader has 'sequential'"),
        ({"order": 0}, "order 0, this loader has 'sequential'"),
    ],
)
def test_a_state_that_cannot_be_is_refused(dataset: Dataset, wrong: dict[str, Any], message: str) -> None:
    loader = Loader(dataset)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state | wrong)
    with pytest.raises(ValueError, match="expected epoch, samples, rows, seed, order"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(ValueError, match="expected epoch, samples, rows, seed, order"):
        loader.load_state_dict({name: value for name, value in state.items() if name != "order"})
    assert loader.state_dict() == state


def test_a_state_of_other_data_is_refused(dataset: Dataset) -> None:
    state = Loader(dataset, seed=1).state_dict()
    with pytest.raises(ValueError, match="the state has seed 1, this loader has 2"):
        Loader(dataset, seed=2).load_state_dict(state)


def test_state_of_a_dataset_of_other_samples_is_refused(tmp_path: Path) -> None:
    def loader(name: str) -> Loader:
        return Loader(tmp_path / name)

    def written(name: str, classes: tuple[str, ...], pixel: int = 0) -> None:
        tensors = {"images": torch.full((6, 3, 8, 8), pixel, dtype=torch.uint8), "targets": torch.arange(6)}
        of_tensors(tmp_path / name, {"train": tensors}, classes)

    written("letters", tuple("abcdef"))
    written("pixels", tuple("abcdef"), pixel=1)  # as of another size or transform
    written("digits", tuple("123456"))
    state = loader("letters").state_dict()
    loader("pixels").load_state_dict(state)
    with pytest.raises(ValueError, match=r"the state has dataset \d+, this loader has \d+; resume with the same"):
        loader("digits").load_state_dict(state)
    written("later", tuple("abcdef"))
    listed = tmp_path / "later" / "train" / "samples.jsonl"
    listed.write_text(listed.read_text().replace("3.png", "7.png"))
    manifest = open_dataset(tmp_path / "later").manifest
    samples = structs.replace(manifest.splits["train"].samples, crc32=f"{crc32(listed.read_bytes()):08x}")
    changed = structs.replace(manifest, splits={"train": structs.replace(manifest.splits["train"], samples=samples)})
    (tmp_path / "later" / "dataset.json").write_text(changed.dumps())
    with pytest.raises(ValueError, match="the state has dataset"):
        loader("later").load_state_dict(state)


def test_state_of_a_concatenation_in_another_order_is_refused(dataset: Dataset) -> None:
    train = dataset["train"]
    parts = [train.subset(range(18)), train.subset(range(17, -1, -1))]
    state = Loader(ConcatDataset(parts)).state_dict()
    Loader(ConcatDataset(parts)).load_state_dict(json.loads(json.dumps(state)))
    with pytest.raises(ValueError, match="the state has dataset"):
        Loader(ConcatDataset(parts[::-1])).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:order=.block. over")  # the tiny dataset is sorted by class
def test_a_state_of_another_order_is_refused(dataset: Dataset) -> None:
    rows = list(range(17, -1, -1))
    orders: list[dict[str, Any]] = [
        {},
        {"shuffle": True},
        {"order": "block"},
        {"order": rows},
        {"order": RandomSampler(range(18))},
        {"order": SequentialSampler(range(18))},
    ]
    for batches in (0, 1, 5):
        states = []
        for options in orders:
            with Loader(dataset, batch_size=4, threads=1, **options) as loader:
                used = iter(loader)
                for _ in range(batches):
                    next(used)
                states.append(json.loads(json.dumps(loader.state_dict())))
        for own, options in enumerate(orders):
            for other, state in enumerate(states):
                loader = Loader(dataset, batch_size=3, **options)
                if own == other:
                    loader.load_state_dict(state)
                    continue
                before = loader.state_dict()
                with pytest.raises(ValueError, match=r"the state has order '.+', this loader has '.+'; resume with"):
                    loader.load_state_dict(state)
                assert loader.state_dict() == before


def test_a_state_of_blocks_of_another_size_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny dataset is sorted by class
        loaders = [Loader(dataset, order="block") for _ in range(3)]
    loaders[1]._order = Order(epoch_order=block_order(len(loaders[1].split), 0, block_size=2))
    loaders[2]._order = Order(epoch_order=block_order(len(loaders[2].split), 0, window=3))
    state = loaders[0].state_dict()
    assert state["order"] == "block of 64 rows, window of 64"
    for other in loaders[1:]:
        with pytest.raises(ValueError, match="this loader has 'block of "):
            other.load_state_dict(state)


def test_the_middle_of_an_epoch_of_other_given_rows_is_refused(dataset: Dataset) -> None:
    def loader(rows: Any) -> Loader:
        return Loader(dataset, batch_size=4, order=rows, threads=1)

    rows = list(range(12))
    first = loader(rows)
    batches = iter(first)
    next(batches)
    rows.reverse()  # the list of the epoch that is under way is another
    middle = first.state_dict()
    list(batches)
    end = first.state_dict()
    for other in (range(11, -1, -1), [0] * 12, range(1, 13)):
        with pytest.raises(ValueError, match="in the middle of an epoch of sampler"):
            loader(other).load_state_dict(middle)
    resumed = loader(torch.arange(12))
    resumed.load_state_dict(middle)
    assert [row for batch in resumed for row in batch.ids.tolist()] == list(range(4, 12))
    shuffled = loader(rows)
    shuffled.load_state_dict(end)  # another list for another epoch
    assert [row for batch in shuffled for row in batch.ids.tolist()] == rows


def test_the_middle_of_an_epoch_of_a_sampler_of_another_length_is_refused(dataset: Dataset) -> None:
    def loader(ranks: int) -> Loader:
        return Loader(dataset, batch_size=4, order=DistributedSampler(range(18), ranks, 0), threads=1)

    first = loader(3)
    next(iter(first))
    for _ in range(2):
        with pytest.raises(ValueError, match="middle of an epoch of sampler 6, this loader has 9"):
            loader(2).load_state_dict(first.state_dict())
        list(first)


def test_a_state_of_another_subset_of_the_same_length_is_refused(dataset: Dataset) -> None:
    split = dataset["train"]
    options = {"batch_size": 2, "shuffle": True, "threads": 1}
    loader = Loader(split.subset([0, 2, 4, 6]), **options)
    next(iter(loader))
    state = loader.state_dict()
    again = Loader(split.subset([0, 2, 4, 6]), **options)
    again.load_state_dict(state)
    assert [batch.ids.tolist() for batch in again] == [
        batch.ids.tolist() for batch in Loader(split.subset([0, 2, 4, 6]), **options)
    ][1:]
    for other in (split.subset([1, 3, 5, 7]), split.subset([6, 4, 2, 0]), split.subset(range(4))):
        with pytest.raises(ValueError, match="resume with the same rows"):
            Loader(other, **options).load_state_dict(state)
    whole = Loader(split, **options)
    with pytest.raises(ValueError, match="this loader reads all rows"):
        whole.load_state_dict({**state, "rows": len(split)})
    with pytest.raises(ValueError, match="the state is of all rows"):
        again.load_state_dict({**whole.state_dict(), "rows": 4})
