"""Compares two samples of a random number."""

from __future__ import annotations

import torch
from torch import Tensor


def ks(first: Tensor, second: Tensor) -> float:
    """The Kolmogorov-Smirnov statistic of two samples, times the root of their effective size."""
    both = torch.cat((first, second)).sort().values
    shares = [torch.searchsorted(one.sort().values, both, right=True) / len(one) for one in (first, second)]
    size = len(first) * len(second) / (len(first) + len(second))
    return float((shares[0] - shares[1]).abs().max()) * size**0.5
