"""The labels of a list, as the tensor that is stored and the class names that go with it.

Comes in: rows of :mod:`mmload.sources.tables`. Goes out: targets, all of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmload.errors import SourceError
from mmload.sources.tables import Label, Row

MAX_CLASSES = 1_000_000
"""Class numbers from here on are taken for a mistake."""


def targets_of(rows: Sequence[Row], classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as a tensor, and the class names.

    Class names and whole numbers become int64 [N]; other numbers float32 [N]; lists of numbers float32 [N, K].

    Raises:
        SourceError: if the labels are not all of one kind; names the first that is not as the one before.
    """
    labels = _numbers([row.label for row in rows])
    kinds = [_kind(label) for label in labels]
    odd = next((index for index, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        raise SourceError(
            f"{rows[odd].where}: label {rows[odd].label!r:.60} is {kinds[odd]}, the first row's is {kinds[0]}"
        )
    if kinds[0] == "text":
        return _by_name(rows, labels, classes)
    if kinds[0] == "a whole number":
        return _by_number(rows, labels, classes)
    return torch.tensor(labels, dtype=torch.float32), ()


def _numbers(labels: list[Label]) -> list[Label]:
    """The labels as numbers where all of them are numbers written as text, as in CSV."""
    texts = [label for label in labels if isinstance(label, str)]
    if len(texts) < len(labels):
        mixed = any(isinstance(label, float) for label in labels) and not texts
        return [float(label) if mixed and isinstance(label, int) else label for label in labels]
    if all(re.fullmatch(r"[+-]?[0-9]{1,18}", text) for text in texts):
        return [int(text) for text in texts]
    if all(re.fullmatch(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?", text) for text in texts):
        return [float(text) for text in texts]
    return labels


def _kind(label: Label) -> str:
    if isinstance(label, list):
        return f"a list of {len(label)} numbers"
    return {str: "text", int: "a whole number"}.get(type(label), "a number")


def _by_name(
    rows: Sequence[Row], labels: Sequence[Any], classes: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    names = tuple(sorted(set(labels))) if classes is None else classes
    index = {name: i for i, name in enumerate(names)}
    for row, label in zip(rows, labels, strict=True):
        if label not in index:
            raise SourceError(f"{row.where}: {label!r:.60} is not one of the classes: {', '.join(names[:20])}")
    return torch.tensor([index[label] for label in labels]), names


def _by_number(
    rows: Sequence[Row], labels: Sequence[Any], classes: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    for row, label in zip(rows, labels, strict=True):
        if not 0 <= label < limit:
            raise SourceError(f"{row.where}: class number {label} is not in 0 to {limit - 1}")
    names = tuple(str(number) for number in range(max(labels) + 1)) if classes is None else classes
    return torch.tensor(labels, dtype=torch.int64), names
