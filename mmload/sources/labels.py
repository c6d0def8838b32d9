"""The labels of a list, as the tensor that is stored and the class names that go with it.

Comes in: rows of :mod:`mmload.sources.tables`. Goes out: targets, all of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.errors import SourceError
from mmload.sources.tables import Label, Labels, Table

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

MAX_CLASSES = 1_000_000
"""Class numbers from here on are taken for a mistake."""


def targets_of(rows: Table, classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as a tensor, and the class names.

    Class names and whole numbers become int64 [N]; other numbers float32 [N]; lists of numbers float32 [N, K].

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
    shape = np.shape(number(rows.labels[0]))
    values = np.fromiter((number(label) for label in rows.labels), np.dtype((np.float32, shape)), len(rows))
    return torch.from_numpy(values), ()


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


def _by_name(rows: Table, classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    names = tuple(sorted({str(label) for label in rows.labels})) if classes is None else classes
    numbers: dict[Label, int] = {name: number for number, name in enumerate(names)}
    targets = np.empty(len(rows), np.int64)
    for index, label in enumerate(rows.labels):
        if label not in numbers:
            raise SourceError(f"{rows[index].where}: {label!r:.60} is not one of the classes: {', '.join(names[:20])}")
        targets[index] = numbers[label]
    return torch.from_numpy(targets), names


def _by_number(
    rows: Table, number: Callable[[Any], Label], classes: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    targets = np.empty(len(rows), np.int64)
    for index, label in enumerate(rows.labels):
        target = number(label)
        if not 0 <= target < limit:  # type: ignore[operator]  # all are whole numbers
            raise SourceError(f"{rows[index].where}: class number {target} is not in 0 to {limit - 1}")
        targets[index] = target
    names = tuple(str(n) for n in range(int(targets.max()) + 1)) if classes is None else classes
    return torch.from_numpy(targets), names
