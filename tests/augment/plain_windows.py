"""Windows of RandomResizedCrop and rectangles of RandomErasing, by a plain loop over a sample's draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def drawn_sizes(
    uniform: Sequence[float], area: int, scale: Sequence[float], ratio: Sequence[float]
) -> Iterator[tuple[int, int]]:
    """Yields ten rectangles of 20 draws in [0, 1): the first side over the second is the ratio."""
    low, high = map(math.log, ratio)
    for share, place in zip(uniform[:10], uniform[10:20], strict=True):
        target = area * (scale[0] + (scale[1] - scale[0]) * share)
        aspect = math.exp(low + (high - low) * place)
        yield round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))


def resized_crop(
    uniform: Sequence[float], height: int, width: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Returns top, left, rows and cols of 22 draws: the first window inside, else the largest in the middle."""
    for cols, rows in drawn_sizes(uniform, height * width, scale, ratio):
        if 0 < rows <= height and 0 < cols <= width:
            return int(uniform[20] * (height - rows + 1)), int(uniform[21] * (width - cols + 1)), rows, cols
    rows = round(width / ratio[0]) if width / height < ratio[0] else height
    cols = round(height * ratio[1]) if width / height > ratio[1] else width
    return (height - rows) // 2, (width - cols) // 2, rows, cols


def erased(
    uniform: Sequence[float], height: int, width: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int] | None:
    """Returns top, left, rows and cols of 22 draws: the first that is smaller than the image; None: none is."""
    for rows, cols in drawn_sizes(uniform, height * width, scale, ratio):
        if rows < height and cols < width:
            return int(uniform[20] * (height - rows + 1)), int(uniform[21] * (width - cols + 1)), rows, cols
    return None
