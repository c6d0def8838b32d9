"""How often a row has come before, for rows that are listed or drawn one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy


def occurrences_in(rows: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """How often each of the rows comes before in the list: int64 [N]; None if none comes twice.

    Args:
        rows: int64 [N], each in [0, count).
        count: how many rows there are.
    """
    if (rows[1:] > rows[:-1]).all():  # the usual list, in a quarter of the time
        return None
    seen = np.zeros(count, dtype=np.bool_)
    seen[rows] = True
    return None if np.count_nonzero(seen) == len(rows) else _counted(rows)


def _counted(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(rows) else order
    numbers = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    found = np.empty(len(rows), dtype=np.int64)
    found[order] = numbers
    return found


class Occurrences:
    """Counts the rows of an epoch as they come, piece by piece. It takes 4 bytes for each row there is.

    Args:
        rows: how many rows there are.
    """

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, dtype=np.uint32)

    def add(self, rows: Tensor) -> Tensor | None:
        """How often each row has come before, int64 [B]; None if none has."""
        numbers = rows.numpy()
        before = self._counts[numbers] + _counted(numbers)
        np.add.at(self._counts, numbers, np.uint32(1))
        return from_numpy(before.astype(np.int64)) if before.any() else None
