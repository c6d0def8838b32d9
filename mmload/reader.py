"""Rows of one split from its files into memory that the caller owns.

Comes in: row numbers. Goes out: their bytes, by positioned reads (``preadv``): large requests instead of a page fault
for every 4 KiB, and a file that is truncated or fails is an exception with its path, where a mapped read is a SIGBUS.
The first row of a batch that is not in the page cache makes the system told of all the rows after it, so that a cold
disk has a whole batch of each thread to work on. Never allocates batches and never decides an order.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.errors import DamagedError, StoreError
from mmload.manifest import SplitRecord, shard_name

COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) is kept in memory once read, if the whole of it is not larger than this."""

_SMALL_ROW = 1024
_JOINED_BYTES = 8 * 2**20


class _Request(NamedTuple):
    """Bytes of a shard's file from ``offset``, as many as ``out`` takes."""

    shard: int
    offset: int
    out: memoryview


class RowReader:
    """Reads rows of a split. Thread-safe, picklable, and safe to use after a fork.

    Args:
        folder: the split's folder.
        record: its manifest entry.
    """

    def __init__(self, folder: Path, record: SplitRecord) -> None:
        self._folder = folder
        self._record = record
        self._starts = np.cumsum([0, *(shard.rows for shard in record.shards)])
        self._files: dict[tuple[int, str], int] = {}
        self._columns: dict[str, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "record": self._record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], state["record"])  # type: ignore[misc]  # files are opened anew, lazily

    def __del__(self) -> None:
        for handle in self.__dict__.get("_files", {}).values():
            os.close(handle)

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
            StoreError: if a file cannot be opened or read.
        """
        column = self._column(name)
        if column is not None:
            if out is not None or column.dtype == torch.bfloat16:  # which numpy does not have
                return torch.index_select(column, 0, rows, out=out)
            return torch.from_numpy(column.numpy()[rows.numpy()])
        spec = self._record.fields[name]
        if out is None:
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        self.gather_into(name, rows, out)
        return out

    def gather_into(self, name: str, rows: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Rows of a field into memory; neighbours that stay neighbours in one request.

        Args:
            name: the field.
            rows: int64 [B].
            out: contiguous [N, *row shape].
            places: int64 [B], where in ``out`` each row goes; None: one after the other from its start.
        """
        size = self._record.fields[name].row_bytes
        memory = memory_of(out)
        requests = []
        for shard, first, at, run in self._runs(rows, places, max(1, _JOINED_BYTES // size)):
            requests.append(_Request(shard, first * size, memory[at * size : (at + run) * size]))
        for _ in self._served(name, requests):
            pass

    def parts(self, name: str, rows: Tensor, scratch: Tensor) -> Iterator[int]:
        """The rows in turn, as many at a time as ``scratch`` [n, *row shape] takes; the next ones overwrite them.

        Yields:
            How many of its rows are filled.
        """
        size, most = self._record.fields[name].row_bytes, len(scratch)
        memory = memory_of(scratch)
        requests, ends = [], []
        for shard, first, at, run in self._runs(rows, torch.arange(len(rows)) % most, most):
            requests.append(_Request(shard, first * size, memory[at * size : (at + run) * size]))
            ends.append(at + run)
        for number, _ in enumerate(self._served(name, requests), 1):
            end = ends[number - 1]
            if end == most or number == len(requests):
                yield end

    def path(self, name: str, shard: int) -> str:
        """The file that holds a field of a shard; text, because a Path takes longer to make than the file to open."""
        return os.path.join(self._folder, shard_name(shard), f"{name}.memmap")

    def _runs(self, rows: Tensor, places: Tensor | None, most: int) -> Iterator[tuple[int, int, int, int]]:
        """Rows as runs of at most ``most`` neighbours: shard, row in the shard, place, length."""
        wanted = rows.numpy()
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        firsts = wanted - self._starts[shards]
        ats = np.arange(len(wanted)) if places is None else places.numpy()
        breaks = (np.diff(shards) != 0) | (np.diff(firsts) != 1) | (np.diff(ats) != 1)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(wanted)]
        for head, end in pairwise(edges):
            for start in range(head, end, most):
                yield int(shards[start]), int(firsts[start]), int(ats[start]), min(most, end - start)

    def _served(self, name: str, requests: Sequence[_Request]) -> Iterator[None]:
        """Fill the requests' memories in turn; once one of them has to wait for the disk, all others are announced."""
        announced = False
        for number, request in enumerate(requests):
            done = 0
            if not announced:
                done = _read_cached(self._handle(name, request.shard), request.out, request.offset)
                if done < len(request.out):
                    announced = True
                    self._announce(name, requests[number:])
            self._read(name, request, done)
            yield

    def _announce(self, name: str, requests: Sequence[_Request]) -> None:
        """Have the system start reading in its own time; it is a hint, and may come to nothing."""
        if not hasattr(os, "posix_fadvise"):
            return
        for request in requests:
            handle = self._handle(name, request.shard)
            with suppress(OSError):
                os.posix_fadvise(handle, request.offset, len(request.out), os.POSIX_FADV_WILLNEED)

    def _read(self, name: str, request: _Request, done: int) -> None:
        """What is left of a request after its first ``done`` bytes."""
        handle, out = self._handle(name, request.shard), request.out
        while done < len(out):
            try:
                got = _read_at(handle, out[done:] if done else out, request.offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path(name, request.shard)} ({error.strerror})") from error
            if got == 0:
                raise DamagedError(
                    f"{self.path(name, request.shard)} ends at byte {request.offset + done}, before its last row: "
                    "it was truncated; repair or rebuild the dataset"
                )
            done += got

    def _handle(self, name: str, shard: int) -> int:
        """The open file; no lock, so that a fork at any moment leaves none held."""
        key = (shard, name)
        handle = self._files.get(key)
        if handle is None:
            opened = _open(self.path(name, shard))
            handle = self._files.setdefault(key, opened)
            if handle != opened:  # another thread was first
                os.close(opened)
        return handle

    def _column(self, name: str) -> Tensor | None:
        """The whole of a field, if its rows are small and it is not large."""
        column = self._columns.get(name)
        if column is None:
            spec = self._record.fields[name]
            rows = self._record.rows
            if spec.row_bytes > _SMALL_ROW or spec.row_bytes * rows > COLUMN_BYTES:
                return None
            column = torch.empty((rows, *spec.shape), dtype=spec.torch_dtype)
            self.gather_into(name, torch.arange(rows), column)
            self._columns[name] = column
        return column


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, not copied."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2 on 3.11


def _open(path: str) -> int:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE or not _allow_more_files():
            raise StoreError(f"cannot open {path} ({error.strerror})") from error
    return _open(path)


def _allow_more_files() -> bool:
    """Raise this process's limit of open files, often 1,024, to what it may be; whether that changed anything.

    Each field of each shard is a file: 2 TB in shards of 1 GiB are 4,000 with their targets.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS names a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return soft != hard
    return False


def _read_cached(handle: int, out: memoryview, offset: int) -> int:
    """As many bytes as are in the page cache, without waiting for the disk; 0 where that cannot be asked."""
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        return os.preadv(handle, [out], offset, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: none is; and what else is wrong, the read that waits will say
        return 0


if hasattr(os, "preadv"):

    def _read_at(handle: int, out: memoryview, offset: int) -> int:
        return os.preadv(handle, [out], offset)

else:  # Windows has no positioned read: seek and read have to go together
    _SEEK_LOCK = threading.Lock()

    def _read_at(handle: int, out: memoryview, offset: int) -> int:
        with _SEEK_LOCK:
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, len(out))
        out[: len(data)] = data
        return len(data)
