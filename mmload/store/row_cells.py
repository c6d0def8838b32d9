"""Chooses rows of a split to be looked at, and makes the cells of a contact sheet from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.pictures.cells import SHOWN, cells_of, first_to_see
from mmload.pictures.contact_sheet import Cell
from mmload.records import FieldSpec
from mmload.store.row_numbers import row_array

if TYPE_CHECKING:
    from mmload.store.row_reader import RowReader

Numbers = npt.NDArray[np.int64]

_NAMED = 8  # classes that a message names


class ShownSplit(Protocol):
    """What is looked at: a split of an open dataset. Thread-safe, as that is."""

    @property
    def name(self) -> str:
        """Of the split."""

    @property
    def path(self) -> Path:
        """The dataset's folder."""

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Name -> dtype and row shape."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names by index."""

    @property
    def reader(self) -> RowReader:
        """Where rows come from."""

    def __len__(self) -> int: ...

    def check_changed(self) -> None:
        """Raises a StoreError if the folder holds another dataset by now."""


def cells_of_rows(split: ShownSplit, rows: Any) -> list[Cell]:
    """Stored rows as the cells of a :func:`~mmload.pictures.contact_sheet.contact_sheet`.

    Raises:
        UsageError: if the split has no uint8 images, or no row is chosen.
        IndexError, TypeError: as :meth:`~mmload.store.dataset.Split.rows`.
    """
    where = f"split {split.name!r} of {split.path}"
    spec = split.fields.get("images")
    if spec is None or spec.dtype != "uint8":
        raise UsageError(f"{where} has no uint8 images to show; it has {choices(split.fields)}")
    numbers = row_array(rows, len(split), f"split {split.name!r}")
    if not len(numbers):
        raise UsageError(f"no row of {where} is chosen, so there is nothing to show")
    split.check_changed()
    shown = {name: split.fields[name] for name in SHOWN if name in split.fields}
    fields = {name: split.reader.array(name, numbers) for name, of in shown.items() if not of.own_sizes}
    own = [split.reader.sized(name) for name, of in shown.items() if of.own_sizes]
    if not own:
        return cells_of({**fields, "ids": numbers}, split.classes)
    names = [name for name, of in shown.items() if of.own_sizes]
    cells = []
    for place, row in enumerate(numbers.tolist()):  # one by one, as no array holds images of several sizes
        pixels = {name: reader.pixels(row)[None] for name, reader in zip(names, own, strict=True)}
        alike = {name: values[place : place + 1] for name, values in {**fields, "ids": numbers}.items()}
        cells += cells_of({**alike, **pixels}, split.classes)
    return cells


def first_rows(split: ShownSplit, count: int, *, seed: int = 0, of_class: str | None = None) -> Numbers:
    """Rows that one wants to see first: as many of each class as can be, drawn at random, sorted by class.

    Args:
        split: where they are.
        count: how many at most.
        seed: of the draw.
        of_class: only rows of the class of this name.

    Returns:
        int64 [n].

    Raises:
        UsageError: if there is no such class, or rows have no single class.
    """
    spec = split.fields.get("targets")
    targets = None
    if spec is not None and spec.shape == () and split.classes:
        targets = split.reader.array("targets", np.arange(len(split)))
    if of_class is None:
        return first_to_see(targets, len(split), count, seed)
    where = f"split {split.name!r} of {split.path}"
    if of_class not in split.classes:
        raise UsageError(f"{where} has no class {of_class!r}; it has {_some(split.classes)}")
    if targets is None:
        raise UsageError(f"rows of {where} have no single class; choose rows by their numbers")
    members = (targets == split.classes.index(of_class)).nonzero()[0]
    chosen: Numbers = members[first_to_see(None, len(members), count, seed)]
    return chosen


def _some(names: Sequence[str]) -> str:
    """The first names, for messages: there may be thousands."""
    more = f", ... ({len(names) - _NAMED:,} more)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
