"""Where whole photographs are read from, the files or memory; only what their windows need is read.

Of a row of pixels the lines of the window are read, which are one range of bytes. A JPEG is read whole, which takes a
tenth of the time of decoding it. The tier "memory" keeps rows as they are stored, or the pixels of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mmload.loader.kept_rows import KeptRows, kept_rows
from mmload.loader.row_counts import RowCounts
from mmload.loader.stored_rows import Bytes, StoredRows, all_lines, lines_of
from mmload.loader.tiers import MappedRows
from mmload.render.image_lines import COUNT, FIRST, LAYOUT, LINES, PIXELS, SHRINK, START
from mmload.render.scratch_memory import scratch
from mmload.render.torch_sampling import OwnMasks
from mmload.store.field_rows import Numbers, Places, Rows, read
from mmload.store.row_map import RowMap, row_map
from mmload.store.row_reader import memory_of
from mmload.store.sized_rows import read_rows
from mmload.store.split_views import Rows as SplitRows
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
    def reader(self) -> Rows:
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

    def __init__(self, split: SplitRows) -> None:
        super().__init__()
        self.reader = whole_reader(split)

    def sizes(self, rows: Tensor) -> Tensor:
        """See :class:`WholeTier`."""
        return sizes_of(self.reader, rows)

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """See :class:`WholeTier`."""
        self.count(misses=len(rows))
        reader, numbers = self.reader, rows.numpy()
        located = reader.located(numbers)
        jpeg, sizes = located["encoding"] == JPEG, _sizes_of(located)
        _cut_to_lines(located, needed, reader.spec.channels)
        lengths = np.ascontiguousarray(located["bytes"])
        groups = _groups(np.where(jpeg, sizes.prod(1) * reader.spec.channels, lengths))
        stored = scratch("stored rows", (int(max((lengths[group].sum() for group in groups), default=0)),), torch.uint8)
        starts = np.concatenate([np.cumsum(lengths[group]) for group in groups]) - lengths if groups else lengths
        arriving = reader.arriving(numbers, located, memory_of(stored), starts, [group.stop for group in groups])
        for group, _ in zip(groups, arriving, strict=True):
            places = _places(starts[group], sizes[group])
            places[:, FIRST], places[:, COUNT] = needed[group, 0], needed[group, 1] - needed[group, 0]
            yield StoredRows(numbers[group], jpeg[group], needed[group], stored.numpy(), places, lengths[group])


class WholeMapped(MappedRows):
    """Rows of their own sizes, rendered or decoded from the map."""

    def __init__(self, split: SplitRows, rows: RowMap) -> None:
        super().__init__(split, rows)
        self.reader = whole_reader(split)

    def sizes(self, rows: Tensor) -> Tensor:
        """See :class:`WholeTier`."""
        return sizes_of(self.reader, rows)

    def parts(self, rows: Tensor, needed: Numbers) -> Iterator[StoredRows]:
        """See :class:`WholeTier`; what was rendered is checked after it."""
        numbers = rows.numpy()
        located = self.reader.located(numbers)
        jpeg, sizes = located["encoding"] == JPEG, _sizes_of(located)
        _cut_to_lines(located, needed, self.reader.spec.channels)
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

    def __init__(self, split: SplitRows, decoded: bool = False) -> None:
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
        numbers, memory = rows.numpy(), self._kept.memory.numpy()
        located = self.reader.located(numbers)
        starts, sizes, jpeg = self._ends[numbers], _sizes_of(located), located["encoding"] == JPEG
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
        numbers = absent.numpy()
        located = self.reader.located(numbers)
        lengths = np.ascontiguousarray(located["bytes"])
        room = np.diff(self._ends)[numbers] if self._decoded else lengths
        for group in _groups(np.maximum(lengths, room)):
            ends = np.cumsum(lengths[group])
            stored = scratch("stored rows", (int(ends[-1]),), torch.uint8)
            memory, firsts = memory_of(stored), ends - lengths[group]
            read(self.reader, numbers[group], memory, firsts)
            parts = [memory[first:end] for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
            if self._decoded:
                parts = self._pixels(numbers[group], located[group], stored.numpy(), firsts)
            self._kept.write_parts(absent[group], parts, self._ends[numbers[group]].tolist())

    def _pixels(self, rows: Numbers, located: Places, stored: Bytes, starts: Numbers) -> list[memoryview]:
        """The pixels of rows that were read to ``starts`` of ``stored``: of each all lines."""
        sizes, lengths = _sizes_of(located), np.ascontiguousarray(located["bytes"])
        jpeg, places, needed = located["encoding"] == JPEG, _places(starts, sizes), all_lines(sizes)
        lines = lines_of(StoredRows(rows, jpeg, needed, stored, places, lengths), self.reader)
        memory, sizes = memory_of(torch.from_numpy(lines.memory)), _pixel_bytes(lines.places, self.reader)
        firsts = lines.places[:, START].tolist()
        return [memory[first : first + size] for first, size in zip(firsts, sizes.tolist(), strict=True)]


def _sizes_of(located: Places) -> Numbers:
    """Height and width of rows, int64 [B, 2]."""
    return np.stack([located["height"], located["width"]], 1).astype(np.int64)


def _cut_to_lines(located: Places, needed: Numbers, channels: int) -> None:
    """Leaves of the places of rows, but of JPEGs, those of the lines that are needed: [B, 3]."""
    line = np.where(located["encoding"] == JPEG, 0, located["width"].astype(np.int64) * channels)
    located["offset"] += needed[:, 0] * line
    located["bytes"] = np.where(line > 0, (needed[:, 1] - needed[:, 0]) * line, located["bytes"])


def _places(starts: Numbers, sizes: Numbers) -> Numbers:
    """Rows whose lines are all there, as :class:`~mmload.render.image_lines.ImageLines` has them."""
    places = np.empty((len(starts), 7), np.int64)
    places[:, 0], places[:, 1], places[:, 2], places[:, 3:5] = starts, 0, sizes[:, 0], sizes
    places[:, LAYOUT], places[:, SHRINK] = LINES, 1
    return places


def _pixel_bytes(places: Numbers, reader: Rows) -> Numbers:
    """Bytes of the pixels of rows, int64 [B]."""
    sizes: Numbers = places[:, 3] * places[:, 4] * reader.spec.channels
    return sizes


def make_whole(tier: str, split: SplitRows, decoded: bool) -> WholeTier:
    """Returns the tier of this name over a split whose images have their own sizes."""
    if tier == "memory":
        return WholeMemory(split, decoded)
    rows = row_map(split.reader.field("images"))
    return WholeDisk(split) if rows is None else WholeMapped(split, rows)


def whole_reader(split: SplitRows) -> Rows:
    """What reads the images of a split whose rows have a size each."""
    return split.reader.field("images")


def own_masks(split: SplitRows, rows: Tensor, sizes: Tensor) -> OwnMasks:
    """The masks of rows whose masks have a size each.

    Raises:
        DamagedError: if one has another size than its image, int64 [B, 2].
        StoreError: if they cannot be read.
    """
    reader = split.reader.field("masks")
    masks = read_rows(reader, rows.numpy())
    wrong = np.flatnonzero((masks.sizes != sizes.numpy()).any(1))
    if len(wrong):
        height, width = masks.sizes[wrong[0]].tolist()
        raise reader.damaged(int(rows[wrong[0]]), f"it is {height} x {width}, and its image has another size")
    return OwnMasks(torch.from_numpy(masks.bytes), torch.from_numpy(masks.offsets[:-1]))


def sizes_of(reader: Rows, rows: Tensor) -> Tensor:
    """Height and width of rows, int64 [B, 2]."""
    return torch.from_numpy(_sizes_of(reader.located(rows.numpy())))


def _groups(room: Numbers) -> list[slice]:
    """Rows in order, as many at a time as fit into :data:`PART_BYTES`, or one."""
    groups, first, used = [], 0, 0
    for k, size in enumerate(room.tolist()):
        if k > first and used + size > PART_BYTES:
            groups.append(slice(first, k))
            first, used = k, 0
        used += size
    return [*groups, slice(first, len(room))] if len(room) else groups
