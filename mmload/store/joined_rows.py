"""Reads rows by their number in a concatenation of splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mmload.errors import DamagedError
from mmload.records import FieldSpec
from mmload.store.field_rows import ROW, FieldRows, Numbers, Places
from mmload.store.held_file import HeldFile

Owners = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Rows -> the split of each, and its number there."""


class JoinedRows:
    """The rows of one field of several splits, as :class:`~mmload.store.field_rows.Rows`.

    Args:
        fields: the field of each split.
        owners: finds a row.
        rows: how many there are in all.
    """

    def __init__(self, fields: Sequence[FieldRows], owners: Owners, rows: int) -> None:
        self._fields, self._owners, self._rows = fields, owners, rows
        self.spec: FieldSpec = fields[0].spec
        self._first_files = np.cumsum([0, *(field.shards for field in fields)]).tolist()

    def __len__(self) -> int:
        return self._rows

    def files(self) -> tuple[list[HeldFile], list[int]] | None:
        """See :class:`~mmload.store.field_rows.Rows`; the files of all splits."""
        files: list[HeldFile] = []
        sizes: list[int] = []
        for field in self._fields:
            found = field.files()
            if found is None:
                return None
            files, sizes = files + found[0], sizes + found[1]
        return files, sizes

    def located(self, rows: Numbers) -> Places:
        """See :class:`~mmload.store.field_rows.Rows`."""
        places = np.empty(len(rows), ROW)
        for owner, owned, numbers in self._by_split(rows):
            found = self._fields[owner].located(numbers)
            found["file"] += self._first_files[owner]
            places[owned] = found
        return places

    def arriving(
        self, rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
    ) -> Iterator[None]:
        """See :class:`~mmload.store.field_rows.Rows`."""
        parts = []
        for owner, owned, numbers in self._by_split(rows):  # all at once, so that every split can ask for its rows
            own = places[owned]
            own["file"] -= self._first_files[owner]
            ends = np.searchsorted(owned, groups).tolist()  # of each group, among the split's own rows
            is_in = (np.diff(ends, prepend=0) > 0).tolist()
            stops = [end for end, inside in zip(ends, is_in, strict=True) if inside]
            parts.append((is_in, self._fields[owner].arriving(numbers, own, out, starts[owned], stops)))
        return _in_groups(parts, len(groups))

    def damaged(self, row: int, reason: str) -> DamagedError:
        """See :class:`~mmload.store.field_rows.Rows`."""
        owners, numbers = self._owners(np.array([row]))
        return self._fields[int(owners[0])].damaged(int(numbers[0]), reason)

    def _by_split(self, rows: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yields the index of each split with some of the rows, which of them, and their numbers there."""
        owners, numbers = self._owners(rows)
        for owner in np.unique(owners).tolist():
            owned = np.flatnonzero(owners == owner)
            yield owner, owned, numbers[owned]


def _in_groups(parts: Sequence[tuple[list[bool], Iterator[None]]], groups: int) -> Iterator[None]:
    for group in range(groups):
        for is_in, arriving in parts:
            if is_in[group]:
                next(arriving)
        yield
