"""Files of a split's shards: which a field has, and the records of their sizes and checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

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


def check_shards(shards: Sequence[ShardRecord], files: Mapping[str, FieldFile]) -> None:
    """Checks that shards have the files of their split's fields, of sizes that can be.

    Raises:
        ValueError: if files are missing or unknown, or numbers cannot be.
    """
    for shard in shards:
        if shard.files.keys() != files.keys():
            raise ValueError(f"a shard has the files {', '.join(shard.files)}, expected {', '.join(files)}")
        for name, file in files.items():
            size = shard.files[name].bytes
            if size != (file.bytes(shard.rows) if file.counted else size):
                raise ValueError(f"bytes of {name} are not rows x row size")
            if not file.is_list and size < shard.rows:
                raise ValueError(f"bytes of {name} are fewer than rows")
    for name in files:
        if (total := sum(shard.files[name].bytes for shard in shards)) >= _MOST:
            raise ValueError(f"bytes of {name} are {total:.3g} together, expected less than 2**62")


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
