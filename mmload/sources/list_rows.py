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
from itertools import filterfalse
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TextIO

import msgspec
import numpy as np

from mmload.errors import SourceError, naming
from mmload.remote.urls import Location
from mmload.sources import one_or_more
from mmload.sources.annotation_values import read_integer
from mmload.sources.listed_split import Listing

Label = str | int | float | list[float] | list[str]
"""A class name, a class number, a number to predict, a vector of them, or the names of several classes."""

Target = int | float | list[float] | list[int] | None
"""A class number, a number to predict, a vector of them, the numbers of several classes, or none."""

MAX_NUMBER = 3e38
"""Approximate limit of float32; comparing with it excludes NaN, too."""

MAX_CLASSES = 1_000_000
"""Larger class numbers are refused as a mistake."""

COLUMNS = ("path", "label", "split", "id", "mask")
_OWN_NAMES = dict(zip(COLUMNS, COLUMNS, strict=True))
_KINDS = (str | None, str | int | None, str | None)  # of split, id and mask

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

_EXACT = 2**53  # float64 holds all integers below
_LONGEST_CELL = 2**27

_SEVERAL = re.compile(r"^[\[{]|[|;]")
"""Signs of several labels in one text; commas also occur in class names."""

_AS_PEOPLE_WRITE = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?\s*%?")  # numbers

_MISSING = frozenset(("", "?", "-", "n/a", "na", "<na>", "nan", "nat", "none", "null", "undefined"))
"""Common spellings of a missing label."""


class ListRow(NamedTuple):
    """One sample: its file, its label, its split (None: not in the list), its id, its mask, and its list and line."""

    path: str
    label: Label | None
    split: str | None
    id: str | None
    mask: str | None
    list: str
    line: int = 0

    @property
    def where(self) -> str:
        """The line that says so, or in an ID list, which has no lines, the id."""
        return f"{self.list}, line {self.line}" if self.line else f"{self.list}, id {self.id!r:.60} of {self.split!r}"


Rows = Listing[ListRow] | list[ListRow]


def read_rows(
    path: Path | Location, content: bytes, columns: Mapping[str, str], *, several: bool = False
) -> Listing[ListRow]:
    """Reads the rows of a list, in its order.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.ndjson`` with the columns path and label, and perhaps split, id and mask; or
            ``.json``, an ID list: ``{"partition": {split: [id, ...]}, "labels": {id: label}}``.
        content: the bytes of the file.
        columns: column -> its name in the list, where that differs.
        several: a label is a text of several, and may be empty.

    Raises:
        SourceError: if it is no such list; names the line.
    """
    suffix = PurePosixPath(str(path)).suffix
    if suffix.lower() not in _READERS:
        raise SourceError(f"the list {path} ends in {suffix!r}; use .csv, .jsonl, or .json for an ID list")
    newline, rows_in = _READERS[suffix.lower()]
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SourceError(f"the list {path}, line {line}, is not UTF-8 text ({error.reason})") from error
    file = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=newline)
    rows = Listing(ListRow, rows_in(file, str(path), columns, several))
    if not rows:
        raise SourceError(f"the list {path} has no rows")
    return rows


def _csv(file: TextIO, path: str, columns: Mapping[str, str], several: bool) -> Iterator[ListRow]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))  # 128 KiB by default, as masks in Kaggle's exceed
    reader = csv.reader(file, strict=True)
    try:
        header = list(map(str.strip, next(reader, [])))
        if len(set(header)) != len(header):
            raise SourceError(f"{path}: two columns of its first line have the same name")
        for cells in filter(None, reader):  # empty lines have no cells
            if len(cells) != len(header):
                raise SourceError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells, the first line {len(header)}"
                )
            record = dict(zip(header, (cell.strip() or None for cell in cells), strict=True))
            yield _row(record, columns, several, path, reader.line_num)
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num} is not CSV ({error})") from error


def _json_lines(file: TextIO, path: str, columns: Mapping[str, str], several: bool) -> Iterator[ListRow]:
    for number, line in enumerate(file, 1):
        if line.strip():
            record = _json(line, where := f"{path}, line {number}")
            if not isinstance(record, dict):
                raise SourceError(f'{where} is not a JSON object, such as {{"path": "a.jpg", "label": "cat"}}')
            yield _row(record, columns, several, path, number)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object without duplicate keys; Python's own reader would silently keep the last of them."""
    body = dict(pairs)
    if len(body) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r:.60} occurs twice")
    return body


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_object)


def _json(text: str, where: str) -> Any:
    with naming(f"{where} is not JSON: ", ValueError, RecursionError, to=SourceError):
        return _DECODER.decode(text)


def _row(record: Mapping[str, Any], columns: Mapping[str, str], several: bool, list_: str, line: int) -> ListRow:
    names = {**_OWN_NAMES, **columns}
    path, label, split, sample, mask = map(record.get, names.values())
    where = f"{list_}, line {line}"
    for column in ["path", *([] if names["mask"] in record else ["label"]), *columns]:
        if names[column] not in record:
            raise SourceError(
                f"{where} has no {names[column]!r}; it has {', '.join(map(repr, record))}: name the right column, "
                f'as in columns={{{column}="..."}}'
            )
    if not isinstance(path, str) or not path:
        raise SourceError(f"{where}: path is {_got(path)}, expected the name of a file")
    if not all(map(isinstance, (split, sample, mask), _KINDS)):
        raise SourceError(
            f"{where}: split is {split!r:.60}, id is {sample!r:.60}, mask is {mask!r:.60}, expected texts"
        )
    if label is not None or not (several or mask):
        label = _label(label, f"{where} ({names['label']})")
    return ListRow(path, label, split, None if sample is None else str(sample), mask, list_, line)


def _label(label: Any, where: str) -> Label:
    """Returns a label as it is kept: names of classes as they are, a truth value as 0 or 1, a vector as floats."""
    is_list = isinstance(label, list)
    parts = label if is_list else [label]
    if all(isinstance(part, str) for part in parts) and (is_list or label.strip()):
        return label  # type: ignore[no-any-return]  # a name, or a list of names
    if all(isinstance(part, int | float) and abs(part) < MAX_NUMBER for part in parts):
        one = int(label) if isinstance(label, bool) else label
        return [float(part) for part in parts] if is_list else one
    raise SourceError(f"{where}: label is {_got(label)}, expected a class, a number, or a list of classes or numbers")


def _got(value: object) -> str:
    return "empty" if value in (None, "") else f"{value!r:.60}"


_ID_LIST = '{"partition": {"train": [id, ...]}, "labels": {id: label}}'


class _IdList(msgspec.Struct):
    partition: dict[str, Any]
    labels: dict[str, Any]


def _ids(file: TextIO, path: str, *_: object) -> Iterator[ListRow]:
    body = _json(file.read(), path)
    with naming(f"{path} is not an ID list, {_ID_LIST}: ", to=SourceError):
        found = msgspec.convert(body, _IdList)
    for split, ids in found.partition.items():
        with naming(f"{path} is not an ID list, {_ID_LIST}: {split!r:.60}: ", to=SourceError):
            samples = msgspec.convert(ids, list[str | int])
        for sample in samples:
            where = f"{path}, id {sample!r:.60} of {split!r}"
            if str(sample) not in found.labels:
                raise SourceError(f"{where} has no label")
            yield ListRow(str(sample), _label(found.labels[str(sample)], where), split, str(sample), None, path)


_READERS: Mapping[str, tuple[str | None, Callable[[TextIO, str, Mapping[str, str], bool], Iterator[ListRow]]]] = {
    ".csv": ("", _csv),
    ".jsonl": ("\n", _json_lines),
    ".ndjson": ("\n", _json_lines),
    ".json": (None, _ids),
}
"""Ending of a list -> how its lines end, as for :func:`open`, and what reads its rows."""


class Targets(NamedTuple):
    """Meaning of the labels of a list.

    Attributes:
        read: returns the class number of a label, or its numbers as float32 holds them.
        classes: class names by index; empty where labels are no classes.
        notes: notes on probable mistakes.
        several: whether a label is the numbers of several classes.
    """

    read: Callable[[Any], Target]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    several: bool = False


def targets_of(rows: Rows, classes: tuple[str, ...], separator: str | None = None) -> Targets:
    """Returns the meaning of the labels of a list; without class names, the labels' own are sorted.

    Class names and integers are classes, and so are lists of names and texts with a ``separator`` between several;
    other numbers, and lists of numbers, are to be predicted as they are.

    Raises:
        SourceError: if the labels are not all of one kind; names the first that differs.
    """
    if separator is not None or any(_are_names(row.label) for row in rows):
        return _by_names(rows, classes, lambda label: _names_in(label, separator), several=True)
    number = _reader(rows)
    first = _kind(number(rows[0].label))
    for row in rows:
        value = number(row.label)
        if _kind(value) != first:
            raise SourceError(f"{row.where}: label {row.label!r:.60} is {_kind(value)}, the first row's is {first}")
        if isinstance(value, float) and not abs(value) < MAX_NUMBER:
            raise SourceError(f"{row.where}: label {row.label!r:.60} is over 3e38, what float32 holds")
    if first == "missing":
        return Targets(_unchanged, classes)
    if first == "text":
        return _by_names(rows, classes, lambda label: [label])
    if first == "an integer":
        return _by_number(rows, number, classes)
    return Targets(lambda label: np.asarray(number(label), np.float32).tolist())


def _are_names(label: object) -> bool:
    return isinstance(label, list) and bool(label) and isinstance(label[0], str)


def _names_in(label: Any, separator: str | None) -> list[str]:
    """Returns the names in a label of several; raises ValueError if it is a number."""
    names = label.split(separator) if isinstance(label, str) and separator else one_or_more(label)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"label {label!r:.60} is {_kind(label)}, others are names of classes")
    return [name.strip() for name in names if name.strip()]


def _by_names(
    rows: Rows, classes: tuple[str, ...], names_in: Callable[[Any], list[str]], several: bool = False
) -> Targets:
    """Returns the meaning of labels that are names of classes: one each, or several, or none."""
    found, known = set[str](), frozenset(classes)
    for row in rows:
        with naming(f"{row.where}: ", to=SourceError):
            own = names_in(row.label)
        if known and not known.issuperset(own):
            odd = min(set(own) - known)
            raise SourceError(f"{row.where}: {odd!r:.60} is not one of the classes: {', '.join(classes[:20])}")
        found.update(own)
    names = classes or tuple(sorted(found))
    if not names:
        raise SourceError(f"no row of {rows[0].list} has a label; give classes, or leave separator out")
    indices = {name: index for index, name in enumerate(names)}
    notes = tuple(_notes_on_names(names))
    if several:
        return Targets(lambda label: sorted({indices[name] for name in names_in(label)}), names, notes, several=True)
    return Targets(indices.__getitem__, names, notes)


def _reader(rows: Rows) -> Callable[[Any], Any]:
    """Returns a function that reads a label: as a number if all labels are numbers, or texts of such, as in CSV."""
    kinds = {type(row.label) for row in rows}
    are_texts = kinds == {str} and all(_NUMBER.fullmatch(str(row.label)) for row in rows)
    if not are_texts and kinds not in ({float}, {int, float}):
        return _unchanged
    return read_integer if all(_is_whole(row.label) for row in rows) else float


def _is_whole(label: Any) -> bool:
    """Returns whether a number, or the text of one, is an integer that is read exactly."""
    return bool(_INTEGER.fullmatch(str(label))) or (float(label).is_integer() and abs(float(label)) < _EXACT)


def _unchanged(label: Any) -> Any:
    return label


def _kind(label: Label | None) -> str:
    if isinstance(label, list):
        return f"a list of {len(label)} numbers"
    return {str: "text", int: "an integer", type(None): "missing"}.get(type(label), "a number")


def _by_number(rows: Rows, number: Callable[[Any], Any], classes: tuple[str, ...]) -> Targets:
    """Returns the meaning of labels that are numbers of classes."""
    limit = len(classes) or MAX_CLASSES
    used = set[int]()
    for row in rows:
        target = number(row.label)
        if not 0 <= target < limit:
            raise SourceError(f"{row.where}: class number {target} is not in 0 to {limit - 1}")
        used.add(target)
    written, notes = rows[0].label, tuple[str, ...]()
    if not _INTEGER.fullmatch(str(written)):
        notes = (f"all labels are integral numbers, such as {written!r}: they are read as numbers of classes",)
    if classes:
        return Targets(number, classes, notes)
    names = tuple(map(str, range(max(used) + 1)))
    if empty := set(range(len(names))) - used:
        notes += (
            f"{len(empty):,} of the class numbers 0 to {len(names) - 1} have no samples, the first is {min(empty)}; a "
            "model needs an output for each",
        )
    return Targets(number, names, notes)


def _notes_on_names(names: tuple[str, ...]) -> Iterator[str]:
    """Yields notes on class names that look like several labels, missing labels or numbers with a typing error."""
    all_names = frozenset(names)
    for name in names:
        parts = re.split(r"[,\s]+", name.strip(" []{}"))
        are_labels = len(parts) > 1 and all(part in all_names or part.isdecimal() for part in parts)
        if are_labels or _SEVERAL.search(name):
            yield (
                f"{name!a:.60} is one class, as a text is one label; for several labels add --set separator='|', or "
                "write JSON Lines with a list of names"
            )
            break
    for name in names:
        if name.strip().casefold() in _MISSING:
            yield f"{name!a} is a class of its own; if it stands for a missing label, remove its rows from the list"
    if all(map(_AS_PEOPLE_WRITE.fullmatch, names)):
        yield f"labels such as {names[0]!a:.60} are class names; for numbers to predict write them as 3.5 or 0.5"
    odd = list(filterfalse(_NUMBER.fullmatch, names))
    if len(odd) == 1 and len(names) > 2:
        yield f"labels are class names and not numbers, because {odd[0]!a:.60} is not a number; all others are"
