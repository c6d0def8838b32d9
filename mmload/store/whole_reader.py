"""Reads rows of their own sizes: where each is, from the files of offsets and sizes, and its bytes or pixels.

The index of a field is read once and checked: 16 bytes a row stay in memory, 17 where some rows are JPEGs and others
are not. Rows are read by their place in the file, with ``preadv``, as :mod:`mmload.store.row_reader` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder
from mmload.store.field_files import BYTES, ENCODINGS, OFFSETS, SIZES, parts_of
from mmload.store.file_requests import Request, served_in_groups
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord
from mmload.store.row_sources import Samples
from mmload.store.whole_rows import (
    Bytes,
    Offsets,
    Pixels,
    Sizes,
    WholeRows,
    decoded,
    encoding_of,
    fault_of,
)

if TYPE_CHECKING:
    from torch import Tensor

Numbers = npt.NDArray[np.int64]

Serve = Callable[[str, Numbers, Sequence[Request], Sequence[int]], Iterator[None]]
"""(file, rows, one request for each, groups) -> fills them as :func:`served_in_groups`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """Where the rows of a split are, all shards together.

    Attributes:
        offsets: int64 [rows + 1], counted as if the shards' bytes were one file.
        sizes: int32 [rows, 2], height and width.
        encodings: uint8 [rows]; of a field with one encoding a view of a single byte.
    """

    offsets: Offsets
    sizes: Sizes
    encodings: npt.NDArray[np.uint8]


class LocatedRows(Protocol):
    """Rows whose places are known: a :class:`WholeReader`, or several joined. Thread-safe."""

    spec: FieldSpec

    @property
    def index(self) -> Index:
        """Where all rows are."""

    def located(self, rows: Numbers) -> tuple[list[HeldFile], Numbers]:
        """The file of each row, and the first byte of the row there: int64 [B]."""

    def served(self, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """See :meth:`WholeReader.served`."""

    def damaged(self, row: int, reason: str) -> DamagedError:
        """The error of a row."""


class WholeReader:
    """Reads rows of one field of a split. Thread-safe; made by :meth:`mmload.store.row_reader.RowReader.whole`.

    Args:
        folder: the dataset's.
        split: the split's name.
        record: its manifest entry.
        name: the field.
        spec: of the field.
        held: gives an open file by its name and shard.
        serve: reads from the files of bytes; None: as local files are read.

    Attributes:
        first_bytes: int64 [shards + 1], where each shard's bytes begin, counted as if they were one file.
    """

    def __init__(
        self,
        folder: Folder,
        split: str,
        record: SplitRecord,
        name: str,
        spec: FieldSpec,
        held: Callable[[str, int], HeldFile],
        serve: Serve | None = None,
    ) -> None:
        self._folder, self._split, self._record = folder, split, record
        self._name, self.spec, self._held = name, spec, held
        self._serve: Serve = serve or (lambda file, rows, requests, groups: served_in_groups(requests, groups))
        self._first_rows = np.concatenate([[0], np.cumsum(record.shards.rows)])
        self.first_bytes = np.concatenate([[0], np.cumsum(record.shards.bytes[f"{name}.{BYTES}"])])
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """Where all rows are, read and checked at the first use.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the row and its sample where these tell.
            StoreError: if a file cannot be opened or read, or was written to.
        """
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def located(self, rows: Numbers) -> tuple[list[HeldFile], Numbers]:
        """The file of each row, and the first byte of the row there: int64 [B]."""
        shards = np.searchsorted(self._first_rows, rows, "right") - 1
        starts: Numbers = self.index.offsets[rows] - self.first_bytes[shards]
        held = {shard: self._held(f"{self._name}.{BYTES}", shard) for shard in set(shards.tolist())}
        return [held[shard] for shard in shards.tolist()], starts

    def served(self, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """Fill one request for each of some rows, int64 [B], as :func:`~mmload.store.file_requests.served_in_groups`.

        Raises:
            DamagedError, StoreError: if one cannot be filled, or its file was written to.
        """
        return self._serve(f"{self._name}.{BYTES}", rows, requests, groups)

    def encoded(self, row: int) -> Bytes:
        """The bytes of a row as they are stored, uint8 [n].

        Raises:
            DamagedError, StoreError: as :attr:`index`.
        """
        return self.rows(np.array([row])).bytes

    def rows(self, rows: Numbers) -> WholeRows:
        """Rows as they are stored, in memory.

        Args:
            rows: int64 [B].

        Raises:
            DamagedError, StoreError: as :attr:`index`.
        """
        return read_rows(self, rows)

    def pixels(self, row: int) -> Pixels:
        """The pixels of a row, uint8 [*channels, H, W], in memory of any order.

        Raises:
            DamagedError: as :attr:`index`, or if its bytes are not a JPEG of its size.
            StoreError: as :attr:`index`.
        """
        data = self.encoded(row)
        height, width = self.index.sizes[row].tolist()
        try:
            found = decoded(data, int(self.index.encodings[row]), height, width, self.spec.channels)
        except DamagedError as error:
            raise self.damaged(row, str(error)) from error
        return found if len(self.spec.shape) == 3 else found[0]

    def tensors(self, rows: Tensor) -> list[Tensor]:
        """The pixels of some rows, each uint8 [*channels, H, W] and contiguous.

        Raises:
            DamagedError, StoreError: as :meth:`pixels`.
        """
        import torch

        return [torch.from_numpy(np.ascontiguousarray(self.pixels(row))) for row in rows.tolist()]

    def damaged(self, row: int, reason: str) -> DamagedError:
        """The error of a row: its number, the sample that it was made from, what is wrong, and what to do."""
        try:
            sample = repr(Samples(self._folder, self._split, self._record).source(row).id)
        except MmloadError:
            sample = "a sample that its damaged list does not name"
        where = f"row {row} of split {self._split!r} of {self._folder.title}, made from {sample}"
        return DamagedError(f"{self._name} of {where}, is damaged: {reason}; {self._folder.remedy}")

    def _read_index(self) -> Index:
        rows, encoding = int(self._first_rows[-1]), encoding_of(self.spec)
        offsets, sizes = np.zeros(rows + 1, np.int64), np.empty((rows, 2), np.int32)
        encodings = np.empty(rows, np.uint8) if encoding is None else np.broadcast_to(np.uint8(encoding), rows)
        changed: list[tuple[int, str]] = []
        for shard, (first, stop) in enumerate(zip(self._first_rows[:-1], self._first_rows[1:], strict=True)):
            parts = {part: self._read(part, shard) for part in parts_of(self.spec) if part != BYTES}
            changed += [(shard, part) for part, content in parts.items() if not self._is_intact(part, shard, content)]
            sizes[first:stop] = parts[SIZES]
            if encoding is None:
                encodings[first:stop] = parts[ENCODINGS]
            before, after = self.first_bytes[shard : shard + 2].tolist()
            fault = fault_of(
                parts[OFFSETS], sizes[first:stop], encodings[first:stop], self.spec.channels, after - before
            )
            if fault is not None:
                raise self.damaged(int(first) + fault[0], fault[1])
            offsets[first : stop + 1] = parts[OFFSETS] + before
        index = Index(offsets=offsets, sizes=sizes, encodings=encodings)
        if changed:
            raise self._checksum_mismatch(index, *changed[0])
        return index

    def _is_intact(self, part: str, shard: int, content: npt.NDArray[Any]) -> bool:
        """Whether a file's content has the checksum of the manifest."""
        expected = self._record.shards.crc32[f"{self._name}.{part}"][shard]
        return crc32(content.reshape(-1).view(np.uint8).data) == int(expected)

    def _checksum_mismatch(self, index: Index, shard: int, part: str) -> DamagedError:
        """The error of the first row whose bytes contradict a damaged index, else of the damaged file."""
        reader = copy(self)
        reader._index = index
        for row in range(*self._first_rows[shard : shard + 2].tolist()):
            try:
                reader.pixels(row)
            except DamagedError as error:
                return error
        path = self._held(f"{self._name}.{part}", shard).path
        return DamagedError(
            f"{path} is damaged: its checksum is not that of the manifest, so sizes or places of rows have changed; "
            f"{self._folder.remedy}"
        )

    def _read(self, part: str, shard: int) -> npt.NDArray[Any]:
        """All of a file of a shard, but not its rows' bytes."""
        file = parts_of(self.spec)[part]
        out = np.empty((int(self._record.shards.rows[shard]) + file.more, *file.spec.shape), file.spec.dtype)
        held = self._held(f"{self._name}.{part}", shard)
        held.fill(memoryview(out.reshape(-1).view(np.uint8).data), 0)
        held.check()
        return out


def read_rows(reader: LocatedRows, rows: Numbers) -> WholeRows:
    """Rows as they are stored, int64 [B], in memory."""
    index = reader.index
    lengths = index.offsets[rows + 1] - index.offsets[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.empty(offsets[-1], np.uint8)
    requests = row_requests(reader, rows, out.data, offsets[:-1], lengths)
    for _ in reader.served(rows, requests, [len(rows)]):
        pass
    return WholeRows(
        bytes=out,
        offsets=offsets,
        sizes=index.sizes[rows],
        encodings=index.encodings[rows],
        channels=reader.spec.channels,
    )


def row_requests(
    reader: LocatedRows,
    rows: Numbers,
    memory: memoryview,
    firsts: Numbers,
    lengths: Numbers,
    skipped: Numbers | int = 0,
) -> list[Request]:
    """What fills memory with rows, or with a part of each.

    Args:
        reader: of the rows.
        rows: int64 [B].
        memory: where they go.
        firsts: int64 [B], where each begins there.
        lengths: int64 [B], bytes that are read of each.
        skipped: int64 [B], bytes of each before those.
    """
    files, starts = reader.located(rows)
    places = zip(
        rows.tolist(), files, (starts + skipped).tolist(), firsts.tolist(), (firsts + lengths).tolist(), strict=True
    )
    return [
        Request(file, start, memory[first:stop], partial(reader.damaged, row))
        for row, file, start, first, stop in places
    ]
