"""The tests of two samples against known values, and against what they have to do on samples of known origin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmload.parity.pixel_differences import EXACT, PILLOW, Difference, difference_text
from mmload.parity.statistics import chi_square, chi_square_tail, kolmogorov_smirnov, kolmogorov_tail


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"),
    [
        (3.841459, 1, 0.05),
        (6.634897, 1, 0.01),
        (18.307038, 10, 0.05),
        (124.342113, 100, 0.05),
        (2.0, 2, math.exp(-1)),
        (0.0, 5, 1.0),
    ],
)
def test_chi_square_tail_is_the_tables(statistic: float, freedom: int, p: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(p, rel=1e-5)


@pytest.mark.parametrize(
    ("x", "p"), [(1.22385, 0.1), (1.35810, 0.05), (1.62762, 0.01), (1.94947, 0.001), (0.5, 0.963945), (0.1, 1.0)]
)
def test_kolmogorov_tail_is_the_tables(x: float, p: float) -> None:
    assert kolmogorov_tail(x) == pytest.approx(p, rel=1e-4)


def test_kolmogorov_tail_falls_everywhere() -> None:
    values = [kolmogorov_tail(x) for x in np.linspace(0.0, 3.0, 200)]
    assert all(a >= b for a, b in zip(values, values[1:], strict=False))
    assert 0.0 <= values[-1] < 1e-6


def test_chi_square_of_a_table_by_hand() -> None:
    ours, theirs = np.repeat([0, 1], [60, 40]), np.repeat([0, 1], [40, 60])
    found = chi_square(ours, theirs)  # (60 - 40)^2 / 100 twice
    assert (found.statistic, found.freedom) == (pytest.approx(8.0), 1)
    assert found.p == pytest.approx(0.0046777, rel=1e-4)


def test_rare_values_are_counted_together() -> None:
    rng = np.random.default_rng(0)
    found = chi_square(rng.geometric(0.5, 5000), rng.geometric(0.5, 5000))
    assert 5 <= found.freedom <= 12
    assert found.p > 1e-3


def test_unequal_sizes_are_weighed() -> None:
    rng = np.random.default_rng(1)
    assert chi_square(rng.integers(0, 9, 30_000), rng.integers(0, 9, 3_000)).p > 1e-3
    assert kolmogorov_smirnov(rng.random(30_000), rng.random(3_000)).p > 1e-3


@pytest.mark.parametrize("test", [chi_square, kolmogorov_smirnov])
def test_p_is_even_on_equal_distributions(test) -> None:
    rng = np.random.default_rng(2)
    draw = (lambda: rng.integers(0, 20, 500)) if test is chi_square else (lambda: rng.random(500))
    values = np.sort([test(draw(), draw()).p for _ in range(400)])
    apart = np.abs(values - (np.arange(400) + 0.5) / 400).max()
    assert apart < 0.1  # the 0.1% point of Kolmogorov's test at 400


def test_other_distributions_are_told() -> None:
    rng = np.random.default_rng(3)
    assert chi_square(rng.integers(0, 33, 20_000), rng.integers(0, 32, 20_000)).p < 1e-20
    assert kolmogorov_smirnov(rng.random(20_000), rng.random(20_000) ** 1.1).p < 1e-10


def test_ks_of_constants_and_nothing() -> None:
    assert kolmogorov_smirnov(np.ones(50), np.ones(70)).p == 1.0
    assert kolmogorov_smirnov(np.ones(50), np.zeros(50)).statistic == 1.0
    with pytest.raises(ValueError, match="0 draws against 3"):
        kolmogorov_smirnov(np.zeros(0), np.zeros(3))


def test_differences_add_up_and_are_held_to_limits() -> None:
    stored = torch.tensor([[[10, 20, 30, 255]]], dtype=torch.uint8)
    right = torch.tensor([[[10, 21, 27, 255]]], dtype=torch.uint8)
    one = Difference.of(stored, right)
    assert (one.greatest, one.total, one.squares, one.over, one.unequal) == (3, 4, 10, 1, 1)
    both = one + Difference.of(right, right)
    assert (both.rows, both.unequal, both.values, both.mean) == (2, 1, 8, 0.5)
    assert both.psnr == pytest.approx(10 * math.log10(255**2 * 8 / 10))
    assert not EXACT.hold(one)
    assert EXACT.hold(Difference.of(right, right))
    assert Difference.of(right, right).psnr == math.inf
    assert PILLOW.hold(Difference(rows=1, values=1000, greatest=2, total=90, over=9))
    assert not PILLOW.hold(Difference(rows=1, values=1000, greatest=3, total=3, over=1))
    assert not PILLOW.hold(Difference(rows=1, values=1000, greatest=2, total=90, over=11))
    assert "1 of 2 rows differ: at most 3" in difference_text(both, PILLOW)
