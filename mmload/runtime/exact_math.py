"""Elementary functions and small linear systems whose bits do not depend on the processor, as NumPy's and torch's do.

The functions are those of the C library. They keep the interpreter lock: they take microseconds.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.kernels import called, filled, numba_compiled

Floats = NDArray[np.float64]


_EXP, _SIN, _COS, _TAN = range(4)


def _each(function: int, values: Floats) -> Floats:
    flat = np.ascontiguousarray(values, np.float64).reshape(-1)
    return filled(_write, len(flat), np.float64, function, flat).reshape(np.shape(values))


exp, sin, cos, tan = (partial(_each, function) for function in (_EXP, _SIN, _COS, _TAN))
"""Functions of float64 values of any shape, angles in radians, that return an array of that shape."""


@numba_compiled("int64, float64[::1], float64[::1]", nogil=False)
def _write(function: int, values: Floats, out: Floats) -> None:
    for k in range(len(values)):
        if function == _EXP:
            out[k] = math.exp(values[k])
        elif function == _SIN:
            out[k] = math.sin(values[k])
        elif function == _COS:
            out[k] = math.cos(values[k])
        else:
            out[k] = math.tan(values[k])


def solve(systems: Floats, wanted: Floats) -> Floats:
    """Solves linear systems, float64 [B, N, N] and [B, N]: float64 [B, N], infinite or NaN where one is singular."""
    solved = np.array(wanted, np.float64, order="C")
    _eliminate(np.array(systems, np.float64, order="C"), solved)
    return solved


@numba_compiled("float64[:, :, ::1], float64[:, ::1]", nogil=False)
def _eliminate(systems: Floats, solved: Floats) -> None:
    """Replaces the right-hand sides by the solutions; destroys systems."""
    for k in range(len(systems)):
        _eliminate_one(systems[k], solved[k])


@called
def _eliminate_one(system: Floats, solved: Floats) -> None:
    """Replaces a right-hand side by the solution: Gaussian elimination with partial pivoting."""
    size = len(system)
    for column in range(size):
        pivot = column
        for row in range(column + 1, size):
            if abs(system[row, column]) > abs(system[pivot, column]):
                pivot = row
        for place in range(column, size):
            kept = system[column, place]
            system[column, place] = system[pivot, place]
            system[pivot, place] = kept
        kept = solved[column]
        solved[column] = solved[pivot]
        solved[pivot] = kept
        for row in range(column + 1, size):
            factor = system[row, column] / system[column, column]
            for place in range(column, size):
                system[row, place] -= factor * system[column, place]
            solved[row] -= factor * solved[column]
    for column in range(size - 1, -1, -1):
        total = solved[column]
        for place in range(column + 1, size):
            total -= system[column, place] * solved[place]
        solved[column] = total / system[column, column]
