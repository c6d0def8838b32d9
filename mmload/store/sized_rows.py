"""The rows of a field of which each has its own height and width: where each is, and its bytes or pixels.

What says where they are is read once and checked: 16 bytes a row stay in memory, 17 where some rows are JPEGs and
others are not.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError
from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.field_files import BYTES, ENCODINGS, OFFSETS, SIZES, parts_of
from mmload.store.field_rows import ROW, FieldRows, Numbers, Places, Rows, SplitFiles, read
from mmload.store.whole_rows import Bytes, Offsets, Pixels, Sizes, WholeRows, decoded, encoding_of, fault_of

if TYPE_CHECKING:
    from torch import Tensor


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


class SizedRows(FieldRows):
    """The rows of one field of a split, each of its own size. Thread-safe.

    Args:
        files: of the split.
        name: the field.
        spec: its dtype and shape.
    """

    def __init__(self, files: SplitFiles, name: str, spec: FieldSpec) -> None:
        super().__init__(files, name, spec)
        self.file = f"{name}.{BYTES}"
        self._first_bytes = np.concatenate([[0], np.cumsum(files.record.shards.bytes[self.file])])
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """Where all rows are: read and checked at the first use.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the row and its sample where these tell.
            StoreError: if a file cannot be opened or read, or was written to.
        """
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def located(self, rows: Numbers) -> Places:
        """See :class:`~mmload.store.field_rows.Rows`."""
        index, places = self.index, np.empty(len(rows), ROW)
        shards = np.searchsorted(self._first_rows, rows, side="right") - 1
        places["file"] = shards
        places["offset"] = index.offsets[rows] - self._first_bytes[shards]
        places["bytes"] = index.offsets[rows + 1] - index.offsets[rows]
        places["height"], places["width"] = index.sizes[rows].T
        places["encoding"] = index.encodings[rows]
        return places

    def encoded(self, row: int) -> Bytes:
        """The bytes of a row as they are stored, uint8 [n].

        Raises:
            DamagedError, StoreError: as :attr:`index`.
        """
        return read_rows(self, np.array([row])).bytes

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
            before, after = self._first_bytes[shard : shard + 2].tolist()
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
        expected = self._files.record.shards.crc32[f"{self.name}.{part}"][shard]
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
        path = self._files.held(f"{self.name}.{part}", shard).path
        return DamagedError(
            f"{path} is damaged: its checksum is not that of the manifest, so sizes or places of rows have changed; "
            f"{self._files.folder.remedy}"
        )

    def _read(self, part: str, shard: int) -> npt.NDArray[Any]:
        """All of a file of a shard, but not its rows' bytes."""
        file = parts_of(self.spec)[part]
        out = np.empty((int(self._files.record.shards.rows[shard]) + file.more, *file.spec.shape), file.spec.dtype)
        held = self._files.held(f"{self.name}.{part}", shard)
        held.fill(memoryview(out.reshape(-1).view(np.uint8).data), 0)
        held.check()
        return out


def read_rows(field: Rows, rows: Numbers) -> WholeRows:
    """Reads rows of their own sizes, int64 [B], as they are stored.

    Raises:
        DamagedError, StoreError: as :meth:`~mmload.store.field_rows.Rows.arriving`.
    """
    places = field.located(rows)
    offsets = np.concatenate([[0], np.cumsum(places["bytes"])]).astype(np.int64)
    out = np.empty(offsets[-1], np.uint8)
    read(field, rows, out.data, offsets[:-1])
    return WholeRows(
        bytes=out,
        offsets=offsets,
        sizes=np.stack([places["height"], places["width"]], 1),
        encodings=np.ascontiguousarray(places["encoding"]),
        channels=field.spec.channels,
    )
