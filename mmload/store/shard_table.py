"""What the manifest says of a split's shards, as columns: a million of them are a few arrays, not millions of objects.

In JSON they are a list of objects, or, if there are many, a table of columns in base64. The format is in
docs/format.md.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.store.field_files import FieldFile

MOST_LISTED = 1000
"""A split of more shards has a table of columns in the manifest, which is of version 4 then."""

_MOST = 2**62
_COUNT, _CRC32 = np.dtype("<i8"), np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file: its size in bytes and its CRC-32 (the one of zip and PNG) as 8 hex digits."""

    bytes: int
    crc32: str


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """One shard: its rows, and the record of each ``<name>.memmap``, by :func:`mmload.store.field_files.files_of`."""

    rows: int
    files: dict[str, FileRecord]


class ShardTable:
    """The records of a split's shards, in row order. Immutable.

    Args:
        rows: int64 [S], of each shard.
        bytes: name of a file -> int64 [S], its size in each shard.
        crc32: name of a file -> uint32 [S], its checksum in each shard.

    Raises:
        ValueError: if a sum of rows or of bytes is too large for int64.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        bytes: Mapping[str, npt.NDArray[np.int64]],
        crc32: Mapping[str, npt.NDArray[np.uint32]],
    ) -> None:
        self.rows, self.bytes, self.crc32 = rows, dict(bytes), dict(crc32)
        columns: list[npt.NDArray[Any]] = [rows, *self.bytes.values(), *self.crc32.values()]
        for column in columns:
            column.flags.writeable = False
        for name, counts in {"rows": rows, **{f"{name}.bytes": sizes for name, sizes in self.bytes.items()}}.items():
            if counts.sum(dtype=np.float64) >= _MOST:  # a sum of int64 would wrap
                raise ValueError(f"{name} are {counts.sum(dtype=np.float64):.3g} together, expected less than 2**62")

    @classmethod
    def of(cls, records: Sequence[ShardRecord]) -> ShardTable:
        """The table of some records.

        Raises:
            ValueError: if they do not have the same files, or a sum is too large.
        """
        names = list(records[0].files) if records else []
        if any(record.files.keys() != set(names) for record in records):
            raise ValueError("shards of a split have the same files")
        return cls(
            np.array([record.rows for record in records], np.int64),
            {name: np.array([record.files[name].bytes for record in records], np.int64) for name in names},
            {name: np.array([int(record.files[name].crc32, 16) for record in records], np.uint32) for name in names},
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ShardRecord:
        return ShardRecord(rows=int(self.rows[index]), files={name: self.file(index, name) for name in self.bytes})

    def file(self, index: int, name: str) -> FileRecord:
        """The record of a file of one shard."""
        return FileRecord(bytes=int(self.bytes[name][index]), crc32=f"{int(self.crc32[name][index]):08x}")

    def __iter__(self) -> Iterator[ShardRecord]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardTable):
            return NotImplemented
        if self.bytes.keys() != other.bytes.keys() or not np.array_equal(self.rows, other.rows):
            return False
        return all(
            np.array_equal(sizes, other.bytes[name]) and np.array_equal(self.crc32[name], other.crc32[name])
            for name, sizes in self.bytes.items()
        )

    __hash__ = None  # type: ignore[assignment]  # as of all containers of arrays

    def columns(self, files: Mapping[str, FieldFile]) -> dict[str, Any]:
        """As plain data for JSON: ``rows`` and, of each file, ``crc32`` and, where rows do not determine it, ``bytes``.

        Args:
            files: of the split's fields.
        """
        return {
            "rows": _text(self.rows, _COUNT),
            "files": {
                name: ({} if files[name].counted else {"bytes": _text(sizes, _COUNT)})
                | {"crc32": _text(self.crc32[name], _CRC32)}
                for name, sizes in self.bytes.items()
            },
        }


def table_of(rows: str, columns: Mapping[str, Mapping[str, str]], files: Mapping[str, FieldFile]) -> ShardTable:
    """The reverse of :meth:`ShardTable.columns`.

    Args:
        rows: of its key ``rows``.
        columns: of its key ``files``, of the same names as ``files``.
        files: of the split's fields.

    Raises:
        ValueError: if a column is not base64, or not of one value for each shard, or a number cannot be.
    """
    counts = _array(rows, _COUNT, "rows")
    most = max((file.spec.row_bytes for file in files.values()), default=1)
    if (counts < 0).any() or counts.sum(dtype=np.float64) * max(1, most) >= _MOST:
        raise ValueError("rows has numbers below 0, or too large")
    sizes, checksums = {}, {}
    for name, file in files.items():
        if file.counted:
            sizes[name] = (counts + file.more) * file.spec.row_bytes
        else:
            sizes[name] = _array(columns[name]["bytes"], _COUNT, f"{name}.bytes")
        checksums[name] = _array(columns[name]["crc32"], _CRC32, f"{name}.crc32")
        for part, column in (("bytes", sizes[name]), ("crc32", checksums[name])):
            if len(column) != len(counts):
                raise ValueError(f"{name}.{part} has {len(column):,} values for {len(counts):,} shards")
        if (sizes[name] < counts).any():
            raise ValueError(f"{name}.bytes has numbers below those of rows")
    return ShardTable(counts, sizes, checksums)


def _text(column: npt.NDArray[Any], dtype: np.dtype[Any]) -> str:
    return base64.b64encode(column.astype(dtype).tobytes()).decode("ascii")


def _array(text: str, dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    try:
        content = base64.b64decode(text, validate=True)
        return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{what} is no column of {dtype.itemsize} bytes a shard in base64") from error
