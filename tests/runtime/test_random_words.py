"""The keyed permutation: a bijection at every size, and as random as chance has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import deviation
from hypothesis import given
from hypothesis import strategies as st

from mmload.runtime.random_words import permuted


def drawn(n: int, key: int) -> np.ndarray:
    return np.array(permuted(range(n), n, key))


def test_permuted_is_a_bijection_for_every_small_n() -> None:
    for n in (*range(1, 300), *range(1000, 1100)):
        assert sorted(permuted(range(n), n, n % 7)) == list(range(n)), n
    assert permuted(range(8), 8, 7) == [0, 2, 7, 4, 6, 3, 5, 1]
    assert permuted([], 8, 7) == []


@given(st.integers(1, 2**61), st.integers(0, 2**64 - 1), st.data())
def test_permuted_stays_in_range_and_keeps_numbers_apart(n: int, key: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50, unique=True))
    together = permuted(chosen, n, key)
    assert all(0 <= value < n for value in together)
    assert len(set(together)) == len(chosen)
    assert [permuted([one], n, key)[0] for one in chosen] == together


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_permutation_of_few_numbers_is_equally_likely(n: int) -> None:
    counts = np.zeros(n**n)
    for key in range(20 * math.factorial(n)):
        counts[int((drawn(n, key) * n ** np.arange(n)).sum())] += 1
    reached = counts[counts > 0]
    assert len(reached) == math.factorial(n)
    assert abs(deviation(reached)) < 4


@pytest.mark.parametrize("n", [7, 30, 64, 255])
def test_every_position_takes_every_value_equally_often(n: int) -> None:
    images = np.stack([drawn(n, key) for key in range(3000)])
    counts = np.stack([np.bincount(images[:, position], minlength=n) for position in range(n)])
    assert abs(deviation(counts.ravel())) < 4


@pytest.mark.slow
@pytest.mark.parametrize("n", [97, 256, 1024, 5000, 99_999])
def test_differences_of_positions_at_any_lag_are_equally_likely(n: int) -> None:
    side = -(-n // (math.isqrt(n - 1) + 1))
    images = np.stack([drawn(n, key) for key in range(max(4, 500_000 // n))])
    for lag in (1, 2, side, side + 1):
        counts = np.bincount(((images[:, lag:] - images[:, :-lag]) % n).ravel(), minlength=n)
        assert abs(deviation(counts[1:])) < 4, lag


def test_neighboring_positions_and_keys_are_uncorrelated() -> None:
    n = 100_000
    first, second = drawn(n, 0), drawn(n, 1)
    for one, other in ((first[1:], first[:-1]), (first, second), (first, np.arange(n))):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(n)
    assert (first == np.arange(n)).sum() < 10  # a permutation has one fixed point in the mean
