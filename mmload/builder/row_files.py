"""Files that name rows of a split, by number or by sample id: lists, CSV, parquet, and arrays of numpy."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.runtime.regular_files import open_regular
from mmload.sources.exclusion import Entry, originals_of, read_entries
from mmload.store.dataset import Split
from mmload.store.row_numbers import row_array
from mmload.store.row_sources import Samples

KEYS = ("row", "id")
"""Columns that name a row: by its number, or by the id of its sample."""

Numbers = npt.NDArray[np.int64]


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
        return _checked(read_array(path), split, path)
    if suffix in (".csv", ".parquet"):
        columns = read_columns(path)
        return rows_of_column(columns, split, path, key)
    entries = [entry for entry in read_entries(path) if entry.split in ("", split.name, split.record.subset_of)]
    if key == "row" or (key is None and all(entry.name.isdecimal() for entry in entries)):
        return _checked(_integers([entry.name for entry in entries], path), split, path)
    return _rows_of_names(entries, split, path)


def read_array(path: Path) -> npt.NDArray[Any]:
    """Maps the array of a ``.npy`` file, or reads the only one of an ``.npz`` file; nothing is unpickled.

    Raises:
        UsageError: if there is none.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            if len(found.files) != 1:
                raise UsageError(f"{path} has the arrays {choices(found.files)}; write a file with one of them")
            only: npt.NDArray[Any] = found[found.files[0]]
            return only
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot read {path} as an array of numpy ({error})") from error


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
    except (OSError, csv.Error) as error:
        raise UsageError(f"cannot read {path} ({error})") from error
    if not lines or len(set(lines[0])) != len(lines[0]):
        raise UsageError(f"{path} has no first line with the names of its columns, each once")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise UsageError(f"{path}: record {number} has {len(line)} values, and there are {len(lines[0])} columns")
    return {name: [line[place] for line in lines[1:]] for place, name in enumerate(lines[0])}


def rows_of_column(columns: dict[str, Sequence[Any]], split: Split, path: Path, key: str | None) -> Numbers:
    """Returns the rows that a column of a file names, int64 [n]; arguments and errors as for :func:`rows_in`."""
    key = key or next((name for name in KEYS if name in columns), "")
    if key not in columns:
        raise UsageError(f"{path} has the columns {choices(columns)}; it needs {key or ' or '.join(KEYS)}")
    if key == "row":
        return _checked(_integers(columns[key], path), split, path)
    return _rows_of_names([Entry(0, str(name), "", "") for name in columns[key]], split, path)


def _parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UsageError(f"{path} needs pyarrow; run: pip install pyarrow, or write the table as CSV") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise UsageError(f"cannot read {path} ({str(error).splitlines()[0]})") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _integers(values: Sequence[Any], path: Path) -> list[int]:
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: a row number is no integer ({error})") from error


def _checked(rows: object, split: Split, path: Path) -> Numbers:
    try:
        return row_array(rows, len(split), f"split {split.name!r}")
    except (IndexError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error


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
