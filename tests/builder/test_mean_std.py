"""Mean and deviation from sums."""

from __future__ import annotations

import numpy as np
import torch

from mmload.builder.row_statistics import channel_sums
from mmload.builder.split_records import mean_std


def test_mean_and_deviation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 20, 30), dtype=np.uint8)
    sums, squares = channel_sums(torch.from_numpy(pixels)).tolist()
    mean, std = mean_std(sums, squares, 5 * 20 * 30)
    assert np.allclose(mean, pixels.mean((0, 2, 3)) / 255)
    assert np.allclose(std, pixels.std((0, 2, 3)) / 255)
    assert mean_std([], [], 0) == ((), ())
