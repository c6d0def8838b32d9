"""The draws: pure functions of their keys, and distributed as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distributions import ks
from hypothesis import given
from hypothesis import strategies as st

from mmload.augment import RandomHorizontalFlip, sample_seeds, view_seeds
from mmload.augment.step import Draws, beta, plan_for, seeds_of, whole_numbers
from mmload.runtime.random_words import mix_tensor, mixed

MASK = (1 << 64) - 1


def plainly_mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20))
def test_the_hash_is_splitmix64(values: list[int]) -> None:
    expected = [plainly_mixed(one & MASK) for one in values]
    assert [one & MASK for one in mixed(np.array(values, np.int64)).tolist()] == expected
    assert [one & MASK for one in mix_tensor(torch.tensor(values)).tolist()] == expected


def test_seeds_are_fixed_forever() -> None:
    seeds = sample_seeds(7, 3, torch.tensor([0, 1, 1 << 40]))
    assert seeds.tolist() == [8487708178250057895, -800551655913413764, 3383729819107556261]
    assert torch.equal(sample_seeds(7, 3, torch.tensor([1])), seeds[1:2])


@given(st.integers(-(1 << 70), 1 << 70), st.integers(0, 1 << 40))
def test_any_integers_are_seeds_and_neighbours_differ(seed: int, epoch: int) -> None:
    ids = torch.arange(4)
    every = [sample_seeds(seed, epoch, ids), sample_seeds(seed + 1, epoch, ids), sample_seeds(seed, epoch + 1, ids)]
    every.append(view_seeds(every[0], 1))
    assert torch.cat(every).unique().numel() == 16


def test_draws_do_not_depend_on_the_batch_or_on_how_many_are_taken() -> None:
    seeds = seeds_of(1, 2, np.arange(50))
    whole, part = Draws(seeds, 4), Draws(seeds[20:30], 4)
    assert np.array_equal(whole.uniform(5)[20:30], np.concatenate((part.uniform(2), part.uniform(3)), 1))
    assert not np.array_equal(Draws(seeds, 5).uniform(1), Draws(seeds, 4).uniform(1))


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("step", [0, 1, 7])
def test_uniform_draws_are_uniform_and_unrelated(step: int) -> None:
    draws = Draws(seeds_of(0, 0, np.arange(40_000)), step).uniform(2)
    cells = (draws * 8).astype(np.int64)
    counts = np.bincount(cells[:, 0] * 8 + cells[:, 1], minlength=64)
    assert chi_square(counts, 40_000 / 64) < 103.4  # 63 degrees of freedom, exceeded once in a thousand
    assert draws.min() >= 0
    assert draws.max() < 1


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_flips_come_with_their_probability(p: float) -> None:
    images = torch.empty((4000, 1, 1, 1), dtype=torch.uint8)
    plan = RandomHorizontalFlip(p).describe(plan_for(images), Draws(seeds_of(0, 0, np.arange(4000)), 0))
    assert plan.flip_x is not None
    share = float(plan.flip_x.mean())
    assert abs(share - p) <= 3.3 * (p * (1 - p) / 4000) ** 0.5


def test_drawn_integers_reach_both_ends() -> None:
    draws = np.array([0.0, 1 - 2.0**-53])
    assert whole_numbers(draws, 33).tolist() == [0, 32]


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_beta_is_torchs_beta(alpha: float) -> None:
    torch.manual_seed(3)
    ours = torch.from_numpy(beta(Draws(seeds_of(0, 0, np.arange(4000)), 0), alpha))
    theirs = torch.distributions.Beta(alpha, alpha).sample((4000,)).double()
    assert ks(ours, theirs) < 1.95
    assert ks(ours**2, theirs) > 1.95
