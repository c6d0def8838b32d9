"""The files of a shard's fields: one of a field whose rows are alike, three or four where each row has its own size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmload.errors import UsageError
from mmload.records import FieldSpec

BYTES, OFFSETS, SIZES, ENCODINGS = "bytes", "offsets", "sizes", "encodings"


@dataclass(frozen=True, kw_only=True)
class FieldFile:
    """One file: an array of elements of one dtype and shape.

    Attributes:
        spec: of an element.
        more: how many elements it has besides one for each row.
        counted: False: it has any number of elements.
    """

    spec: FieldSpec
    more: int = 0
    counted: bool = True

    def bytes(self, rows: int) -> int | None:
        """Its size in bytes in a shard of so many rows; None if rows do not determine it."""
        return (rows + self.more) * self.spec.row_bytes if self.counted else None


def files_of(fields: Mapping[str, FieldSpec]) -> dict[str, FieldFile]:
    """Name -> file of all fields, in their order; ``NAME.memmap`` is the file's name in the shard's folder."""
    files: dict[str, FieldFile] = {}
    for name, spec in fields.items():
        if spec.own_sizes:
            files |= {f"{name}.{part}": file for part, file in parts_of(spec).items()}
        else:
            files[name] = FieldFile(spec=spec)
    return files


def parts_of(spec: FieldSpec) -> dict[str, FieldFile]:
    """The files of a field whose rows have their own sizes, by the last word of their names."""
    parts = {
        BYTES: FieldFile(spec=FieldSpec(dtype="uint8", shape=()), counted=False),
        OFFSETS: FieldFile(spec=FieldSpec(dtype="int64", shape=()), more=1),
        SIZES: FieldFile(spec=FieldSpec(dtype="int32", shape=(2,))),
    }
    if spec.encoding == "mixed":
        parts[ENCODINGS] = FieldFile(spec=FieldSpec(dtype="uint8", shape=()))
    return parts


def need_one_size(fields: Mapping[str, FieldSpec], where: str, what: str) -> None:
    """Refuse rows of their own sizes.

    Args:
        fields: of a row.
        where: the split, for the message.
        what: needs rows of one size, for the message.

    Raises:
        UsageError: if a field has rows of their own sizes.
    """
    for name, spec in fields.items():
        if spec.own_sizes:
            raise UsageError(
                f"{name} of {where} are whole photographs, each of its own size, and {what} needs rows of one size; "
                "build the dataset without --layout whole"
            )
