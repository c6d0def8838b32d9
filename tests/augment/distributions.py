"""Compares two samples of a random number: do they have the same distribution?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

_ENOUGH = 5.0  # expected count per bin, below which the chi-square distribution is a poor approximation (Cochran 1954)


def ks(first: Tensor, second: Tensor) -> float:
    """Returns the Kolmogorov-Smirnov statistic of two samples, times the root of their effective size."""
    both = torch.cat((first, second)).sort().values
    shares = [torch.searchsorted(one.sort().values, both, right=True) / len(one) for one in (first, second)]
    size = len(first) * len(second) / (len(first) + len(second))
    return float((shares[0] - shares[1]).abs().max()) * size**0.5


def kolmogorov_smirnov(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Returns the asymptotic p-value of the test of two samples of real numbers; ties make it too large, not too small.

    The p-value is Kolmogorov's series: in one run of all tests, scipy's own was 0 for equal samples, for a reason that
    is not known.
    """
    scaled = ks(torch.from_numpy(first), torch.from_numpy(second))
    if scaled < 0.2:  # where the series converges slowly, to 1 within 1e-12
        return 1.0
    terms = np.arange(1, 101)
    series = 2 * np.sum((-1.0) ** (terms - 1) * np.exp(-2 * (terms * scaled) ** 2))
    return float(np.clip(series, 0.0, 1.0))


def chi_square(first: npt.NDArray[np.integer | np.bool], second: npt.NDArray[np.integer | np.bool]) -> float:
    """Returns the p-value of Pearson's test of two samples of integers.

    Neighboring values are counted together where fewer than 5 are expected in the smaller sample.
    """
    values = np.union1d(first, second)
    places = (np.searchsorted(values, sample) for sample in (first, second))
    counts = np.stack([np.bincount(each, minlength=len(values)) for each in places])
    least = counts.sum(1).min() / counts.sum()
    groups, group = [], np.zeros(2)
    for column in counts.T:
        group = group + column
        if group.sum() * least >= _ENOUGH:
            groups.append(group)
            group = np.zeros(2)
    if not groups:
        return 1.0
    groups[-1] = groups[-1] + group
    return float(stats.chi2_contingency(np.stack(groups, 1), correction=False).pvalue)
