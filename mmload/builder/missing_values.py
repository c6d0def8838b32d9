"""Rows of updates that have no value of an added field yet: what is stored for them, and the warning on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import repeat

import torch

from mmload.builder.shards import BuildPaths, write_blocks
from mmload.errors import counted
from mmload.records import FieldSpec
from mmload.store.manifest import FileRecord, file_name
from mmload.store.row_reader import memory_of

_WITHOUT = " without a value of "  # in each warning of :func:`missing_values`


def fill_value(spec: FieldSpec) -> float:
    """Returns the value of an added field in new rows: NaN, -1 of signed integers, 0 of others."""
    dtype = spec.torch_dtype
    if dtype.is_floating_point:
        return math.nan
    return -1 if dtype.is_signed and dtype != torch.bool else 0


def filled_files(paths: BuildPaths, folder: str, rows: int, fields: Mapping[str, FieldSpec]) -> dict[str, FileRecord]:
    """Writes the files of added fields for a new shard, whose rows have no values yet; returns their records.

    Raises:
        BuildError: if writing fails.
    """
    records = {}
    for name, spec in fields.items():
        row = torch.full((1, *spec.shape), fill_value(spec), dtype=spec.torch_dtype, device="cpu")
        file = file_name(name, spec)
        records[file] = write_blocks(paths, paths.dataset / folder / f"{file}.memmap", repeat(memory_of(row), rows))
    return records


def missing_values(fields: Mapping[str, FieldSpec], rows: int, version: int) -> list[str]:
    """Returns a warning for each added field of which new rows of a version have no values yet."""
    new = counted(rows, "new row")
    return [
        f"{new} of version {version}{_WITHOUT}{name} ({fill_value(spec):g}); add this field again"
        for name, spec in fields.items()
        if spec.version and rows
    ]


def is_on_missing_values(warning: str, field: str | None = None) -> bool:
    """Returns whether a warning is one of :func:`missing_values`, on one field or on any."""
    return (_WITHOUT if field is None else f"{_WITHOUT}{field} (") in warning
