"""Added fields of a dataset: one more file beside those of each shard, written row by row, as a new version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.builder.dataset_change import changed, commit_version, only_split, open_to_change
from mmload.builder.missing_values import without_field
from mmload.builder.shards import COLUMN, UPDATES, BuildPaths, write_blocks
from mmload.builder.staging import Staging
from mmload.errors import BuildError, UsageError, choices, counted
from mmload.records import FIELD_NAMES, PER_BOX, FieldSpec, dtype_name
from mmload.runtime.durable_files import write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import check_no_links
from mmload.store.manifest import RESERVED, Manifest, SplitRecord, is_name
from mmload.store.row_reader import memory_of
from mmload.store.shard_table import FileRecord, ShardTable, file_name
from mmload.store.versions import next_version

if TYPE_CHECKING:
    from mmload.batch import Batch

Values = Tensor | npt.NDArray[Any] | list[Any]
"""Values of rows: [rows, ...], in their order."""

Numbers = npt.NDArray[np.int64]

_FUNCTION = "a function"
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

    A call that was interrupted continues from the finished shards if it is made again with equal values, or with a
    function that gives equal values for the first rows.

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
    given = values if callable(values) else _as_array(values)
    column = {"name": name, "split": split, "values": _digest(given)}
    opened = open_to_change(dataset, by_number=not callable(given))
    chosen = only_split(opened, split)
    column["split"] = chosen.name
    _check_name(chosen, name)
    spec = _spec_of(given, chosen, min(batch_size, len(chosen)))
    spec = msgspec.structs.replace(spec, version=next_version(opened.manifest))
    with Staging(opened.path, _plan(opened.manifest, column)) as staging:
        work = _Column(name=name, spec=spec, values=given, split=chosen, paths=staging.paths, batch_size=batch_size)
        try:
            records = work.write()
        except BaseException:
            if not any(work.finished()):
                staging.discard()
            raise
        splits = {
            own: _with_column(record, name, spec, records) if chosen.name in (own, record.subset_of) else record
            for own, record in opened.manifest.splits.items()
        }
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
    splits = {
        own: _without_column(record, name) if chosen.name in (own, record.subset_of) else record
        for own, record in opened.manifest.splits.items()
    }
    return changed(opened, f"remove field {name}", lambda paths: splits, _warnings_without(opened, chosen, name))


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A field that is being written, shard by shard, each of which is finished by its seal."""

    name: str
    spec: FieldSpec
    values: Tensor | npt.NDArray[Any] | Callable[[Batch], Values]
    split: Split
    paths: BuildPaths
    batch_size: int

    def write(self) -> list[FileRecord]:
        """Writes the files of all shards that are not finished; returns the records of all."""
        table = self.split.record.shards
        folders = [self.split.record.shard_folder(self.split.name, shard) for shard in range(len(table))]
        check_no_links(self.split.path, folders)
        done = list(self.finished())
        if callable(self.values) and not self._gives_same(done):
            done = [None] * len(done)
        rows = self._rows_of_shards()
        starts = np.concatenate([[0], np.cumsum(table.rows)]).tolist()
        return [
            record or self._write_shard(shard, rows[start:stop])
            for shard, (record, start, stop) in enumerate(zip(done, starts, starts[1:], strict=False))
        ]

    def finished(self) -> Iterator[FileRecord | None]:
        """Yields the record of each shard's file that is finished, else None."""
        for shard in range(len(self.split.record.shards)):
            try:
                body = json.loads(read_regular(self._seal(shard)))
                size = self._file(shard).stat().st_size
            except (OSError, ValueError):
                yield None
                continue
            fits = body["spec"] == str(self.spec) and body["bytes"] == size
            yield FileRecord(bytes=size, crc32=body["crc32"]) if fits else None

    def _file(self, shard: int) -> Path:
        folder = self.split.record.shard_folder(self.split.name, shard)
        return self.paths.dataset / folder / f"{file_name(self.name, self.spec)}.memmap"

    def _seal(self, shard: int) -> Path:
        return self.paths.summary_file(self.split.name, int(self.split.record.shards.folder_numbers[shard]))

    def _rows_of_shards(self) -> Numbers:
        """Returns the row of the split at each place of the shards, int64 [n]; -1: it was removed."""
        rows = np.full(int(self.split.record.shards.rows.sum()), -1, np.int64)
        every = np.arange(len(self.split))
        rows[self.split.files.shard_rows(every)] = every
        return rows

    def _write_shard(self, shard: int, rows: Numbers) -> FileRecord:
        place, step = self._file(shard), self.batch_size
        if not callable(self.values):
            step = max(step, _CHUNK_BYTES // self.spec.row_bytes)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._seal(shard).parent.mkdir(parents=True, exist_ok=True)
            blocks = (memory_of(self._block(rows[start : start + step])) for start in range(0, len(rows), step))
            record = write_blocks(self.paths, place, blocks)
            body = {**msgspec.to_builtins(record), "spec": str(self.spec)}
            write_atomically(self._seal(shard), json.dumps(body))
        except OSError as error:
            raise BuildError(
                f"cannot write {place} ({error.strerror}); free space there, then run the same command again"
            ) from error
        return record

    def _block(self, rows: Numbers) -> Tensor:
        """Returns the values at some places of a shard, [n, *shape]; zeros of removed rows."""
        is_row = rows >= 0
        if is_row.all():
            return self._values_of(rows)
        block = torch.zeros((len(rows), *self.spec.shape), dtype=self.spec.torch_dtype, device="cpu")
        if is_row.any():
            block[torch.from_numpy(is_row)] = self._values_of(rows[is_row])
        return block

    def _values_of(self, rows: Numbers) -> Tensor:
        values = _values_of(self.values, self.split, rows)
        if dtype_name(values.dtype) != self.spec.dtype or tuple(values.shape[1:]) != self.spec.shape:
            raise UsageError(
                f"values of rows {rows[0]} to {rows[-1]} are {values.dtype} {list(values.shape[1:])}, and those of the "
                f"first rows {self.spec}; return the same for every batch"
            )
        return values.contiguous()

    def _gives_same(self, done: list[FileRecord | None]) -> bool:
        """Returns whether a function gives the values that the first finished shard has."""
        shard = next((index for index, record in enumerate(done) if record is not None and record.bytes), None)
        if shard is None:
            return True
        first = int(self.split.record.shards.rows[:shard].sum())
        count = min(self.batch_size, int(self.split.record.shards.rows[shard]))
        now = self._block(self._rows_of_shards()[first : first + count])
        stored = torch.from_numpy(np.fromfile(self._file(shard), np.uint8, count * self.spec.row_bytes))
        before = stored.view(self.spec.torch_dtype).reshape(now.shape)
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
    found[split.name] = [text for line in found[split.name] if (text := without_field(line, name))]
    return {own: lines for own, lines in found.items() if lines}


def _as_array(values: Values) -> Tensor | npt.NDArray[Any]:
    found = values.detach() if isinstance(values, Tensor) else np.asarray(values)
    if not found.ndim:
        raise UsageError("values is a single number; give one value per row")
    return found


def _digest(values: object) -> str:
    """Returns what identifies values: their checksum; functions cannot be told apart."""
    if callable(values):
        return _FUNCTION
    array: Any = values
    crc = 0
    step = max(1, _CHUNK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        crc = crc32(memory_of(_tensor(array[start : start + step])), crc)
    return f"{array.dtype} {list(array.shape)} {crc:08x}"


def _spec_of(values: Any, split: Split, count: int) -> FieldSpec:
    """Returns the spec of the values, found from the first rows."""
    if not callable(values) and len(values) != len(split):
        raise UsageError(f"values has {counted(len(values), 'row')}, and split {split.name!r} {len(split):,}")
    if not count:
        raise UsageError(f"split {split.name!r} has no rows to give values to")
    first = _values_of(values, split, np.arange(count))
    name = dtype_name(first.dtype)
    if name is None:
        raise UsageError(f"values are {first.dtype}, which cannot be stored; convert them, such as to float32")
    try:
        return FieldSpec(dtype=name, shape=tuple(first.shape[1:]))
    except ValueError as error:
        raise UsageError(f"values cannot be stored: {error}") from error


def _values_of(values: Any, split: Split, rows: Numbers) -> Tensor:
    """Returns the values of rows, [B, ...]."""
    if callable(values):
        found = _tensor(values(split.rows(rows)))
        if not found.ndim or len(found) != len(rows):
            raise UsageError(f"the function returned {list(found.shape)} for a batch of {counted(len(rows), 'row')}")
        return found
    in_order = (np.diff(rows) == 1).all()  # a slice of a mapped array is read at once
    return _tensor(values[slice(rows[0], rows[-1] + 1)] if in_order else values[rows])


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu().contiguous()
    array = np.asarray(values)
    try:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"values are {array.dtype}, which cannot be stored; convert them, such as to float32"
        ) from error


def _with_column(record: SplitRecord, name: str, spec: FieldSpec, files: list[FileRecord]) -> SplitRecord:
    """Returns the record of a split with a field more, or in place of one of this name."""
    other = _without_column(record, name)
    file = file_name(name, spec)
    sizes = np.array([each.bytes for each in files], np.int64)
    crcs = np.array([int(each.crc32, 16) for each in files], np.uint32)
    table = other.shards
    shards = ShardTable(table.rows, {**table.bytes, file: sizes}, {**table.crc32, file: crcs}, table.folders)
    return msgspec.structs.replace(other, fields={**other.fields, name: spec}, shards=shards)


def _without_column(record: SplitRecord, name: str) -> SplitRecord:
    if name not in record.fields:
        return record
    file, table = file_name(name, record.fields[name]), record.shards
    sizes = {own: column for own, column in table.bytes.items() if own != file}
    crcs = {own: column for own, column in table.crc32.items() if own != file}
    fields = {own: spec for own, spec in record.fields.items() if own != name}
    return msgspec.structs.replace(record, fields=fields, shards=ShardTable(table.rows, sizes, crcs, table.folders))
