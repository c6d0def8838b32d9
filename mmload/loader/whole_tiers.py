"""Where whole photographs are read from, the files or memory; only what their windows need is read.

Of a row of pixels the lines of the window are read, which are one range of bytes. A JPEG is read whole, which takes a
tenth of the time of decoding it. The tier "memory" keeps rows as they are stored, or the pixels of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.loader.kept_rows import KeptRows, kept_rows
from mmload.loader.row_counts import RowCounts
from mmload.loader.stored_rows import Bytes, Numbers, StoredRows, all_lines, lines_of
from mmload.loader.tiers import MappedRows
from mmload.render.image_lines import COUNT, FIRST, LAYOUT, LINES, PIXELS, SHRINK, START
from mmload.render.scratch_memory import scratch
from mmload.render.torch_sampling import OwnMasks
from mmload.store.joined_whole import JoinedWhole
from mmload.store.row_map import RowMap, row_map
from mmload.store.row_reader import memory_of
from mmload.store.split_views import Rows
from mmload.store.whole_reader import WholeReader, row_requests
from mmload.store.whole_rows import JPEG

PART_BYTES = 2 * 2**20
"""Bytes of pixels that a thread reads or decodes at a time before it renders them."""


class WholeTier(Protocol):
    """A source of rows of a size each. Thread-safe; counts what :class:`~mmload.loader.tiers.Tier` counts."""

    name: str
    hits: int
    misses: int

    @property
    def sharing(self) -> str:
        """Who shares the rows in memory now, as a sentence; "" if none are kept."""

    def sizes(self, rows: Tensor) -> Tensor:
        """Height and width of rows, int64 [B, 2]."""

    @property
    def reader(self) -> WholeReader | JoinedWhole:
        """Where the rows come from."""

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """The rows in turn, some at a time, at least the lines from ``needed`` [B, 3]; valid until the next part.

        Raises:
            DamagedError: if a row is damaged; it names the row and the sample that it was made from.
            StoreError: if a file cannot be read.
        """


class WholeDisk(RowCounts):
    """Rows that are read, as they cannot be mapped: in object storage, or where the system has no safe maps."""

    name = "disk"
    sharing = ""

    def __init__(self, split: Rows) -> None:
        super().__init__()
        self.reader = whole_reader(split)

    def sizes(self, rows: Tensor) -> Tensor:
        """See :class:`WholeTier`."""
        return sizes_of(self.reader, rows)

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """See :class:`WholeTier`."""
        self.count(misses=len(rows))
        reader, numbers = self.reader, rows.numpy()
        index, channels = reader.index, reader.spec.channels
        sizes, jpeg = index.sizes[numbers].astype(np.int64), index.encodings[numbers] == JPEG
        lines = sizes[:, 1] * channels
        lengths = index.offsets[numbers + 1] - index.offsets[numbers]
        skipped = np.where(jpeg, 0, needed[:, 0] * lines)
        lengths = np.where(jpeg, lengths, (needed[:, 1] - needed[:, 0]) * lines)
        groups = _groups(np.where(jpeg, sizes[:, 0] * lines, lengths))
        stored = scratch("stored rows", (int(max((lengths[group].sum() for group in groups), default=0)),), torch.uint8)
        ends = np.concatenate([np.cumsum(lengths[group]) for group in groups]) if groups else lengths
        requests = row_requests(reader, numbers, memory_of(stored), ends - lengths, lengths, skipped)
        arriving = reader.served(numbers, requests, [group.stop for group in groups])
        for group, _ in zip(groups, arriving, strict=True):
            places = np.empty((group.stop - group.start, 7), np.int64)
            places[:, 0], places[:, 1] = ends[group] - lengths[group], needed[group, 0]
            places[:, 2], places[:, 3:5] = needed[group, 1] - needed[group, 0], sizes[group]
            places[:, LAYOUT], places[:, SHRINK] = LINES, 1
            yield StoredRows(numbers[group], jpeg[group], needed[group], stored.numpy(), places, lengths[group])


class WholeMapped(MappedRows):
    """Rows of their own sizes, rendered or decoded from the map."""

    def __init__(self, split: Rows, rows: RowMap) -> None:
        super().__init__(split, rows)
        self.reader = whole_reader(split)

    def sizes(self, rows: Tensor) -> Tensor:
        """See :class:`WholeTier`."""
        return sizes_of(self.reader, rows)

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """See :class:`WholeTier`; what was rendered is checked after it."""
        numbers, index = rows.numpy(), self.reader.index
        sizes, jpeg = index.sizes[numbers], index.encodings[numbers] == JPEG
        lines = sizes[:, 1].astype(np.int64) * self.reader.spec.channels
        located = self._split.reader.located("images", numbers)
        located["offset"] += np.where(jpeg, 0, needed[:, 0] * lines)
        located["bytes"] = np.where(jpeg, located["bytes"], (needed[:, 1] - needed[:, 0]) * lines)
        starts = self._prepared(located, lambda place, error: self.reader.damaged(int(numbers[place]), str(error)))
        places = _places(starts, sizes)
        places[:, FIRST], places[:, COUNT] = needed[:, 0], needed[:, 1] - needed[:, 0]
        lengths = np.ascontiguousarray(located["bytes"])
        for group in _groups(np.where(jpeg, _pixel_bytes(places, self.reader), 0)):
            yield StoredRows(
                numbers[group], jpeg[group], needed[group], self._map.memory, places[group], lengths[group]
            )
        self._map.check(located)


class WholeMemory(RowCounts):
    """Keeps rows in memory, at their first use; all loaders of this machine share one copy.

    Args:
        split: whose images.
        decoded: whether the pixels of JPEGs are kept; else rows are kept as they are stored, and decoded at each use.
    """

    name = "memory"

    def __init__(self, split: Rows, decoded: bool = False) -> None:
        super().__init__()
        self.reader, self._decoded = whole_reader(split), decoded
        self._kept: KeptRows = kept_rows(split, decoded)

    @property
    def sharing(self) -> str:
        """See :class:`WholeTier`."""
        return self._kept.sharing

    @property
    def _ends(self) -> Numbers:
        """Where rows begin and end in memory, int64 [N + 1]."""
        if self._kept.ends is None:
            raise RuntimeError("these rows have one size")
        return self._kept.ends

    def sizes(self, rows: Tensor) -> Tensor:
        """See :class:`WholeTier`."""
        return sizes_of(self.reader, rows)

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """See :class:`WholeTier`."""
        self._fetch(rows)
        numbers, index, memory = rows.numpy(), self.reader.index, self._kept.memory.numpy()
        starts, sizes, jpeg = self._ends[numbers], index.sizes[numbers], index.encodings[numbers] == JPEG
        lengths = self._ends[numbers + 1] - starts
        places = _places(starts, sizes)
        if self._decoded:
            places[:, LAYOUT], jpeg = np.where(jpeg, PIXELS, LINES), np.zeros_like(jpeg)
        for group in _groups(np.where(jpeg, _pixel_bytes(places, self.reader), 0)):
            yield StoredRows(numbers[group], jpeg[group], needed[group], memory, places[group], lengths[group])

    def _fetch(self, rows: Tensor) -> None:
        """Read the rows that are not in memory yet: only checked rows may be seen by others."""
        absent = self._kept.absent(rows)
        self.count(len(rows) - len(absent), len(absent))
        if not len(absent):
            return
        numbers, index = absent.numpy(), self.reader.index
        lengths = index.offsets[numbers + 1] - index.offsets[numbers]
        room = np.diff(self._ends)[numbers] if self._decoded else lengths
        for group in _groups(np.maximum(lengths, room)):
            ends = np.cumsum(lengths[group])
            read = scratch("stored rows", (int(ends[-1]),), torch.uint8)
            memory, firsts = memory_of(read), ends - lengths[group]
            requests = row_requests(self.reader, numbers[group], memory, firsts, lengths[group])
            for _ in self.reader.served(numbers[group], requests, [len(requests)]):
                pass
            parts = [request.out for request in requests]
            if self._decoded:
                parts = self._pixels(numbers[group], read.numpy(), firsts, lengths[group])
            self._kept.write_parts(absent[group], parts, self._ends[numbers[group]].tolist())

    def _pixels(self, rows: Numbers, stored: Bytes, starts: Numbers, lengths: Numbers) -> list[memoryview]:
        """The pixels of rows that were read to ``starts`` of ``stored``: of each all lines."""
        index = self.reader.index
        places, needed = _places(starts, index.sizes[rows]), all_lines(index.sizes[rows])
        lines = lines_of(StoredRows(rows, index.encodings[rows] == JPEG, needed, stored, places, lengths), self.reader)
        memory, sizes = memory_of(torch.from_numpy(lines.memory)), _pixel_bytes(lines.places, self.reader)
        firsts = lines.places[:, START].tolist()
        return [memory[first : first + size] for first, size in zip(firsts, sizes.tolist(), strict=True)]


def _places(starts: Numbers, sizes: npt.NDArray[np.int32]) -> Numbers:
    """Rows whose lines are all there, as :class:`~mmload.render.image_lines.ImageLines` has them."""
    places = np.empty((len(starts), 7), np.int64)
    places[:, 0], places[:, 1], places[:, 2], places[:, 3:5] = starts, 0, sizes[:, 0], sizes
    places[:, LAYOUT], places[:, SHRINK] = LINES, 1
    return places


def _pixel_bytes(places: Numbers, reader: WholeReader | JoinedWhole) -> Numbers:
    """Bytes of the pixels of rows, int64 [B]."""
    sizes: Numbers = places[:, 3] * places[:, 4] * reader.spec.channels
    return sizes


def make_whole(tier: str, split: Rows, decoded: bool) -> WholeTier:
    """Returns the tier of this name over a split whose images have their own sizes."""
    if tier == "memory":
        return WholeMemory(split, decoded)
    rows = row_map(split.reader, "images")
    return WholeDisk(split) if rows is None else WholeMapped(split, rows)


def whole_reader(split: Rows) -> WholeReader | JoinedWhole:
    """What reads the images of a split whose rows have a size each."""
    return split.reader.whole("images")


def own_masks(split: Rows, rows: Tensor, sizes: Tensor) -> OwnMasks:
    """The masks of rows whose masks have a size each.

    Raises:
        DamagedError: if one has another size than its image, int64 [B, 2].
        StoreError: if they cannot be read.
    """
    reader = split.reader.whole("masks")
    read = reader.rows(rows.numpy())
    wrong = np.flatnonzero((read.sizes != sizes.numpy()).any(1))
    if len(wrong):
        height, width = read.sizes[wrong[0]].tolist()
        raise reader.damaged(int(rows[wrong[0]]), f"it is {height} x {width}, and its image has another size")
    return OwnMasks(torch.from_numpy(read.bytes), torch.from_numpy(read.offsets[:-1]))


def sizes_of(reader: WholeReader | JoinedWhole, rows: Tensor) -> Tensor:
    """Height and width of rows, int64 [B, 2]."""
    return torch.from_numpy(reader.index.sizes[rows.numpy()].astype(np.int64))


def _groups(room: Numbers) -> list[slice]:
    """Rows in order, as many at a time as fit into :data:`PART_BYTES`, or one."""
    groups, first, used = [], 0, 0
    for k, size in enumerate(room.tolist()):
        if k > first and used + size > PART_BYTES:
            groups.append(slice(first, k))
            first, used = k, 0
        used += size
    return [*groups, slice(first, len(room))] if len(room) else groups
