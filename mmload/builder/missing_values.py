"""Rows of updates that have no value of an added field yet: what is stored for them, and the warning on them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import repeat

import torch

from mmload.builder.shards import BuildPaths, write_blocks
from mmload.errors import BuildError, counted
from mmload.records import FieldSpec
from mmload.store.row_reader import memory_of
from mmload.store.shard_table import FileRecord, file_name

_MISSING = re.compile(r"(?P<rows>.* without a value of )(?P<fields>.*)(?P<advice>; .*)")  # of :func:`missing_values`


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
        try:
            records[file] = write_blocks(paths, paths.dataset / folder / f"{file}.memmap", repeat(memory_of(row), rows))
        except OSError as error:
            raise BuildError(
                f"cannot write {file} of {folder} ({error.strerror}); run the same command again"
            ) from error
    return records


def missing_values(fields: Mapping[str, FieldSpec], rows: int, version: int) -> list[str]:
    """Returns a warning if new rows of a version have no values of an added field yet."""
    added = [f"{name} ({fill_value(spec):g})" for name, spec in fields.items() if spec.version]
    if not added or not rows:
        return []
    new = counted(rows, "new row")
    return [f"{new} of version {version} without a value of {', '.join(added)}; add these fields again"]


def is_on_missing_values(warning: str) -> bool:
    """Returns whether a warning is one of :func:`missing_values`."""
    return _MISSING.fullmatch(warning) is not None


def without_field(warning: str, name: str) -> str:
    """Returns a warning that an update has written on rows without values, for its other fields; "" if none is left."""
    parts = _MISSING.fullmatch(warning)
    if parts is None:
        return warning
    others = [field for field in parts["fields"].split(", ") if field.partition(" ")[0] != name]
    return f"{parts['rows']}{', '.join(others)}{parts['advice']}" if others else ""
