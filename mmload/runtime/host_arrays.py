"""Operations on NumPy arrays without a release of the interpreter lock.

A loader's thread that releases the lock may wait for it beside other threads, longer than the work takes. NumPy
releases it in ``zeros`` of more than 1 KiB, ``arange``, ``argsort``, ``searchsorted``, ``unique``, ``bincount``,
indexing of several dimensions, and operations on more than 500 elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.runtime.numba_compile import numba_compiled

Numbers = NDArray[np.int64]


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Returns an array of zeros, of numbers or records."""
    made = np.empty(shape, dtype)
    _clear(made.reshape(-1).view(np.uint8))
    return made


@numba_compiled("void(uint8[::1])", nogil=False)
def _clear(memory: NDArray[np.uint8]) -> None:
    for k in range(len(memory)):
        memory[k] = 0


def sections_of(rows: Numbers, starts: Numbers) -> Numbers:
    """Returns the section of each row, int64 [B], by the first row of each section, ascending, int64 [S]."""
    sections = np.empty(len(rows), np.int64)
    _find(rows, starts, sections)
    return sections


@numba_compiled("void(int64[::1], int64[::1], int64[::1])", nogil=False)
def _find(rows: Numbers, starts: Numbers, sections: Numbers) -> None:
    for k in range(len(rows)):
        low, high = 0, len(starts)  # the section is from low to before high
        while high - low > 1:
            middle = (low + high) // 2
            if starts[middle] <= rows[k]:
                low = middle
            else:
                high = middle
        sections[k] = low
