"""Row numbers from whatever stands for rows, against numpy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmload.store.row_numbers import is_single_row, row_number, row_numbers

COUNT = 5
MASK = [True, False, True, True, False]


@pytest.mark.parametrize("as_given", [list, tuple, np.array, torch.tensor, lambda mask: list(np.array(mask))])
def test_a_mask_selects_where_it_is_true(as_given: Any) -> None:
    assert row_numbers(as_given(MASK), COUNT, "x").tolist() == [0, 2, 3]


@given(
    rows=st.lists(st.integers(-COUNT, COUNT - 1)),
    dtype=st.sampled_from(["int8", "int16", "int32", "int64"]),
)
def test_every_kind_of_integers_is_what_numpy_takes(rows: list[int], dtype: str) -> None:
    expected = np.arange(COUNT)[np.array(rows, dtype=dtype)].tolist()
    array = np.array(rows, dtype=dtype)
    kinds = (rows, tuple(rows), array, torch.from_numpy(array), list(array), list(torch.from_numpy(array)))
    for kind in kinds:
        numbers = row_numbers(kind, COUNT, "x")
        assert numbers.dtype == np.int64
        assert numbers.tolist() == expected


def test_other_kinds_of_integers_are_row_numbers() -> None:
    assert row_numbers(np.array([1, 0, 1], dtype=np.uint8), COUNT, "x").tolist() == [1, 0, 1]
    assert row_numbers(np.array([4], dtype=np.uint64), COUNT, "x").tolist() == [4]
    assert row_numbers(range(4, -1, -2), COUNT, "x").tolist() == [4, 2, 0]
    assert row_numbers(slice(1, None, 2), COUNT, "x").tolist() == [1, 3]


@given(
    first=st.integers(-7, 7) | st.none(),
    last=st.integers(-7, 7) | st.none(),
    step=st.sampled_from([None, 1, 3, -1, -2]),
)
def test_a_slice_is_what_a_list_gives_also_where_it_is_empty(
    first: int | None, last: int | None, step: int | None
) -> None:
    part = slice(first, last, step)
    numbers = row_numbers(part, COUNT, "x")
    assert numbers.dtype == np.int64
    assert numbers.tolist() == list(range(COUNT))[part]


def test_what_is_given_may_change_later() -> None:
    given_rows = np.array([1, 2])
    numbers = row_numbers(given_rows, COUNT, "x")
    given_rows[:] = 0
    assert numbers.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([0, 5], IndexError, "row 5 does not exist: x has 5 rows"),
        (np.array([-6, 9]), IndexError, "row -6 does not exist"),
        ([2**70], IndexError, "out of range"),
        (np.array([2**63], dtype=np.uint64), IndexError, "row 9223372036854775808 does not exist"),
        ([True], IndexError, "a mask has 1 value, but x has 5 rows"),
        (torch.ones(6, dtype=torch.bool), IndexError, "a mask has 6"),
        (torch.ones(5, 1, dtype=torch.bool), IndexError, r"the shape \[5, 1\]"),
        ([[1]], TypeError, "contain"),
        ([1, True], TypeError, "contain True"),
        ([1.0], TypeError, "contain 1.0"),
        (torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8), TypeError, r"a mask in torch; give .*bool\(\).*long\(\)"),
        (torch.tensor([]), TypeError, "are torch.float32"),
        (torch.ones(2, dtype=torch.bfloat16), TypeError, "are torch.bfloat16"),
        (np.array(["1"]), TypeError, "are <U1"),
        ("12", TypeError, "are '12'"),
        ({1, 2}, TypeError, "give a list"),
        (None, TypeError, "are None"),
    ],
)
def test_what_is_no_rows_is_refused(rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        row_numbers(rows, COUNT, "x")


@pytest.mark.parametrize("row", [3, -2, np.int64(3), np.uint8(3), torch.tensor(3), np.array(-2)])
def test_one_row(row: Any) -> None:
    assert is_single_row(row)
    assert row_number(row, COUNT, "x") == 3


@pytest.mark.parametrize("row", [True, np.bool_(True), torch.tensor(True), 1.0, None])
def test_what_is_no_row_is_refused(row: Any) -> None:
    with pytest.raises(TypeError, match="give an integer"):
        row_number(row, COUNT, "x")
