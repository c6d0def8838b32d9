"""Mean and deviation from sums."""

from __future__ import annotations

import numpy as np
import torch

from mmload.builder.row_statistics import channel_sums
from mmload.builder.shards import Statistics


def test_mean_and_deviation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 20, 30), dtype=np.uint8)
    sums, squares = channel_sums(torch.from_numpy(pixels)).tolist()
    mean, std = Statistics(sums=sums, squares=squares, pixels=5 * 20 * 30).mean_std()
    assert np.allclose(mean, pixels.mean((0, 2, 3)) / 255)
    assert np.allclose(std, pixels.std((0, 2, 3)) / 255)
    assert Statistics().mean_std() == ((), ())
