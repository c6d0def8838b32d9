"""Lists of samples as text: CSV, JSON Lines, and JSON ID lists.

Comes in: a file. Goes out: :class:`Row` objects, each checked, with its line for messages. Never opens what they name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmload.errors import SourceError

Label = str | int | float | list[float]
"""A class name, a class number, a number to predict, or a vector of them."""

MAX_NUMBER = 3e38
"""What float32 holds, about; NaN is not below it either."""

COLUMNS = ("path", "label", "split", "id")


class Row(NamedTuple):
    """One sample: its file, its label, its split (None: not said), what it is called, and the line that says so."""

    path: str
    label: Label
    split: str | None
    id: str | None
    where: str


def read_rows(path: Path, columns: Mapping[str, str]) -> list[Row]:
    """The rows of a list, in its order.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.ndjson`` with the columns path and label, and perhaps split and id; or
            ``.json``, an ID list: ``{"partition": {split: [id, ...]}, "labels": {id: label}}``.
        columns: what the list calls a column, where it is another name.

    Raises:
        SourceError: if it cannot be read; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SourceError(f"cannot read the list {path} ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"the list {path} is not UTF-8 text ({error})") from error
    readers = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
    if path.suffix.lower() == ".json":
        rows = list(_id_list(text, str(path)))
    elif path.suffix.lower() in readers:
        records = readers[path.suffix.lower()](text, str(path))
        rows = [_row(record, columns, where) for record, where in records]
    else:
        raise SourceError(f"the list {path} ends in {path.suffix!r}; use .csv, .jsonl, or .json for an ID list")
    if not rows:
        raise SourceError(f"the list {path} has no rows")
    return rows


def _csv(text: str, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise SourceError(f"{path}: two columns of its first line have the same name")
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if len(cells) not in (0, len(header)):
                raise SourceError(f"{where} has {len(cells)} cells, the first line {len(header)}")
            if cells:
                yield {name: _cell(cell) for name, cell in zip(header, cells, strict=True)}, where
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num} is not CSV ({error})") from error


def _cell(cell: str) -> str | None:
    return cell.strip() or None


def _json_lines(text: str, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if line.strip():
            record = _json(line, where)
            if not isinstance(record, dict):
                raise SourceError(f'{where} is no JSON object, such as {{"path": "a.jpg", "label": "cat"}}')
            yield record, where


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is not JSON ({error})") from error


def _row(record: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Row:
    path, label, split, sample = (record.get(columns.get(name, name)) for name in COLUMNS)
    if not isinstance(path, str) or not path:
        name = columns.get("path", "path")
        raise SourceError(f"{where} has no {name!r}; it has {', '.join(map(repr, record))}")
    if split is not None and not isinstance(split, str):
        raise SourceError(f"{where}: split is {split!r:.60}, expected a name")
    if sample is not None and not isinstance(sample, str | int):
        raise SourceError(f"{where}: id is {sample!r:.60}, expected text")
    checked = _label(label, f"{where} ({columns.get('label', 'label')})")
    return Row(path, checked, split, None if sample is None else str(sample), where)


def _label(label: object, where: str) -> Label:
    if isinstance(label, str) and label:
        return label
    if isinstance(label, bool):
        return int(label)
    if isinstance(label, int | float) and abs(label) < MAX_NUMBER:
        return label
    if isinstance(label, list) and label and all(isinstance(p, int | float) and abs(p) < MAX_NUMBER for p in label):
        return [float(part) for part in label]
    raise SourceError(f"{where}: label is {label!r:.60}, expected a class, a number or a list of numbers")


def _id_list(text: str, path: str) -> Iterator[Row]:
    body = _json(text, path)
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
            yield Row(str(sample), _label(labels[str(sample)], where), split, str(sample), where)
