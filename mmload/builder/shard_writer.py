"""Writes the files of a shard and seals them.

It takes chunks of rows as tensors and writes shard folders as docs/format.md describes them. To seal a shard is to
flush it and to write a summary with its checksums beside it; only sealed shards count. A shard is written in a folder
of its own and moved to its place later (:mod:`mmload.builder.shard_job`). It never decodes, never reads a source and
does not know the dataset's destination (:mod:`mmload.builder.staging` does).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mmload.builder.finished_shards import LISTS, BuildPaths, Chunk, ShardSummary
from mmload.builder.origins import origins_lines
from mmload.errors import BuildError
from mmload.records import FieldSpec
from mmload.runtime.durable_files import sync, write_atomically
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SKIPPED_NAME
from mmload.store.shard_table import (
    BYTES,
    ENCODINGS,
    META_NAME,
    OFFSETS,
    SIZES,
    FileRecord,
    ShardRecord,
    file_name,
    files_of,
    tensordict_meta,
)
from mmload.store.variable_rows import VariableRows

if TYPE_CHECKING:
    from torch import Tensor

_JSON = json.JSONEncoder(ensure_ascii=False)
_FLUSH_BYTES = 32 * 2**20


class ShardWriter:
    """Writes one shard's rows in order; it counts only after :meth:`seal`.

    Disk space for at most ``rows`` rows is reserved first.

    Raises:
        BuildError: if the disk has no room.
    """

    def __init__(self, paths: BuildPaths, split: str, index: int, fields: Mapping[str, FieldSpec], rows: int) -> None:
        self._folder = paths.shard(split, index)
        self._summary_file = paths.summary_file(split, index)
        self._fields = fields
        self._summary = ShardSummary()
        self._behind = ThreadPoolExecutor(1, "mmload-flush")
        self._flush: Future[None] | None = None
        self._unflushed = 0
        self._files: dict[str, BinaryIO] = {}
        self._lists: dict[str, BinaryIO] = {}
        files = files_of(fields)
        self._crcs, self._sizes = dict.fromkeys(files, 0), dict.fromkeys(files, 0)
        try:
            paths.make_folders(split)
            self._folder.mkdir()
            for name, file in files.items():
                self._files[name] = self._open(self._folder / f"{name}.memmap")
                _reserve(self._files[name], file.bytes(rows) or 0)
                self._append(name, memoryview(bytes(file.more * file.spec.row_bytes)))  # offsets begin with 0
            for name in LISTS:
                self._lists[name] = self._open(paths.list_file(split, index, name))
        except OSError as error:
            self.abandon()
            need = sum(file.bytes(rows) or 0 for file in files.values())
            raise BuildError(
                f"no room for {need:,} bytes at {self._folder} ({error.strerror}); free some, or build elsewhere"
            ) from error

    def write(self, chunk: Chunk) -> None:
        """Appends rows.

        Raises:
            BuildError: if the disk refuses the write.
        """
        try:
            for name, rows in chunk.fields.items():
                if isinstance(rows, VariableRows):
                    parts = variable_parts(name, rows, self._sizes[f"{name}.{BYTES}"])
                    blocks = {file: _memory(array) for file, array in parts.items() if file in self._files}
                else:
                    blocks = {file_name(name, self._fields[name]): bytes_of(rows)}
                for file, block in blocks.items():
                    self._append(file, block)
            self._lists[SAMPLES_NAME].write(samples_lines(chunk))
            self._lists[SKIPPED_NAME].write(skipped_lines(chunk.skipped))
            self._lists[ORIGINS_NAME].write(origins_lines(chunk.origins))
            self._flush_behind()
        except OSError as error:
            raise _write_failed(self._folder, error) from error
        self._summary.add(chunk)
        total = self._summary.record.rows + len(chunk.samples)
        self._summary.record = ShardRecord(rows=total, files={})

    def _append(self, name: str, block: memoryview) -> None:
        self._crcs[name] = crc32(block, self._crcs[name])
        self._files[name].write(block)
        self._sizes[name] += len(block)
        self._unflushed += len(block)

    def _flush_behind(self) -> None:
        """Flushes in a background thread, so that :meth:`seal` has little to wait for."""
        if self._flush is not None and self._flush.done():
            self._flush.result()
            self._flush = None
        if self._flush is None and self._unflushed >= _FLUSH_BYTES:
            self._unflushed = 0
            for file in self._files.values():
                file.flush()
            self._flush = self._behind.submit(_sync_data, [file.fileno() for file in self._files.values()])

    def abandon(self) -> None:
        """Closes the files without sealing."""
        self._behind.shutdown(wait=True)  # it must not sync descriptors that are reused
        for file in (*self._lists.values(), *self._files.values()):
            with suppress(OSError):  # what failed before has reported the full disk, and the file will be removed
                file.close()

    def seal(self) -> ShardSummary:
        """Finishes the shard: truncates its files, flushes them to disk, and writes the summary.

        Raises:
            BuildError: if the disk refuses.
        """
        rows = self._summary.record.rows
        files = {}
        try:
            if self._flush is not None:
                self._flush.result()  # the system reports an error only once
            for name, file in self._files.items():
                file.flush()
                file.truncate(self._sizes[name])
                sync(file)
                files[name] = FileRecord(bytes=self._sizes[name], crc32=f"{self._crcs[name]:08x}")
            for lines in self._lists.values():
                sync(lines)
            self.abandon()
            self._summary.record = ShardRecord(rows=rows, files=files)
            write_atomically(self._folder / META_NAME, tensordict_meta(self._fields, self._summary.record))
            write_atomically(self._summary_file, self._summary.dumps())
        except OSError as error:
            self.abandon()
            raise _write_failed(self._folder, error) from error
        return self._summary

    @staticmethod
    def _open(path: Path) -> BinaryIO:
        return open(path, "wb", buffering=1 << 16)


def samples_lines(chunk: Chunk) -> bytes:
    """Returns the lines of ``samples.jsonl`` for a chunk."""
    return json_lines({"id": name, "size": list(size) if size else None} for name, size in chunk.samples)


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> bytes:
    """Returns the lines of ``skipped.jsonl``."""
    return json_lines({"id": name, "reason": reason} for name, reason in skipped)


def json_lines(items: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns one JSON object per line; bytes of a file name that are not UTF-8 become JSON escapes of surrogates."""
    text = "".join(_JSON.encode(item) + "\n" for item in items)
    return text.encode("utf-8", "backslashreplace")


def variable_parts(name: str, rows: VariableRows, before: int) -> dict[str, npt.NDArray[Any]]:
    """Returns what variable-size rows append to the files of a field, after ``before`` bytes of earlier rows."""
    parts: dict[str, npt.NDArray[Any]] = {
        BYTES: rows.bytes,
        OFFSETS: rows.offsets[1:] + before,
        SIZES: rows.sizes,
        ENCODINGS: rows.encodings,
    }
    return {f"{name}.{part}": array for part, array in parts.items()}


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns a tensor's elements in row-major order, without a copy if they are contiguous."""
    import torch

    if not tensor.numel():  # torch cannot view it as bytes
        return memoryview(b"")
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _memory(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _write_failed(path: Path, error: OSError) -> BuildError:
    return BuildError(
        f"cannot write to {path} ({error.strerror}); free space there, then run the same command again to continue"
    )


def _sync_data(files: Sequence[int]) -> None:
    for file in files:
        os.fsync(file)


def _reserve(file: BinaryIO, size: int) -> None:
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
