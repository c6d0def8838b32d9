"""Turns the labels of a list into the targets that are stored, and their class names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import SourceError
from mmload.sources.columns import Arrays
from mmload.sources.tables import MAX_NUMBER, Label, Labels, Table

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BETWEEN = ("|", ";")
"""Separators of several labels; commas also occur in class names."""

_MISSING = frozenset(("", "?", "-", "n/a", "na", "<na>", "nan", "nat", "none", "null", "undefined"))
"""Common spellings of a missing label."""

_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

MAX_CLASSES = 1_000_000
"""Larger class numbers are refused as a mistake."""


class Targets(NamedTuple):
    """The targets of a list's labels.

    Attributes:
        values: of each row: int64 [] class indices, float32 [] or float32 [K].
        classes: class names by index; empty where labels are no classes.
        notes: what is probably a mistake.
    """

    values: Arrays
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def targets_of(rows: Table, classes: tuple[str, ...] | None) -> Targets:
    """Labels as arrays, the class names, and notes.

    Class names and integers become int64 []; other numbers float32 []; lists of numbers float32 [K].

    Args:
        rows: of a list.
        classes: class names by index; None: the labels' own.

    Raises:
        SourceError: if the labels are not all of one kind; names the first that differs.
    """
    number = _reader(rows.labels)
    first = _kind(number(rows.labels[0]))
    for index, label in enumerate(rows.labels):
        if (kind := _kind(number(label))) != first:
            raise SourceError(f"{rows[index].where}: label {label!r:.60} is {kind}, the first row's is {first}")
    if first == "text":
        return _by_name(rows, classes)
    if first == "an integer":
        return _by_number(rows, number, classes)
    targets = Arrays(np.float32, np.shape(number(rows.labels[0])))
    for index, label in enumerate(rows.labels):
        value: Any = number(label)
        if isinstance(value, float) and not abs(value) < MAX_NUMBER:
            raise SourceError(f"{rows[index].where}: label {label!r:.60} is over 3e38, what float32 holds")
        targets.append(value)
    return Targets(targets)


def _reader(labels: Labels) -> Callable[[Any], Label]:
    """How to read a label: as a number if all of them are numbers as text, as in CSV."""
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
    return {str: "text", int: "an integer"}.get(type(label), "a number")


def _by_name(rows: Table, classes: tuple[str, ...] | None) -> Targets:
    names = tuple(sorted({str(label) for label in rows.labels})) if classes is None else classes
    numbers: dict[Label, int] = {name: number for number, name in enumerate(names)}
    targets = Arrays(np.int64)
    for index, label in enumerate(rows.labels):
        if label not in numbers:
            raise SourceError(f"{rows[index].where}: {label!r:.60} is not one of the classes: {', '.join(names[:20])}")
        targets.append(numbers[label])
    return Targets(targets, names, tuple(_notes_on_names(names)))


def _by_number(rows: Table, number: Callable[[Any], Label], classes: tuple[str, ...] | None) -> Targets:
    limit = MAX_CLASSES if classes is None else len(classes)
    targets, spellings, other = Arrays(np.int64), dict[int, Label](), ""
    for index, label in enumerate(rows.labels):
        target: Any = number(label)
        if not 0 <= target < limit:
            raise SourceError(f"{rows[index].where}: class number {target} is not in 0 to {limit - 1}")
        targets.append(target)
        if spellings.setdefault(target, label) != label and not other:
            other = f"{spellings[target]!r} and {label!r} are both class number {target}"
    notes = [other] if other else []
    if classes is not None:
        return Targets(targets, classes, tuple(notes))
    names = tuple(map(str, range(max(spellings) + 1)))
    if len(spellings) < len(names):
        empty = next(islice((each for each in range(len(names)) if each not in spellings), 1))
        notes.append(
            f"{len(names) - len(spellings):,} of the class numbers 0 to {len(names) - 1} have no samples, the first is "
            f"{empty}; a model needs an output for each"
        )
    return Targets(targets, names, tuple(notes))


def _notes_on_names(names: tuple[str, ...]) -> Iterator[str]:
    """Notes on class names that are probably mistakes: several labels, missing labels, numbers with a typing error."""
    yield from alike(names)
    all_names = frozenset(names)
    for name in names:
        parts = [part.strip() for part in name.split(",")]
        if any(sign in name for sign in _BETWEEN) or (len(parts) > 1 and all_names.issuperset(parts)):
            yield (
                f"{name!a:.60} is one class, as a text is one label; for several labels write JSON Lines "
                "with a list of numbers, 1 for each class that is there"
            )
            break
    for name in names:
        if name.strip().casefold() in _MISSING:
            yield f"{name!a} is a class of its own; if it stands for a missing label, remove its rows from the list"
    odd = [name for name in names if not _NUMBER.fullmatch(name)]
    if len(odd) == 1 and len(names) > 2:
        yield f"labels are class names and not numbers, because {odd[0]!a:.60} is no number; all others are"


def alike(names: Iterable[str]) -> Iterator[str]:
    """Notes on class names that are hardly meant as different classes."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold().strip().strip("\"'").strip()
        same.setdefault(plain, []).append(name)
    for group in same.values():
        if len(group) > 1:
            both = " and ".join(map(ascii, group))
            yield f"{both} are classes of their own, but differ only in case, quotes, spaces or their Unicode form"
