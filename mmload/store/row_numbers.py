"""Converts an index, list, array or mask of rows to int64 row numbers.

As in numpy, a boolean mask selects where it is True, integers are row numbers, and negative ones count from the end.
torch is imported only for tensors: without it, looking at a few rows takes a tenth of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Set
from hashlib import sha256
from operator import index
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mmload.errors import counted, shown
from mmload.runtime.kernels import filled, numba_compiled

if TYPE_CHECKING:
    from torch import Tensor


Numbers = NDArray[np.int64]

_AT_ONCE = 2**16


def row_blocks(count: int) -> Iterator[Numbers]:
    """Yields the numbers of so many rows, int64 [n], some at a time, as work on each takes memory of its own."""
    for first in range(0, count, _AT_ONCE):
        yield np.arange(first, min(first + _AT_ONCE, count))


def row_numbers(rows: object, count: int, what: str) -> Numbers:
    """Returns the row numbers of a slice, or of a tensor, array or sequence of integers or of ``count`` booleans.

    ``what`` names what has ``count`` rows, for messages.

    Returns:
        int64 [B], each in [0, count).

    Raises:
        IndexError: if a number is out of range, or the rows are not in one dimension, or a mask has another length.
        TypeError: if the rows are neither integers nor booleans, or a tensor of uint8, which torch takes for a mask.
    """
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count), dtype=np.int64)
    numbers = _array(rows, what)
    if numbers.ndim != 1:
        raise IndexError(f"rows of {what} have the shape {list(numbers.shape)}; give them in one dimension")
    if numbers.dtype == np.bool_:
        if len(numbers) != count:
            raise IndexError(
                f"a mask has {counted(len(numbers), 'value')}, but {what} has {counted(count, 'row')}; give one per row"
            )
        return np.flatnonzero(numbers)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"rows of {what} are {numbers.dtype}; give integers, or a mask of booleans")
    strange = numbers[(numbers < -count) | (numbers >= count)]
    if len(strange):
        raise IndexError(f"row {strange[0]} does not exist: {what} has {counted(count, 'row')}")
    wide = numbers.astype(np.int64)  # a copy: the caller may change the original
    wide[wide < 0] += count
    return wide


def row_number(row: object, count: int, what: str) -> int:
    """Returns the number of a row, an integer of any kind, in [0, count); ``what`` names what has these rows.

    Raises:
        IndexError: if the number is out of range.
        TypeError: if it is no integer; a boolean is none.
    """
    number = as_integer(row)
    if number is None:
        raise TypeError(f"a row number of {what} is {row!r}; give an integer")
    if not -count <= number < count:
        raise IndexError(f"row {number} does not exist: {what} has {counted(count, 'row')}")
    return number % count


def is_single_row(rows: object) -> bool:
    """Returns whether a selection is a single row rather than several."""
    if hasattr(rows, "ndim"):  # a tensor or an array
        return bool(rows.ndim == 0)
    return not (isinstance(rows, slice) or hasattr(rows, "__len__"))


def as_integer(value: object) -> int | None:
    """Returns an integer of any kind as Python's int; None for anything else, such as a boolean."""
    kind = getattr(value, "dtype", type(value).__name__)
    if str(kind) in ("bool", "torch.bool"):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # TypeError is the answer
    except TypeError:
        return None


def shown_rows(rows: Numbers) -> str:
    """Formats row numbers for a message."""
    first = ", ".join(map(str, rows[:8].tolist()))
    return f"rows {first}{f' and {len(rows) - 8:,} more' if len(rows) > 8 else ''}"


def rows_digest(rows: NDArray[Any]) -> int:
    """Returns a 63-bit digest of the rows in their order."""
    return int.from_bytes(sha256(rows.tobytes()).digest()[:8], "little") >> 1


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    """Returns whether this is a tensor, without importing torch: there are tensors only where it was imported."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _array(rows: object, what: str) -> NDArray[Any]:
    """Returns the rows as an array of integers, booleans or anything else."""
    if _is_tensor(rows):
        if rows.dtype.is_floating_point or rows.dtype.is_complex:  # of which numpy does not have all
            raise TypeError(f"rows of {what} are {rows.dtype}; give integers, or a mask of booleans")
        if str(rows.dtype) == "torch.uint8":
            raise TypeError(
                f"rows of {what} are torch.uint8, which is a mask in torch; give rows.bool() for a mask, or "
                "rows.long() for row numbers"
            )
        return rows.detach().cpu().numpy()
    if isinstance(rows, np.ndarray):
        return rows
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    if isinstance(rows, str | bytes | Set | Mapping) or not (hasattr(rows, "__len__") and hasattr(rows, "__iter__")):
        raise TypeError(f"rows of {what} are {shown(rows)}; give a list, a tensor or an array of integers")
    return _array_of_sequence(rows, what)


def _array_of_sequence(rows: Any, what: str) -> NDArray[Any]:
    """Returns a mask if all values are booleans, else integers, whatever their kind."""
    kinds = set(map(type, rows))
    if kinds <= {bool, np.bool_} and kinds:
        return np.array(rows, dtype=np.bool_)
    if kinds <= {int, np.int64, np.int32}:
        return _wide(list(rows), what)
    numbers = [as_integer(row) for row in rows]
    if None in numbers:
        odd = next(row for row, number in zip(rows, numbers, strict=True) if number is None)
        raise TypeError(f"rows of {what} contain {shown(odd)}; give integers, or a mask of booleans alone")
    return _wide(numbers, what)


def _wide(numbers: list[Any], what: str) -> Numbers:
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError as error:
        raise IndexError(f"row {max(numbers, key=abs)} of {what} is out of range") from error


def sections_of(rows: Numbers, starts: Numbers) -> Numbers:
    """Returns the section of each row, int64 [B], by the first row of each section, ascending, int64 [S]."""
    return filled(_find, len(rows), np.int64, rows, starts)


@numba_compiled("int64[::1], int64[::1], int64[::1]", nogil=False)
def _find(rows: Numbers, starts: Numbers, sections: Numbers) -> None:
    for k in range(len(rows)):
        sections[k] = np.searchsorted(starts, rows[k], "right") - 1
