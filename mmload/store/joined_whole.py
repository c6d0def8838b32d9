"""Reads rows of their own sizes by their number in a concatenation of splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mmload.errors import DamagedError
from mmload.records import FieldSpec
from mmload.store.file_requests import Request
from mmload.store.held_file import HeldFile
from mmload.store.whole_reader import Index, Numbers, WholeReader, read_rows
from mmload.store.whole_rows import WholeRows

Owners = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Rows -> the split of each, and its number there."""


class JoinedWhole:
    """Rows of one field of several splits, as :class:`~mmload.store.whole_reader.WholeReader` reads those of one.

    Its index takes as many bytes a row as the splits' own, which stay in memory, too.

    Args:
        readers: of the splits.
        owners: finds a row.
        rows: how many there are in all.
    """

    def __init__(self, readers: Sequence[WholeReader], owners: Owners, rows: int) -> None:
        self._readers, self._owners, self._rows = readers, owners, rows
        self.spec: FieldSpec = readers[0].spec
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """See :attr:`WholeReader.index`; offsets count as if rows lay one after another in this numbering."""
        if self._index is None:
            self._index = self._joined()
        return self._index

    def located(self, rows: Numbers) -> tuple[list[HeldFile], Numbers]:
        """See :meth:`WholeReader.located`."""
        owners, numbers = self._owners(rows)
        files: list[HeldFile | None] = [None] * len(rows)
        starts = np.empty(len(rows), np.int64)
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            found, starts[places] = self._readers[owner].located(numbers[places])
            for place, file in zip(places.tolist(), found, strict=True):
                files[place] = file
        return [file for file in files if file is not None], starts

    def served(self, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """See :meth:`WholeReader.served`."""
        owners, numbers = self._owners(rows)
        parts = []
        for owner in np.unique(owners).tolist():  # all at once, so that every split can ask for its rows
            places = np.flatnonzero(owners == owner)
            own = [requests[place] for place in places.tolist()]
            ends = np.searchsorted(places, groups).tolist()  # of each group, among the split's own requests
            is_in = np.diff(ends, prepend=0) > 0
            stops = [end for end, inside in zip(ends, is_in, strict=True) if inside]
            parts.append((is_in.tolist(), self._readers[owner].served(numbers[places], own, stops)))
        return self._in_groups(parts, len(groups))

    def _in_groups(self, parts: Sequence[tuple[list[bool], Iterator[None]]], groups: int) -> Iterator[None]:
        for group in range(groups):
            for is_in, arriving in parts:
                if is_in[group]:
                    next(arriving)
            yield

    def rows(self, rows: Numbers) -> WholeRows:
        """See :meth:`WholeReader.rows`."""
        return read_rows(self, rows)

    def damaged(self, row: int, reason: str) -> DamagedError:
        """See :meth:`WholeReader.damaged`."""
        owners, numbers = self._owners(np.array([row]))
        return self._readers[int(owners[0])].damaged(int(numbers[0]), reason)

    def _joined(self) -> Index:
        owners, numbers = self._owners(np.arange(self._rows))
        lengths, sizes = np.empty(self._rows, np.int64), np.empty((self._rows, 2), np.int32)
        encodings = np.empty(self._rows, np.uint8)
        for owner, reader in enumerate(self._readers):
            places = owners == owner
            index, there = reader.index, numbers[places]
            lengths[places] = index.offsets[there + 1] - index.offsets[there]
            sizes[places], encodings[places] = index.sizes[there], index.encodings[there]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Index(offsets=offsets, sizes=sizes, encodings=encodings)
