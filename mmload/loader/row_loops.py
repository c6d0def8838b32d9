"""The compiled loops over the rows of a batch: which decoded rows are in memory, and copies of their bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.numba_internals import finish_streams

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@numba_compiled("int64[::1](int64[::1], uint8[::1])", nogil=False)
def absent_rows(rows: Numbers, states: Bytes) -> Numbers:  # pragma: no cover
    """Returns the rows whose state is 0: not there. The others may be read afterwards: the fence comes between.

    On x86 no fence is needed, as loads are seen in order; other processors could load a row before its state.
    """
    found = np.empty(len(rows), np.int64)
    count = 0
    for i in range(len(rows)):
        if states[rows[i]] == 0:
            found[count] = rows[i]
            count += 1
    finish_streams()
    return found[:count]


@numba_compiled("void(int64[::1], uint8[::1])", nogil=False)
def mark_rows(rows: Numbers, states: Bytes) -> None:  # pragma: no cover
    """Sets the states of rows that were written before to 1: the fence comes between."""
    finish_streams()
    for i in range(len(rows)):
        states[rows[i]] = 1


@numba_compiled("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])")
def copy_ranges(
    memory: Bytes, starts: Numbers, lengths: Numbers, out: Bytes, places: Numbers
) -> None:  # pragma: no cover
    """Copies ranges of memory, each of a length from one of ``starts`` to one of ``places`` in ``out``."""
    for i in range(len(starts)):
        start, place = np.uintp(starts[i]), np.uintp(places[i])
        for k in range(np.uintp(lengths[i])):
            out[place + k] = memory[start + k]
