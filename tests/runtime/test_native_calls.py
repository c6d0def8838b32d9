"""Compiled functions that are called by their addresses."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from mmload.runtime.native_calls import address_of, call_by
from mmload.runtime.numba_compile import numba_compiled

ADD = "void(int64[:, ::1], int64)"


@numba_compiled(ADD)
def add(array: np.ndarray, number: int) -> None:
    if number < 0:
        raise ValueError("a negative number")
    for i in range(array.shape[0]):
        for k in range(array.shape[1]):
            array[i, k] += number


call = call_by("void(float32[::1])", ADD)


@numba_compiled("void(int64[:, ::1], int64[::1], uintp)")
def add_to_each(array: np.ndarray, numbers: np.ndarray, address: int) -> None:
    for k in range(len(numbers)):
        call(address, (array[k : k + 1], numbers[k]))


def test_a_function_is_called_with_its_arguments() -> None:
    array = np.zeros((3, 2), np.int64)
    add_to_each(array, np.array([5, 0, 7]), address_of(add, ADD))
    assert array.tolist() == [[5, 5], [0, 0], [7, 7]]


def test_what_it_raises_arrives() -> None:
    array = np.zeros((2, 2), np.int64)
    with pytest.raises(ValueError, match="a negative number"):
        add_to_each(array, np.array([1, -1]), address_of(add, ADD))
    assert array.tolist() == [[1, 1], [0, 0]]


def test_other_types_are_refused_when_the_caller_is_compiled() -> None:
    with pytest.raises(TypingError, match="no function of these"):

        @numba_compiled("void(float64[:, ::1], uintp)")
        def add_floats(array: np.ndarray, address: int) -> None:
            call(address, (array, 1))
