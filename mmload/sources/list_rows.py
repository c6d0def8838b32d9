"""Reads lists of samples (CSV, JSON Lines, JSON ID lists), and finds out what their labels stand for.

It returns checked rows, each with its line for error messages. It never opens the files that they name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from mmload.errors import SourceError
from mmload.remote.urls import Location
from mmload.runtime.regular_files import open_regular
from mmload.sources.annotation_values import integer
from mmload.sources.file_kinds import describe_content
from mmload.sources.listing import Listing

if TYPE_CHECKING:
    pass

Label = str | int | float | list[float]
"""A class name, a class number, a number to predict, or a vector of them."""

Target = int | float | list[float]
"""A class number, a number to predict, or a vector of them."""

MAX_NUMBER = 3e38
"""Approximate limit of float32; comparing with it excludes NaN, too."""

MAX_CLASSES = 1_000_000
"""Larger class numbers are refused as a mistake."""

COLUMNS = ("path", "label", "split", "id")

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

_OF_PEOPLE = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?\s*%?")  # a number as people write it

_EXACT = 2**53  # float64 holds all integers below
_LONGEST_CELL = 2**27

_BETWEEN = ("|", ";")
"""Separators of several labels; commas also occur in class names."""

_MISSING = frozenset(("", "?", "-", "n/a", "na", "<na>", "nan", "nat", "none", "null", "undefined"))
"""Common spellings of a missing label."""


class ListRow(NamedTuple):
    """One sample: its file, its label, its split (None: not in the list), its id, and its list and line."""

    path: str
    label: Label
    split: str | None
    id: str | None
    list: str
    line: int = 0

    @property
    def where(self) -> str:
        """The line that says so, or in an ID list, which has no lines, the id."""
        return f"{self.list}, line {self.line}" if self.line else f"{self.list}, id {self.id!r:.60} of {self.split!r}"


def read_rows(path: Path | Location, columns: Mapping[str, str], content: bytes | None = None) -> Listing[ListRow]:
    """Reads the rows of a list, in its order.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.ndjson`` with the columns path and label, and perhaps split and id; or
            ``.json``, an ID list: ``{"partition": {split: [id, ...]}, "labels": {id: label}}``.
        columns: column -> its name in the list, where that differs.
        content: content of the file, if it is not on a disk.

    Raises:
        SourceError: if it is no such list; names the line.
        OSError: if the file cannot be read.
    """
    readers = {".csv": (_csv, ""), ".jsonl": (_json_lines, "\n"), ".ndjson": (_json_lines, "\n"), ".json": (_ids, None)}
    suffix = PurePosixPath(str(path)).suffix
    if suffix.lower() not in readers:
        raise SourceError(f"the list {path} ends in {suffix!r}; use .csv, .jsonl, or .json for an ID list")
    reader, newline = readers[suffix.lower()]
    try:
        stored = io.FileIO(str(path), opener=open_regular) if content is None else io.BytesIO(content)
        buffered = io.BufferedReader(stored)
        with io.TextIOWrapper(buffered, encoding="utf-8-sig", newline=newline) as file:
            if what := describe_content(buffered.peek()):
                raise SourceError(f"the list {path} is {what}")
            rows = Listing(ListRow, reader(file, str(path), columns))
    except UnicodeDecodeError as error:
        raise SourceError(f"the list {path} is not UTF-8 text ({error})") from error
    if not rows:
        raise SourceError(f"the list {path} has no rows")
    return rows


def _csv(file: TextIO, path: str, columns: Mapping[str, str]) -> Iterator[ListRow]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))  # 128 KiB by default, as masks in Kaggle's exceed
    reader = csv.reader(file, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) != len(header):
            raise SourceError(f"{path}: two columns of its first line have the same name")
        for cells in reader:
            if len(cells) not in (0, len(header)):
                raise SourceError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells, the first line {len(header)}"
                )
            if cells:
                record = {name: cell.strip() or None for name, cell in zip(header, cells, strict=True)}
                yield _row(record, columns, path, reader.line_num)
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num} is not CSV ({error})") from error


def _json_lines(file: TextIO, path: str, columns: Mapping[str, str]) -> Iterator[ListRow]:
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"{path}, line {number}"
            record = _json(line, where)
            if not isinstance(record, dict):
                raise SourceError(f'{where} is not a JSON object, such as {{"path": "a.jpg", "label": "cat"}}')
            yield _row(record, columns, path, number)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object without duplicate keys; Python's own reader would silently keep the last of them."""
    body = dict(pairs)
    if len(body) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r:.60} occurs twice")
    return body


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_object)


def _json(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is not JSON ({error})") from error


def _row(record: Mapping[str, Any], columns: Mapping[str, str], source: str, line: int) -> ListRow:
    path, label, split, sample = (record.get(columns.get(name, name)) for name in COLUMNS)
    where = f"{source}, line {line}"
    for column in ("path", "label", *columns):
        if (name := columns.get(column, column)) not in record:
            raise SourceError(
                f"{where} has no {name!r}; it has {', '.join(map(repr, record))}: name the right column, as in "
                f'columns={{{column}="..."}}'
            )
    if not isinstance(path, str) or not path:
        got = "empty" if path in (None, "") else f"{path!r:.60}"
        raise SourceError(f"{where}: path is {got}, expected the name of a file")
    if not isinstance(split, str | None) or not isinstance(sample, str | int | None):
        raise SourceError(f"{where}: split is {split!r:.60} and id is {sample!r:.60}, expected texts")
    _check_texts(where, path, label, split, sample)
    checked = _label(label, f"{where} ({columns.get('label', 'label')})")
    return ListRow(path, checked, split, None if sample is None else str(sample), source, line)


def _check_texts(where: str, *values: object) -> None:
    """Rejects lone surrogates, which JSON can express but no file name has; bytes of non-UTF-8 file names may pass."""
    try:
        "\n".join(text for text in values if isinstance(text, str)).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{where}: {error.object[error.start : error.end]!r:.60} is not Unicode text; fix the list"
        ) from error


def _label(label: object, where: str) -> Label:
    if isinstance(label, str) and label.strip():
        return label
    if isinstance(label, bool):
        return int(label)
    if isinstance(label, int | float) and abs(label) < MAX_NUMBER:
        return label
    if isinstance(label, list) and label and all(isinstance(p, int | float) and abs(p) < MAX_NUMBER for p in label):
        return [float(part) for part in label]
    got = "empty" if label is None else f"{label!r:.60}"
    raise SourceError(f"{where}: label is {got}, expected a class, a number or a list of numbers")


def _ids(file: TextIO, path: str, columns: Mapping[str, str]) -> Iterator[ListRow]:
    body = _json(file.read(), path)
    partition, labels = (body.get(key) if isinstance(body, dict) else None for key in ("partition", "labels"))
    if not isinstance(partition, dict) or not isinstance(labels, dict):
        raise SourceError(f'{path} is not an ID list: {{"partition": {{"train": [id, ...]}}, "labels": {{id: label}}}}')
    for split, ids in partition.items():
        if not isinstance(ids, list):
            raise SourceError(f"{path}: partition {split!r} is not a list of ids")
        for sample in ids:
            where = f"{path}, id {sample!r:.60} of {split!r}"
            if not isinstance(sample, str | int) or str(sample) not in labels:
                raise SourceError(f"{where} has no label")
            _check_texts(where, sample, labels[str(sample)], split)
            yield ListRow(str(sample), _label(labels[str(sample)], where), split, str(sample), path)


class Targets(NamedTuple):
    """Meaning of the labels of a list.

    Attributes:
        read: returns the class number of a label, or its numbers as float32 holds them.
        classes: class names by index; empty where labels are no classes.
        notes: notes on probable mistakes.
    """

    read: Callable[[Any], Target]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def targets_of(rows: Listing[ListRow], classes: tuple[str, ...] | None) -> Targets:
    """Returns the meaning of the labels of a list; without class names, the labels' own are sorted.

    Class names and integers are classes; other numbers, and lists of numbers, are to be predicted as they are.

    Raises:
        SourceError: if the labels are not all of one kind; names the first that differs.
    """
    number = _reader(rows)
    first = _kind(number(rows[0].label))
    for row in rows:
        if (kind := _kind(number(row.label))) != first:
            raise SourceError(f"{row.where}: label {row.label!r:.60} is {kind}, the first row's is {first}")
    if first == "text":
        return _by_name(rows, classes)
    if first == "an integer":
        return _by_number(rows, number, classes)
    for row in rows:
        value = number(row.label)
        if isinstance(value, float) and not abs(value) < MAX_NUMBER:
            raise SourceError(f"{row.where}: label {row.label!r:.60} is over 3e38, what float32 holds")
    return Targets(lambda label: np.asarray(number(label), np.float32).tolist())


def _reader(rows: Listing[ListRow]) -> Callable[[Any], Any]:
    """Returns a function that reads a label: as a number if all labels are numbers as text, as in CSV."""
    kinds = {type(row.label) for row in rows}
    if kinds == {str}:
        if all(_INTEGER.fullmatch(str(row.label)) for row in rows):
            return int
        if not all(_NUMBER.fullmatch(str(row.label)) for row in rows):
            return _unchanged
    elif float not in kinds or not kinds <= {int, float}:
        return _unchanged
    numbers = (float(row.label) for row in rows)  # type: ignore[arg-type]  # all labels are numbers
    return integer if all(each.is_integer() and abs(each) < _EXACT for each in numbers) else float


def _unchanged(label: Label) -> Label:
    return label


def _kind(label: Label) -> str:
    if isinstance(label, list):
        return f"a list of {len(label)} numbers"
    return {str: "text", int: "an integer"}.get(type(label), "a number")


def _by_name(rows: Listing[ListRow], classes: tuple[str, ...] | None) -> Targets:
    names = tuple(sorted({str(row.label) for row in rows})) if classes is None else classes
    indices = {name: index for index, name in enumerate(names)}
    for row in rows:
        if row.label not in indices:
            raise SourceError(f"{row.where}: {row.label!r:.60} is not one of the classes: {', '.join(names[:20])}")
    return Targets(indices.__getitem__, names, tuple(_notes_on_names(names)))


def _by_number(rows: Listing[ListRow], number: Callable[[Any], Any], classes: tuple[str, ...] | None) -> Targets:
    limit = MAX_CLASSES if classes is None else len(classes)
    spellings, other = dict[int, Label](), ""
    for row in rows:
        target = number(row.label)
        if not 0 <= target < limit:
            raise SourceError(f"{row.where}: class number {target} is not in 0 to {limit - 1}")
        if spellings.setdefault(target, row.label) != row.label and not other:
            other = f"{spellings[target]!r} and {row.label!r} are both class number {target}"
    notes = [other] if other else []
    written = rows[0].label
    if isinstance(written, float) or "." in str(written):
        notes.append(f"all labels are integral numbers, such as {written!r}: they are read as numbers of classes")
    if classes is not None:
        return Targets(number, classes, tuple(notes))
    names = tuple(map(str, range(max(spellings) + 1)))
    if len(spellings) < len(names):
        empty = next(islice((each for each in range(len(names)) if each not in spellings), 1))
        notes.append(
            f"{len(names) - len(spellings):,} of the class numbers 0 to {len(names) - 1} have no samples, the first is "
            f"{empty}; a model needs an output for each"
        )
    return Targets(number, names, tuple(notes))


def _notes_on_names(names: tuple[str, ...]) -> Iterator[str]:
    """Yields notes on class names that look like several labels, missing labels or numbers with a typing error."""
    all_names = frozenset(names)
    for name in names:
        parts = re.split(r"[,\s]+", name.strip(" []{}"))
        are_labels = len(parts) > 1 and all(part in all_names or part.isdecimal() for part in parts)
        if are_labels or name.startswith(("[", "{")) or any(sign in name for sign in _BETWEEN):
            yield (
                f"{name!a:.60} is one class, as a text is one label; for several labels write JSON Lines "
                "with a list of numbers, 1 for each class in the image"
            )
            break
    for name in names:
        if name.strip().casefold() in _MISSING:
            yield f"{name!a} is a class of its own; if it stands for a missing label, remove its rows from the list"
    if all(map(_OF_PEOPLE.fullmatch, names)):
        yield f"labels such as {names[0]!a:.60} are class names; for numbers to predict write them as 3.5 or 0.5"
    odd = [name for name in names if not _NUMBER.fullmatch(name)]
    if len(odd) == 1 and len(names) > 2:
        yield f"labels are class names and not numbers, because {odd[0]!a:.60} is not a number; all others are"
