"""Orders in which rows may come several times: shares, distributions, and that any rank can go on anywhere."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import deviation, make_folder
from loaded import resumed
from torch.utils.data import ConcatDataset, RandomSampler, WeightedRandomSampler

import mmload
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.builder.recipe import BuildRecipe, square
from mmload.loader import Loader
from mmload.loader.order import Order, OrderContext
from mmload.loader.orders import Sampling, balanced, classes, mixed, repeated, subset, weighted
from mmload.store.dataset import Split

LABELS = torch.tensor([0] * 40 + [1] * 9 + [7] * 3)


def order(sampling: Sampling, dataset: object = None, rows: int = len(LABELS), **dealt: Any) -> Order:
    """The order of a number of rows, of which there are no others."""
    view: Any = range(rows)
    return Order(epoch_order=sampling.bound(OrderContext(dataset, view, 5, 8)), **dealt)


A, B, C = range(30), range(15), range(7)
ALL = {
    "weighted": (weighted(torch.arange(len(LABELS))), None),
    "balanced": (balanced(LABELS), None),
    "repeated": (repeated(3), None),
    "classes": (classes(2, 4, LABELS, batches=17), None),
    "mixed": (mixed([0.6, 0.3, 0.1], num_samples=97), ConcatDataset([A, B, C])),  # type: ignore[list-item]
    "mixed by parts": (mixed({A: 6, B: 3, C: 1}), ConcatDataset([A, B, C])),  # type: ignore[list-item]
    "subset": (subset([3, 1, 4, 1, 5, 9, 2, 6]), None),
}


@pytest.mark.parametrize("name", ALL)
def test_ranks_and_pieces_give_one_order(name: str) -> None:
    sampling, dataset = ALL[name]
    one = order(sampling, dataset)
    rows, occurrences = one.take(3, 0, len(one))
    together = one.epoch_order.group_size
    for world in (2, 3):
        ranks = [order(sampling, dataset, rank=rank, world_size=world) for rank in range(world)]
        assert sum(map(len, ranks)) == len(rows)
        half = len(ranks[-1]) // together // 2 * together
        offset = ranks[0].consumed(half)
        for rank, mine in enumerate(ranks):
            first, later = mine.take(3, 0, half), mine.take(3, 0, 10**6, offset)
            batches = rows[: len(rows) // together * together].reshape(-1, together)
            expected = batches[rank::world].reshape(-1)
            assert np.array_equal(np.concatenate([first.rows, later.rows]), expected)
    assert np.array_equal(order(sampling, dataset).take(3, 7, 20).rows, rows[7:20])
    assert not np.array_equal(order(sampling, dataset).take(4, 0, len(one)).rows, rows)
    if occurrences is not None:
        pairs = list(zip(rows.tolist(), occurrences.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)


def test_weighted_rows_come_as_often_as_torchs() -> None:
    weights, count = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.0]), 40_000
    drawn = order(weighted(weights, count), rows=7)
    ours = np.bincount(drawn.rows_for(0), minlength=7)
    theirs = np.bincount(list(WeightedRandomSampler(weights.tolist(), count)), minlength=7)  # type: ignore[arg-type]
    assert ours[[0, 4, 6]].tolist() == [0, 0, 0]
    some = [1, 2, 3, 5]
    expected = weights.numpy()[some] / 10 * count
    for counts in (ours, theirs):
        assert ((counts[some] - expected) ** 2 / expected).sum() < 16.3  # 0.999 of chi-square with 3
    rows = drawn.rows_for(1)
    pairs = np.bincount(rows[:-1] * 7 + rows[1:], minlength=49).reshape(7, 7)[np.ix_(some, some)]
    joint = np.outer(weights, weights)[np.ix_(some, some)] / 100 * count
    assert ((pairs - joint) ** 2 / joint).sum() < 37.7  # of 15: draws are independent


def test_balanced_classes_come_equally_often_and_all_rows_in_turn() -> None:
    rows, occurrences = order(balanced(LABELS, num_samples=360)).take(0, 0, 360)
    drawn = LABELS.numpy()[rows]
    assert all(sorted(run.tolist()) == [0, 1, 7] for run in drawn.reshape(-1, 3))
    for label, count in ((0, 40), (1, 9), (7, 3)):
        own = rows[drawn == label]
        for start in range(0, 120 - count + 1, count):
            assert len(np.unique(own[start : start + count])) == count
    assert occurrences is not None
    assert occurrences[drawn == 7].tolist() == [turn // 3 for turn in range(120)]
    firsts = [order(balanced(LABELS)).take(epoch, 0, 3).rows[0].item() for epoch in range(600)]
    labels = np.bincount(LABELS[torch.tensor(firsts)].numpy(), minlength=8)[[0, 1, 7]]
    assert abs(deviation(labels)) < 4


def test_repeated_rows_are_those_of_the_shuffle_each_three_times() -> None:
    of = order(repeated(3)).epoch_order
    rows, occurrences = Order(epoch_order=of).take(2, 0, 100)
    assert len(rows) == 52
    assert np.array_equal(rows[::3], order(repeated(1)).take(2, 0, 18).rows)
    assert np.array_equal(rows[:51].reshape(17, 3), rows[:51:3, None].repeat(3, 1))
    assert occurrences is not None
    assert occurrences.tolist() == [position % 3 for position in range(52)]
    ranks = [Order(epoch_order=of, rank=rank, world_size=3).take(2, 0, 17).rows for rank in range(3)]
    assert np.array_equal(
        ranks[0], ranks[1]
    )  # each of a row's draws on another rank, as torchvision's RASampler has it
    assert np.array_equal(ranks[0], ranks[2])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_repeated_rows_are_timms_of_the_same_shuffle(world_size: int) -> None:
    samplers = pytest.importorskip("timm.data.distributed_sampler", reason="timm is not installed")
    shuffled = order(repeated(1)).take(2, 0, len(LABELS)).rows
    for rank in range(world_size):
        theirs = samplers.RepeatAugSampler(
            LABELS, num_replicas=world_size, rank=rank, shuffle=False, num_repeats=3, selected_round=0
        )
        ours = order(repeated(3), rank=rank, world_size=world_size).take(2, 0, len(LABELS)).rows
        assert len(ours) in (len(theirs), len(theirs) - 1)  # where ranks do not divide the rows, theirs goes on
        assert np.array_equal(ours, shuffled[list(theirs)][: len(ours)])


def test_batches_of_classes_have_as_many_rows_of_as_many() -> None:
    taken = order(classes(2, 4, LABELS, batches=30)).take(0, 0, 10**6)
    labels = LABELS[taken.rows].view(30, 2, 4)
    assert labels.unique_consecutive(dim=2).shape == (30, 2, 1)
    assert (labels[:, 0, 0] != labels[:, 1, 0]).all()
    for batch, rows in zip(labels, taken.rows.reshape(30, 2, 4), strict=True):
        for label, own in zip(batch[:, 0].tolist(), rows, strict=True):
            assert len(np.unique(own)) == min(4, int((label == LABELS).sum()))
    counts = Counter(labels[:, :, 0].flatten().tolist())
    assert min(counts.values()) > 12  # two of three classes in each cycle


def test_shares_of_datasets_are_exact_and_all_rows_come_in_turn() -> None:
    rows = order(mixed({A: 6, B: 3, C: 1}, num_samples=6400), ConcatDataset([A, B, C])).rows_for(0)  # type: ignore[list-item]
    owners = np.digitize(rows, [30, 45])
    assert np.bincount(owners).tolist() == [3840, 1920, 640]
    for start in range(0, 6400, 64):
        counts = np.bincount(owners[start : start + 64], minlength=3)
        assert (np.abs(counts - [38.4, 19.2, 6.4]) <= 1.5).all()
    for part, first, size in ((0, 0, 30), (1, 30, 15), (2, 45, 7)):
        counts = np.bincount(rows[owners == part], minlength=52)[first : first + size]
        assert counts.max() - counts.min() <= 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weighted([1.0, -1.0]), "weights have -1; give numbers from 0"),
        (lambda: weighted([0.0, 0.0]), "which sum to 0; give finite numbers from 0 of which some are above 0"),
        (lambda: weighted([float("nan")]), "weights have nan"),
        (lambda: weighted([float("inf")]), "which sum to inf"),
        (lambda: weighted([[1.0]]), "weights have the shape \\[1, 1\\]"),
        (lambda: weighted(["a"]), "weights are \\['a'\\]; give a tensor"),
        (lambda: weighted([1.0], num_samples=0), "num_samples is 0; give an integer from 1"),
        (lambda: order(weighted([1.0, 2.0])), "got 2 weights for 52 rows; give one each"),
        (lambda: repeated(0), "times is 0; give an integer from 1"),
        (lambda: classes(0, 3), "p is 0; give an integer from 1"),
        (lambda: order(classes(4, 2, LABELS)), "p is 4, and the number of classes that have rows is 3"),
        (lambda: order(balanced(LABELS[1:])), "got 51 labels for 52 rows; give one each"),
        (lambda: order(balanced(LABELS.double())), "labels are tensor.*; give the name of a field"),
        (lambda: mixed(["a"]), "shares are \\['a'\\]; give a tensor"),
        (lambda: mixed([0.5, 0.0]), "shares are \\[0.5, 0.0\\]; give a number above 0"),
        (lambda: order(mixed([1, 2]), A), "reads a ConcatDataset of the parts, not range"),
        (lambda: order(mixed([1, 2]), ConcatDataset([A, B, C])), "got 2 shares for 3 parts; give one each"),
        (lambda: order(mixed([1]), ConcatDataset([A, B])), "got 1 share for 2 parts; give one each"),
        (
            lambda: order(mixed({A: 1, B: 2, "c": 3}), ConcatDataset([A, B, C])),
            "shares has no key for part 2 of the ConcatDataset",
        ),
        (lambda: order(subset([52])), "row 52 does not exist: the loader's dataset has 52 rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        make()


@pytest.mark.parametrize("name", ALL)
def test_order_after_a_pickle_is_the_same(name: str) -> None:
    sampling, dataset = pickle.loads(pickle.dumps(ALL[name]))
    assert repr(sampling) == repr(ALL[name][0])
    assert np.array_equal(order(sampling, dataset).rows_for(2), order(*ALL[name]).rows_for(2))


def loader(split: object, **options: Any) -> Loader:
    collate = Collate(RandomCrop(24), RandomHorizontalFlip(), Normalize.imagenet())
    return Loader(split, collate=collate, seed=9, **{"batch_size": 4, "threads": 2, **options})  # type: ignore[arg-type]


def images(batches: Iterable[Batch]) -> list[tuple[int, bytes]]:
    """The rows of an epoch, and what they look like."""
    return [
        (int(row), image.numpy().tobytes())
        for batch in batches
        for row, image in zip(batch.ids, batch.images, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"order": repeated(3)},
        {"order": weighted([1.0, 2.0, 3.0] * 6)},
        {"order": subset([0, 0, 1, 0])},
        {"order": [0, 0, 1, 0]},
        {"order": RandomSampler(range(18), replacement=True, generator=torch.Generator().manual_seed(3))},
    ],
    ids=["repeated", "weighted", "subset", "list", "sampler"],
)
def test_a_row_that_comes_again_looks_different(rows: Split, options: dict[str, Any]) -> None:
    seen = images(loader(rows, **options))
    assert len({row for row, _ in seen}) < len(seen)
    assert len(set(seen)) == len(seen)


def test_rows_that_come_once_keep_their_draws(rows: Split) -> None:
    plain = dict(images(loader(rows)))
    assert dict(images(loader(rows, shuffle=True))) == plain
    assert dict(images(loader(rows, order=list(range(17, -1, -1))))) == plain
    first = {}
    for row, image in images(loader(rows, order=repeated(3))):
        first.setdefault(row, image)
    assert len(first) == 6
    assert all(plain[row] == image for row, image in first.items())
    padded = [images(loader(rows, ranks=(rank, 4), tail="pad")) for rank in range(4)]
    together = [pair for rank in padded for pair in rank]
    assert len(together) == 20
    assert len(set(together)) == 20
    assert set(plain.items()) < set(together)
    listed = images(loader(torch.utils.data.Subset(rows, [3, 4, 3])))
    assert len(set(listed)) == 3
    assert set(plain.items()) >= set(listed[:2])


@pytest.mark.parametrize("name", ["weighted", "balanced", "repeated", "classes"])
def test_an_epoch_goes_on_with_other_ranks(rows: Split, name: str) -> None:
    sampling = {
        "weighted": weighted(range(18), num_samples=24),
        "balanced": balanced("targets", num_samples=24),
        "repeated": repeated(2),
        "classes": classes(2, 2, batches=6),
    }[name]
    whole = images(loader(rows, order=sampling))
    first = loader(rows, order=sampling)
    next(iter(first))
    state = first.state_dict()
    assert all(isinstance(value, int | str) for value in state.values())
    ranks = [resumed(loader(rows, order=sampling, ranks=(rank, 2)), state) for rank in range(2)]
    assert sorted(images(ranks[0]) + images(ranks[1])) == sorted(whole[4:])
    with pytest.raises(ValueError, match="the state has order"):
        loader(rows, shuffle=True).load_state_dict(state)


def test_several_datasets_are_mixed(rows: Split, tmp_path: Any) -> None:
    root = make_folder(tmp_path / "photos", 2)
    mmload.build(BuildRecipe(kind="imagefolder", root=root, out=tmp_path / "out", transforms=square(32)))
    other = mmload.open(tmp_path / "out")["train"]
    both = ConcatDataset([rows, other])
    seen = images(loader(both, order=mixed({other: 1, rows: 3}, num_samples=64)))
    assert sum(row >= 18 for row, _ in seen) == 16
    assert len(set(seen)) > 60  # some draws are equal by chance


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_type_and_value_group_the_same_rows(dtype: torch.dtype) -> None:
    one = order(balanced(LABELS))
    for labels in [LABELS] if dtype == torch.uint8 else [LABELS, LABELS - 5, LABELS * 10**8]:
        other = order(balanced(labels.to(dtype)))
        assert np.array_equal(other.rows_for(0), one.rows_for(0))
        assert other.epoch_order.identity == one.epoch_order.identity
        assert order(balanced(labels.to(dtype).flip(0))).epoch_order.identity != one.epoch_order.identity


@pytest.mark.slow
def test_a_hundred_million_weights_are_drawn_from() -> None:
    weights = np.zeros(100_000_000, np.float32)
    weights[70_000_000:70_000_003] = 1
    taken = order(weighted(weights), rows=len(weights)).take(0, 0, 4096)
    assert set(taken.rows.tolist()) == {70_000_000, 70_000_001, 70_000_002}


@pytest.mark.parametrize(
    ("sampling", "dataset", "rows"),
    [
        (repeated(3), None, 4096),
        (mixed([0.5, 0.5]), ConcatDataset([range(50_000_000)] * 2), 4096),  # type: ignore[list-item]
        (subset(range(10)), None, 10),
    ],
)
def test_a_hundred_million_rows_begin_at_once(sampling: Sampling, dataset: object, rows: int) -> None:
    assert len(order(sampling, dataset, rows=100_000_000).take(0, 0, 4096).rows) == rows
