"""Shards of a build: rows that are ready to be stored, the files that they are written to, and what is known of them.

A writer takes chunks of rows as arrays and writes a shard's folder as docs/format.md describes it. To seal a shard is
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
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import features
from simplejpeg import decode_jpeg  # type: ignore[import-untyped]

import mmload
from mmload.errors import BuildError
from mmload.records import FieldSpec
from mmload.runtime.files import TOKEN_BYTES, begin_sync, read_regular, sync, sync_folder, write_atomically
from mmload.runtime.intrinsics import array_at
from mmload.runtime.kernels import inlined, numba_compiled
from mmload.runtime.resources import installed_version
from mmload.store.checksum import crc32
from mmload.store.manifest import (
    BYTES,
    COMMAND,
    ENCODINGS,
    META_NAME,
    OFFSETS,
    ORIGINS_NAME,
    PLAN_NAME,
    SAMPLES_NAME,
    SIZES,
    SKIPPED_NAME,
    FileRecord,
    ShardRecord,
    file_name,
    files_of,
    shard_name,
    tensordict_meta,
)
from mmload.store.variable_rows import Bytes, VariableRows

if TYPE_CHECKING:
    from mmload.records import FieldValue

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One shard: planned rows [start, stop) of a split."""

    split: str
    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class ShardDivision(NamedTuple):
    """Division of the samples to build of a split into shards.

    Attributes:
        fields: fields of a row.
        row_bytes: bytes of a row.
        shard_samples: planned samples per shard.
        plans: the shards, in order.
    """

    fields: dict[str, FieldSpec]
    row_bytes: int
    shard_samples: int
    plans: list[ShardPlan]


class Statistics(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exact statistics of some rows: those of a chunk, a shard or a split.

    Attributes:
        sums: per channel, the sum of the images' pixels, without the borders that transforms added. Empty without uint8
            images.
        squares: per channel, the sum of their squares.
        pixels: number of pixels per channel that are summed.
        class_counts: class index -> rows.
        losses: counts of what was left out of the rows, by names such as :data:`mmload.records.CLIPPED`; no zeros.
    """

    sums: list[int] = []
    squares: list[int] = []
    pixels: int = 0
    class_counts: dict[int, int] = {}
    losses: dict[str, int] = {}

    def add(self, other: Statistics) -> None:
        """Adds the statistics of the rows that follow."""
        self.sums, self.squares = _added(self.sums, other.sums), _added(self.squares, other.squares)
        self.pixels += other.pixels
        self.class_counts = dict(Counter(self.class_counts) + Counter(other.class_counts))
        self.losses = dict(Counter(self.losses) + Counter(other.losses))

    @staticmethod
    def of_rows(origins: Sequence[SampleOrigin], targets: Iterable[int]) -> Statistics:
        """Returns the statistics of rows with these origins and classes."""
        losses = Counter[str]()
        for found in filter(None, map(attrgetter("losses"), origins)):
            losses.update(found)
        return Statistics(
            sums=_added(*(origin.sums for origin in origins)),
            squares=_added(*(origin.squares for origin in origins)),
            pixels=sum(origin.pixels for origin in origins),
            class_counts=dict(Counter(targets)),
            losses=dict(losses),
        )

    def entries(self, classes: int) -> dict[str, Any]:
        """Returns the entries of a split's record that are statistics of its rows.

        Mean and population standard deviation of each channel are in [0, 1]; there are none of 0 pixels.
        """
        pairs = list(zip(self.sums, self.squares, strict=True)) if self.pixels else []
        spread = (max(0, square * self.pixels - total * total) for total, square in pairs)
        return {
            "class_counts": tuple(self.class_counts.get(index, 0) for index in range(classes)),
            "mean": tuple(total / self.pixels / 255 for total, _ in pairs),
            "std": tuple(float(value**0.5) / self.pixels / 255 for value in spread),
        }


def _added(*channels: Sequence[int]) -> list[int]:
    """Returns the sum of each channel; some may have none."""
    return [*map(sum, zip_longest(*channels, fillvalue=0))]


class SampleOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What a row adds to the statistics, and what an update must know of its sample: a line of ``origins.jsonl``.

    Attributes:
        revision: revision of the sample in its source; "" if an update cannot tell which samples have changed.
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
        fields: array [n, ...] of each field, in the order of the rows; or variable-size rows.
        samples: (sample id, (height, width) of the image in its file, or None) of each row.
        skipped: (sample id, reason) of the samples left out.
        origins: of each row, or none.
        memory: arrays from a pool that fields are views of, which do not keep them.
    """

    fields: Mapping[str, npt.NDArray[Any] | VariableRows]
    samples: list[tuple[str, tuple[int, int] | None]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    origins: list[SampleOrigin] = field(default_factory=list)
    memory: Sequence[npt.NDArray[Any]] = ()


def has_classes(fields: Mapping[str, FieldSpec]) -> bool:
    """Returns whether each row has a class."""
    targets = fields.get("targets")
    return targets is not None and targets.dtype == "int64" and targets.shape == ()


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


UPDATES = "updates"
"""Key of the plan of a change: contents of the version that it follows."""

PARTS = "parts"
"""Folder of the shards that are being written, inside that of their build."""

LISTS = (SAMPLES_NAME, SKIPPED_NAME, ORIGINS_NAME)
"""Names of the lists of a split, which each shard has its lines of."""


_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "numpy")
_LIBJPEG = b"libjpeg-turbo version "  # before its version in a file that it is linked into


def made_by() -> dict[str, str]:
    """Package -> version, for the packages that influence the stored bytes besides the recipe and the source.

    A package of one version may have been made with several versions of libjpeg-turbo, so these are named, too.
    """
    # It names no libjpeg-turbo that is a file of its own.
    linked = Path(str(sys.modules[decode_jpeg.__module__].__file__)).read_bytes()
    found = {
        "mmload": mmload.__version__,
        **{name: installed_version(name) for name in _PACKAGES},
        "libjpeg-turbo of pillow": features.version("libjpeg_turbo"),
        "libjpeg-turbo of simplejpeg": linked.partition(_LIBJPEG)[2].partition(b"\0")[0].decode("ascii", "replace"),
    }
    return {name: version for name, version in found.items() if version}


def asked_by(command: Sequence[str]) -> dict[str, Any]:
    """Returns what a plan says about the command; for a part, the command that builds everything."""
    words = [
        word
        for before, word in pairwise(("", *command))
        if before != "--part" and word not in ("--part", "--commit") and not word.startswith("--part=")
    ]
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
        try:
            summary = msgspec.json.decode(read_regular(self.summary_file(split, index)), type=ShardSummary)
            files = {self.shard(split, index) / f"{name}.memmap": file for name, file in summary.record.files.items()}
            is_whole = all(place.stat().st_size == file.bytes for place, file in files.items())
        except (OSError, ValueError, RecursionError, OverflowError):
            return None
        return summary if is_whole else None


_JSON = json.JSONEncoder(ensure_ascii=False)
_FLUSH_BYTES = 32 * 2**20


class GrowingFile:
    """File that is written block by block, with its checksum.

    Attributes:
        size: bytes that are written.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=1 << 16)  # noqa: SIM115  # until it is sealed
        self.size = self._begun = self._crc = 0

    def append(self, block: bytes | memoryview) -> None:
        """Writes a block; once some have come together, the disk begins with them, so that a seal waits for little."""
        self._file.write(block)
        self._crc = crc32(block, self._crc)
        self.size += len(block)
        if self.size - self._begun >= _FLUSH_BYTES:
            self._file.flush()
            begin_sync(self._file.fileno(), self._begun, self.size - self._begun)
            self._begun = self.size

    def seal(self) -> FileRecord:
        """Makes the file durable, and closes it."""
        sync(self._file)
        self.close()
        return FileRecord(bytes=self.size, crc32=f"{self._crc:08x}")

    def close(self) -> None:
        """Closes the file."""
        with suppress(OSError):  # what failed before has reported the full disk, and the file will be removed
            self._file.close()


class ShardWriter:
    """Writes one shard's rows in order; it counts only after :meth:`seal`, and has to be closed.

    Raises:
        BuildError: if the disk refuses the files.
    """

    def __init__(self, paths: BuildPaths, split: str, index: int, fields: Mapping[str, FieldSpec]) -> None:
        self._folder = paths.shard(split, index)
        self._summary_file = paths.summary_file(split, index)
        self._fields = fields
        self._summary, self._rows = ShardSummary(), 0
        files, lists = files_of(fields), {name: paths.list_file(split, index, name) for name in LISTS}
        places = {name: self._folder / f"{name}.memmap" for name in files} | lists
        with reported(self._folder):
            paths.make_folders(split)
            self._folder.mkdir()
            self._files = {name: GrowingFile(place) for name, place in places.items()}
        for name, file in files.items():
            self._files[name].append(bytes(file.more * file.spec.row_bytes))  # offsets begin with 0

    def write(self, chunk: Chunk) -> None:
        """Appends rows.

        Raises:
            BuildError: if the disk refuses the write.
        """
        samples = json_lines({"id": name, "size": list(size) if size else None} for name, size in chunk.samples)
        skipped = json_lines({"id": name, "reason": reason} for name, reason in chunk.skipped)
        # Files at a URL have revisions alone, some sources checksums alone, rows of a split neither.
        origins = [origin for origin in chunk.origins if origin.revision or origin.checksum]
        with reported(self._folder):
            for name, block in zip(LISTS, (samples, skipped, origins_lines(origins)), strict=True):
                self._files[name].append(block)
            for name, rows in chunk.fields.items():
                self._append(name, rows)
        self._summary.skipped += len(chunk.skipped)
        classes = cast(Numbers, chunk.fields["targets"]).tolist() if has_classes(self._fields) else []
        self._summary.statistics.add(Statistics.of_rows(chunk.origins, classes))
        self._rows += len(chunk.samples)

    def _append(self, name: str, rows: npt.NDArray[Any] | VariableRows) -> None:
        """Appends rows of a field to its files."""
        if not isinstance(rows, VariableRows):
            self._files[file_name(name, self._fields[name])].append(bytes_of(rows).data)
            return
        parts: dict[str, npt.NDArray[Any]] = {
            BYTES: rows.bytes,
            OFFSETS: rows.offsets[1:] + self._files[f"{name}.{BYTES}"].size,
            SIZES: rows.sizes,
            ENCODINGS: rows.encodings,
        }
        for part, array in parts.items():
            if (file := self._files.get(f"{name}.{part}")) is not None:
                file.append(bytes_of(array).data)

    def close(self) -> None:
        """Closes the files, sealed or not."""
        for file in self._files.values():
            file.close()

    def seal(self) -> ShardSummary:
        """Finishes the shard: makes its files durable, and writes the summary.

        Raises:
            BuildError: if the disk refuses.
        """
        with reported(self._folder):
            records = {name: file.seal() for name, file in self._files.items()}
            self._summary.record = ShardRecord(
                rows=self._rows, files={name: records[name] for name in files_of(self._fields)}
            )
            write_atomically(self._folder / META_NAME, tensordict_meta(self._fields, self._summary.record))
            write_atomically(self._summary_file, msgspec.json.encode(self._summary))
        return self._summary


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


def array_of(values: FieldValue) -> npt.NDArray[Any]:
    """Views a tensor as an array, of bfloat16, which NumPy lacks, as uint16.

    An array that no kernel takes is copied: one that cannot be written, or with gaps or a reversed order of its values.
    """
    if isinstance(values, np.ndarray | np.generic):
        array = np.asarray(values)
        array = array.view(np.uint16) if array.dtype.name == "bfloat16" else array  # of another package
        is_taken = array.flags.writeable and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
        return array if is_taken else array.copy()
    import torch

    return (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy(force=True)


def stored_dtype(array: npt.NDArray[Any]) -> str:
    """Returns the dtype of a field with the values of an array of :func:`array_of`."""
    return {"uint16": "bfloat16"}.get(array.dtype.name, array.dtype.name)


def bytes_of(array: npt.NDArray[Any]) -> Bytes:
    """Returns an array's bytes in row-major order, uint8 [n], without a copy if they are contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@contextmanager
def reported(place: Path) -> Iterator[None]:
    """Reports that the disk refuses what is written to a place.

    Raises:
        BuildError: for an OSError inside.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"cannot write to {place} ({error.strerror}); free space there, then run the same command again to continue"
        ) from error


# Lists of a split.


def join_lists(
    paths: BuildPaths, split: str, shards: Sequence[int], name: str, listed: int | None = None
) -> FileRecord:
    """Concatenates the shards' lines of a list into one file of the split; raises BuildError if writing fails."""
    lines = (paths.list_file(split, index, name).read_bytes() for index in shards)
    return write_list(paths, split, name, lines, listed)


def write_list(
    paths: BuildPaths, split: str, name: str, blocks: Iterable[bytes], listed: int | None = None
) -> FileRecord:
    """Writes a list of a split in parts, and returns its record; raises BuildError if writing fails.

    Its time becomes ``listed``, in nanoseconds, before it has its name: another part may move it away at once.
    """
    with reported(paths.dataset / split):
        paths.make_folders(split)
    return write_blocks(paths, paths.dataset / split / name, blocks, listed)


def write_blocks(
    paths: BuildPaths, place: Path, blocks: Iterable[bytes | memoryview], listed: int | None = None
) -> FileRecord:
    """Writes a file beside the dataset, moves it there durably at the end, and returns its record.

    So a dataset contains none that is unfinished, also if another process of the same build moves it away meanwhile.

    Raises:
        BuildError: if writing fails.
    """
    partial = paths.folder / "notes" / f"{place.name}.{secrets.token_hex(TOKEN_BYTES)}.partial"
    try:
        with reported(place):
            paths.check_there()
            partial.parent.mkdir(exist_ok=True)  # without parents: they go when another process commits
            with closing(GrowingFile(partial)) as file:
                for block in blocks:
                    file.append(block)
                record = file.seal()
            if listed is not None:
                os.utime(partial, ns=(listed, listed))
            partial.replace(place)
            sync_folder(place.parent)
    finally:
        partial.unlink(missing_ok=True)
    return record


def skipped_in(paths: BuildPaths, split: str, shards: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yields id and reason of the samples that shards have left out."""
    for index in shards:
        with open(paths.list_file(split, index, SKIPPED_NAME), encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                yield item["id"], item["reason"]


# Compiled loops. Integer sums do not depend on the order of addition, so the statistics of a dataset do not depend on
# threads or shards.


_BLOCK = 65_536
"""Pixels per block: 65,536 x 255^2 < 2^32, so 32-bit integers suffice, of which a SIMD instruction handles the most."""


@inlined
def _add(pixels: Pixels, sums: Numbers, channel: int) -> None:
    """Adds pixels of a channel; torch in float32, whose sums of 256 squares are exact, takes 4 times as long."""
    for start in range(0, len(pixels), _BLOCK):
        total, square = np.uint32(0), np.uint32(0)
        for pixel in pixels[start : start + _BLOCK]:  # indexing takes 5 times as long
            value = np.uint32(pixel)
            total += value
            square += value * value
        sums[0, channel] += total
        sums[1, channel] += square


@numba_compiled("uintp, int64, int64, int64, uint8[:, :, ::1], int64[:, ::1], boolean, int64, int64, int64, int64")
def copy_and_sum(
    address: int, of_channel: int, of_line: int, of_pixel: int, row: Pixels, sums: Numbers, by_lines: bool,
    top: int, left: int, height: int, width: int,
) -> None:  # fmt: skip
    """Copies an image into its row, and adds the pixels inside a window to its channels' sums: the rest is a border.

    Each line is added while it is in cache. Lines of all channels follow each other in the outer loop, as channels are
    interleaved in the memory of most images.

    Args:
        address: address of the image, uint8 [C, H, W].
        of_channel: bytes from channel to channel of the image.
        of_line: bytes from line to line.
        of_pixel: bytes from pixel to pixel.
        row: uint8 [C, H, W], or [H, C, W], contiguous; if it is the image itself, nothing is copied.
        sums: int64 [2, C], of the values and of their squares.
        by_lines: whether the row is [H, C, W].
        top: first line of the window.
        left: its first column.
        height: its lines.
        width: its columns.
    """
    for y in range(len(row) if by_lines else row.shape[1]):
        for channel in range(row.shape[1] if by_lines else len(row)):
            line, begin = row[y, channel] if by_lines else row[channel, y], channel * of_channel + y * of_line
            if address != row.ctypes.data:
                least = min(0, of_pixel * (len(line) - 1))
                source = array_at(address + np.uintp(begin + least), 1 << 62, np.uint8)
                for x in range(len(line)):
                    line[x] = source[np.uintp(x * of_pixel - least)]
            if top <= y < top + height:
                _add(line[left : left + width], sums, channel)
