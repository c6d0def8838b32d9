"""The loop that draws rectangles on a CPU, compiled: torch's operations took 8 us a sample."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmload.runtime.hashing import Words, unit_of_word
from mmload.runtime.numba_compile import numba_compiled

Numbers = npt.NDArray[np.int64]


@numba_compiled("int64[:, ::1](uint64[:, ::1], float64, float64, float64, float64, float64, int64, int64)", nogil=False)
def first_rectangles(
    words: Words, area: float, least: float, greatest: float, low: float, high: float, rows: int, cols: int
) -> Numbers:
    """The first of several rectangles per sample that fits, as :func:`mmload.augment.resize.rectangles` has them.

    Args:
        words: uint64 [B, 2 n], shares of the area first, ratios then.
        area: of the image.
        least: share of it.
        greatest: share of it.
        low: logarithm of the least ratio.
        high: of the greatest.
        rows: what the first side must be below.
        cols: what the second must be below.

    Returns:
        int64 [2, B]: both sides; 0 where none of a sample's rectangles fits.
    """
    tries = words.shape[1] // 2
    out = np.zeros((2, len(words)), np.int64)
    for k in range(len(words)):
        for one in range(tries):
            target = area * (least + (greatest - least) * unit_of_word(words[k, one]))
            aspect = math.exp(low + (high - low) * unit_of_word(words[k, tries + one]))
            first, second = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if first < rows and second < cols:
                out[0, k], out[1, k] = first, second
                break
    return out
