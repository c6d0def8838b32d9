"""Mean and deviation of each channel, from the exact sums of :mod:`mmload.builder.row_statistics`."""

from __future__ import annotations


def mean_std(sums: list[int], squares: list[int], pixels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and population standard deviation in [0, 1].

    Args:
        sums: each channel's sum.
        squares: each channel's sum of squares.
        pixels: number of pixels per channel; 0 returns no statistics.
    """
    if not pixels:
        return (), ()
    mean = tuple(total / pixels / 255 for total in sums)
    spread = (max(0, square * pixels - total * total) for total, square in zip(sums, squares, strict=True))
    return mean, tuple(float(value**0.5) / pixels / 255 for value in spread)
