"""Files that name rows of a split, by number or by sample id: lists, CSV, parquet, and arrays of numpy."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices, counted
from mmload.runtime.files import open_regular
from mmload.sources.listed_split import Entry, originals_of, read_entries
from mmload.store.dataset import Split
from mmload.store.row_numbers import row_numbers
from mmload.store.row_sources import Samples

KEYS = ("row", "id")
"""Columns that name a row: by its number, or by the id of its sample."""

Numbers = npt.NDArray[np.int64]
Columns = Mapping[str, Any]
"""Name of a column, "" of the array of a .npy file -> its values: an array, or a list of texts."""


def rows_in(path: Path, split: Split, key: str | None = None) -> Numbers:
    """Reads the numbers of the rows that a file names, int64 [n], in its order.

    Args:
        path: ``.npy`` or ``.npz`` with one array, of row numbers or a mask; ``.csv``, ``.parquet`` or ``.npz`` with a
            column ``row`` or ``id``; or a text file with a row number or an id a line, as ``mmload browse`` and
            ``mmload report --findings`` write it, of which lines of other splits are left aside.
        split: split of the rows.
        key: one of :data:`KEYS`; None: the column that is there, ``row`` first; the lines of a text file are row
            numbers if all of them are.

    Raises:
        UsageError: if the file cannot be read or names no row of the split.
    """
    if path.suffix.lower() in _READERS:
        columns = _read_columns(path)
        array = _only_array(columns, path)
        found = _rows_of_column(columns, split, path, key) if array is None else _checked(array, split, path)
    else:
        entries = [entry for entry in read_entries(path) if entry.split in ("", split.name, split.record.subset_of)]
        if key == "row" or (key is None and all(entry.name.isdecimal() for entry in entries)):
            found = _numbered([entry.name for entry in entries], split, path)
        else:
            found = _rows_of_names(entries, split, path)
    if not len(found):
        raise UsageError(f"{path} names no row of split {split.name!r}; give one at least")
    return found


def values_in(path: Path, split: Split, key: str | None = None) -> npt.NDArray[Any]:
    """Reads a value for each row of a split from a file, [rows, ...], in the order of the rows.

    Args:
        path: ``.npy``, or ``.npz`` with one array: values of the rows in order. ``.npz`` with an array ``row`` or
            ``id`` and one more, ``.csv`` or ``.parquet`` with such a column: values by row; several columns of values
            make vectors.
        split: the split.
        key: one of :data:`KEYS`; None: the one that is there, ``row`` first.

    Raises:
        UsageError: if the file cannot be read, or does not give each row one value.
    """
    columns = _read_columns(path)
    if (array := _only_array(columns, path)) is not None:
        return array
    rows = _rows_of_column(columns, split, path, key)
    given = [_numbers(name, column, path) for name, column in columns.items() if name not in KEYS]
    if not given:
        raise UsageError(f"{path} has no column of values beside {choices(columns)}; add one")
    if any(each.shape[:1] != rows.shape for each in given):
        lengths = choices(str(len(each)) if each.ndim else "1" for each in given)
        raise UsageError(
            f"{path} names {counted(len(rows), 'row')}, and its columns of values have {lengths}, or an id names "
            "several rows; give one value per row"
        )
    if len({each.shape for each in given}) > 1:
        raise UsageError(f"{path} has columns of several shapes, {choices(columns)}; write one array of values")
    times = np.bincount(rows, minlength=len(split))
    if (times > 1).any():
        raise UsageError(f"{path} has row {int(np.argmax(times > 1))} of split {split.name!r} twice")
    if (times == 0).any():
        first = int(np.argmin(times))
        raise UsageError(
            f"{path} has no value for {counted(int((times == 0).sum()), 'row')} of split {split.name!r}, such as row "
            f"{first}, {split.source(first).id!r}"
        )
    values = given[0] if len(given) == 1 else np.stack(given, 1)
    return values[np.argsort(rows)]


# Files of columns.


def _read_columns(path: Path) -> Columns:
    """Reads the columns of a file by name; nothing is unpickled."""
    if (suffix := path.suffix.lower()) not in _READERS:
        raise UsageError(f"{path} ends in {suffix!r}; give a {choices(_READERS)} file")
    kind, reader = _READERS[suffix]
    try:
        with open(path, "rb", opener=open_regular) as file:
            return reader(file)
    except ImportError as error:
        raise UsageError(f"{path} needs pyarrow; run: pip install pyarrow, or write the table as CSV") from error
    except Exception as error:  # a damaged file makes zipfile, zlib, tokenize, ast, mmap and pyarrow raise any error
        why = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"cannot read {path} as {kind} ({why})") from error


def _numpy_arrays(file: BinaryIO) -> Columns:
    """Maps the array of a ``.npy`` file, or reads those of an ``.npz`` file."""
    is_zip = file.read(2) == b"PK"
    file.seek(0)
    if not is_zip:
        return {"": np.load(file.name, mmap_mode="r", allow_pickle=False)}
    with np.load(file, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{choices(others)} is no array")
    return arrays


def _csv_columns(file: BinaryIO) -> Columns:
    """Reads columns of texts."""
    text = io.StringIO(file.read().decode("utf-8-sig", "surrogateescape"), newline="")
    names, *lines = [line for line in csv.reader(text) if line] or [[]]
    if not names or len(set(names)) != len(names):
        raise ValueError("its first line has to name the columns, each once")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise ValueError(f"record {number} has {len(line)} values, and there are {len(names)} columns")
    return {name: [line[place] for line in lines] for place, name in enumerate(names)}


def _parquet_columns(file: BinaryIO) -> Columns:
    """Reads columns of numbers, of texts, or of lists of one length, as arrays [n] and [n, K]."""
    from pyarrow import parquet

    table = parquet.read_table(file)
    arrays = {name: table.column(name).to_numpy() for name in table.column_names}
    is_list = {name: len(values) > 0 and isinstance(values[0], np.ndarray) for name, values in arrays.items()}
    return {name: np.stack(values) if is_list[name] else values for name, values in arrays.items()}


_READERS: Mapping[str, tuple[str, Callable[[BinaryIO], Columns]]] = {
    ".npy": ("arrays of numpy", _numpy_arrays),
    ".npz": ("arrays of numpy", _numpy_arrays),
    ".csv": ("CSV", _csv_columns),
    ".parquet": ("parquet", _parquet_columns),
}
"""Ending of a file -> what it holds, and the function that reads it."""


def _only_array(columns: Columns, path: Path) -> npt.NDArray[Any] | None:
    """Returns the array of a file of numpy that has one, which no column names the rows of; else None."""
    if path.suffix.lower() not in (".npy", ".npz") or len(columns) != 1 or columns.keys() & set(KEYS):
        return None
    only: npt.NDArray[Any] = next(iter(columns.values()))
    return only


def _numbers(name: str, column: Any, path: Path) -> npt.NDArray[Any]:
    """Returns a column of values: texts become int64 if all of them are integers, else float32."""
    values = np.asarray(column)
    if values.dtype.kind not in "UO":
        return values
    try:
        return np.array([int(value) for value in column], np.int64)
    except OverflowError as error:
        raise UsageError(
            f"{path}: column {name!r} has integers beyond int64; write them as a float in a .npz file"
        ) from error
    except (TypeError, ValueError):
        pass
    try:
        floats = np.array([float(value) for value in column])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: column {name!r} is not of numbers ({error}); leave it out") from error
    large = np.flatnonzero(np.abs(floats) > np.finfo(np.float32).max)
    if any("inf" not in str(column[place]).lower() for place in large.tolist()):
        raise UsageError(f"{path}: column {name!r} has numbers beyond float32; write it as float64 in a .npz file")
    return floats.astype(np.float32)


# Rows by number and by id.


def _rows_of_column(columns: Columns, split: Split, path: Path, key: str | None) -> Numbers:
    """Returns the rows that a column of a file names, int64 [n]; arguments and errors as for :func:`rows_in`."""
    key = key or next((name for name in KEYS if name in columns), "")
    if key not in columns:
        raise UsageError(f"{path} has the columns {choices(columns)}; it needs {key or ' or '.join(KEYS)}")
    if key == "row":
        return _numbered(columns[key], split, path)
    return _rows_of_names([Entry(0, str(name), "", "") for name in columns[key]], split, path)


def _numbered(values: Any, split: Split, path: Path) -> Numbers:
    """Returns the rows of numbers, which may be written as texts, but are no mask."""
    numbers = _numbers("row", values, path) if np.size(values) else np.empty(0, np.int64)
    if numbers.dtype == np.bool_:
        raise UsageError(f"{path}: row numbers are booleans; give integers")
    return _checked(numbers, split, path)


def _checked(rows: object, split: Split, path: Path) -> Numbers:
    """Returns the numbers of rows, or of those of a mask; -1, which many programs write for none, is not the last."""
    try:
        numbers = row_numbers(rows, len(split), f"split {split.name!r}")
    except (IndexError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error
    given = np.asarray(rows)
    if given.dtype.kind == "i" and len(given) and given.min() < 0:
        raise UsageError(f"{path}: row {given.min()} does not exist; number the rows of split {split.name!r} from 0")
    return numbers


def _rows_of_names(entries: Sequence[Entry], split: Split, path: Path) -> Numbers:
    """Returns all rows that were made from the named samples."""
    samples, rows = Samples(split.folder, split.name, split.record), list[int]()
    for entry in entries:
        candidates = originals_of(entry.name) if entry.line else [entry.name]
        found = next((own for each in candidates if (own := samples.rows_of(each))), None)
        if found is None:
            where = f"{path}, line {entry.line}" if entry.line else f"{path}"
            raise UsageError(
                f"{where}: {entry.name!r} is no sample of split {split.name!r}, which has such as "
                f"{samples.source(0).id!r}"
            )
        rows += found
    return np.array(rows, np.int64)
