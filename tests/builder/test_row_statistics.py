"""Channel sums, placed rows, mean and deviation against numpy's own answers, up to the largest integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.builder.shards import Statistics, copy_and_sum


def plain(images: np.ndarray) -> list[list[int]]:
    wide = images.astype(np.int64)
    return [wide.sum((0, 2, 3)).tolist(), (wide**2).sum((0, 2, 3)).tolist()]


@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.randoms())
def test_sums_and_rows_are_numpys(
    count: int, channels: int, height: int, width: int, by_lines: bool, random: object
) -> None:
    """Interleaved, mirrored and cut-out images alike: any strides; of a window of each."""
    top, left = random.randrange(height), random.randrange(width)
    window = top, left, random.randrange(height - top + 1), random.randrange(width - left + 1)
    shape = (count, height + 3, width + 5, channels)
    whole = np.random.default_rng(random.getrandbits(32)).integers(0, 256, shape, dtype=np.uint8)
    images = whole[:, 2 : 2 + height, 4 + width : 4 : -1].transpose(0, 3, 1, 2)
    order = (0, 2, 1, 3) if by_lines else (0, 1, 2, 3)
    rows, sums = np.empty(images.transpose(order).shape, np.uint8), np.zeros((2, channels), np.int64)
    for image, row in zip(images, rows, strict=True):
        copy_and_sum(image.ctypes.data, *image.strides, row, sums, by_lines, *window)
    assert (rows.transpose(order) == images).all()
    inside = images[:, :, top : top + window[2], left : left + window[3]]
    assert sums.tolist() == plain(inside)


@pytest.mark.parametrize("shape", [(1, 1, 70_000), (3, 300, 300), (1, 70_000, 1)])
def test_white_does_not_overflow(shape: tuple[int, ...]) -> None:
    white, sums = np.full(shape, 255, np.uint8), np.zeros((2, shape[0]), np.int64)
    copy_and_sum(white.ctypes.data, *white.strides, white, sums, False, 0, 0, *shape[1:])
    assert sums.tolist() == plain(white[None])


def test_mean_and_deviation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 20, 30), dtype=np.uint8)
    sums, squares = plain(pixels)
    found = Statistics(sums=sums, squares=squares, pixels=5 * 20 * 30).entries(0)
    assert np.allclose(found["mean"], pixels.mean((0, 2, 3)) / 255)
    assert np.allclose(found["std"], pixels.std((0, 2, 3)) / 255)
    assert Statistics().entries(2) == {"class_counts": (0, 0), "mean": (), "std": ()}
