"""Chooses the rows of a dataset that an export takes, and reads them on several threads, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError, choices
from mmload.export.new_folder import file_name
from mmload.pictures.instance_masks import without_padding
from mmload.records import PER_BOX, Progress
from mmload.runtime.resources import check_threads, in_threads
from mmload.store.dataset import Dataset, Split, rows_of_class

T = TypeVar("T")

Numbers = npt.NDArray[np.int64]

_MOST_ROWS, _MOST_BYTES = 16, 4 * 2**20
"""Rows that a thread reads at a time: fewer if their fields of one size have more bytes."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows to export.

    Attributes:
        split: only this split; None: all but subsets.
        of_class: only rows of the class of this name, or with a box of it; None: all.
        limit: number of rows per split, from the first; None: all.

    Raises:
        UsageError: if the limit is not a positive integer.
    """

    split: str | None = None
    of_class: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise UsageError(f"limit is {self.limit!r}; give a positive number of rows")


class ChosenSplit(NamedTuple):
    """Rows of a split, int64 [n] in ascending order; at least one."""

    split: Split
    rows: Numbers


class ExportRow(NamedTuple):
    """Stored row.

    Attributes:
        split: its split.
        number: its number in the split.
        id: id of its sample in the source.
        fields: its values by field, as arrays; lists, and what belongs to boxes, without padding.
    """

    split: Split
    number: int
    id: str
    fields: Mapping[str, npt.NDArray[Any]]

    @property
    def name(self) -> str:
        """Name of its file in the source, without folder and ending."""
        return "_".join(file_name(PurePosixPath(self.id).stem).split())

    @property
    def digits(self) -> str:
        """Its number with leading zeros, so that numbers of a split are sorted as text."""
        return f"{self.number:0{len(str(len(self.split) - 1))}d}"


def chosen_rows(dataset: Dataset, choice: Choice | None) -> list[ChosenSplit]:
    """Returns the rows that an export takes, split by split; None: all.

    Raises:
        UsageError: if there is no such split or class, or no such row.
    """
    choice = choice or Choice()
    splits = list(dataset.built_splits.values()) if choice.split is None else [dataset[choice.split]]
    chosen = []
    for split in splits:
        rows = np.arange(len(split)) if choice.of_class is None else rows_of_class(split, choice.of_class)
        if len(rows):
            chosen.append(ChosenSplit(split, rows[: choice.limit]))
    if not chosen:
        of_class = "" if choice.of_class is None else f" of class {choice.of_class!r}"
        raise UsageError(f"{dataset.path} has no row{of_class} in {choices(split.name for split in splits)}")
    return chosen


def map_rows(
    chosen: Iterable[ChosenSplit],
    make: Callable[[ExportRow], T],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[T]:
    """Yields the result of ``make`` for each row, in order; reads and makes rows on several threads.

    ``progress`` is called from the caller's thread.

    Raises:
        UsageError: if the number of threads is invalid.
        StoreError: if a row cannot be read.
    """
    check_threads(threads)
    chosen = list(chosen)
    total, done = sum(len(rows) for _, rows in chosen), 0

    def made(part: tuple[Split, Numbers]) -> list[T]:
        return [make(row) for row in _read(*part)]

    chunks = ((split, part) for split, rows in chosen for part in _parts(split, rows))
    for results in in_threads(chunks, made, threads):
        yield from results
        done += len(results)
        if progress is not None:
            progress(done, total)


def _parts(split: Split, rows: Numbers) -> Iterator[Numbers]:
    row_bytes = sum(spec.row_bytes for spec in split.fields.values() if spec.encoding is None)
    at_once = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, row_bytes)))
    return (rows[start : start + at_once] for start in range(0, len(rows), at_once))


def _read(split: Split, rows: Numbers) -> Iterator[ExportRow]:
    columns = {name: split.reader.rows(name, rows) for name in split.fields}
    counts = {name: split.reader.lists(name).counts(rows) for name, spec in split.record.fields.items() if spec.is_list}
    sources = split.source(rows)
    for place, number in enumerate(rows.tolist()):
        fields = {name: np.asarray(values[place]) for name, values in columns.items()}
        fields |= {name: fields[name][: own[place]] for name, own in counts.items()}
        if {"boxes", "counts"} <= fields.keys():
            fields = without_padding(fields)
        yield ExportRow(split, number, sources[place].id, fields)


def differs_in_length(split: Split, field: str) -> bool:
    """Returns whether rows differ in their number of elements of a field."""
    if split.record.fields[field].is_list:
        return True
    return {"boxes", "counts"} <= split.fields.keys() and (field == "boxes" or field in PER_BOX)


def has_class_numbers(split: Split, field: str) -> bool:
    """Returns whether a field, ``targets`` or ``labels``, has the number of the class of each row or box."""
    spec = split.fields.get(field)
    return spec is not None and spec.dtype == "int64" and len(spec.shape) == (field == "labels")


def class_names(split: Split, field: str) -> tuple[str, ...]:
    """Returns the names of the classes whose numbers a field has; the numbers if the split has no such names.

    If the field, ``targets`` or ``labels``, has no class numbers, they are the split's. Of a split with both, they may
    be the other's.
    """
    if not has_class_numbers(split, field) or not len(split):
        return split.classes
    most = int(split.reader.array(field, np.arange(len(split))).max())
    if most < len(split.classes):
        return split.classes
    return tuple(f"{index:0{len(str(most))}d}" for index in range(most + 1))


def common_class_names(chosen: Sequence[ChosenSplit], field: str) -> tuple[str, ...]:
    """Returns the class names of all splits.

    Raises:
        UsageError: if splits have different classes.
    """
    if len({split.classes for split, _ in chosen}) > 1:
        raise UsageError(
            f"the splits of {chosen[0].split.path} have different classes; export one of them: give a split"
        )
    return max((class_names(split, field) for split, _ in chosen), key=len)
