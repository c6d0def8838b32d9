"""Reads lists of samples: CSV, JSON Lines, and JSON ID lists.

It returns a :class:`Table` of checked rows, kept by column because there may be millions, each with its line for error
messages. It never opens the files that they name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TextIO

from mmload.errors import SourceError
from mmload.remote.urls import Location
from mmload.runtime.regular_files import open_regular
from mmload.sources.columns import Numbers, Texts

Label = str | int | float | list[float]
"""A class name, a class number, a number to predict, or a vector of them."""

MAX_NUMBER = 3e38
"""What float32 holds, about; NaN is not below it either."""

COLUMNS = ("path", "label", "split", "id")


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


class Labels:
    """Labels of any type, each stored as text with its type. Append-only."""

    _KINDS = (str, int, float, list)

    def __init__(self) -> None:
        self._texts = Texts()
        self._kinds = bytearray()

    def append(self, label: Label) -> None:
        """Appends a label."""
        self._texts.append(label if isinstance(label, str) else json.dumps(label))
        self._kinds.append(self._KINDS.index(type(label)))

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, index: int) -> Label:
        text = self._texts[index]
        if self._kinds[index] == 0:
            return text
        value: Label = json.loads(text)
        return value

    def __iter__(self) -> Iterator[Label]:
        return (self[index] for index in range(len(self)))

    def kinds(self) -> set[type]:
        """Returns the types that occur."""
        return {self._KINDS[kind] for kind in set(self._kinds)}


class Table:
    """The rows of a list by number, stored by column: a list of :class:`ListRow` takes 400 bytes each. Append-only.

    Args:
        rows: the first rows, all of one list.
    """

    def __init__(self, rows: Iterable[ListRow] = ()) -> None:
        self.labels = Labels()
        self._paths, self._ids = Texts(), Texts()
        self._lines, self._splits = Numbers(), Numbers()
        self._names: list[str | None] = []
        self._numbers: dict[str | None, int] = {}
        self._list = ""
        for row in rows:
            self.append(row)

    def append(self, row: ListRow) -> None:
        """Appends a row. An empty id counts as none."""
        self.labels.append(row.label)
        self._paths.append(row.path)
        self._ids.append(row.id or "")
        self._lines.append(row.line)
        if row.split not in self._numbers:
            self._numbers[row.split] = len(self._names)
            self._names.append(row.split)
        self._splits.append(self._numbers[row.split])
        self._list = row.list

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> ListRow:
        path, label, sample = self._paths[index], self.labels[index], self._ids[index] or None
        return ListRow(path, label, self._names[self._splits[index]], sample, self._list, self._lines[index])

    def __iter__(self) -> Iterator[ListRow]:
        return (self[index] for index in range(len(self)))


def read_rows(path: Path | Location, columns: Mapping[str, str], content: bytes | None = None) -> Table:
    """Reads the rows of a list, in its order.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.ndjson`` with the columns path and label, and perhaps split and id; or
            ``.json``, an ID list: ``{"partition": {split: [id, ...]}, "labels": {id: label}}``.
        columns: column -> its name in the list, where that differs.
        content: of the file, if it is not on a disk.

    Raises:
        SourceError: if it cannot be read; names the line.
    """
    readers = {".csv": (_csv, ""), ".jsonl": (_json_lines, "\n"), ".ndjson": (_json_lines, "\n"), ".json": (_ids, None)}
    suffix = PurePosixPath(str(path)).suffix
    if suffix.lower() not in readers:
        raise SourceError(f"the list {path} ends in {suffix!r}; use .csv, .jsonl, or .json for an ID list")
    reader, newline = readers[suffix.lower()]
    try:
        stored = io.FileIO(str(path), opener=open_regular) if content is None else io.BytesIO(content)
        with io.TextIOWrapper(io.BufferedReader(stored), encoding="utf-8-sig", newline=newline) as file:
            rows = Table(reader(file, str(path), columns))
    except OSError as error:
        raise SourceError(f"cannot read the list {path} ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"the list {path} is not UTF-8 text ({error})") from error
    if not rows:
        raise SourceError(f"the list {path} has no rows")
    return rows


def _csv(file: TextIO, path: str, columns: Mapping[str, str]) -> Iterator[ListRow]:
    reader = csv.reader(file, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise SourceError(f"{path}: two columns of its first line have the same name")
        for cells in reader:
            if len(cells) not in (0, len(header)):
                raise SourceError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells, the first line {len(header)}"
                )
            if cells:
                record = {name: _cell(cell) for name, cell in zip(header, cells, strict=True)}
                yield _row(record, columns, path, reader.line_num)
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num} is not CSV ({error})") from error


def _cell(cell: str) -> str | None:
    return cell.strip() or None


def _json_lines(file: TextIO, path: str, columns: Mapping[str, str]) -> Iterator[ListRow]:
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"{path}, line {number}"
            record = _json(line, where)
            if not isinstance(record, dict):
                raise SourceError(f'{where} is no JSON object, such as {{"path": "a.jpg", "label": "cat"}}')
            yield _row(record, columns, path, number)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object without duplicate keys; Python's own reader would silently keep the last of them."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        earlier: set[str] = set()
        twice = next(key for key, _ in pairs if key in earlier or earlier.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r:.60} occurs twice; give each key once")
    return unique


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _json(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is not JSON ({error})") from error


def _row(record: Mapping[str, Any], columns: Mapping[str, str], source: str, line: int) -> ListRow:
    path, label, split, sample = (record.get(columns.get(name, name)) for name in COLUMNS)
    where = f"{source}, line {line}"
    if not isinstance(path, str) or not path:
        name = columns.get("path", "path")
        has = ", ".join(map(repr, record))
        raise SourceError(f'{where} has no {name!r}; it has {has}: give the right one as columns={{path="..."}}')
    if split is not None and not isinstance(split, str):
        raise SourceError(f"{where}: split is {split!r:.60}, expected a name")
    if sample is not None and not isinstance(sample, str | int):
        raise SourceError(f"{where}: id is {sample!r:.60}, expected text")
    _check_texts(where, path, label, split, sample)
    checked = _label(label, f"{where} ({columns.get('label', 'label')})")
    return ListRow(path, checked, split, None if sample is None else str(sample), source, line)


def _check_texts(where: str, *values: object) -> None:
    """Refuses lone surrogates, which JSON can express but no file name has; bytes of non-UTF-8 file names may pass."""
    for text in values:
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise SourceError(f"{where}: {text!r:.60} is no Unicode text; fix the list") from error


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
        raise SourceError(f'{path} is no ID list: {{"partition": {{"train": [id, ...]}}, "labels": {{id: label}}}}')
    for split, ids in partition.items():
        if not isinstance(ids, list):
            raise SourceError(f"{path}: partition {split!r} is no list of ids")
        for sample in ids:
            where = f"{path}, id {sample!r:.60} of {split!r}"
            if not isinstance(sample, str | int) or str(sample) not in labels:
                raise SourceError(f"{where} has no label")
            _check_texts(where, sample, labels[str(sample)], split)
            yield ListRow(str(sample), _label(labels[str(sample)], where), split, str(sample), path)
