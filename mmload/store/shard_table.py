"""Files of a split's shards: which a field has, and a table of their sizes and checksums.

The manifest lists the shards one by one; in memory they are the columns of a table, as readers need all sizes at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.records import FieldSpec

BYTES, OFFSETS, SIZES, ENCODINGS = "bytes", "offsets", "sizes", "encodings"
META_NAME = "meta.json"

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Crc32 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}\Z")]

_MOST = 2**62


@dataclass(frozen=True, kw_only=True)
class FieldFile:
    """File of a field in a shard: an array of elements of one dtype and shape.

    Attributes:
        spec: spec of an element.
        more: number of elements in addition to one per row.
        counted: whether the rows determine the number of elements.
        is_list: whether its rows are lists, which may be empty; object storage gives these files as a whole.
    """

    spec: FieldSpec
    more: int = 0
    counted: bool = True
    is_list: bool = False

    def bytes(self, rows: int) -> int | None:
        """Returns the size of the file in a shard with this number of rows; None if rows do not determine it."""
        return (rows + self.more) * self.spec.row_bytes if self.counted else None


def files_of(fields: Mapping[str, FieldSpec]) -> dict[str, FieldFile]:
    """Returns name -> file of all fields, in their order; ``NAME.memmap`` is the file's name in the shard's folder."""
    files: dict[str, FieldFile] = {}
    for name, spec in fields.items():
        if spec.encoding is not None:
            files |= {f"{name}.{part}": file for part, file in parts_of(spec).items()}
        else:
            files[file_name(name, spec)] = FieldFile(spec=spec)
    return files


def file_name(field: str, spec: FieldSpec) -> str:
    """Returns the name, without ``.memmap``, of the file with the rows of a field; of an added one with its version."""
    if spec.encoding is not None:
        return f"{field}.{BYTES}"
    return f"{field}.{spec.version}" if spec.version else field


def parts_of(spec: FieldSpec) -> dict[str, FieldFile]:
    """Returns the files of a variable-size field or a list, by the last word of their names."""
    parts = {
        BYTES: FieldFile(spec=FieldSpec(dtype="uint8", shape=()), counted=False, is_list=spec.is_list),
        OFFSETS: FieldFile(spec=FieldSpec(dtype="int64", shape=()), more=1),
    }
    if not spec.is_list:
        parts[SIZES] = FieldFile(spec=FieldSpec(dtype="int32", shape=(2,)))
    if spec.encoding == "mixed":
        parts[ENCODINGS] = FieldFile(spec=FieldSpec(dtype="uint8", shape=()))
    return parts


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of a file in bytes, and its CRC-32 (the one of zip and PNG) as 8 hexadecimal digits."""

    bytes: Count
    crc32: Crc32


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Description of a shard.

    Attributes:
        rows: number of rows.
        files: record of each ``NAME.memmap``, by the names of :func:`files_of`.
        folder: number of its folder; None: its own number.
    """

    rows: Count
    files: dict[str, FileRecord]
    folder: Count | None = None


class ShardTable:
    """Records of a split's shards, in row order. Immutable.

    Args:
        rows: int64 [S], rows of each shard.
        bytes: name of a file -> int64 [S], its size in each shard.
        crc32: name of a file -> uint32 [S], its checksum in each shard.
        folders: int64 [S], number of each shard's folder; None: the shard's own number.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        bytes: Mapping[str, npt.NDArray[np.int64]],
        crc32: Mapping[str, npt.NDArray[np.uint32]],
        folders: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.rows, self.bytes, self.crc32, self.folders = rows, dict(bytes), dict(crc32), folders

    @classmethod
    def from_records(cls, records: Sequence[ShardRecord], folders: Sequence[int] | None = None) -> ShardTable:
        """Returns the table of the given records; the numbers of their folders replace those that the records have.

        Raises:
            ValueError: if they do not have the same files.
        """
        names = list(records[0].files) if records else []
        if any(record.files.keys() != set(names) for record in records):
            raise ValueError("shards of a split have the same files")
        numbers = [record.folder for record in records] if folders is None else folders
        return cls(
            np.array([record.rows for record in records], np.int64),
            {name: np.array([record.files[name].bytes for record in records], np.int64) for name in names},
            {name: np.array([int(record.files[name].crc32, 16) for record in records], np.uint32) for name in names},
            None if None in numbers else np.array(numbers, np.int64),
        )

    def completed(self, files: Mapping[str, FieldFile]) -> ShardTable:
        """Returns the table, which has columns even of no shards, checked by the files of the split's fields.

        Raises:
            ValueError: if files are missing or unknown, or numbers cannot be.
        """
        if not len(self):
            nothing = np.empty(0, np.int64)
            return ShardTable(self.rows, dict.fromkeys(files, nothing), dict.fromkeys(files, nothing.astype(np.uint32)))
        if self.bytes.keys() != files.keys():
            raise ValueError(f"shards have the files {', '.join(self.bytes)}, expected {', '.join(files)}")
        most = max(file.spec.row_bytes for file in files.values())
        if self.rows.sum(dtype=np.float64) * most >= _MOST:  # a sum of int64 would wrap
            raise ValueError(f"rows of shards are {self.rows.sum(dtype=np.float64):.3g} together, which are too many")
        if len(np.unique(self.folder_numbers)) != len(self):
            raise ValueError("two shards have the same folder")
        for name, file in files.items():
            sizes = self.bytes[name]
            if file.counted and not np.array_equal(sizes, (self.rows + file.more) * file.spec.row_bytes):
                raise ValueError(f"bytes of {name} are not rows x row size")
            if not file.is_list and (sizes < self.rows).any():
                raise ValueError(f"bytes of {name} are fewer than rows")
            if (total := sizes.sum(dtype=np.float64)) >= _MOST:
                raise ValueError(f"bytes of {name} are {total:.3g} together, expected less than 2**62")
        return self

    @property
    def folder_numbers(self) -> npt.NDArray[np.int64]:
        """Number of each shard's folder, int64 [S]."""
        return np.arange(len(self)) if self.folders is None else self.folders

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ShardRecord:
        files = {name: self.file(index, name) for name in self.bytes}
        folder = None if self.folders is None else int(self.folders[index])
        return ShardRecord(rows=int(self.rows[index]), files=files, folder=folder)

    def file(self, index: int, name: str) -> FileRecord:
        """Returns the record of a file of one shard."""
        return FileRecord(bytes=int(self.bytes[name][index]), crc32=f"{int(self.crc32[name][index]):08x}")

    def __iter__(self) -> Iterator[ShardRecord]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardTable):
            return NotImplemented
        own, its = ([(shard.rows, shard.files) for shard in table] for table in (self, other))
        return own == its and np.array_equal(self.folder_numbers, other.folder_numbers)

    __hash__ = None  # type: ignore[assignment]  # as of all containers of arrays


def tensordict_meta(fields: Mapping[str, FieldSpec], shard: ShardRecord) -> str:
    """Returns the ``meta.json`` by which ``TensorDict.load_memmap`` opens a shard.

    Added fields are not in it: the file of the build stays. ``_type`` is a constant of tensordict. The batch size is
    [rows], or [] with variable-size rows or lists, as not every file has one element per row then.
    """
    fields = {name: spec for name, spec in fields.items() if not spec.version}
    meta: dict[str, Any] = {
        name: {
            "device": "cpu",
            "shape": [shard.files[name].bytes // file.spec.row_bytes, *file.spec.shape],
            "dtype": f"torch.{file.spec.dtype}",
            "is_nested": False,
        }
        for name, file in files_of(fields).items()
    }
    shape = [] if any(spec.encoding is not None for spec in fields.values()) else [shard.rows]
    meta |= {"shape": shape, "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    return json.dumps(meta, indent=1) + "\n"
