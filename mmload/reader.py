"""Rows of one split from its files into memory that the caller owns.

Comes in: row numbers. Goes out: their bytes, by positioned reads (``preadv``): large requests instead of a page fault
for every 4 KiB, and a file that is truncated or fails is an exception with its path, where a mapped read is a SIGBUS.
Never allocates batches and never decides an order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.errors import DamagedError, StoreError
from mmload.manifest import SplitRecord, shard_name

COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) is kept in memory once read, if the whole of it is not larger than this."""

_SMALL_ROW = 1024
_JOINED_BYTES = 8 * 2**20


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

    def gather(self, name: str, rows: Tensor) -> Tensor:
        """Rows of a field into new memory.

        Args:
            name: the field.
            rows: int64 [B].

        Returns:
            [B, *row shape].

        Raises:
            DamagedError: if a file is shorter than its manifest says.
            StoreError: if a file cannot be opened or read.
        """
        column = self._column(name)
        if column is not None:
            return column[rows]
        spec = self._record.fields[name]
        out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        self.gather_into(name, rows, out)
        return out

    def gather_into(self, name: str, rows: Tensor, out: Tensor) -> None:
        """Rows of a field into ``out`` [B, *row shape], which has to be contiguous; neighbours in one request."""
        size = self._record.fields[name].row_bytes
        memory = memory_of(out)
        places = self._places(rows)
        most = max(1, _JOINED_BYTES // size)
        at = 0
        while at < len(places):
            shard, row = places[at]
            run = 1
            while at + run < len(places) and run < most and places[at + run] == (shard, row + run):
                run += 1
            self._read(name, shard, row * size, memory[at * size : (at + run) * size])
            at += run

    def each(self, name: str, rows: Tensor, scratch: Tensor) -> Iterator[Tensor]:
        """One row after the other, each read into ``scratch`` [*row shape], which the next one overwrites."""
        size = self._record.fields[name].row_bytes
        memory = memory_of(scratch)
        for shard, row in self._places(rows):
            self._read(name, shard, row * size, memory)
            yield scratch

    def path(self, name: str, shard: int) -> Path:
        """The file that holds a field of a shard."""
        return self._folder / shard_name(shard) / f"{name}.memmap"

    def _places(self, rows: Tensor) -> Sequence[tuple[int, int]]:
        """(shard, row in the shard) of each row."""
        wanted = rows.numpy()
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        return list(zip(shards.tolist(), (wanted - self._starts[shards]).tolist(), strict=True))

    def _read(self, name: str, shard: int, offset: int, out: memoryview) -> None:
        """Bytes of a file from ``offset``, as many as ``out`` takes."""
        handle = self._handle(name, shard)
        done = 0
        while done < len(out):
            try:
                got = _read_at(handle, out[done:] if done else out, offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path(name, shard)} ({error.strerror})") from error
            if got == 0:
                raise DamagedError(
                    f"{self.path(name, shard)} ends at byte {offset + done}, before its last row: it was truncated; "
                    "repair or rebuild the dataset"
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


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise StoreError(f"cannot open {path} ({error.strerror})") from error


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
