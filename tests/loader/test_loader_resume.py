"""The same batches everywhere: ranks, batch sizes, tiers and resume points, against one plain epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
from forked_program import Program
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import begun, images_of, resumed, rows_of
from loading_orders import order_options
from meanwhile import once

from mmload.errors import RemoteError
from mmload.loader import Loader
from mmload.loader import loader as loader_module
from mmload.store.dataset import Dataset


class Epochs(list[dict[int, torch.Tensor]]):
    """Row -> pixels of each epoch; named shortly, since hypothesis shows what it was given."""

    def __repr__(self) -> str:
        return "Epochs"

    def assert_shared(self, epoch: int, parts: list[dict[int, torch.Tensor]]) -> None:
        """Checks that each part has these pixels, and that the parts have each row once."""
        assert sorted(row for part in parts for row in part) == list(range(18))
        assert all(torch.equal(image, self[epoch][row]) for part in parts for row, image in part.items())


@pytest.fixture(scope="module")
def plain(dataset: Dataset) -> Epochs:
    """Three epochs of one thread, one rank, one sample a batch, straight from disk."""
    options: dict[str, Any] = {"batch_size": 1, "threads": 1, "prefetch": 0, "tier": "disk"}
    loader = Loader(dataset, shuffle=True, seed=5, collate=crop_collate(), **options)
    return Epochs(images_of(loader) for _ in range(3))


@pytest.mark.filterwarnings("ignore:order=.block. over")  # the tiny dataset is sorted by class
@settings(max_examples=40)
@given(
    options=st.fixed_dictionaries(
        {
            "threads": st.sampled_from([1, 2, 4]),
            "prefetch": st.sampled_from([0, 1, 4]),
            "tier": st.sampled_from(["disk", "memory", "device", "auto"]),
            "batch_size": st.integers(1, 20),
        }
    ),
    world_size=st.sampled_from([1, 2, 3]),
    kind=st.sampled_from(["shuffled", "block"]),
    epoch=st.integers(0, 2),
)
def test_the_same_samples_whatever_the_settings(
    dataset: Dataset, plain: Epochs, options: dict[str, Any], world_size: int, kind: str, epoch: int
) -> None:
    options |= {**order_options(kind), "seed": 5, "collate": crop_collate()}
    parts = []
    for rank in range(world_size):
        with Loader(dataset, ranks=(rank, world_size), **options) as loader:
            loader.set_epoch(epoch)
            parts.append(images_of(loader))
    plain.assert_shared(epoch, parts)


@settings(max_examples=40)
@given(
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    steps=st.integers(0, 6),
)
def test_resume_goes_on_exactly_after_a_change_of_ranks_and_batch_size(
    dataset: Dataset, plain: Epochs, worlds: tuple[int, int], sizes: tuple[int, int], steps: int
) -> None:
    """Every rank takes ``steps`` full batches, then another number of ranks finishes the epoch: each row once."""
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "threads": 1, "collate": crop_collate()}
    steps = min(steps, 18 // (worlds[0] * sizes[0]))
    parts, states = [], set()
    for rank in range(worlds[0]):
        with Loader(dataset, batch_size=sizes[0], ranks=(rank, worlds[0]), **options) as loader:
            batches = iter(loader)
            parts.append(images_of(next(batches) for _ in range(steps)))
            states.add(json.dumps(loader.state_dict()))
    assert len(states) == 1
    state = json.loads(states.pop())
    for rank in range(worlds[1]):
        with Loader(dataset, batch_size=sizes[1], ranks=(rank, worlds[1]), **options) as loader:
            resumed(loader, state).set_epoch(0)
            parts.append(images_of(loader))
            assert loader.epoch == 1
    plain.assert_shared(0, parts)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": list(range(17, -1, -1))}])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(4, False), (4, True), (18, True), (1, False)])
def test_a_state_of_an_epochs_end_goes_on_with_the_next(
    dataset: Dataset, batch_size: int, drop_last: bool, options: dict[str, Any]
) -> None:
    def loader() -> Loader:
        return Loader(dataset, batch_size=batch_size, drop_last=drop_last, seed=5, **options)

    first = loader()
    list(first)
    state = json.loads(json.dumps(first.state_dict()))
    expected = rows_of(first)
    again = resumed(loader(), state)
    assert again.epoch == 1
    assert rows_of(again) == expected
    again = resumed(loader(), state)
    again.set_epoch(0)  # a training loop that counts from the state's epoch must not see it twice
    assert list(again) == []
    assert rows_of(again) == expected


@pytest.mark.parametrize("tail", ["exact", "pad", "drop"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 4), (3, 2)])
def test_all_ranks_agree_which_epoch_they_go_on_with(
    dataset: Dataset, tail: str, drop_last: bool, before: int, after: int
) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 0, "tail": tail, "drop_last": drop_last}
    first = Loader(dataset, ranks=(0, before), **options)
    list(first)
    ranks = [resumed(Loader(dataset, ranks=(rank, after), **options), first.state_dict()) for rank in range(after)]
    assert len({loader.epoch for loader in ranks}) == 1
    assert any(list(loader) for loader in ranks)


def test_states_of_ranks_with_a_row_more_or_less_are_equal_after_each_batch(dataset: Dataset) -> None:
    loaders = [Loader(dataset, batch_size=4, ranks=(rank, 4)) for rank in range(4)]
    rows = [[len(batch) for batch in loader] for loader in loaders]
    assert rows == [[4, 1], [4, 1], [4], [4]]
    assert [loader.state_dict()["samples"] for loader in loaders] == [18, 18, 16, 16]  # others have a batch to go
    loaders = [Loader(dataset, batch_size=3, ranks=(rank, 4)) for rank in range(4)]
    samples = [{loader.state_dict()["samples"] for loader in loaders} for _ in zip(*loaders, strict=True)]
    assert samples == [{12}, {18}]


def test_an_iterator_begun_before_a_state_was_loaded_leaves_that_state(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=4, shuffle=True, seed=5)
    older = begun(loader)
    state = loader.state_dict()
    expected = rows_of(older)
    older = begun(loader)
    loader.load_state_dict(state)
    next(older)
    assert loader.state_dict() == state
    newer = iter(loader)
    list(older)
    assert loader.state_dict() == state
    assert rows_of(newer) == expected
    assert loader.state_dict() == state | {"samples": 18}


@pytest.mark.parametrize("options", [{"drop_last": True}, {"tail": "drop", "ranks": (0, 4)}])
def test_state_of_an_epochs_end_goes_on_with_the_next_under_any_settings(
    dataset: Dataset, options: dict[str, Any]
) -> None:
    ended = Loader(dataset, batch_size=4, **options)  # leaves out 2 of 18 rows
    list(ended)
    for batch_size in (1, 2, 5):
        loader = resumed(Loader(dataset, batch_size=batch_size), ended.state_dict())
        assert loader.epoch == 1
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("rows", [range(3), ()])
def test_state_of_an_epoch_without_batches_goes_on_with_the_next(dataset: Dataset, rows: Sequence[int]) -> None:
    def loader() -> Loader:
        return Loader(dataset["train"].subset(rows), batch_size=4, drop_last=True)

    first = loader()
    assert first.state_dict()["epoch"] == 0
    for epoch in range(1, 4):
        assert list(first) == []
        first = resumed(loader(), first.state_dict())
        assert first.epoch == epoch


@pytest.mark.parametrize(("tail", "lengths"), [("exact", [5, 5, 4, 4]), ("pad", [5] * 4), ("drop", [4] * 4)])
def test_ranks_that_do_not_divide_the_rows(dataset: Dataset, tail: str, lengths: list[int]) -> None:
    ranks = [Loader(dataset, batch_size=2, ranks=(rank, 4), tail=tail) for rank in range(4)]
    assert [len(rows_of(loader)) for loader in ranks] == lengths


PROGRAM = """
import sys, json, torch, mmload
from torch.utils.data import DistributedSampler
early = mmload.Loader(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
def rows(loader):
    return [row for batch in loader for row in batch.ids.tolist()]
split = mmload.open(sys.argv[1])["train"]
found = [rows(mmload.Loader(sys.argv[1], batch_size=4, shuffle=True, threads=1))]
sampler = DistributedSampler(split, seed=5)
with mmload.Loader(split, batch_size=4, order=sampler, threads=1) as loader:
    found += [rows(loader), rows(loader)]
    sampler.set_epoch(7)
    found += [rows(loader), rows(loader)]
twin = DistributedSampler(split, seed=5)
for epoch in (0, 1, 7):
    twin.set_epoch(epoch)
    found.append(list(twin))
try:
    iter(early)
except mmload.errors.UsageError as error:
    found.append(str(error))
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""


def test_two_real_processes_cover_an_epoch_exactly_once(dataset: Dataset, tmp_path: Path) -> None:
    """By the loader's own order, by a DistributedSampler of its, and by one whose user sets the epoch."""
    ranks = [Program(PROGRAM, [dataset.path, tmp_path / "meet", rank]) for rank in range(2)]
    ended = [rank.ended() for rank in ranks]
    assert [rank.returncode for rank in ended] == [0, 0], ended
    first, second = (json.loads(rank.stdout) for rank in ended)
    for mine, theirs in zip(first[:5], second[:5], strict=True):
        assert len(mine) == len(theirs) == 9
        assert sorted(mine + theirs) == list(range(18))
    for found in (first, second):
        assert found[1:5] == [found[5], found[6], found[7], found[7]]
        assert "create it after init_process_group" in found[8]


def test_an_epoch_that_could_not_begin_is_begun_again(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RemoteError("the network is away")

    loader = Loader(dataset, batch_size=4, shuffle=True, threads=1)
    expected = [batch.ids.tolist() for batch in loader]
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "samples": 8})
    once(monkeypatch, loader_module, "begin_prefetch", before=fail)
    with pytest.raises(RemoteError):
        iter(loader)
    assert (loader.epoch, loader.state_dict()["samples"]) == (0, 8)
    assert [batch.ids.tolist() for batch in loader] == expected[2:]
