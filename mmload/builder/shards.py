"""Shards of a build: rows that are ready to be stored, the files that they are written to, and what is known of them.

A writer takes chunks of rows as tensors and writes a shard's folder as docs/format.md describes it. To seal a shard is
to flush it and to write a summary with its checksums beside it; only sealed shards count. A shard is written in a
folder of its own and moved to its place later (:mod:`mmload.builder.shard_job`). Here are the lists of a split, too,
which are joined from the lines of its shards. A writer never decodes, never reads a source and does not know the
dataset's destination (:mod:`mmload.builder.staging` does).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

import mmload
from mmload.errors import BuildError, DamagedError
from mmload.records import (
    BOXES,
    BOXES_CUT,
    BOXES_DROPPED,
    CLIPPED,
    IMAGES_EMPTIED,
    FieldSpec,
)
from mmload.runtime.durable_files import TOKEN_BYTES, begin_sync, sync, sync_folder, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SKIPPED_NAME, convert_json, shard_name
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
from mmload.store.unfinished import COMMAND, PLAN_NAME
from mmload.store.variable_rows import VariableRows

if TYPE_CHECKING:
    from torch import Tensor

UNNAMED = (CLIPPED, BOXES, BOXES_DROPPED, BOXES_CUT, IMAGES_EMPTIED)
"""Losses that a person expects; of all others the first samples are named, as somebody has to look at them."""
_FIRST = 3


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One shard: planned rows [start, stop) of a split."""

    split: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Division of the splits into shards; every attribute is keyed by split.

    Attributes:
        fields: fields of a row.
        sizes: bytes of a row.
        shard_samples: planned samples per shard.
        plans: the shards, in order.
    """

    fields: Mapping[str, dict[str, FieldSpec]]
    sizes: Mapping[str, int]
    shard_samples: Mapping[str, int]
    plans: Mapping[str, list[ShardPlan]]

    @property
    def all_plans(self) -> list[ShardPlan]:
        """The shards of all splits, in order."""
        return [plan for plans in self.plans.values() for plan in plans]


class Statistics(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exact statistics of some rows: those of a sample, a chunk, a shard or a split.

    Attributes:
        sums: per channel, the sum of the images' pixels, without the borders that transforms added. Empty without uint8
            images.
        squares: per channel, the sum of their squares.
        pixels: number of pixels per channel that are summed.
        class_counts: class index -> rows.
        losses: counts of what was left out of the rows, by names such as :data:`mmload.records.CLIPPED`; no zeros.
        first: for those of the losses that are reported with names, the first samples.
    """

    sums: list[int] = []
    squares: list[int] = []
    pixels: int = 0
    class_counts: dict[int, int] = {}
    losses: dict[str, int] = {}
    first: dict[str, list[str]] = {}

    def add(self, other: Statistics) -> None:
        """Adds the statistics of the rows that follow."""
        self.sums = [*map(add, self.sums, other.sums)] or self.sums or other.sums
        self.squares = [*map(add, self.squares, other.squares)] or self.squares or other.squares
        self.pixels += other.pixels
        for target, count in other.class_counts.items():
            self.class_counts[target] = self.class_counts.get(target, 0) + count
        for loss, count in other.losses.items():
            self.losses[loss] = self.losses.get(loss, 0) + count
        for loss, samples in other.first.items():
            self.first[loss] = [*self.first.get(loss, ()), *samples][:_FIRST]

    def add_losses(self, sample: str, losses: Mapping[str, int]) -> None:
        """Adds the losses of one sample."""
        found = {loss: count for loss, count in losses.items() if count}
        self.add(Statistics(losses=found, first={loss: [sample] for loss in found if loss not in UNNAMED}))

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the mean and the population standard deviation of each channel, in [0, 1]; nothing of 0 pixels."""
        if not self.pixels:
            return (), ()
        mean = tuple(total / self.pixels / 255 for total in self.sums)
        pairs = zip(self.sums, self.squares, strict=True)
        spread = (max(0, square * self.pixels - total * total) for total, square in pairs)
        return mean, tuple(float(value**0.5) / self.pixels / 255 for value in spread)

    def entries(self, classes: int) -> dict[str, Any]:
        """Returns the entries of a split's record that are statistics of its rows."""
        mean, std = self.mean_std()
        counts = tuple(self.class_counts.get(index, 0) for index in range(classes))
        return {"class_counts": counts, "mean": mean, "std": std}


class SampleOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What an update must know about the sample of a row: a line of ``origins.jsonl``.

    Attributes:
        revision: revision of the sample in its source.
        checksum: checksum of its files; "" if that is unknown.
        sums: per channel, the sum of the image's pixels, without borders. Empty without uint8 images.
        squares: per channel, the sum of their squares.
        pixels: number of pixels per channel that are summed.
        losses: counts of what was left out of the sample, by names such as :data:`mmload.records.CLIPPED`.
    """

    revision: str
    checksum: str = ""
    sums: list[int] = []
    squares: list[int] = []
    pixels: int = 0
    losses: dict[str, int] = {}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Neighboring rows, ready to be stored.

    Attributes:
        fields: tensor [n, ...] of each field, in the order of the rows; or variable-size rows.
        samples: (sample id, (height, width) of the image in its file, or None) of each row.
        skipped: (sample id, reason) of the samples left out.
        statistics: those of the rows.
        origins: of each row, if the source can tell which samples have changed.
    """

    fields: Mapping[str, Tensor | VariableRows]
    samples: Sequence[tuple[str, tuple[int, int] | None]]
    skipped: Sequence[tuple[str, str]] = ()
    statistics: Statistics = field(default_factory=Statistics)
    origins: Sequence[SampleOrigin] = ()


class ShardSummary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Checksums, counts and statistics that a build records for a sealed shard.

    Attributes:
        record: its rows and files.
        statistics: those of its rows.
        skipped: number of samples that were left out.
    """

    record: ShardRecord = ShardRecord(rows=0, files={})
    statistics: Statistics = msgspec.field(default_factory=Statistics)
    skipped: int = 0

    def dumps(self) -> str:
        """Returns the summary as JSON text."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True))

    @staticmethod
    def loads(text: str, path: str) -> ShardSummary:
        """Parses a summary as :meth:`dumps` writes it.

        Raises:
            DamagedError: if it is not a summary.
        """
        try:
            return convert_json(json.loads(text), ShardSummary, path, advice="run the same command again")
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{path} is not the summary of a shard ({error})") from error


Summaries = Mapping[tuple[str, int], ShardSummary]
"""(split, number) of a finished shard -> its summary."""

UPDATES = "updates"
"""Key of the plan of a change: contents of the version that it follows."""

COLUMN = "column"
"""Key of a plan that adds a field: what is added."""

PARTS = "parts"
"""Folder of the shards that are being written, inside that of their build."""

LISTS = (SAMPLES_NAME, SKIPPED_NAME, ORIGINS_NAME)
"""Names of the lists of a split, which each shard has its lines of."""


_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "numpy")


def made_by() -> dict[str, str]:
    """Package -> version, for the packages that influence the stored bytes besides the recipe and the source."""
    found = {"mmload": mmload.__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def asked_by(command: Sequence[str]) -> dict[str, Any]:
    """Returns what a plan says about the command; for a part, the command that builds everything."""
    words = [word for word in command if not word.startswith("--part=") and word != "--commit"]
    if "--part" in words:
        at = words.index("--part")
        del words[at : at + 2]
    return {COMMAND: {"words": words, "folder": os.getcwd()}} if command else {}


@dataclass(frozen=True)
class BuildPaths:
    """Paths of an unfinished build: the dataset as it grows, and notes beside it. Picklable."""

    folder: Path
    plan: int | None = field(default=None, compare=False)
    """CRC-32 of the plan in the folder: a later command may make a folder of this name. None: it is not compared."""

    def with_plan(self) -> BuildPaths:
        """Returns the paths of the folder that is there now, as long as it has the plan that it has now."""
        return BuildPaths(self.folder, self._plan_checksum())

    def check_there(self) -> None:
        """Checks that the folder is still that of this build, or of another that writes the same shards.

        Raises:
            FileNotFoundError: if it was removed; another command may have made its own there since.
        """
        if self.plan is not None and self._plan_checksum() != self.plan:
            raise FileNotFoundError(errno.ENOENT, "it is no longer there", str(self.folder))

    def _plan_checksum(self) -> int | None:
        with suppress(OSError):
            return crc32(read_regular(self.folder / PLAN_NAME))
        return None

    @property
    def dataset(self) -> Path:
        """Folder that will become the dataset."""
        return self.folder / "dataset"

    def shard(self, split: str, index: int) -> Path:
        """Returns the folder of a shard."""
        return self.dataset / split / shard_name(index)

    def summary_file(self, split: str, index: int) -> Path:
        """Returns the file of a shard's summary."""
        return self.folder / "notes" / split / f"{shard_name(index)}.json"

    def list_file(self, split: str, index: int, name: str) -> Path:
        """Returns the file with a shard's lines of one of :data:`LISTS`."""
        return self.folder / "notes" / split / f"{shard_name(index)}.{name}"

    def make_folders(self, split: str) -> None:
        """Creates a split's folders, but not the build's: that goes when another process commits, and must not return.

        Raises:
            OSError: if the build's folder is missing, or cannot be written.
        """
        self.check_there()
        for top in (self.dataset, self.folder / "notes"):
            top.mkdir(exist_ok=True)
            (top / split).mkdir(exist_ok=True)

    def sealed(self, split: str, index: int) -> ShardSummary | None:
        """Returns the summary of a sealed shard, if all its files exist and have their sizes; else None."""
        path = self.summary_file(split, index)
        try:
            summary = ShardSummary.loads(read_regular(path).decode("utf-8"), str(path))
            for name, file in summary.record.files.items():
                if (self.shard(split, index) / f"{name}.memmap").stat().st_size != file.bytes:
                    return None
        except (OSError, ValueError, DamagedError):
            return None
        return summary


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
        self._summary, self._rows = ShardSummary(), 0
        self._files: dict[str, BinaryIO] = {}
        self._lists: dict[str, BinaryIO] = {}
        files = files_of(fields)
        self._crcs, self._sizes, self._begun = (dict.fromkeys(files, 0) for _ in range(3))
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
            for file, block in file_blocks(chunk, self._fields, self._sizes).items():
                self._append(file, block)
            self._lists[SAMPLES_NAME].write(samples_lines(chunk))
            self._lists[SKIPPED_NAME].write(skipped_lines(chunk.skipped))
            self._lists[ORIGINS_NAME].write(origins_lines(chunk.origins))
        except OSError as error:
            raise _write_failed(self._folder, error) from error
        self._summary.skipped += len(chunk.skipped)
        self._summary.statistics.add(chunk.statistics)
        self._rows += len(chunk.samples)

    def _append(self, name: str, block: memoryview) -> None:
        self._crcs[name] = crc32(block, self._crcs[name])
        self._files[name].write(block)
        self._sizes[name] += len(block)
        if (length := self._sizes[name] - self._begun[name]) >= _FLUSH_BYTES:  # so that a seal has little to wait for
            self._files[name].flush()
            begin_sync(self._files[name].fileno(), self._begun[name], length)
            self._begun[name] = self._sizes[name]

    def abandon(self) -> None:
        """Closes the files without sealing."""
        for file in (*self._lists.values(), *self._files.values()):
            with suppress(OSError):  # what failed before has reported the full disk, and the file will be removed
                file.close()

    def seal(self) -> ShardSummary:
        """Finishes the shard: truncates its files, flushes them to disk, and writes the summary.

        Raises:
            BuildError: if the disk refuses.
        """
        files = {}
        try:
            for name, file in self._files.items():
                file.flush()
                file.truncate(self._sizes[name])
                sync(file)
                files[name] = FileRecord(bytes=self._sizes[name], crc32=f"{self._crcs[name]:08x}")
            for lines in self._lists.values():
                sync(lines)
            self.abandon()
            self._summary.record = ShardRecord(rows=self._rows, files=files)
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


def origins_lines(origins: Sequence[SampleOrigin]) -> bytes:
    """Returns the lines of ``origins.jsonl``; bytes of a file name that are not UTF-8 become JSON escapes."""
    try:
        return msgspec.json.Encoder().encode_lines(origins)
    except UnicodeEncodeError:  # lone surrogates, which only the slower standard library keeps
        return "".join(json.dumps(msgspec.to_builtins(origin)) + "\n" for origin in origins).encode()


def json_lines(items: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns one JSON object per line; bytes of a file name that are not UTF-8 become JSON escapes of surrogates."""
    text = "".join(_JSON.encode(item) + "\n" for item in items)
    return text.encode("utf-8", "backslashreplace")


def file_blocks(chunk: Chunk, fields: Mapping[str, FieldSpec], sizes: Mapping[str, int]) -> dict[str, memoryview]:
    """Returns what a chunk appends to each file of a shard, whose files have these sizes before."""
    blocks: dict[str, memoryview] = {}
    for name, rows in chunk.fields.items():
        if not isinstance(rows, VariableRows):
            blocks[file_name(name, fields[name])] = bytes_of(rows)
            continue
        offsets = rows.offsets[1:] + sizes[f"{name}.{BYTES}"]
        parts: dict[str, npt.NDArray[Any]] = {
            BYTES: rows.bytes,
            OFFSETS: offsets,
            SIZES: rows.sizes,
            ENCODINGS: rows.encodings,
        }
        blocks |= {f"{name}.{part}": _memory(parts[part]) for part in parts if f"{name}.{part}" in sizes}
    return blocks


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


def _reserve(file: BinaryIO, size: int) -> None:
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


# Lists of a split.


def join_lists(
    paths: BuildPaths, split: str, shards: Sequence[int], name: str, listed: int | None = None
) -> FileRecord:
    """Concatenates the shards' lines of a list into one file of the split; raises BuildError if writing fails."""

    def blocks() -> Iterator[bytes]:
        for index in shards:
            with open(paths.list_file(split, index, name), "rb") as lines:
                while block := lines.read(1 << 20):
                    yield block

    return write_list(paths, split, name, blocks(), listed)


def write_list(
    paths: BuildPaths, split: str, name: str, blocks: Iterable[bytes], listed: int | None = None
) -> FileRecord:
    """Writes a list of a split in parts, and returns its record; raises BuildError if writing fails.

    Its time becomes ``listed``, in nanoseconds, before it has its name: another part may move it away at once.
    """
    joined = paths.dataset / split / name
    try:
        paths.make_folders(split)
        return write_blocks(paths, joined, blocks, listed)
    except OSError as error:
        raise BuildError(
            f"cannot write {joined} ({error.strerror}); free space there, then run the same command again to continue"
        ) from error


def write_blocks(
    paths: BuildPaths, place: Path, blocks: Iterable[bytes | memoryview], listed: int | None = None
) -> FileRecord:
    """Writes a file beside the dataset, moves it there durably at the end, and returns its record.

    So a dataset contains none that is unfinished, also if another process of the same build moves it away meanwhile.

    Raises:
        OSError: if a file system operation fails.
    """
    paths.check_there()
    crc = size = 0
    partial = paths.folder / "notes" / f"{place.name}.{secrets.token_hex(TOKEN_BYTES)}.partial"
    partial.parent.mkdir(exist_ok=True)  # without parents: they go when another process commits
    try:
        with open(partial, "xb") as file:
            for block in blocks:
                file.write(block)
                crc = crc32(block, crc)
                size += len(block)
            sync(file)
        if listed is not None:
            os.utime(partial, ns=(listed, listed))
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(place.parent)
    return FileRecord(bytes=size, crc32=f"{crc:08x}")


def skipped_in(paths: BuildPaths, split: str, shards: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yields id and reason of the samples that shards have left out."""
    for index in shards:
        with open(paths.list_file(split, index, SKIPPED_NAME), encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                yield item["id"], item["reason"]
