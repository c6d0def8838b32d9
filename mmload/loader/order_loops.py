"""Compiled loops of weighted and class orders, each one pass over its rows.

numpy needs several passes, each with memory of its own: for 100,000,000 weights or labels they took 2.9 and 7 s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.random_words import Words

APART = 256
"""Rows from one coarse sum to the next: the coarse ones stay in cache, and a search ends in 2 kB of the others."""


@numba_compiled("float64(float64[::1], float64[::1])", "float64(float32[::1], float64[::1])")
def cumulate(weights: NDArray[np.floating], sums: NDArray[np.float64]) -> float:
    """Writes the sum of the weights up to each row, and returns the lowest weight; NaN if there is one."""
    total = 0.0
    lowest = np.inf
    for row in range(len(weights)):
        weight = np.float64(weights[row])
        if weight < lowest or weight != weight:
            lowest = weight
        total += weight
        sums[row] = total
    return lowest


@numba_compiled("void(float64[::1], float64[::1], float64[::1], uint64[::1])", nogil=False)
def find_rows(drawn: NDArray[np.float64], sums: NDArray[np.float64], coarse: NDArray[np.float64], rows: Words) -> None:
    """Writes the first row whose sum exceeds each number: ``searchsorted(sums, drawn, side="right")``.

    Args:
        drawn: float64 [B], each below the last sum.
        sums: float64 [N], ascending.
        coarse: every 256th of them, from the 256th.
        rows: uint64 [B].
    """
    for k in range(len(drawn)):
        number = drawn[k]
        low, high = 0, len(coarse)
        while low < high:
            middle = (low + high) >> 1
            if coarse[middle] > number:
                high = middle
            else:
                low = middle + 1
        low *= APART
        high = min(low + APART, len(sums))
        while low < high:
            middle = (low + high) >> 1
            if sums[middle] > number:
                high = middle
            else:
                low = middle + 1
        rows[k] = low


@numba_compiled("void(int64[::1], int64[::1])", "void(int32[::1], int64[::1])")
def count_labels(labels: NDArray[np.signedinteger], counts: NDArray[np.int64]) -> None:
    """Adds one to the count of each label; labels are in range."""
    for row in range(len(labels)):
        counts[labels[row]] += 1


@numba_compiled(
    *(f"void({labels}[::1], int64[::1], {rows}[::1])" for labels in ("int64", "int32") for rows in ("int64", "int32"))
)
def group_rows(labels: NDArray[np.signedinteger], ends: NDArray[np.int64], rows: NDArray[np.signedinteger]) -> None:
    """Writes the rows of each label behind one another, ascending.

    Args:
        labels: int32 or int64 [N], in range.
        ends: int64 [C], where the rows of each label begin; where they end, afterwards.
        rows: int32 or int64 [N].
    """
    for row in range(len(labels)):
        label = labels[row]
        rows[ends[label]] = row
        ends[label] += 1
