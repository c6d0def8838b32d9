"""The compiled loops over the states of rows in memory, one byte a row: 1 when the row is there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.numba_compile import all_streamed, numba_compiled

Numbers = NDArray[np.int64]


@numba_compiled("int64[::1](int64[::1], uint8[::1])", nogil=False)
def absent_rows(rows: Numbers, states: NDArray[np.uint8]) -> Numbers:  # pragma: no cover
    """Those of the rows that are not there. The others may be read afterwards: the fence comes between.

    On x86 no fence is needed, as loads are seen in order; other processors could load a row before its state.
    """
    found = np.empty(len(rows), np.int64)
    count = 0
    for i in range(len(rows)):
        if states[rows[i]] == 0:
            found[count] = rows[i]
            count += 1
    all_streamed()
    return found[:count]


@numba_compiled("void(int64[::1], uint8[::1])", nogil=False)
def mark_rows(rows: Numbers, states: NDArray[np.uint8]) -> None:  # pragma: no cover
    """Say that rows are there, which were written before: the fence comes between."""
    all_streamed()
    for i in range(len(rows)):
        states[rows[i]] = 1
