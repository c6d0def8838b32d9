"""States that a loader refuses: of other rows, another order, another seed, another version, or no states at all."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from building import changed_manifest
from loaded import begun, resumed, rows_of
from torch.utils.data import ConcatDataset, DistributedSampler, RandomSampler, SequentialSampler
from updating import add_pictures
from written_datasets import of_tensors

import mmload
from mmload.builder.pipeline import update
from mmload.builder.recipe import BuildRecipe
from mmload.loader import Loader
from mmload.loader.order import Order, block_order
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset


def assert_refused(loader: Loader, state: dict[str, Any], message: str) -> None:
    """Checks that a loader refuses a state and stays as it was."""
    before = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


KEYS = "expected epoch, samples, rows, seed, order"


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
        ({"more": 1}, f"'more'.*{KEYS}"),
        ({"order": "full"}, "order 'full', this loader has 'sequential'"),
        ({"order": 0}, "order 0, this loader has 'sequential'"),
        ({"seed": 1}, "the state has seed 1, this loader has 2"),
    ],
)
def test_a_state_that_cannot_be_is_refused(dataset: Dataset, wrong: dict[str, Any], message: str) -> None:
    loader = Loader(dataset, seed=2)
    assert_refused(loader, loader.state_dict() | wrong, message)


@pytest.mark.parametrize("missing", ["epoch", "samples", "rows", "seed", "order"])
def test_a_state_without_one_of_its_keys_is_refused(dataset: Dataset, missing: str) -> None:
    loader = Loader(dataset)
    assert_refused(loader, {name: value for name, value in loader.state_dict().items() if name != missing}, KEYS)


def test_state_of_a_dataset_of_other_samples_is_refused(tmp_path: Path) -> None:
    def loader(name: str, classes: str = "abcdef", pixel: int = 0) -> Loader:
        """Of the dataset of a name, which is written if it is not there."""
        if not (tmp_path / name).exists():
            tensors = {"images": torch.full((6, 3, 8, 8), pixel, dtype=torch.uint8), "targets": torch.arange(6)}
            of_tensors(tmp_path / name, {"train": tensors}, tuple(classes))
        return Loader(tmp_path / name)

    state = loader("letters").state_dict()
    resumed(loader("pixels", pixel=1), state)  # as of another size or transform
    other = r"the state has dataset \d+, this loader has \d+; resume with the same"
    assert_refused(loader("digits", "123456"), state, other)
    loader("later")
    listed = tmp_path / "later" / "train" / "samples.jsonl"
    listed.write_text(listed.read_text().replace("3.png", "7.png"))
    checksum = f"{crc32(listed.read_bytes()):08x}"
    changed_manifest(tmp_path / "later", lambda body: body["splits"]["train"]["samples"].update(crc32=checksum))
    assert_refused(loader("later"), state, other)


def test_state_of_a_concatenation_in_another_order_is_refused(dataset: Dataset) -> None:
    train = dataset["train"]
    parts = [train.subset(range(18)), train.subset(range(17, -1, -1))]
    state = Loader(ConcatDataset(parts)).state_dict()
    resumed(Loader(ConcatDataset(parts)), json.loads(json.dumps(state)))
    assert_refused(Loader(ConcatDataset(parts[::-1])), state, "the state has dataset")


ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": True},
    {"order": "block"},
    {"order": list(range(17, -1, -1))},
    {"order": RandomSampler(range(18))},
    {"order": SequentialSampler(range(18))},
]


@pytest.mark.filterwarnings("ignore:order=.block. over")  # the tiny dataset is sorted by class
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_a_state_of_another_order_is_refused(dataset: Dataset, batches: int) -> None:
    states = []
    for options in ORDERS:
        with Loader(dataset, batch_size=4, threads=1, **options) as loader:
            begun(loader, batches)
            states.append(json.loads(json.dumps(loader.state_dict())))
    for own, options in enumerate(ORDERS):
        for other, state in enumerate(states):
            loader = Loader(dataset, batch_size=3, **options)
            if own == other:
                loader.load_state_dict(state)
            else:
                assert_refused(loader, state, r"the state has order '.+', this loader has '.+'; resume with")


def test_a_state_of_blocks_of_another_size_is_refused(dataset: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny dataset is sorted by class
        blocks, *others = [Loader(dataset, order="block") for _ in range(3)]
    assert blocks.state_dict()["order"] == "block of 64 rows, window of 64"
    for other, size in zip(others, ({"block_size": 2}, {"window": 3}), strict=True):
        other._order = Order(epoch_order=block_order(18, 0, **size))
        assert_refused(other, blocks.state_dict(), "this loader has 'block of ")


def test_the_middle_of_an_epoch_of_other_given_rows_is_refused(dataset: Dataset) -> None:
    def loader(rows: Any) -> Loader:
        return Loader(dataset, batch_size=4, order=rows, threads=1)

    rows = list(range(12))
    first = loader(rows)
    batches = begun(first)
    rows.reverse()  # the list of the epoch that is under way is another
    middle = first.state_dict()
    list(batches)
    for other in (range(11, -1, -1), [0] * 12, range(1, 13)):
        assert_refused(loader(other), middle, "has sampler .*; resume with the same rows, or")
    assert rows_of(resumed(loader(torch.arange(12)), middle)) == list(range(4, 12))
    assert rows_of(resumed(loader(rows), first.state_dict())) == rows  # another list for another epoch


def test_the_middle_of_an_epoch_of_a_sampler_of_another_length_is_refused(dataset: Dataset) -> None:
    first, other = (Loader(dataset, batch_size=4, order=DistributedSampler(range(18), n, 0), threads=1) for n in (3, 2))
    next(iter(first))
    for _ in range(2):
        assert_refused(other, first.state_dict(), "has sampler 6, this loader has 9; resume with the same rows, or")
        list(first)


def test_a_state_of_another_subset_of_the_same_length_is_refused(dataset: Dataset) -> None:
    split = dataset["train"]

    def loader(rows: Any = None) -> Loader:
        return Loader(split if rows is None else split.subset(rows), batch_size=2, shuffle=True, threads=1)

    chosen = [0, 2, 4, 6]
    first = loader(chosen)
    rest = begun(first)
    state = first.state_dict()
    assert rows_of(resumed(loader(chosen), state)) == rows_of(rest)
    for other in ([1, 3, 5, 7], [6, 4, 2, 0], range(4)):
        assert_refused(loader(other), state, "resume with the same rows")
    assert_refused(
        loader(), {**state, "rows": len(split)}, "this loader has None; resume with the same rows; None is all of them"
    )
    assert_refused(loader(chosen), {**loader().state_dict(), "rows": 4}, "the state has subset None, this loader has ")


def test_a_state_of_another_version_is_resumed_only_if_asked_for(squares: BuildRecipe) -> None:
    def loader(version: int | None = None) -> Loader:
        return Loader(mmload.open(squares.out, version=version)["train"], batch_size=4, shuffle=True, seed=3)

    first = loader()
    rest = begun(first)
    state = first.state_dict()
    assert state["version"] == 1
    add_pictures(squares.root, 1)
    update(squares)
    message = "the state has version 1, this loader has 2; open that"
    assert_refused(loader(), state, message)
    assert rows_of(resumed(loader(version=1), state)) == rows_of(rest)
    other = loader()
    other.load_state_dict(state, other_version=True)
    assert len(rows_of(other)) == 16 - 4
