"""Compares two samples of numbers: do they have the same distribution?"""

from __future__ import annotations

import torch
from torch import Tensor


def ks(first: Tensor, second: Tensor, slack: float = 0.0) -> Tensor:
    """Returns the Kolmogorov-Smirnov statistic of two samples, times the root of their effective size.

    Args:
        first: [..., N] numbers, of several samples or one.
        second: [..., M] numbers.
        slack: numbers that differ by less are equal.

    Returns:
        [...]; 1.95 is exceeded once in 1,000 times by chance, 2.63 once in 1,000,000.
    """
    both = torch.cat((first, second), -1).contiguous()
    found = [_excess(one, other, both, slack) for one, other in ((first, second), (second, first))]
    size = first.shape[-1] * second.shape[-1] / (first.shape[-1] + second.shape[-1])
    return torch.maximum(*found) * size**0.5


def _excess(first: Tensor, second: Tensor, places: Tensor, slack: float) -> Tensor:
    """Returns by how much more of the first sample is at most at a place than of the second, at most."""
    ordered = [sample.sort(-1).values.contiguous() for sample in (first, second)]
    at_most = torch.searchsorted(ordered[0], places, right=True) / first.shape[-1]
    return (at_most - torch.searchsorted(ordered[1], places + slack, right=True) / second.shape[-1]).amax(-1)


def ends(first: Tensor, second: Tensor, slack: float = 0.0) -> Tensor:
    """Returns by how many standard deviations two samples [..., N] differ in how often they are at either end."""
    both = torch.cat((first, second), -1)
    low, high = both.amin(-1, keepdim=True) + slack, both.amax(-1, keepdim=True) - slack
    counts = [torch.stack([(one <= low).sum(-1), (one >= high).sum(-1)]) for one in (first, second)]
    return ((counts[0] - counts[1]).abs() / (counts[0] + counts[1]).sqrt()).amax(0)
