"""NumPy arrays that are made without a release of the interpreter lock, as NumPy makes more than 1 KiB of zeros.

A loader's thread that releases the lock may wait for it beside other threads, longer than the work takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.runtime.numba_compile import numba_compiled


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Returns an array of zeros, of numbers or records."""
    made = np.empty(shape, dtype)
    _clear(made.reshape(-1).view(np.uint8))
    return made


@numba_compiled("void(uint8[::1])", nogil=False)
def _clear(memory: NDArray[np.uint8]) -> None:
    for k in range(len(memory)):
        memory[k] = 0
