"""The labels of a list, as the targets that are stored and the class names that go with them.

Comes in: rows of :mod:`mmload.sources.tables`. Goes out: targets, all of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mmload.errors import SourceError
from mmload.sources.columns import Arrays
from mmload.sources.tables import Label, Labels, Table

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

MAX_CLASSES = 1_000_000
"""Class numbers from here on are taken for a mistake."""


def targets_of(rows: Table, classes: tuple[str, ...] | None) -> tuple[Arrays, tuple[str, ...]]:
    """Labels as arrays, and the class names.

    Class names and whole numbers become int64 []; other numbers float32 []; lists of numbers float32 [K].

    Raises:
        SourceError: if the labels are not all of one kind; names the first that is not as the one before.
    """
    number = _reader(rows.labels)
    first = _kind(number(rows.labels[0]))
    for index, label in enumerate(rows.labels):
        if (kind := _kind(number(label))) != first:
            raise SourceError(f"{rows[index].where}: label {label!r:.60} is {kind}, the first row's is {first}")
    if first == "text":
        return _by_name(rows, classes)
    if first == "a whole number":
        return _by_number(rows, number, classes)
    targets = Arrays(np.float32, np.shape(number(rows.labels[0])))
    for label in rows.labels:
        targets.append(number(label))
    return targets, ()


def _reader(labels: Labels) -> Callable[[Any], Label]:
    """What a label is to be read as: a number where all of them are numbers written as text, as in CSV."""
    kinds = labels.kinds()
    if kinds == {str}:
        if all(_INTEGER.fullmatch(str(text)) for text in labels):
            return int
        if all(_NUMBER.fullmatch(str(text)) for text in labels):
            return float
    if float in kinds and str not in kinds:
        return lambda label: float(label) if isinstance(label, int) else label
    return lambda label: label


def _kind(label: Label) -> str:
    if isinstance(label, list):
        return f"a list of {len(label)} numbers"
    return {str: "text", int: "a whole number"}.get(type(label), "a number")


def _by_name(rows: Table, classes: tuple[str, ...] | None) -> tuple[Arrays, tuple[str, ...]]:
    names = tuple(sorted({str(label) for label in rows.labels})) if classes is None else classes
    numbers: dict[Label, int] = {name: number for number, name in enumerate(names)}
    targets = Arrays(np.int64)
    for index, label in enumerate(rows.labels):
        if label not in numbers:
            raise SourceError(f"{rows[index].where}: {label!r:.60} is not one of the classes: {', '.join(names[:20])}")
        targets.append(numbers[label])
    return targets, names


def _by_number(
    rows: Table, number: Callable[[Any], Label], classes: tuple[str, ...] | None
) -> tuple[Arrays, tuple[str, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    targets, most = Arrays(np.int64), 0
    for index, label in enumerate(rows.labels):
        target: Any = number(label)
        if not 0 <= target < limit:
            raise SourceError(f"{rows[index].where}: class number {target} is not in 0 to {limit - 1}")
        targets.append(target)
        most = max(most, target)
    return targets, tuple(map(str, range(most + 1))) if classes is None else classes
