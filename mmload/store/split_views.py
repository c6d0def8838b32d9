"""Reads subsets and concatenations of splits, as torch.utils.data makes them, by row number, not item by item.

Rows are numbered as in the Split or ConcatDataset beneath the outermost Subsets. These numbers are the ids of batches
and seed the samples' random draws, so a row of a subset is augmented as it is without the subset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, cast

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from mmload.errors import DamagedError, UsageError, counted
from mmload.records import FieldSpec
from mmload.runtime.host_memory import sections_of
from mmload.store.dataset import Split
from mmload.store.field_rows import FieldRows
from mmload.store.row_numbers import Numbers, row_numbers, rows_digest
from mmload.store.row_reader import ROW, MappedRows, Places, RowReader, row_map


@dataclass(frozen=True)
class View:
    """Rows of a split or a concatenation, and which of them: int64 [N], or None for all."""

    rows: AnySplit
    chosen: Numbers | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    @property
    def subset(self) -> int | None:
        """Digest of the chosen rows in their order; None: all rows."""
        return None if self.chosen is None else rows_digest(self.chosen)

    def ids(self, positions: Numbers) -> Numbers:
        """Returns the row number at each position, int64 [B]."""
        return positions if self.chosen is None else self.chosen[positions]


def view_of(dataset: object) -> View:
    """Returns what a loader reads for a Split, a Subset or a ConcatDataset, nested in any way.

    Raises:
        TypeError: if it contains anything else, such as a subclass of Subset or ConcatDataset, which may do more.
        UsageError: if the splits have different fields or classes.
        IndexError: if a subset has rows that do not exist.
    """
    chosen: Numbers | None = None
    while type(dataset) is Subset:
        rows = _indices(dataset)
        chosen = rows if chosen is None else rows[chosen]
        dataset = dataset.dataset
    if isinstance(dataset, Split):
        return View(dataset, chosen)
    if type(dataset) is ConcatDataset:
        return View(Joined(dataset), chosen)
    raise _not_splits(dataset)


class Joined:
    """Rows of a ConcatDataset of splits, with the attributes of a Split that a loader needs.

    Attributes:
        name: name of the split, for messages.
        fields: name -> dtype and row shape, the same for all splits but for the padding of lists.
        classes: class names by index, the same for all splits.
        reader: reads rows by their number in the concatenation.
        splits: the splits, each of them once.
        version: None, as there may be several datasets.
    """

    version: int | None = None

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        self.splits = [part for part in dataset.datasets if isinstance(part, Split)]
        self._numbers: Numbers | None = None
        if len(set(map(id, self.splits))) < len(dataset.datasets):
            self.splits.clear()
            self._numbers = _numbers_in(dataset, self.splits)  # 8 bytes per row, where they are not just all splits
        for other in self.splits[1:]:
            _check_alike(self.splits[0], other)
        first, self._starts = self.splits[0], np.cumsum([0, *map(len, self.splits)])
        self.name, self.classes = " + ".join(split.name for split in self.splits), first.classes
        self.reader = RowReader(partial(JoinedRows, self), first.record.fields)
        self.fields = {name: self.reader.spec(name) for name in first.fields}

    @property
    def digest(self) -> int:
        """63-bit digest of the samples that the rows are made of."""
        order = None if self._numbers is None else rows_digest(self._numbers)
        made_of = *(split.digest for split in self.splits), order
        return int.from_bytes(sha256(repr(made_of).encode()).digest()[:8], "little") >> 1

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._numbers is None else len(self._numbers)

    def check_files(self) -> None:
        """Checks that no file that was opened has changed; raises what a split does."""
        for split in self.splits:
            split.check_files()

    def by_split(self, rows: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yields the index of each split with some of the rows, which of them, and their numbers there."""
        numbers = rows if self._numbers is None else self._numbers[rows]
        owners = sections_of(numbers, self._starts[:-1])
        for owner in sorted(set(owners.tolist())):  # np.unique gives the interpreter lock away
            owned = np.flatnonzero(owners == owner)
            yield owner, owned, numbers[owned] - self._starts[owner]

    def __repr__(self) -> str:
        return f"{counted(len(self), 'row')} of {', '.join(map(repr, self.splits))}"


AnySplit: TypeAlias = Split | Joined
"""Rows that a loader can read."""


class JoinedRows:
    """Rows of one field of several splits, by their numbers in a concatenation. Thread-safe."""

    def __init__(self, joined: Joined, name: str) -> None:
        self._joined = joined
        self._fields = [cast(FieldRows, split.reader.field(name)) for split in joined.splits]
        self.spec: FieldSpec = self._fields[0].spec
        self._first_files = np.cumsum([0, *(field.shards for field in self._fields)]).tolist()

    def __len__(self) -> int:
        return len(self._joined)

    def mapped(self, ranks: int = 1) -> MappedRows | None:
        return row_map(lambda: [file for field in self._fields for file in field.opened()], self.spec, ranks)

    def located(self, rows: Numbers) -> Places:
        places = np.empty(len(rows), ROW)
        for owner, owned, numbers in self._joined.by_split(rows):
            found = self._fields[owner].located(numbers)
            found["file"] += self._first_files[owner]
            places[owned] = found
        return places

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        owners = np.searchsorted(self._first_files, places["file"], "right") - 1
        for owner in sorted(set(owners.tolist())):
            owned = np.flatnonzero(owners == owner)
            own = places[owned]
            own["file"] -= self._first_files[owner]
            self._fields[owner].fill(own, out, starts[owned])

    def damaged(self, row: int, reason: str) -> DamagedError:
        ((owner, _, numbers),) = self._joined.by_split(np.array([row]))
        return self._fields[owner].damaged(int(numbers[0]), reason)


def _numbers_in(dataset: object, splits: list[Split]) -> Numbers:
    """Returns a dataset's rows by their numbers in all ``splits``, one after another, to which it adds its own."""
    if isinstance(dataset, Split):
        if not any(split is dataset for split in splits):
            splits.append(dataset)
        place = next(place for place, split in enumerate(splits) if split is dataset)
        first = sum(map(len, splits[:place]))
        return np.arange(first, first + len(dataset))
    if type(dataset) is ConcatDataset:
        return np.concatenate([_numbers_in(part, splits) for part in dataset.datasets])
    if type(dataset) is Subset:
        return _numbers_in(dataset.dataset, splits)[_indices(dataset)]
    raise _not_splits(dataset)


def _indices(subset: Subset[Any]) -> Numbers:
    return row_numbers(subset.indices, len(subset.dataset), "the subset's dataset")  # type: ignore[arg-type]  # sized


def _check_alike(first: Split, other: Split) -> None:
    for what in ("fields", "classes"):  # as stored: lists of any length are alike
        if getattr(first.record, what) != getattr(other.record, what):
            raise UsageError(
                f"{first!r} and {other!r} have different {what}: they cannot be joined; build them with the same recipe"
            )


def _not_splits(dataset: object) -> TypeError:
    return TypeError(
        "a Loader reads a path, a Dataset, a Split, or a Subset or ConcatDataset of splits, "
        f"not {type(dataset).__name__}; torch's DataLoader takes any dataset"
    )
