"""Operations on NumPy arrays without a release of the interpreter lock.

A loader's thread that releases the lock may wait for it beside other threads, longer than the work takes. NumPy
releases it in ``zeros`` of more than 1 KiB, ``arange``, ``argsort``, ``searchsorted``, ``unique``, ``bincount``,
indexing of several dimensions, and operations on more than 500 elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.runtime.numba_compile import filled, numba_compiled

Numbers = NDArray[np.int64]


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Returns an array of zeros, of numbers or records."""
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    return np.ndarray(shape, dtype, bytearray(count * np.dtype(dtype).itemsize))


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a copy of a contiguous array."""
    return np.ndarray(array.shape, array.dtype, bytearray(array.data))


def taken(values: NDArray[Any], sources: NDArray[np.int64], real: NDArray[np.bool_], blank: float) -> NDArray[Any]:
    """Returns ``values[k, sources[k, n]]`` at [k, n], or ``blank`` where ``real`` is false.

    Args:
        values: [B, M, ...], contiguous.
        sources: int64 [B, N].
        real: bool [B, N].
        blank: value of all that is not real.
    """
    rest = values.shape[2:]
    made, empty = np.empty((*sources.shape, *rest), values.dtype), np.full((1, 1, *rest), blank, values.dtype)
    _take(_bytes_of(values), _bytes_of(empty), sources, real, _bytes_of(made))
    return made


def _bytes_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the bytes of an array [B, M, ...] as a view: [B, M, n]."""
    size = values.dtype.itemsize * math.prod(values.shape[2:])
    return values.reshape(-1).view(np.uint8).reshape(*values.shape[:2], size)


@numba_compiled(
    "void(uint8[:, :, ::1], uint8[:, :, ::1], int64[:, ::1], boolean[:, ::1], uint8[:, :, ::1])", nogil=False
)
def _take(
    values: NDArray[np.uint8],
    empty: NDArray[np.uint8],
    sources: NDArray[np.int64],
    real: NDArray[np.bool_],
    out: NDArray[np.uint8],
) -> None:
    for k in range(len(out)):
        for n in range(out.shape[1]):
            for place in range(out.shape[2]):
                out[k, n, place] = values[k, sources[k, n], place] if real[k, n] else empty[0, 0, place]


def sections_of(rows: Numbers, starts: Numbers) -> Numbers:
    """Returns the section of each row, int64 [B], by the first row of each section, ascending, int64 [S]."""
    return filled(_find, len(rows), np.int64, rows, starts)


@numba_compiled("void(int64[::1], int64[::1], int64[::1])", nogil=False)
def _find(rows: Numbers, starts: Numbers, sections: Numbers) -> None:
    for k in range(len(rows)):
        sections[k] = np.searchsorted(starts, rows[k], "right") - 1
