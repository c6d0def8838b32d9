"""Rows that a build makes, and its finished shards: where their files are, and what each says of its rows."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mmload.builder.origins import SampleOrigin
from mmload.errors import DamagedError
from mmload.records import (
    BOXES,
    BOXES_CUT,
    BOXES_DROPPED,
    CLIPPED,
    IMAGES_EMPTIED,
)
from mmload.runtime.regular_files import read_regular
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SKIPPED_NAME, shard_name
from mmload.store.manifest_text import convert_json
from mmload.store.shard_table import ShardRecord
from mmload.store.unfinished import PLAN_NAME
from mmload.store.variable_rows import VariableRows

if TYPE_CHECKING:
    from torch import Tensor

UNNAMED = (CLIPPED, BOXES, BOXES_DROPPED, BOXES_CUT, IMAGES_EMPTIED)
"""Losses that a person expects; of all others the first samples are named, as somebody has to look at them."""
_FIRST = 3


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Neighboring rows, ready to be stored.

    Attributes:
        fields: name -> contiguous tensor [n, *row shape], or n variable-size rows.
        samples: (sample id, (height, width) of the image in its file, or None) of each row.
        skipped: (sample id, reason) of the samples left out.
        sums: int64 [2, C], the sum and the sum of squares of each channel over the images' pixels, without the borders
            that transforms added; None without uint8 images.
        pixels: number of pixels per channel that are summed.
        class_counts: class index -> rows.
        losses: counts of what was left out of these samples, by names such as :data:`mmload.records.CLIPPED`.
        first: for some of these counts, the first samples.
        origins: of each row, if the source can tell which samples have changed.
    """

    fields: Mapping[str, Tensor | VariableRows]
    samples: Sequence[tuple[str, tuple[int, int] | None]]
    skipped: Sequence[tuple[str, str]] = ()
    sums: Tensor | None = None
    pixels: int = 0
    class_counts: Mapping[int, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, list[str]] = field(default_factory=dict)
    origins: Sequence[SampleOrigin] = ()


class ShardSummary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Counts and checksums that a build records for a sealed shard.

    Attributes:
        record: its rows and files.
        sums: per channel, the sum of the images' pixels, without borders; exact. Empty without uint8 images.
        squares: per channel, the sum of their squares; exact.
        pixels: number of pixels per channel that are summed.
        class_counts: class index -> rows.
        skipped: number of samples that were left out.
        losses: counts of what was left out of the rows, by names such as :data:`mmload.records.CLIPPED`.
        first: for some of these counts, the first samples.
    """

    record: ShardRecord = ShardRecord(rows=0, files={})
    sums: list[int] = []
    squares: list[int] = []
    pixels: int = 0
    class_counts: dict[int, int] = {}
    skipped: int = 0
    losses: dict[str, int] = {}
    first: dict[str, list[str]] = {}

    def add(self, chunk: Chunk) -> None:
        """Adds a chunk's statistics."""
        self.skipped += len(chunk.skipped)
        if chunk.sums is not None and chunk.samples:
            sums, squares = chunk.sums.tolist()
            self.sums = [*map(add, self.sums, sums)] or sums
            self.squares = [*map(add, self.squares, squares)] or squares
            self.pixels += chunk.pixels
        self.losses = total_losses([self.losses, chunk.losses])
        self.first = first_names([*self.first.items(), *chunk.first.items()])
        for target, count in chunk.class_counts.items():
            self.class_counts[target] = self.class_counts.get(target, 0) + count

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


def total_losses(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum of the losses of several samples, chunks or shards, sorted by name, without zeros."""
    total: dict[str, int] = {}
    for losses in parts:
        for name, count in losses.items():
            total[name] = total.get(name, 0) + count
    return {name: total[name] for name in sorted(total) if total[name]}


def first_names(found: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Returns the first samples of each loss that is reported with names, of (loss, samples) in order of rows."""
    first: dict[str, list[str]] = {}
    for name, samples in found:
        if name not in UNNAMED:
            shown = first.setdefault(name, [])
            shown.extend(islice(samples, _FIRST - len(shown)))
    return first


UPDATES = "updates"
"""Key of the plan of a change: contents of the version that it follows."""

COLUMN = "column"
"""Key of a plan that adds a field: what is added."""

PARTS = "parts"
"""Folder of the shards that are being written, inside that of their build."""

LISTS = (SAMPLES_NAME, SKIPPED_NAME, ORIGINS_NAME)
"""Names of the lists of a split, which each shard has its lines of."""


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
