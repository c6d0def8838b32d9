"""Reads subsets and concatenations of splits, as torch.utils.data makes them, by row number, not item by item.

Rows are numbered as in the Split or ConcatDataset beneath the outermost Subsets. These numbers are the ids of batches
and seed the samples' random draws, so a row of a subset is augmented as it is without the subset.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from mmload.errors import DamagedError, UsageError, counted
from mmload.records import FieldSpec
from mmload.runtime.host_memory import sections_of
from mmload.store.dataset import Split
from mmload.store.dataset_folder import OpenedFile
from mmload.store.row_numbers import row_numbers, rows_digest
from mmload.store.row_reader import ROW, Numbers, Places, RowReader


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
        version: None, as there may be several datasets.
    """

    version: int | None = None

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        splits: list[Split] = []
        pieces = _pieces(dataset, splits)
        for other in splits[1:]:
            _check_alike(splits[0], other)
        self.name = " + ".join(split.name for split in splits)
        self.classes = splits[0].classes
        self._splits, self._numbering = splits, _Numbering(splits, pieces)
        self.reader = RowReader(self.name, partial(JoinedRows, splits, self._numbering), splits[0].record.fields)
        self.fields = {name: self.reader.spec(name) for name in splits[0].fields}

    @property
    def digest(self) -> int:
        """63-bit digest of the samples that the rows are made of."""
        made_of = *(split.digest for split in self._splits), self._numbering.key
        return int.from_bytes(sha256(repr(made_of).encode()).digest()[:8], "little") >> 1

    def __len__(self) -> int:
        return len(self._numbering)

    def check_files(self) -> None:
        """Checks that no file that was opened has changed; raises what a split does."""
        for split in self._splits:
            split.check_files()

    def __repr__(self) -> str:
        return f"{counted(len(self), 'row')} of {', '.join(map(repr, self._splits))}"


AnySplit: TypeAlias = Split | Joined
"""Rows that a loader can read."""


class _Numbering:
    """Numbers of the rows of a concatenation.

    Rows of all splits have one numbering, split by split; ``pieces`` are runs or lists of it. Runs are found by
    their ends; if any piece is a list, all of them become one list of 8 bytes per row.
    """

    def __init__(self, splits: list[Split], pieces: list[range | Numbers]) -> None:
        self._starts = np.cumsum([0, *map(len, splits)])[:-1]
        self._ends = np.cumsum([len(piece) for piece in pieces])
        self._begins = np.concatenate(([0], self._ends[:-1]))
        runs = [piece for piece in pieces if isinstance(piece, range)]
        self._table = None if len(runs) == len(pieces) else _listed(pieces)
        self._shifts = np.array([run.start for run in runs], dtype=np.int64)
        if self._table is None:
            self._shifts -= self._ends - [len(run) for run in runs]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def key(self) -> Hashable:
        """Value that is equal for equal numberings."""
        if self._table is not None:
            return sha256(self._table.tobytes()).hexdigest()
        return (*self._ends.tolist(), *self._shifts.tolist())

    def owners(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the split of each row and its number there: int64 [B] each."""
        if self._table is None:
            rows = rows + self._shifts[sections_of(rows, self._begins)]
        numbers = rows if self._table is None else self._table[rows]
        owners = sections_of(numbers, self._starts)
        return owners, numbers - self._starts[owners]


class JoinedRows:
    """Rows of one field of several splits, by their numbers in a concatenation. Thread-safe."""

    def __init__(self, splits: Sequence[Split], numbering: _Numbering, name: str) -> None:
        self._fields, self._numbering = [split.files.field(name) for split in splits], numbering
        self.spec: FieldSpec = self._fields[0].spec
        self._first_files = np.cumsum([0, *(field.shards for field in self._fields)]).tolist()

    def __len__(self) -> int:
        return len(self._numbering)

    def files(self) -> list[OpenedFile] | None:
        found = [field.files() for field in self._fields]
        return None if None in found else [file for files in found for file in files or ()]

    def located(self, rows: Numbers) -> Places:
        places = np.empty(len(rows), ROW)
        for owner, owned, numbers in self._by_split(rows):
            found = self._fields[owner].located(numbers)
            found["file"] += self._first_files[owner]
            places[owned] = found
        return places

    def fill(self, rows: Numbers, places: Places, out: memoryview, starts: Numbers) -> None:
        for owner, owned, numbers in self._by_split(rows):
            own = places[owned]
            own["file"] -= self._first_files[owner]
            self._fields[owner].fill(numbers, own, out, starts[owned])

    def offsets(self) -> Numbers:
        return np.concatenate([[0], np.cumsum(self.located(np.arange(len(self)))["bytes"])])

    def damaged(self, row: int, reason: str) -> DamagedError:
        owners, numbers = self._numbering.owners(np.array([row]))
        return self._fields[int(owners[0])].damaged(int(numbers[0]), reason)

    def _by_split(self, rows: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yields the index of each split with some of the rows, which of them, and their numbers there."""
        owners, numbers = self._numbering.owners(rows)
        for owner in sorted(set(owners.tolist())):  # np.unique gives the interpreter lock away
            owned = np.flatnonzero(owners == owner)
            yield owner, owned, numbers[owned]


def _pieces(dataset: object, splits: list[Split]) -> list[range | Numbers]:
    """Returns a dataset's rows in the numbering of all ``splits``, to which it adds its own."""
    if isinstance(dataset, Split):
        if not any(split is dataset for split in splits):
            splits.append(dataset)
        start = 0
        for split in splits:
            if split is dataset:
                break
            start += len(split)
        return [range(start, start + len(dataset))]
    if type(dataset) is ConcatDataset:
        return [piece for part in dataset.datasets for piece in _pieces(part, splits)]
    if type(dataset) is Subset:
        return [_listed(_pieces(dataset.dataset, splits))[_indices(dataset)]]
    raise _not_splits(dataset)


def _listed(pieces: list[range | Numbers]) -> Numbers:
    return np.concatenate(
        [np.arange(piece.start, piece.stop) if isinstance(piece, range) else piece for piece in pieces]
    )


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
