"""Reads rows of one split from its files into memory that the caller owns.

Positioned reads (``preadv``) make large requests instead of a page fault for every 4 KiB, and a truncated or failing
file raises an exception with its path, where a mapped read is a SIGBUS. At the first row of a batch that is not in the
page cache, the reader announces all later rows to the system, so that a cold disk can work on a whole batch of each
thread. It never allocates batches and never decides an order. torch is imported only where tensors
are asked for: :meth:`RowReader.array` needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmload.records import FieldSpec
from mmload.store.dataset_folder import Folder, Revision, revision_of
from mmload.store.field_files import BYTES, files_of, need_one_size
from mmload.store.file_requests import Request, check_files, served_in_groups
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord, shard_name
from mmload.store.row_map import ROW, Places
from mmload.store.whole_reader import WholeReader

if TYPE_CHECKING:
    from torch import Tensor

COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) stays in memory after the first read, if all of it is at most this large."""

SMALL_ROW = 1024
"""The most bytes of a small row."""

_COLUMN_ROWS = 2**16
"""Rows of a column that are read at a time: numbers of all of them took 60 bytes a row."""

_JOINED_BYTES = 8 * 2**20

Numbers = NDArray[np.int64]


class _Requests(NamedTuple):
    """What a call reads: the requests in order, and the row of ``out`` after the last of each."""

    each: list[Request]
    ends: list[int]


class RowReader:
    """Reads rows of a split. Thread-safe, picklable, and safe to use after a fork.

    Args:
        folder: the dataset's.
        split: the split's name.
        record: its manifest entry.
    """

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self._folder, self._split = folder, split
        self._record = record
        self._starts = np.concatenate([[0], np.cumsum(record.shards.rows)])
        self._files: dict[tuple[int, str], HeldFile] = {}
        self._columns: dict[str, Tensor] = {}
        self._specs = {
            name: file.spec for name, file in files_of(record.fields).items() if file.counted and not file.more
        }
        self._whole: dict[str, WholeReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "split": self._split, "record": self._record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # files are opened again, lazily

    def array(self, name: str, rows: Numbers) -> NDArray[Any]:
        """Rows of a field, without torch.

        Args:
            name: the field.
            rows: int64 [B].

        Returns:
            [B, *row shape]; of bfloat16, which numpy does not have, float32.

        Raises:
            DamagedError, StoreError: as :meth:`gather`.
        """
        spec = self._spec(name)
        half = spec.dtype == "bfloat16"
        out = np.empty((len(rows), *spec.shape), np.uint16 if half else spec.dtype)
        self._fill(name, rows, np.arange(len(rows)), memoryview(out.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]  # numpy 2 on 3.11
        return (out.astype(np.uint32) << 16).view(np.float32) if half else out

    def gather(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of a field.

        Args:
            name: the field.
            rows: int64 [B].
            out: contiguous [B, *row shape] to read into; None: new memory.

        Returns:
            [B, *row shape].

        Raises:
            DamagedError: if a file is shorter than its manifest says.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """
        import torch

        column = self._column(name)
        if column is not None:
            if out is not None or column.dtype == torch.bfloat16:  # which numpy does not have
                return torch.index_select(column, 0, rows, out=out)
            return torch.from_numpy(column.numpy()[rows.numpy()])
        spec = self._spec(name)
        if out is None:
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        self.gather_into(name, rows, out)
        return out

    def gather_into(self, name: str, rows: Tensor, out: Tensor, out_rows: Tensor | None = None) -> None:
        """Rows of a field into memory; one request for rows that are contiguous in the file and in ``out``.

        Args:
            name: the field.
            rows: int64 [B].
            out: contiguous [N, *row shape].
            out_rows: int64 [B], the row of ``out`` that each goes to; None: 0, 1, 2, ...
        """
        placed = np.arange(len(rows)) if out_rows is None else out_rows.numpy()
        self._fill(name, rows.numpy(), placed, memory_of(out))

    def _fill(self, name: str, rows: Numbers, out_rows: Numbers, memory: memoryview) -> None:
        most = max(1, _JOINED_BYTES // self._spec(name).row_bytes)
        requests = self._requests(name, rows, out_rows, memory, most)
        for _ in self._served(name, rows, requests.each, [len(requests.each)]):
            pass

    def parts(self, name: str, rows: Tensor, scratch: Tensor) -> Iterator[int]:
        """The rows in turn, as many at a time as fit into ``scratch`` [n, *row shape]; each part overwrites the last.

        Yields:
            How many of its rows are filled.

        Raises:
            DamagedError, StoreError: as :meth:`gather`.
        """
        most = len(scratch)
        requests = self._requests(name, rows.numpy(), np.arange(len(rows)) % most, memory_of(scratch), most)
        last = len(requests.each)
        groups = [number for number, end in enumerate(requests.ends, 1) if end == most or number == last]
        for group, _ in zip(groups, self._served(name, rows.numpy(), requests.each, groups), strict=True):
            yield requests.ends[group - 1]

    def _served(self, name: str, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """Fill the requests of some rows, int64 [B], as :func:`served_in_groups`; they are theirs, in this order."""
        return served_in_groups(requests, groups)

    def files(self, name: str) -> tuple[list[HeldFile], list[int]] | None:
        """Returns the open files of a field's rows and the bytes of each, to be mapped."""
        file = f"{name}.{BYTES}" if self._record.fields[name].own_sizes else name
        shards = range(len(self._record.shards))
        return [self.held(file, shard) for shard in shards], [int(size) for size in self._record.shards.bytes[file]]

    def located(self, name: str, rows: Numbers) -> Places:
        """Returns where rows, int64 [B], lie in :meth:`files`.

        Raises:
            DamagedError, StoreError: as :attr:`WholeReader.index`.
        """
        spec, places = self._record.fields[name], np.empty(len(rows), ROW)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        places["file"] = shards
        if spec.own_sizes:
            offsets = self.whole(name).index.offsets
            places["offset"] = offsets[rows] - self.whole(name).first_bytes[shards]
            places["bytes"] = offsets[rows + 1] - offsets[rows]
        else:
            places["offset"] = (rows - self._starts[shards]) * spec.row_bytes
            places["bytes"] = spec.row_bytes
        return places

    def whole(self, name: str) -> WholeReader:
        """The rows of a field whose rows have their own sizes."""
        found = self._whole.get(name)
        if found is None:
            spec = self._record.fields[name]
            made = WholeReader(self._folder, self._split, self._record, name, spec, self.held, self._served)
            found = self._whole.setdefault(name, made)
        return found

    def _spec(self, name: str) -> FieldSpec:
        """The dtype and shape of each row; of a field of rows of their own sizes, ``name`` is one of its files."""
        if name not in self._specs:
            where = f"split {self._split!r} of {self._folder.path}"
            need_one_size({name: self._record.fields[name]}, where, "this")
        return self._specs[name]

    def path(self, name: str, shard: int) -> str:
        """The file of a shard that holds a field, or the part of it that ``name`` says."""
        return self._folder.name(self._file(name, shard))

    def revision(self, name: str, shard: int) -> Revision:
        """The revision of a file that rows are read from."""
        seen = self._folder.seen(self._split, name, shard)
        return revision_of(self._folder.stat(self._file(name, shard))) if seen is None else seen

    def _file(self, name: str, shard: int) -> str:
        return f"{self._split}/{shard_name(shard)}/{name}.memmap"

    def _requests(self, name: str, wanted: Numbers, out_rows: Numbers, memory: memoryview, most: int) -> _Requests:
        """One request for each run of at most ``most`` contiguous rows.

        Args:
            name: the field.
            wanted: int64 [B].
            out_rows: int64 [B], the row of the output that each goes to.
            memory: the output's, of [N, *row shape].
            most: rows of a request.
        """
        size = self._spec(name).row_bytes
        heads = _run_heads(wanted, out_rows, self._starts)
        shards = np.searchsorted(self._starts, wanted[heads], side="right") - 1
        lengths = np.diff(heads, append=len(wanted)).tolist()
        # Iterating over lists, not arrays, saves 5 us a row.
        firsts = (wanted[heads] - self._starts[shards]).tolist()
        shard_of, out_row_of = shards.tolist(), out_rows[heads].tolist()
        files = {shard: self.held(name, shard) for shard in set(shard_of)}
        requests = _Requests([], [])
        for shard, row, out_row, length in zip(shard_of, firsts, out_row_of, lengths, strict=True):
            for past in range(0, length, most):
                first = out_row + past
                after = first + min(most, length - past)
                part = memory[first * size : after * size]
                requests.each.append(Request(files[shard], (row + past) * size, part))
                requests.ends.append(after)
        return requests

    def handle(self, name: str, shard: int) -> int:
        """The descriptor of an open file, closed with the reader."""
        return self.held(name, shard).handle

    def check(self, name: str, shards: Iterable[int]) -> None:
        """Check that what was read of these shards belongs to the dataset that was opened: one ``fstat`` each.

        Raises:
            DamagedError, StoreError: if a file was written to.
        """
        check_files(self.held(name, shard) for shard in shards)

    def held(self, name: str, shard: int) -> HeldFile:
        """An open file of a shard, by its name without ``.memmap``. Lock-free, as a fork could leave a lock held."""
        key = (shard, name)
        held = self._files.get(key)
        if held is None:
            record = self._record.shards.file(shard, name)
            seen = self._folder.seen(self._split, name, shard)
            held = self._files.setdefault(key, HeldFile(self._folder, self._file(name, shard), record, seen))
        return held

    def _column(self, name: str) -> Tensor | None:
        """All rows of a field, if they are small and few enough to keep."""
        import torch

        column = self._columns.get(name)
        if column is None:
            spec = self._spec(name)
            rows = self._record.rows
            if spec.row_bytes > SMALL_ROW or spec.row_bytes * rows > COLUMN_BYTES:
                return None
            column = torch.empty((rows, *spec.shape), dtype=spec.torch_dtype)
            for first in range(0, rows, _COLUMN_ROWS):
                part = torch.arange(first, min(first + _COLUMN_ROWS, rows))
                self.gather_into(name, part, column[first : first + len(part)])
            self._columns[name] = column
        return column


def _run_heads(wanted: Numbers, out_rows: Numbers, starts: Numbers) -> Numbers:
    """Where runs begin that are contiguous in one shard's file and in the output: int64 [R], of B rows.

    Args:
        wanted: int64 [B].
        out_rows: int64 [B], the row of the output that each goes to.
        starts: int64 [shards + 1], the first row of each shard.
    """
    if _contiguous(wanted) and _contiguous(out_rows):  # a whole column in a sixth of the time
        inside = (starts > wanted[0]) & (starts <= wanted[-1])
        return np.concatenate([[0], starts[inside] - wanted[0]])
    shards = np.searchsorted(starts, wanted, side="right")
    breaks = (np.diff(shards) != 0) | (np.diff(wanted) != 1) | (np.diff(out_rows) != 1)
    return np.concatenate([[0], np.flatnonzero(breaks) + 1])[: len(wanted)]


def _contiguous(rows: Numbers) -> bool:
    return len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, not copied."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2 on 3.11
