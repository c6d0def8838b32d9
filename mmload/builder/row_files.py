"""Files that name rows of a split, by number or by sample id: lists, CSV, parquet, and arrays of numpy."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices, counted
from mmload.runtime.regular_files import open_regular
from mmload.sources.exclusion import Entry, originals_of, read_entries
from mmload.store.dataset import Split
from mmload.store.row_numbers import row_numbers
from mmload.store.row_sources import Samples

KEYS = ("row", "id")
"""Columns that name a row: by its number, or by the id of its sample."""

Numbers = npt.NDArray[np.int64]

_ARRAY, _ZIP = b"\x93NUMPY", b"PK"  # how .npy and .npz files begin


def rows_in(path: Path, split: Split, key: str | None = None) -> Numbers:
    """Reads the numbers of the rows that a file names, int64 [n], in its order.

    Args:
        path: ``.npy`` or ``.npz`` with one array, of row numbers or a mask; ``.csv`` or ``.parquet`` with a column
            ``row`` or ``id``; or a text file with a row number or an id a line, as ``mmload browse`` and
            ``mmload report --findings`` write it, of which lines of other splits are left aside.
        split: split of the rows.
        key: one of :data:`KEYS`; None: the column that is there, ``row`` first; the lines of a text file are row
            numbers if all of them are.

    Raises:
        UsageError: if the file cannot be read or names no row of the split.
    """
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        found = _checked(read_array(path), split, path)
    elif suffix in (".csv", ".parquet"):
        found = rows_of_column(read_columns(path), split, path, key)
    else:
        entries = [entry for entry in read_entries(path) if entry.split in ("", split.name, split.record.subset_of)]
        if key == "row" or (key is None and all(entry.name.isdecimal() for entry in entries)):
            found = _numbered([entry.name for entry in entries], split, path)
        else:
            found = _rows_of_names(entries, split, path)
    if not len(found):
        raise UsageError(f"{path} names no row of split {split.name!r}; give one at least")
    return found


def read_array(path: Path) -> npt.NDArray[Any]:
    """Maps the array of a ``.npy`` file, or reads the only one of an ``.npz`` file; nothing is unpickled.

    Raises:
        UsageError: if there is none.
    """
    found = _loaded(path)
    if isinstance(found, np.ndarray):
        return found
    if len(found) != 1:
        raise UsageError(f"{path} has the arrays {choices(found)}; write a file with one of them")
    only: npt.NDArray[Any] = next(iter(found.values()))
    return only


def read_columns(path: Path) -> dict[str, Sequence[Any]]:
    """Reads the columns of a ``.csv`` file, as texts, or of a ``.parquet`` file, by name.

    Raises:
        UsageError: if it cannot be read, or pyarrow is missing for parquet.
    """
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape", opener=open_regular) as file:
            lines = [line for line in csv.reader(file) if line]
    except OSError as error:
        raise _unreadable(path, error) from error
    except csv.Error as error:
        raise UsageError(f"cannot read {path} ({error})") from error
    if not lines or len(set(lines[0])) != len(lines[0]):
        raise UsageError(f"{path} has no first line with the names of its columns, each once")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise UsageError(f"{path}: record {number} has {len(line)} values, and there are {len(lines[0])} columns")
    return {name: [line[place] for line in lines[1:]] for place, name in enumerate(lines[0])}


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
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return read_array(path)
    if suffix not in (".npz", ".csv", ".parquet"):
        raise UsageError(f"{path} ends in {suffix!r}; give a .npy, .npz, .csv or .parquet file")
    columns = _loaded(path) if suffix == ".npz" else read_columns(path)
    if isinstance(columns, np.ndarray):
        return columns
    if suffix == ".npz" and len(columns) == 1 and not columns.keys() & set(KEYS):
        return np.asarray(next(iter(columns.values())))
    rows = rows_of_column(columns, split, path, key)
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
    values = given[0] if len(given) == 1 else np.stack(given, 1)
    times = np.bincount(rows, minlength=len(split))
    if (times > 1).any():
        raise UsageError(f"{path} has row {int(np.argmax(times > 1))} of split {split.name!r} twice")
    if (times == 0).any():
        raise UsageError(
            f"{path} has no value for {counted(int((times == 0).sum()), 'row')} of split {split.name!r}, such as row "
            f"{int(np.argmin(times))}, {split.source(int(np.argmin(times))).id!r}"
        )
    return values[np.argsort(rows)]


def _loaded(path: Path) -> npt.NDArray[Any] | dict[str, Any]:
    """Maps the array of a ``.npy`` file, or reads those of an ``.npz`` file by name; nothing is unpickled."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            start = file.read(len(_ARRAY))
            file.seek(0)
            if start == _ARRAY:
                mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
                return mapped
            if not start.startswith(_ZIP):
                raise ValueError("it does not begin as such a file")
            with np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # a damaged file makes zipfile, zlib, tokenize, ast and mmap raise errors of any kind
        raise UsageError(f"cannot read {path} as arrays of numpy ({error}); write it again") from error
    if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise UsageError(f"{path} holds {choices(others)}, which is no array; write a file of arrays alone")
    return arrays


def _numbers(name: str, column: Sequence[Any], path: Path) -> npt.NDArray[Any]:
    """Returns a column of values: texts become int64 if all of them are integers, else float32."""
    values = np.asarray(column)
    if values.dtype.kind not in "UO":
        return values
    try:
        return np.array([int(value) for value in column], np.int64)
    except (TypeError, ValueError):
        pass
    except OverflowError as error:
        raise UsageError(
            f"{path}: column {name!r} has integers beyond int64; write them as a float in a .npz file"
        ) from error
    try:
        with np.errstate(over="raise"):
            values = np.array(column, np.float32)
        if any("inf" not in str(column[k]).lower() for k in np.flatnonzero(np.isinf(values)).tolist()):
            raise FloatingPointError("1e400 is infinite as float64, too")
        return values
    except FloatingPointError as error:
        raise UsageError(
            f"{path}: column {name!r} has numbers beyond float32; write it as float64 in a .npz file"
        ) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: column {name!r} is not of numbers ({error}); leave it out") from error


def rows_of_column(columns: dict[str, Sequence[Any]], split: Split, path: Path, key: str | None) -> Numbers:
    """Returns the rows that a column of a file names, int64 [n]; arguments and errors as for :func:`rows_in`."""
    key = key or next((name for name in KEYS if name in columns), "")
    if key not in columns:
        raise UsageError(f"{path} has the columns {choices(columns)}; it needs {key or ' or '.join(KEYS)}")
    if key == "row":
        return _numbered(columns[key], split, path)
    return _rows_of_names([Entry(0, str(name), "", "") for name in columns[key]], split, path)


def _parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UsageError(f"{path} needs pyarrow; run: pip install pyarrow, or write the table as CSV") from error
    try:
        with open(path, "rb", opener=open_regular) as file:
            table = parquet.read_table(file)
    except OSError as error:
        raise _unreadable(path, error) from error
    except ArrowException as error:
        raise UsageError(f"cannot read {path} ({str(error).splitlines()[0]})") from error
    return {name: _of_arrow(name, table.column(name), path) for name in table.column_names}


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path} ({error.strerror or str(error).splitlines()[0]})")


def _of_arrow(name: str, column: Any, path: Path) -> Sequence[Any]:
    """Returns the values of a column of pyarrow: an array [n], [n, K] of lists of one length, or a list of texts."""
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        lengths = set(pyarrow.compute.unique(pyarrow.compute.list_value_length(column)).to_pylist())
        if len(lengths) != 1:
            raise UsageError(f"{path}: lists of column {name!r} have different lengths, or there are none")
        flat = np.concatenate([part.flatten().to_numpy(zero_copy_only=False) for part in column.chunks])
        vectors: Any = flat.reshape(len(column), -1)
        return vectors  # type: ignore[no-any-return]  # an array
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind):
        numbers: Sequence[Any] = column.to_numpy()
        return numbers
    texts: Sequence[Any] = column.to_pylist()
    return texts


def _numbered(values: Sequence[Any], split: Split, path: Path) -> Numbers:
    """Returns the rows of numbers, which may be written as texts, but are no mask."""
    numbers: Any = values
    if np.asarray(values).dtype.kind in "UO":
        try:
            numbers = [int(value) if isinstance(value, str) else value for value in values]
        except ValueError as error:
            raise UsageError(f"{path}: a row number is no integer ({error})") from error
    if np.asarray(numbers).dtype == np.bool_:
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
