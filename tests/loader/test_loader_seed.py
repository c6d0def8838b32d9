"""The seed of a loader: torch's if none is given, the same on every rank."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
from forked_program import Program
from loaded import begun, resumed
from torch.utils.data import DataLoader, IterableDataset

from mmload.augment import CenterCrop, Normalize
from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.loader.orders import weighted
from mmload.store.dataset import Dataset


@pytest.fixture(autouse=True)
def seed_of_torch() -> Iterator[None]:
    """Keeps torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def epoch_of(batches: Iterable[Batch]) -> list[tuple[list[int], float]]:
    return [(batch.ids.tolist(), float(batch.images.double().sum())) for batch in batches]


def test_loader_without_a_seed_follows_torch(dataset: Dataset) -> None:
    def seeded(torchs: int, **options: Any) -> list[tuple[list[int], float]]:
        torch.manual_seed(torchs)
        return epoch_of(Loader(dataset, 4, shuffle=True, collate=crop_collate(), **options))

    assert seeded(1) == seeded(1) != seeded(2)
    assert seeded(7) == seeded(5, seed=7)
    torch.manual_seed(-1)
    made = Loader(dataset)
    assert made.seed == 2**64 - 1
    sent = pickle.dumps(made)
    torch.manual_seed(4)
    assert pickle.loads(sent).seed == 2**64 - 1


class InWorker(IterableDataset[int]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[int]:
        yield Loader(self.path).seed


def test_loader_that_is_made_in_a_worker_needs_a_seed(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="give seed=N"):
        list(DataLoader(InWorker(dataset.path), num_workers=1))


def test_state_brings_its_seed_to_a_loader_without_one(dataset: Dataset) -> None:
    loader = Loader(dataset, 4, shuffle=True, seed=9, collate=crop_collate())
    rest = begun(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = epoch_of(rest)
    for used in (0, 5):
        again = Loader(dataset, 4, shuffle=True, collate=crop_collate())
        begun(again, used)
        assert resumed(again, state).seed == 9
        assert epoch_of(again) == expected
    with pytest.raises(ValueError, match="seed 9, this loader has 3"):
        Loader(dataset, 4, shuffle=True, seed=3).load_state_dict(state)


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"collate": crop_collate()}, {"order": weighted([1.0] * 18)}, {"collate": abs}]
)
def test_ranks_without_torch_distributed_need_a_seed_if_anything_draws(
    dataset: Dataset, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"ranks is \(1, 2\), .*; give seed=N$"):
        Loader(dataset, ranks=(1, 2), **options)
    Loader(dataset, ranks=(1, 2), seed=0, **options)
    Loader(dataset, ranks=(0, 1), **options)


def test_ranks_of_a_loader_that_draws_nothing_need_no_seed(dataset: Dataset) -> None:
    steps = [CenterCrop(16), Normalize.imagenet()]
    rows = [batch.ids.tolist() for rank in range(2) for batch in Loader(dataset, 9, ranks=(rank, 2), collate=steps)]
    assert sorted(sum(rows, [])) == list(range(18))


PROGRAM = """
import sys, json, torch, mmload
from mmload.augment import CenterCrop, RandomCrop
path, meet, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
torch.manual_seed(40 + rank)
loader = mmload.Loader(path, batch_size=4, shuffle=True, collate=mmload.Collate(RandomCrop(16)), threads=1)
own = loader.seed
epochs = [[batch.ids.tolist() for batch in loader] for _ in range(2)]
sampled = list(mmload.Loader(path, shuffle=True, threads=1).sampler)
alone = [batch.ids.tolist() for batch in mmload.Loader(path, collate=[CenterCrop(16)], threads=1)] if rank == 0 else []
print(json.dumps([own, loader.seed, epochs, sampled, len(alone)]))
torch.distributed.destroy_process_group()
"""


def test_two_ranks_have_the_seed_of_rank_0(dataset: Dataset, tmp_path: Path) -> None:
    ranks = [Program(PROGRAM, [dataset.path, tmp_path / "meet", rank]) for rank in range(2)]
    ended = [rank.ended() for rank in ranks]
    assert [rank.returncode for rank in ended] == [0, 0], ended
    first, second = (json.loads(rank.stdout) for rank in ended)
    assert [first[0], second[0]] == [40, 41]
    assert first[1] == second[1] == 40
    for mine, theirs in zip(first[2], second[2], strict=True):
        assert sorted(sum(mine + theirs, [])) == list(range(18))
    with Loader(dataset, 4, shuffle=True, ranks=(1, 2), seed=40, threads=1) as alone:
        assert [[batch.ids.tolist() for batch in alone] for _ in range(2)] == second[2]
    assert sorted(first[3] + second[3]) == list(range(18))
    assert (first[4], second[4]) == (1, 0)  # nothing draws, so no rank waits for the other
