"""The keyed permutation: a bijection at every size, and as random as chance has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import deviation
from hypothesis import given
from hypothesis import strategies as st

from mmload.runtime.random_words import permute


def test_permute_is_a_bijection_for_every_small_n():
    for n in (*range(1, 300), *range(1000, 1100)):
        assert permute(torch.arange(n), n, n % 7).sort().values.equal(torch.arange(n)), n


@given(st.integers(1, 2**61), st.integers(0, 2**64 - 1), st.data())
def test_permute_stays_in_range_and_keeps_numbers_apart(n: int, key: int, data: st.DataObject):
    chosen = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50, unique=True))
    together = permute(torch.tensor(chosen), n, key).tolist()
    assert all(0 <= value < n for value in together)
    assert len(set(together)) == len(chosen)
    assert [permute(torch.tensor([one]), n, key).item() for one in chosen] == together


def test_permute_reads_any_view_and_leaves_it_alone():
    positions = torch.arange(100)
    expected = permute(positions, 100, 1)
    assert permute(positions.expand(2, 100)[1], 100, 1).equal(expected)
    assert permute(positions[::2], 100, 1).equal(expected[::2])
    assert positions.equal(torch.arange(100))
    assert permute(positions[:0], 100, 1).shape == (0,)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_permutation_of_few_numbers_is_equally_likely(n: int):
    counts = np.zeros(n**n)
    place = n ** torch.arange(n)
    trials = 20 * math.factorial(n)
    for key in range(trials):
        counts[int((permute(torch.arange(n), n, key) * place).sum())] += 1
    reached = counts[counts > 0]
    assert len(reached) == math.factorial(n)
    assert abs(deviation(reached)) < 4


@pytest.mark.parametrize("n", [7, 30, 64, 255])
def test_every_position_takes_every_value_equally_often(n: int):
    drawn = np.stack([permute(torch.arange(n), n, key).numpy() for key in range(3000)])
    counts = np.stack([np.bincount(drawn[:, position], minlength=n) for position in range(n)])
    assert abs(deviation(counts.ravel())) < 4


@pytest.mark.slow
@pytest.mark.parametrize("n", [97, 256, 1024, 5000, 99_999])
def test_differences_of_positions_at_any_lag_are_equally_likely(n: int):
    side = -(-n // (math.isqrt(n - 1) + 1))
    keys = max(4, 500_000 // n)
    drawn = np.stack([permute(torch.arange(n), n, key).numpy() for key in range(keys)])
    for lag in (1, 2, side, side + 1):
        counts = np.bincount(((drawn[:, lag:] - drawn[:, :-lag]) % n).ravel(), minlength=n)
        assert abs(deviation(counts[1:])) < 4, lag


def test_neighbouring_positions_and_keys_are_uncorrelated():
    n = 100_000
    first, second = (permute(torch.arange(n), n, key).double() for key in (0, 1))
    for one, other in ((first[1:], first[:-1]), (first, second), (first, torch.arange(n).double())):
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1].item()) < 4 / math.sqrt(n)
    assert (first == torch.arange(n)).sum() < 10  # a permutation has one fixed point in the mean


@pytest.mark.parametrize(
    ("positions", "n", "key", "error", "message"),
    [
        (torch.tensor([0, 5]), 5, 0, ValueError, r"positions lie in \[0, 5\], expected \[0, 4\]"),
        (torch.tensor([-1]), 5, 0, ValueError, "positions lie in"),
        (torch.tensor([0]), 0, 0, ValueError, "n is 0, expected an integer from 1"),
        (torch.tensor([0]), 2**61 + 1, 0, ValueError, "n is"),
        (torch.tensor([0]), 5, -1, ValueError, "key is -1"),
        (torch.tensor([0.0]), 5, 0, TypeError, "expected torch.int64"),
    ],
)
def test_permute_refuses_what_it_cannot_permute(positions, n, key, error, message):
    with pytest.raises(error, match=message):
        permute(positions, n, key)
