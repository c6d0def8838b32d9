"""Channel sums and placed rows against numpy's own answers, up to the largest integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmload.builder.row_statistics import channel_sums, copy_and_sum, no_sums


def plain(images: np.ndarray) -> list[list[int]]:
    wide = images.astype(np.int64)
    return [wide.sum((0, 2, 3)).tolist(), (wide**2).sum((0, 2, 3)).tolist()]


@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_sums_and_rows_are_numpys(count: int, channels: int, height: int, width: int, seed: int) -> None:
    """Interleaved, mirrored and cut-out images alike: any strides."""
    whole = np.random.default_rng(seed).integers(0, 256, (count, height + 3, width + 5, channels), dtype=np.uint8)
    images = whole[:, 2 : 2 + height, 4 + width : 4 : -1].transpose(0, 3, 1, 2)
    rows, sums = np.empty(images.shape, np.uint8), no_sums(channels)
    for image, row in zip(images, rows, strict=True):
        copy_and_sum(image, row, sums)
    assert (rows == images).all()
    assert sums.tolist() == plain(images)
    assert channel_sums(torch.from_numpy(rows)).tolist() == plain(images)


@pytest.mark.parametrize("shape", [(1, 1, 1, 70_000), (2, 3, 300, 300), (1, 1, 70_000, 1)])
def test_white_does_not_overflow(shape: tuple[int, ...]) -> None:
    white: Tensor = torch.full(shape, 255, dtype=torch.uint8)
    sums, row = no_sums(shape[1]), np.empty(shape[1:], np.uint8)
    copy_and_sum(white[0].numpy(), row, sums)
    assert sums.tolist() == plain(white[:1].numpy())
    assert channel_sums(white).tolist() == plain(white.numpy())
