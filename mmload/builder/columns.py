"""Added fields of a dataset: one more file beside those of each shard, written row by row, as a new version."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.builder.dataset_change import changed, commit_version, only_split, open_to_change
from mmload.builder.previous_version import is_on_missing_values
from mmload.builder.shard_job import write_shard
from mmload.builder.shards import COLUMN, UPDATES, BuildPaths, Chunk, ShardPlan
from mmload.builder.staging import Staging
from mmload.errors import UsageError, choices, counted
from mmload.lazy import lazy_property
from mmload.records import FIELD_NAMES, PER_BOX, FieldSpec
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import RESERVED, Manifest, ShardRecord, SplitRecord, file_name, files_of, is_name
from mmload.store.versions import next_version

if TYPE_CHECKING:
    from mmload.batch import Batch

Values = Tensor | npt.NDArray[Any] | list[Any]
"""Values of rows: [rows, ...], in their order."""

Numbers = npt.NDArray[np.int64]

_CHUNK_BYTES = 4 * 2**20
_TOLERANCE = 1e-3  # of a function's values when they are computed again, as kernels may add in another order


def add_field(
    dataset: Dataset | str | Path,
    name: str,
    values: Values | Callable[[Batch], Values],
    *,
    split: str | None = None,
    batch_size: int = 256,
) -> Dataset:
    """Adds a field to a split, or replaces one that was added: a new version of the dataset; no file of it changes.

    A call with a function that was interrupted continues from the finished shards if it is made again, and the function
    gives equal values for the first rows.

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
    given: Any = values if callable(values) or isinstance(values, Tensor) else np.asarray(values)
    opened = open_to_change(dataset, by_number=not callable(given))
    chosen = only_split(opened, split)
    column = {"name": name, "split": chosen.name}
    _check_name(chosen, name)
    if not callable(given) and given.shape[:1] != (len(chosen),):
        rows = counted(len(chosen), "row")
        raise UsageError(
            f"values are {list(given.shape)}, and split {chosen.name!r} has {rows}; give one value per row"
        )
    first = _values_of(given, chosen, np.arange(min(batch_size, len(chosen))))
    spec = _spec_of(first, next_version(opened.manifest))
    with Staging(opened.path, _plan(opened.manifest, column)) as staging:
        files = _Column(name=name, spec=spec, values=given, split=chosen, batch_size=batch_size).write(staging)
        splits = _splits_with(opened, chosen, {**_without(chosen, name), name: spec}, files)
        commit_version(staging, opened, splits, f"field {name}", _warnings_without(opened, chosen, name))
    return Dataset(opened.path)


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
    splits = _splits_with(opened, chosen, _without(chosen, name))
    return changed(opened, f"remove field {name}", lambda paths: splits, _warnings_without(opened, chosen, name))


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A field that is being added: its shards are written like those of a build, with its file alone."""

    name: str
    spec: FieldSpec
    values: Tensor | npt.NDArray[Any] | Callable[[Batch], Values]
    split: Split
    batch_size: int

    def write(self, staging: Staging) -> list[ShardRecord]:
        """Writes the shards that are not finished; returns the records of all."""
        paths, name, record = staging.paths, self.split.name, self.split.record
        ends = accumulate((shard.rows for shard in record.shards), initial=0)
        plans = [
            ShardPlan(split=name, index=number, start=start, stop=stop)
            for number, (start, stop) in zip(record.folder_numbers, pairwise(ends), strict=True)
        ]
        if not self._gives(next(plan for plan in plans if plan.stop > plan.start), paths):
            staging.clear()
        summaries = [
            paths.sealed(name, plan.index) or write_shard(paths, plan, {self.name: self.spec}, self._chunks(plan))
            for plan in plans
        ]
        return [summary.record for summary in summaries]

    def _chunks(self, plan: ShardPlan) -> Generator[Chunk]:
        step = self.batch_size
        if not callable(self.values):
            step = max(step, _CHUNK_BYTES // self.spec.row_bytes)
        for start in range(plan.start, plan.stop, step):
            values = self._values_at(start, min(start + step, plan.stop))
            yield Chunk(fields={self.name: values}, samples=[("", None)] * len(values))

    def _values_at(self, start: int, stop: int) -> Tensor:
        """Returns the values of the rows at some places of all shards, [n, *shape]; zeros of removed rows."""
        rows = self._rows_of_shards[start:stop]
        values = torch.zeros((len(rows), *self.spec.shape), dtype=self.spec.torch_dtype, device="cpu")
        if (is_row := rows >= 0).any():
            values[torch.from_numpy(is_row)] = self._values_of(rows[is_row])
        return values

    @lazy_property
    def _rows_of_shards(self) -> Numbers:
        """Row of the split at each place of the shards, int64 [n]; -1: it was removed."""
        rows = np.full(int(self.split.record.rows_of_shards.sum()), -1, np.int64)
        every = np.arange(len(self.split))
        rows[self.split.files.shard_rows(every)] = every
        return rows

    def _values_of(self, rows: Numbers) -> Tensor:
        values = _values_of(self.values, self.split, rows)
        if (spec := _spec_of(values, self.spec.version)) != self.spec:
            raise UsageError(
                f"values of rows {rows[0]} to {rows[-1]} are {spec}, and those of the first rows {self.spec}; "
                "return the same for every batch"
            )
        return values

    def _gives(self, plan: ShardPlan, paths: BuildPaths) -> bool:
        """Returns whether a function still gives the values that a finished shard begins with; arrays are not asked."""
        summary, size = paths.sealed(plan.split, plan.index), (len(plan)) * self.spec.row_bytes
        name = file_name(self.name, self.spec)
        if not callable(self.values) or summary is None or summary.record.files[name].bytes != size:
            return False
        file = paths.shard(plan.split, plan.index) / f"{name}.memmap"
        stored = torch.from_numpy(np.fromfile(file, np.uint8, self.batch_size * self.spec.row_bytes))
        before = stored.view(self.spec.torch_dtype).reshape(-1, *self.spec.shape)
        now = self._values_at(plan.start, plan.start + len(before))
        if not self.spec.torch_dtype.is_floating_point:
            return torch.equal(now, before)
        return torch.allclose(now.double(), before.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _plan(manifest: Manifest, column: dict[str, Any]) -> dict[str, Any]:
    return {
        "recipe": manifest.recipe,
        "fingerprint": manifest.fingerprint,
        UPDATES: manifest.contents,
        COLUMN: column,
        "versions": {},
    }


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


def _spec_of(values: Tensor, version: int) -> FieldSpec:
    """Returns the spec of a field with such values, [B, ...]."""
    try:
        return FieldSpec(dtype=str(values.dtype).removeprefix("torch."), shape=tuple(values.shape[1:]), version=version)
    except ValueError as error:
        raise UsageError(f"values cannot be stored: {error}") from error


def _values_of(values: Any, split: Split, rows: Numbers) -> Tensor:
    """Returns the values of rows, [B, ...], from an array of all or a function of batches."""
    if callable(values):
        found = values(split.rows(rows))
    else:
        in_order = (np.diff(rows) == 1).all()  # a slice of a mapped array is read at once
        found = values[slice(rows[0], rows[-1] + 1)] if in_order else values[rows]
    if not isinstance(found, Tensor):
        array = np.asarray(found)
        try:
            found = torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
        except (TypeError, ValueError) as error:
            raise UsageError(f"values cannot be stored: {array.dtype}; convert them, such as to float32") from error
    if found.shape[:1] != (len(rows),):
        raise UsageError(f"the function returned {list(found.shape)} for a batch of {counted(len(rows), 'row')}")
    return found.detach().cpu().contiguous()


def _splits_with(
    opened: Dataset, split: Split, fields: Mapping[str, FieldSpec], added: Sequence[ShardRecord] | None = None
) -> dict[str, SplitRecord]:
    """Returns the records of all splits, of which one and its subsets have these fields, with the files of one more."""
    splits, files = dict(opened.manifest.splits), files_of(fields)
    for own, record in splits.items():
        if split.name in (own, record.subset_of):
            shards = []
            for shard, more in zip(record.shards, added or record.shards, strict=True):
                found = shard.files | more.files
                shards.append(msgspec.structs.replace(shard, files={name: found[name] for name in files}))
            splits[own] = msgspec.structs.replace(record, fields=dict(fields), shards=tuple(shards))
    return splits
