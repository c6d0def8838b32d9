"""Added fields of a dataset: one more file beside those of each shard, written row by row, as a new version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from torch import Tensor

from mmload.builder.dataset_change import changed, only_split, open_to_change
from mmload.builder.previous_version import is_on_missing_values
from mmload.builder.shard_job import write_shard
from mmload.builder.shards import BuildPaths, Chunk, Numbers, ShardPlan, array_of, stored_dtype
from mmload.errors import UsageError, choices, counted
from mmload.records import FIELD_NAMES, PER_BOX, FieldSpec, dtype_name
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import RESERVED, ShardRecord, SplitRecord, files_of, is_name
from mmload.store.versions import next_version

if TYPE_CHECKING:
    from mmload.batch import Batch

Values = Tensor | npt.NDArray[Any] | list[Any]
"""Values of rows: [rows, ...], in their order."""

Find = Callable[[Numbers], Any]
"""Returns values of rows, [B, ...]."""

_CHUNK_BYTES = 4 * 2**20


def add_field(
    dataset: Dataset | str | Path,
    name: str,
    values: Values | Callable[[Batch], Values],
    *,
    split: str | None = None,
    batch_size: int = 256,
) -> Dataset:
    """Adds a field to a split, or replaces one that was added: a new version of the dataset; no file of it changes.

    Args:
        dataset: the dataset, in its current version, or its folder.
        name: name of the field.
        values: values of all rows in their order, [rows, ...], such as a map of a ``.npy`` file; or a function that
            is called with one :class:`~mmload.batch.Batch` after another and returns [B, ...] for it.
        split: split of the rows; None: the only one. Its subsets have the field, too.
        batch_size: number of rows that are computed and written at once.

    Returns:
        The dataset, opened in its new version.

    Raises:
        UsageError: if the name is not possible, there is no such split, or the values have another number of rows,
            or a dtype or shape that cannot be stored.
        BuildError: if another command is changing the dataset, or writing fails.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size is {batch_size!r}; give an integer from 1")
    opened = open_to_change(dataset, by_number=not callable(values))
    chosen = only_split(opened, split)
    _check_name(chosen, name)
    find: Find
    if callable(values):
        find, at_once = (lambda rows: values(chosen.rows(rows))), 0
    else:
        find, at_once = partial(_taken, _array_of_rows(values, chosen)), _CHUNK_BYTES
    spec = _spec_of(_values_of(find, np.arange(min(batch_size, len(chosen)))), next_version(opened.manifest))
    chunk, step = partial(_chunk, name, spec, find), max(batch_size, at_once // spec.row_bytes)

    def with_field(paths: BuildPaths) -> dict[str, SplitRecord]:
        files = _written(paths, chosen, {name: spec}, chunk, step)
        return _splits_with(opened, chosen, {**_without(chosen, name), name: spec}, files)

    return changed(opened, f"field {name}", with_field, _warnings_without(opened, chosen, name))


def remove_field(dataset: Dataset | str | Path, name: str, *, split: str | None = None) -> Dataset:
    """Removes a field that was added; it stays in earlier versions of the dataset.

    Args:
        dataset: the dataset, in its current version, or its folder.
        name: name of the field.
        split: its split; None: the only one.

    Returns:
        The dataset, opened in its new version.

    Raises:
        UsageError: if no such field was added.
        BuildError: if another command is changing the dataset, or writing fails.
    """
    opened = open_to_change(dataset)
    chosen = only_split(opened, split)
    _check_no_subset(chosen)
    added = [field for field, spec in chosen.record.fields.items() if spec.version]
    if name not in added:
        has = choices(added) if added else "none"
        raise UsageError(f"no field {name!r} was added to split {chosen.name!r} of {opened.path}; it has {has}")
    splits = _splits_with(opened, chosen, _without(chosen, name), chosen.record.shards)
    return changed(opened, f"remove field {name}", lambda paths: splits, _warnings_without(opened, chosen, name))


def _written(
    paths: BuildPaths, split: Split, fields: Mapping[str, FieldSpec], chunk: Callable[[Numbers], Chunk], step: int
) -> list[ShardRecord]:
    """Writes the file of an added field beside each shard, from ``step`` rows at a time; returns the files' records."""
    record, every = split.record, np.arange(len(split))
    rows = np.full(int(record.rows_of_shards.sum()), -1, np.int64)  # the row at each place of the shards; -1: none
    rows[split.files.shard_rows(every)] = every
    ends, records = accumulate((shard.rows for shard in record.shards), initial=0), list[ShardRecord]()
    for number, (start, stop) in zip(record.folder_numbers, pairwise(ends), strict=True):
        plan = ShardPlan(split=split.name, index=number, start=start, stop=stop)
        chunks = (chunk(rows[first : min(first + step, stop)]) for first in range(start, stop, step))
        records.append(write_shard(paths, plan, fields, chunks).record)
    return records


def _chunk(name: str, spec: FieldSpec, find: Find, rows: Numbers) -> Chunk:
    """Returns the values of rows, and zeros for a row -1, which was removed."""
    found, is_row = np.zeros((len(rows), *spec.shape), spec.array_dtype), rows >= 0
    if is_row.any():
        own = rows[is_row]
        given = _values_of(find, own)
        if (unlike := _spec_of(given, spec.version)) != spec:
            raise UsageError(
                f"values of rows {own[0]} to {own[-1]} are {unlike}, and those of the first rows {spec}; return the "
                "same for every batch"
            )
        found[is_row] = given
    return Chunk(fields={name: found}, samples=[("", None)] * len(rows))


def _check_name(split: Split, name: str) -> None:
    from mmload.batch import Batch  # tensordict takes a second

    if not is_name(name) and name not in RESERVED:
        raise UsageError(f"name is {name!r:.80}; give a plain name of letters, digits, _ and -, such as embedding")
    _check_no_subset(split)
    spec = split.record.fields.get(name)
    if spec is not None and not spec.version:
        raise UsageError(f"split {split.name!r} has the field {name!r} from its build; give another name")
    if name in (*FIELD_NAMES, *PER_BOX, *RESERVED) or hasattr(Batch, name):
        raise UsageError(f"name is {name!r}, which has a meaning of its own; give another name")


def _check_no_subset(split: Split) -> None:
    if split.record.subset_of is not None:
        raise UsageError(
            f"split {split.name!r} is a subset of {split.record.subset_of!r} and has its fields; name that as split, "
            "for all its rows"
        )


def _warnings_without(opened: Dataset, split: Split, name: str) -> dict[str, list[str]]:
    """Returns the warnings of a dataset's card without those on rows that have no value of a field of a split."""
    found = {own: opened.manifest.card_lines("warnings", own) for own in opened}
    found[split.name] = [line for line in found[split.name] if not is_on_missing_values(line, name)]
    return {own: lines for own, lines in found.items() if lines}


def _without(split: Split, name: str) -> dict[str, FieldSpec]:
    """Returns the fields of a split without one."""
    return {own: spec for own, spec in split.record.fields.items() if own != name}


def _spec_of(values: npt.NDArray[Any], version: int) -> FieldSpec:
    """Returns the spec of a field with such values, [B, ...]."""
    try:
        return FieldSpec(dtype=stored_dtype(values), shape=values.shape[1:], version=version)
    except ValueError as error:
        raise UsageError(f"values cannot be stored: {error}") from error


def _array_of_rows(values: Values, split: Split) -> Any:
    """Returns the values of all rows of a split as an array or a tensor."""
    given: Any = values if isinstance(values, Tensor) else np.asarray(values)
    if given.shape[:1] != (len(split),):
        rows = counted(len(split), "row")
        raise UsageError(f"values are {list(given.shape)}, and split {split.name!r} has {rows}; give one value per row")
    return given


def _taken(values: Any, rows: Numbers) -> Any:
    """Returns some of the values of all rows; a slice of a mapped array is read at once."""
    in_order = (np.diff(rows) == 1).all()
    return values[slice(rows[0], rows[-1] + 1)] if in_order else values[rows]


def _values_of(find: Find, rows: Numbers) -> npt.NDArray[Any]:
    """Returns the values of rows that a function finds, [B, ...], as :func:`array_of` has them."""
    given = find(rows)
    found = given if isinstance(given, Tensor) else np.asarray(given, np.asarray(given).dtype.newbyteorder("="))
    if dtype_name(found.dtype) is None:
        raise UsageError(f"values cannot be stored: {found.dtype}; convert them, such as to float32")
    if found.shape[:1] != (len(rows),):
        raise UsageError(f"the function returned {list(found.shape)} for a batch of {counted(len(rows), 'row')}")
    return array_of(found)


def _splits_with(
    opened: Dataset, split: Split, fields: Mapping[str, FieldSpec], written: Sequence[ShardRecord]
) -> dict[str, SplitRecord]:
    """Returns the records of all splits, of which one and its subsets have these fields; some files are ``written``."""
    splits, files = dict(opened.manifest.splits), files_of(fields)
    for own, record in splits.items():
        if split.name in (own, record.subset_of):
            found = [(shard, shard.files | more.files) for shard, more in zip(record.shards, written, strict=True)]
            shards = (msgspec.structs.replace(shard, files={name: of[name] for name in files}) for shard, of in found)
            splits[own] = msgspec.structs.replace(record, fields=dict(fields), shards=tuple(shards))
    return splits
