"""Operations on arrays that keep the interpreter lock, where NumPy's give it away at any size.

A loader's thread may wait 5 ms for the lock each time that it has given it away beside a busy thread. NumPy does so in
``zeros`` of more than 1 kB, ``arange``, ``argsort``, ``searchsorted``, ``unique``, ``bincount``, indexing of several
dimensions, and operations on more than 500 elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.runtime.numba_compile import numba_compiled

Numbers = npt.NDArray[np.int64]


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
    """Returns zeros, or records of zeros."""
    shape, kind = shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    made: npt.NDArray[Any] = np.ndarray(shape, kind, bytearray(size)) if size else np.empty(shape, kind)
    return made


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
