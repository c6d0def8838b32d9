"""Normal noise against the normal distribution, and both ways to make it against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmload.render.holes import normal_line, normals
from mmload.runtime.kernels import numba_compiled


@numba_compiled("uint64, uint64, int64, float32[::1]")
def compiled_line(key: np.uint64, first: np.uint64, half: int, line: NDArray[np.float32]) -> None:
    """Makes a line as kernels do."""
    normal_line(key, first, half, line)


def line_of(key: int, first: int, half: int) -> Tensor:
    line = np.empty(2 * half, np.float32)
    compiled_line(np.uint64(key), np.uint64(first), half, line)
    return torch.from_numpy(line)


def ks_of_normal(values: Tensor) -> float:
    """The Kolmogorov-Smirnov statistic against the standard normal distribution, times the root of the size."""
    expected = torch.special.ndtr(values.double().sort().values)
    below = torch.arange(len(values)) / len(values)
    return float(torch.maximum(expected - below, below + 1 / len(values) - expected).max()) * len(values) ** 0.5


def test_numbers_are_standard_normal_and_independent() -> None:
    values = line_of(5, 0, 200_000)
    first, second = values.view(2, -1)
    for part in (first, second, values):
        assert ks_of_normal(part) < 1.95
    assert ks_of_normal(values * 1.02) > 1.95
    assert ks_of_normal(values + 0.01) > 1.95
    for one, other in ((first, second), (first[1:], first[:-1]), (first.abs(), second.abs()), (first**2, second**2)):
        assert abs(float(torch.corrcoef(torch.stack((one, other)))[0, 1])) < 4 / len(one) ** 0.5
    assert abs(int((values.abs() > 3).sum()) / (len(values) * 0.0026998) - 1) < 4 / (len(values) * 0.0027) ** 0.5
    angle = torch.atan2(second, first) / torch.pi  # no direction is preferred
    counts = torch.histc(angle, 64, -1, 1)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 103.5  # one in a thousand


@pytest.mark.parametrize(("first", "half"), [(0, 1), (3, 7), (1000, 5000)])
def test_torch_makes_the_same_bits(first: int, half: int) -> None:
    for key in (0, 77, -5):
        numbers = torch.arange(first, first + half)
        parts = [normals(torch.tensor(key), numbers, torch.tensor(second)) for second in (False, True)]
        assert torch.equal(line_of(key % 2**64, first, half), torch.cat(parts))


def test_keys_and_counters_make_other_numbers() -> None:
    line = line_of(1, 0, 64)
    assert torch.equal(line_of(1, 32, 32).view(2, -1), line.view(2, -1)[:, 32:])
    assert len({*line.tolist(), *line_of(2, 0, 64).tolist()}) == 256
