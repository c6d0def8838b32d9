"""The same batches everywhere: ranks, batch sizes, tiers and resume points, against one plain epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import crop_collate
from hypothesis import given, settings
from hypothesis import strategies as st

from mmload.dataset import Dataset
from mmload.errors import UsageError
from mmload.loader import Loader


class Epochs(list[dict[int, torch.Tensor]]):
    """Row -> pixels of each epoch; named shortly, since hypothesis shows what it was given."""

    def __repr__(self) -> str:
        return "Epochs"


@pytest.fixture(scope="module")
def plain(dataset: Dataset) -> Epochs:
    """Three epochs of one thread, one rank, one sample a batch, straight from disk: row -> pixels."""
    loader = Loader(
        dataset, batch_size=1, shuffle=True, seed=5, collate=crop_collate(), threads=1, prefetch=0, tier="disk"
    )
    return Epochs({int(batch.ids[0]): batch.images[0] for batch in loader} for _ in range(3))


@pytest.mark.filterwarnings("ignore:shuffle=.block. over")  # the tiny dataset is sorted by class
@settings(max_examples=40)
@given(
    threads=st.sampled_from([1, 2, 4]),
    prefetch=st.sampled_from([1, 4]),
    tier=st.sampled_from(["disk", "memory", "device", "auto"]),
    batch_size=st.integers(1, 20),
    world_size=st.sampled_from([1, 2, 3]),
    kind=st.sampled_from([True, "block"]),
    epoch=st.integers(0, 2),
)
def test_the_same_samples_whatever_the_settings(
    dataset: Dataset,
    plain: Epochs,
    threads: int,
    prefetch: int,
    tier: str,
    batch_size: int,
    world_size: int,
    kind: bool | str,
    epoch: int,
) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        with Loader(
            dataset,
            batch_size=batch_size,
            shuffle=kind,
            seed=5,
            collate=crop_collate(),
            threads=threads,
            prefetch=prefetch,
            tier=tier,
            rank=rank,
            world_size=world_size,
        ) as loader:
            loader.set_epoch(epoch)
            for batch in loader:
                assert all(
                    torch.equal(i, plain[epoch][int(row)]) for row, i in zip(batch.ids, batch.images, strict=True)
                )
                seen += batch.ids.tolist()
    assert sorted(seen) == list(range(18))


@settings(max_examples=40)
@given(
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    steps=st.integers(0, 6),
)
def test_resume_goes_on_exactly_after_a_change_of_ranks_and_batch_size(
    dataset: Dataset,
    plain: Epochs,
    before: int,
    after: int,
    sizes: tuple[int, int],
    steps: int,
) -> None:
    """Every rank takes ``steps`` full batches, then another number of ranks finishes the epoch: each row once."""
    steps = min(steps, 18 // (before * sizes[0]))
    seen: list[int] = []
    states = set()
    for rank in range(before):
        loader = Loader(dataset, batch_size=sizes[0], shuffle=True, seed=5, rank=rank, world_size=before, threads=1)
        iterator = iter(loader)
        seen += [int(row) for _ in range(steps) for row in next(iterator).ids]
        states.add(json.dumps(loader.state_dict()))
        loader.close()
    assert len(states) == 1
    state = json.loads(states.pop())
    for rank in range(after):
        with Loader(
            dataset,
            batch_size=sizes[1],
            shuffle=True,
            seed=5,
            rank=rank,
            world_size=after,
            threads=1,
            collate=crop_collate(),
        ) as loader:
            loader.load_state_dict(state)
            for batch in loader:
                assert all(torch.equal(i, plain[0][int(row)]) for row, i in zip(batch.ids, batch.images, strict=True))
                seen += batch.ids.tolist()
            assert loader.epoch == 1
    assert sorted(seen) == list(range(18))


def test_resume_at_every_step_gives_the_rest_of_the_epoch(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=4, shuffle=True, seed=5)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        states.append(loader.state_dict())
        batches.append(batch.ids.tolist())
    for step, state in enumerate(states):
        resumed = Loader(dataset, batch_size=4, shuffle=True, seed=5)
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        assert [batch.ids.tolist() for batch in resumed] == batches[step:]
        assert len(next(iter(resumed)).ids) == 4


def test_a_state_of_other_data_is_refused(dataset: Dataset) -> None:
    state = Loader(dataset, seed=1).state_dict()
    with pytest.raises(ValueError, match="the state has seed 1, this loader has 2"):
        Loader(dataset, seed=2).load_state_dict(state)


@pytest.mark.parametrize(("tail", "lengths"), [("exact", [5, 5, 4, 4]), ("pad", [5] * 4), ("drop", [4] * 4)])
def test_ranks_that_do_not_divide_the_rows(dataset: Dataset, tail: str, lengths: list[int]) -> None:
    rows = [
        [
            row
            for batch in Loader(dataset, batch_size=2, rank=rank, world_size=4, tail=tail)
            for row in batch.ids.tolist()
        ]
        for rank in range(4)
    ]
    assert [len(part) for part in rows] == lengths


def test_two_real_processes_cover_an_epoch_exactly_once(dataset: Dataset, tmp_path: Path) -> None:
    program = """
import sys, json, torch, mmload
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
loader = mmload.Loader(sys.argv[1], batch_size=4, shuffle=True, threads=1)
print(json.dumps([row for batch in loader for row in batch.ids.tolist()]))
torch.distributed.destroy_process_group()
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(dataset.path), str(tmp_path / "meet")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    rows = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert len(rows[0]) == len(rows[1]) == 9
    assert sorted(rows[0] + rows[1]) == list(range(18))


def test_stats_tell_the_tier_and_what_was_read(dataset: Dataset) -> None:
    loader = Loader(dataset, batch_size=6, collate=crop_collate(), tier="memory")
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    assert stats["tier"] == "memory"
    assert stats["batches"] == 9
    assert (stats["hits"], stats["misses"]) == (36, 18)
    assert stats["waited_s"] > 0
    assert "memory" in Loader(dataset).stats()["tier_reason"]


def test_only_the_fields_asked_for_are_read(dataset: Dataset) -> None:
    batch = next(iter(Loader(dataset, fields=["targets"])))
    assert batch.images is None
    assert batch.targets.tolist() == [row // 6 for row in range(18)]
    with pytest.raises(UsageError, match="no field 'boxes'; it has images, targets"):
        Loader(dataset, fields=["boxes"])


@pytest.mark.parametrize(
    "options", [{"tier": "tape"}, {"shuffle": "blocks"}, {"rank": 0}, {"rank": 2, "world_size": 2}, {"tail": "cut"}]
)
def test_options_that_cannot_be_meant_are_refused(dataset: Dataset, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Loader(dataset, **options)  # type: ignore[arg-type]


def test_block_order_over_a_sorted_store_warns_what_to_do(tmp_path: Path) -> None:
    from test_loader_scale import sparse_dataset

    path = sparse_dataset(tmp_path / "sorted", 20_000, targets=torch.arange(20_000) // 20)
    with pytest.warns(UserWarning, match="sorted by class; build it with --shuffle-seed"):
        Loader(path, shuffle="block", batch_size=256)
