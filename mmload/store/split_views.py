"""Reads subsets and concatenations of splits, as torch.utils.data makes them, by row number, not item by item.

Rows are numbered as in the Split or ConcatDataset beneath the outermost Subsets. These numbers are the ids of batches
and seed the samples' random draws, so a row of a subset is augmented as it is without the subset.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from mmload.errors import UsageError, counted
from mmload.records import FieldSpec
from mmload.store.dataset import Split
from mmload.store.field_rows import FieldRows, Numbers, read
from mmload.store.joined_rows import JoinedRows
from mmload.store.row_numbers import row_numbers, rows_digest
from mmload.store.row_reader import SMALL_ROW, memory_of


class Reader(Protocol):
    """Reads rows, as :class:`mmload.store.row_reader.RowReader` does. Thread-safe."""

    def field(self, name: str) -> FieldRows | JoinedRows:
        """Returns the rows of a field."""

    def gather(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of a field."""


@runtime_checkable
class FollowsEpochs(Protocol):
    """A reader that is faster if it knows what an epoch is going to read."""

    def follow(
        self, fields: Sequence[str], takes: Sequence[Callable[..., Any]], epoch: int, now: int, margin: int
    ) -> Following:
        """An epoch begins. See :class:`mmload.remote.cached_reader.CachedReader`."""


class Following(Protocol):
    """An epoch that a reader follows, until this is closed or collected."""

    @property
    def close(self) -> Callable[[], object]:
        """Ends it."""


class Rows(Protocol):
    """What a loader reads: a :class:`~mmload.store.dataset.Split` or a :class:`Joined`."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Name -> dtype and row shape."""

    @property
    def reader(self) -> Reader:
        """Where rows come from."""

    @property
    def key(self) -> Hashable:
        """Equal for equal rows."""

    @property
    def digest(self) -> int:
        """A 63-bit digest of the samples that the rows are made of."""

    def check_changed(self) -> None:
        """StoreError if a dataset was overwritten by another since it was opened; for every batch."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class View:
    """Rows, and which of them: int64 [N], or None for all."""

    rows: Rows
    chosen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    @property
    def subset(self) -> int | None:
        """A digest of the chosen rows in their order; None: all rows."""
        return None if self.chosen is None else rows_digest(self.chosen)

    def ids(self, positions: Tensor) -> Tensor:
        """The row number at each position, int64 [B]."""
        return positions if self.chosen is None else self.chosen[positions]


def view_of(dataset: object) -> View:
    """What a loader reads for a Split, a Subset or a ConcatDataset, nested in any way.

    Raises:
        TypeError: if it contains anything else, such as a subclass of Subset or ConcatDataset, which may do more.
        UsageError: if the splits have different fields or classes.
        IndexError: if a subset has rows that do not exist.
    """
    chosen: Tensor | None = None
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
    """The rows of a ConcatDataset of splits, concatenated.

    Attributes:
        name: for messages.
        fields: name -> dtype and row shape, the same for all.
        reader: where rows come from.
    """

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        splits: list[Split] = []
        pieces = _pieces(dataset, splits)
        for other in splits[1:]:
            _check_alike(splits[0], other)
        self.name = " + ".join(split.name for split in splits)
        self.fields = splits[0].fields
        self.classes = splits[0].classes
        self.reader = _JoinedReader(splits, pieces)
        self._splits = splits

    @property
    def key(self) -> Hashable:
        """Equal if the same splits are joined in the same way."""
        return (*(split.key for split in self._splits), self.reader.numbering)

    @property
    def digest(self) -> int:
        """See :class:`Rows`."""
        made_of = *(split.digest for split in self._splits), self.reader.numbering
        return int.from_bytes(sha256(repr(made_of).encode()).digest()[:8], "little") >> 1

    def __len__(self) -> int:
        return len(self.reader)

    def check_changed(self) -> None:
        """See :class:`Rows`."""
        for split in self._splits:
            split.check_changed()

    def __repr__(self) -> str:
        return f"{counted(len(self), 'row')} of {', '.join(map(repr, self._splits))}"


class _JoinedReader:
    """Reads rows by their number in a concatenation.

    Rows of all splits have one numbering, split by split; ``pieces`` are runs or lists of it. Runs are found by
    their ends; if any piece is a list, all of them become one list of 8 bytes a row.
    """

    def __init__(self, splits: list[Split], pieces: list[range | Tensor]) -> None:
        self._splits = splits
        self._fields: dict[str, JoinedRows] = {}
        self._starts = np.cumsum([0, *map(len, splits)])[:-1]
        self._ends = np.cumsum([len(piece) for piece in pieces])
        runs = [piece for piece in pieces if isinstance(piece, range)]
        self._table = None if len(runs) == len(pieces) else _listed(pieces).numpy()
        self._shifts = np.array([run.start for run in runs], dtype=np.int64)
        if self._table is None:
            self._shifts -= self._ends - [len(run) for run in runs]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def numbering(self) -> Hashable:
        """Equal for equal numberings."""
        if self._table is not None:
            return sha256(self._table.tobytes()).hexdigest()
        return (*self._ends.tolist(), *self._shifts.tolist())

    def field(self, name: str) -> JoinedRows:
        """See :class:`Reader`."""
        if name not in self._fields:
            fields = [split.reader.field(name) for split in self._splits]
            self._fields[name] = JoinedRows(fields, self._owners, len(self))
        return self._fields[name]

    def gather(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """See :class:`Reader`."""
        spec = self._splits[0].fields[name]
        if out is None:
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        if spec.row_bytes > SMALL_ROW:
            read(self.field(name), rows.numpy(), memory_of(out))
            return out
        owners, numbers = self._owners(rows.numpy())
        for owner in np.unique(owners).tolist():  # the splits may keep it in memory
            owned = np.flatnonzero(owners == owner)
            out[owned] = self._splits[owner].reader.gather(name, torch.from_numpy(numbers[owned]))
        return out

    def _owners(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Which split each row is of, and its number there: int64 [B] each."""
        if self._table is None:
            numbers = rows + self._shifts[np.searchsorted(self._ends, rows, side="right")]
        else:
            numbers = self._table[rows]
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        return owners, numbers - self._starts[owners]


def _pieces(dataset: object, splits: list[Split]) -> list[range | Tensor]:
    """A dataset's rows in the numbering of all ``splits``, to which it adds its own."""
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


def _listed(pieces: list[range | Tensor]) -> Tensor:
    parts = [torch.arange(piece.start, piece.stop) if isinstance(piece, range) else piece for piece in pieces]
    return torch.cat(parts)


def _indices(subset: Subset[Any]) -> Tensor:
    return row_numbers(subset.indices, len(subset.dataset), "the subset's dataset")  # type: ignore[arg-type]  # sized


def _check_alike(first: Split, other: Split) -> None:
    for what in ("fields", "classes"):
        if getattr(first, what) != getattr(other, what):
            raise UsageError(
                f"{first!r} and {other!r} have different {what}: they cannot be joined; build them with the same recipe"
            )


def _not_splits(dataset: object) -> TypeError:
    return TypeError(
        "a Loader reads a path, a Dataset, a Split, or a Subset or ConcatDataset of splits, "
        f"not {type(dataset).__name__}; torch's DataLoader takes any dataset"
    )
