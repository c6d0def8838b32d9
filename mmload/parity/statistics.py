"""Two-sample chi-square and Kolmogorov-Smirnov tests in numpy: do two samples have the same distribution?

A test returns its statistic and p-value: the probability of an at least equal difference for equal distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mmload.errors import counted

Numbers = npt.NDArray[np.float64]

_ENOUGH = 5.0  # expected count per bin, below which the chi-square distribution is a poor approximation (Cochran 1954)
_TERMS = 100


@dataclass(frozen=True, kw_only=True)
class Test:
    """The result of a test.

    Attributes:
        name: "chi-square" or "KS".
        statistic: chi-square, or the largest distance between the two distribution functions.
        p: probability that equal distributions differ at least as much.
        freedom: degrees of freedom of a chi-square; 0 for KS.
    """

    name: str
    statistic: float
    p: float
    freedom: int = 0


def chi_square(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> Test:
    """Pearson's test that two samples of integers have the same distribution.

    The statistic is the sum over the values of (a sqrt(B/A) - b sqrt(A/B))^2 / (a + b), with a and b counted in samples
    of A and B (Press et al., Numerical Recipes, 14.3). Neighboring values are counted together where fewer than 5 are
    expected.

    Args:
        ours: int64 [A].
        theirs: int64 [B].

    Raises:
        ValueError: if a sample is empty.
    """
    _need_draws(ours, theirs)
    values = np.union1d(ours, theirs)
    a = _grouped(np.searchsorted(values, ours), np.searchsorted(values, theirs), len(values))
    first, second = a[0], a[1]
    ratio = math.sqrt(len(theirs) / len(ours))
    statistic = float(((first * ratio - second / ratio) ** 2 / (first + second)).sum())
    freedom = len(first) - 1
    return Test(name="chi-square", statistic=statistic, p=chi_square_tail(statistic, freedom), freedom=freedom)


def kolmogorov_smirnov(ours: Numbers, theirs: Numbers) -> Test:
    """The test that two samples of real numbers have the same distribution; ties make p too large, never too small.

    The p-value is the asymptotic series with Stephens' correction for finite samples (Press et al., Numerical Recipes,
    14.3).

    Args:
        ours: float64 [A].
        theirs: float64 [B].

    Raises:
        ValueError: if a sample is empty.
    """
    _need_draws(ours, theirs)
    first, second = np.sort(ours), np.sort(theirs)
    values = np.concatenate([first, second])
    share = np.searchsorted(first, values, side="right") / len(first)
    other = np.searchsorted(second, values, side="right") / len(second)
    distance = float(np.abs(share - other).max())
    root = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return Test(name="KS", statistic=distance, p=kolmogorov_tail((root + 0.12 + 0.11 / root) * distance))


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square >= statistic): the regularized upper incomplete gamma function at (freedom / 2, statistic / 2)."""
    if freedom < 1 or statistic <= 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def kolmogorov_tail(x: float) -> float:
    """P(K >= x) of Kolmogorov's distribution: 2 sum over k >= 1 of (-1)^(k-1) exp(-2 k^2 x^2).

    Below 0.2 the tail is 1 to 12 digits, and the series converges too slowly to compute it.
    """
    if x < 0.2:
        return 1.0
    k = np.arange(1, _TERMS + 1)
    total = 2.0 * float((np.where(k % 2 == 1, 1.0, -1.0) * np.exp(-2.0 * k**2 * x**2)).sum())
    return min(1.0, max(0.0, total))


def _grouped(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64], size: int) -> Numbers:
    """Counts [2, groups] of values 0 to size - 1; neighbors are joined until the smaller sample expects 5."""
    counts = np.stack([np.bincount(ours, minlength=size), np.bincount(theirs, minlength=size)]).astype(np.float64)
    least = min(len(ours), len(theirs)) / (len(ours) + len(theirs))
    groups: list[Numbers] = []
    held = np.zeros(2)
    for column in counts.T:
        held = held + column
        if held.sum() * least >= _ENOUGH:
            groups.append(held)
            held = np.zeros(2)
    if groups:
        groups[-1] = groups[-1] + held
    else:
        groups.append(held)
    return np.stack(groups, axis=1)


def _need_draws(ours: npt.NDArray[np.generic], theirs: npt.NDArray[np.generic]) -> None:
    if not len(ours) or not len(theirs):
        raise ValueError(f"{counted(len(ours), 'draw')} against {len(theirs)}, expected some of both")
