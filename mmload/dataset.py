"""A dataset on disk, opened: its splits by name, each a map-style dataset of rows.

Comes in: a path. Goes out: a :class:`Dataset` whose manifest has been held against the files' sizes. Opening takes a
time that grows with the shards, not with the rows. Never writes and needs neither the source nor Pillow.
"""

from __future__ import annotations

import operator
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Subset

from mmload.errors import DamagedError, UsageError, choices
from mmload.manifest import SplitRecord, read, shard_name
from mmload.mapped import joinable, mapped
from mmload.quiet import quiet
from mmload.reader import RowReader
from mmload.records import Batch, FieldSpec, make_batch

_SMALL_SHARE = 0.01
"""Of a split's bytes: what a field may take to be read into memory by ``data`` where it cannot be mapped."""


def open(path: str | Path) -> Dataset:
    """Open a dataset.

    Args:
        path: its folder.

    Raises:
        StoreError: if there is no finished dataset.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
    """
    return Dataset(Path(path))


class Dataset(Mapping[str, "Split"]):
    """The splits of a dataset by name. See :func:`open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read(path)
        for name, record in self.manifest.splits.items():
            _check_files(path / name, record)
        self._splits = {name: Split(path, name, record) for name, record in self.manifest.splits.items()}

    def __getitem__(self, name: str) -> Split:
        if name not in self._splits:
            raise UsageError(f"{self.path} has no split {name!r}; it has {choices(self._splits)}")
        return self._splits[name]

    def __contains__(self, name: object) -> bool:
        return name in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {', '.join(f'{n} {len(s):,}' for n, s in self._splits.items())})"


class Split:
    """One split: a map-style dataset for ``torch.utils.data``, and what a loader reads. Picklable, thread-safe.

    ``split[i]`` is one row, ``split[2:8]`` and ``split[[5, 1]]`` are batches; all are :class:`~mmload.records.Batch`.

    Attributes:
        name: the split's name.
        record: its manifest entry.
        reader: where rows come from.
    """

    def __init__(self, path: Path, name: str, record: SplitRecord) -> None:
        self.path = path
        self.name = name
        self.record = record
        self.reader = RowReader(path / name, record)

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Name -> dtype and row shape of each stored field."""
        return self.record.fields

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index."""
        return self.record.classes

    @property
    def mean(self) -> tuple[float, ...]:
        """Per-channel mean of the stored pixels, in [0, 1], for ``Normalize``."""
        return self.record.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per-channel standard deviation of the stored pixels, in [0, 1], for ``Normalize``."""
        return self.record.std

    def __len__(self) -> int:
        return self.record.rows

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Batch:
        if isinstance(index, slice):
            return self.rows(torch.arange(*index.indices(len(self))))
        if isinstance(index, Tensor) and index.ndim == 1:
            return self.__getitems__(index.tolist())
        if isinstance(index, list | tuple | range):
            return self.__getitems__(index)
        row: Batch = self.__getitems__([operator.index(index)])[0]  # type: ignore[arg-type]  # int-like, or TypeError
        return row

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several rows at once; ``torch.utils.data.DataLoader`` calls this for each batch.

        Raises:
            IndexError: if an index is out of range.
        """
        count = len(self)
        for index in indices:
            if not -count <= index < count:
                raise IndexError(f"row {index} of split {self.name!r}, which has {count} rows")
        return self.rows(torch.tensor([index % count for index in indices], dtype=torch.int64))

    def rows(self, rows: Tensor) -> Batch:
        """The rows with these numbers, int64 [B], every one in [0, len)."""
        fields = {name: self.reader.gather(name, rows) for name in self.fields}
        return make_batch(fields, len(rows), ids=rows)

    def subset(self, rows: Sequence[int]) -> Subset[Batch]:
        """Some of the rows as a dataset of their own, for ``torch.utils.data``; a Loader takes ``sampler=rows``."""
        return Subset(self, rows)  # type: ignore[arg-type]  # map-style by its methods

    @property
    def shards(self) -> list[Batch]:
        """Each shard as a memory-mapped tensorclass, read-only: writing to it ends the process, as to any such map."""
        return [self._mapped([index]) for index in range(len(self.record.shards))]

    @property
    def data(self) -> Batch:
        """The whole split as one memory-mapped tensorclass, read-only like :attr:`shards`.

        Several shards are mapped one behind the other. That takes whole pages, as images of 64, 128, 192 ... squared
        have; fields that have none and are small beside the images, such as targets, are read into memory.

        Raises:
            UsageError: if the split has several shards whose files cannot be joined.
        """
        return self._mapped(range(len(self.record.shards)))

    def _mapped(self, shards: Sequence[int]) -> Batch:
        """Some shards as one tensorclass; one with no rows, of which every sample was skipped, cannot be mapped."""
        filled = [index for index in shards if self.record.shards[index].rows]
        rows = sum(self.record.shards[index].rows for index in filled)
        return make_batch({name: self._mapped_field(name, filled, rows) for name in self.fields}, rows)

    def _mapped_field(self, name: str, shards: Sequence[int], rows: int) -> Tensor:
        spec = self.fields[name]
        sizes = [self.record.shards[index].rows * spec.row_bytes for index in shards]
        if not rows:
            return torch.empty((0, *spec.shape), dtype=spec.torch_dtype)
        if joinable(sizes):
            flat = mapped([self.reader.path(name, index) for index in shards], sizes)
            with quiet:  # torch warns of memory that cannot be written, which is meant
                return torch.from_numpy(flat).view(spec.torch_dtype).view(rows, *spec.shape)
        if rows * spec.row_bytes <= _SMALL_SHARE * self.record.bytes:
            return self.reader.gather(name, torch.arange(rows))
        raise UsageError(
            f"{name} of split {self.name!r}: {len(shards)} files that do not end with a page cannot be mapped as one; "
            f"take .shards, a tensorclass each, or build it as one shard with --shard-size {self.record.bytes}"
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in self.fields.items())
        return f"Split({self.name!r} of {str(self.path)!r}: {len(self):,} rows of {shown})"


def _check_files(folder: Path, record: SplitRecord) -> None:
    """Hold the shards' files against the manifest by their sizes: a time that does not grow with the rows."""
    mend = f"run: mmload repair {folder.parent} --source ROOT"
    for index, shard in enumerate(record.shards):
        for name, expected in shard.files.items():
            path = f"{folder}/{shard_name(index)}/{name}.memmap"  # text: a Path each would double the time to open
            try:
                status = os.stat(path)
            except FileNotFoundError as error:
                raise DamagedError(f"{path} is missing; {mend}") from error
            except OSError as error:
                raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{path} is not a file; {mend}")
            if status.st_size != expected.bytes:
                what = "was truncated" if status.st_size < expected.bytes else "was written to"
                raise DamagedError(
                    f"{path} has {status.st_size:,} bytes, the manifest says {expected.bytes:,}: it {what}; {mend}"
                )
