"""Rows of a split of a new version: their shards, their lists, their order over the shards, and their statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.builder.origins import SampleOrigin, origins_lines, parsed_origins, read_lists, sample_id
from mmload.builder.shards import BuildPaths, ShardPlan, ShardSummary, first_names, json_lines, total_losses
from mmload.builder.split_records import columns, has_classes, mean_std, skipped_in
from mmload.errors import BuildError
from mmload.records import FieldSpec, ObjectsRecord
from mmload.sources import SourceSplit
from mmload.store.dataset import Split
from mmload.store.manifest import (
    ORDER_DTYPE,
    ORDER_NAME,
    ORIGINS_NAME,
    SAMPLES_NAME,
    SKIPPED_NAME,
    SKIPPED_SHOWN,
    RowOrder,
    SplitRecord,
    shard_name,
    versioned_name,
)
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

Numbers = npt.NDArray[np.int64]

Write = Callable[[str, Iterable[bytes]], FileRecord]
"""Writes a list of the split, given the name of its file and its content."""


@dataclass(frozen=True, kw_only=True)
class RowsKind:
    """What the rows of a split share: entries of :class:`SplitRecord`, and the split that a subset is of.

    Mean and standard deviation are those of rows without origins.
    """

    fields: dict[str, FieldSpec]
    classes: tuple[str, ...]
    shard_samples: int
    shards: ShardTable
    objects: ObjectsRecord | None = None
    shards_of: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, record: SplitRecord) -> RowsKind:
        """Returns what the rows of a split of a dataset share."""
        return cls(
            fields=record.fields,
            classes=record.classes,
            shard_samples=record.shard_samples,
            shards=record.shards,
            objects=record.objects,
            shards_of=record.subset_of,
            mean=record.mean,
            std=record.std,
        )


@dataclass(frozen=True, kw_only=True)
class VersionRows:
    """Rows of a split, in their order.

    Attributes:
        samples: line of ``samples.jsonl`` of each.
        origins: origin of each; empty if the source cannot tell which samples have changed.
        shard_rows: int64 [rows], their numbers over all shards.
        targets: int64 [rows], their classes; None if they have none.
    """

    samples: Sequence[bytes]
    origins: Sequence[SampleOrigin]
    shard_rows: Numbers
    targets: Numbers | None

    def chosen(self, rows: Iterable[int]) -> VersionRows:
        """Returns some of the rows, in the given order."""
        numbers = list(rows)
        return VersionRows(
            samples=[self.samples[row] for row in numbers],
            origins=[self.origins[row] for row in numbers] if self.origins else (),
            shard_rows=self.shard_rows[numbers],
            targets=None if self.targets is None else self.targets[numbers],
        )

    @property
    def losses(self) -> dict[str, int]:
        """Sum of the losses of all rows."""
        return total_losses(origin.losses for origin in self.origins)

    @property
    def first_losses(self) -> dict[str, list[str]]:
        """The first samples of each loss that is reported with names."""
        with_losses = ((line, origin) for line, origin in zip(self.samples, self.origins, strict=True) if origin.losses)
        return first_names((loss, [json.loads(line)["id"]]) for line, origin in with_losses for loss in origin.losses)

    def record(
        self, write: Write, version: int, kind: RowsKind, skipped: Sequence[tuple[str, str]] = ()
    ) -> SplitRecord:
        """Writes the lists and returns the split's manifest entry; ``skipped`` has ids and reasons of samples."""

        def written(name: str, content: bytes) -> FileRecord:
            return write(versioned_name(name, version), [content])

        origins, summed = self.origins, [origin for origin in self.origins if origin.sums]
        mean, std = kind.mean, kind.std
        if origins:
            sums, squares = (columns(getattr(origin, key) for origin in summed) for key in ("sums", "squares"))
            mean, std = mean_std(sums, squares, sum(origin.pixels for origin in summed))
        targets = np.empty(0, np.int64) if self.targets is None else self.targets
        targets = targets[(targets >= 0) & (targets < len(kind.classes))]
        counts = np.bincount(targets, minlength=len(kind.classes))[: len(kind.classes)].tolist()
        skipped_lines = json_lines({"id": name, "reason": reason} for name, reason in skipped)
        return SplitRecord(
            rows=len(self.samples),
            fields=kind.fields,
            classes=kind.classes,
            class_counts=tuple(counts),
            mean=mean,
            std=std,
            skipped_count=len(skipped),
            skipped=tuple(skipped[:SKIPPED_SHOWN]),
            skipped_file=written(SKIPPED_NAME, skipped_lines) if skipped else None,
            samples=written(SAMPLES_NAME, b"".join(self.samples)),
            shard_samples=kind.shard_samples,
            shards=kind.shards,
            objects=kind.objects,
            origins=written(ORIGINS_NAME, origins_lines(origins)) if origins else None,
            order=RowOrder(
                version=version,
                rows=written(ORDER_NAME, self.shard_rows.astype(ORDER_DTYPE).tobytes()),
                shards_of=kind.shards_of,
            ),
        )


class NewSplit(NamedTuple):
    """Split of a new version.

    Attributes:
        records: manifest entries of it and its subsets.
        rows: its rows, of one that stays only with their lists.
        counts: what samples that were left out add to the numbers of new, changed and removed rows.
        warnings: sentences on it.
    """

    records: dict[str, SplitRecord]
    rows: VersionRows
    counts: tuple[int, int, int] = (0, 0, 0)
    warnings: Sequence[str] = ()


def stored_rows(split: Split) -> VersionRows:
    """Returns the rows of a split of a dataset, with their lists."""
    lists, numbers = read_lists(split.path, split.name, split.record), np.arange(len(split))
    targets = split.reader.gather("targets", numbers) if has_classes(split.record.fields) else None
    return VersionRows(
        samples=lists.samples,
        origins=lists.origins,
        shard_rows=split.files.shard_rows(numbers),
        targets=None if targets is None else targets.numpy(),
    )


@dataclass(kw_only=True)
class VersionShards:
    """Shards of a new version of a split.

    Attributes:
        rows: int64 [samples], the number of each sample's row over all shards; -1: it was left out.
        records: the shards.
        folders: number of the folder of each.
        built: sample -> the lines of its row, of those that were built.
        targets: sample -> class of its row; empty if rows have none.
        skipped: id and reason of the samples that were left out.
    """

    rows: Numbers
    records: list[ShardRecord] = field(default_factory=list)
    folders: list[int] = field(default_factory=list)
    built: dict[int, tuple[bytes, SampleOrigin]] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def table(self) -> ShardTable:
        """Table of the shards."""
        return ShardTable.from_records(self.records, self.folders)

    def add(self, record: ShardRecord, folder: int) -> None:
        """Adds a shard."""
        self.records.append(record)
        self.folders.append(folder)

    def add_built(
        self,
        split: SourceSplit,
        samples: list[int],
        plan: ShardPlan,
        summary: ShardSummary,
        paths: BuildPaths,
        added: Mapping[str, FieldSpec],
    ) -> None:
        """Adds a shard that was built of these samples, unless all of them were left out, with its added fields."""
        first = sum(record.rows for record in self.records)
        lines = paths.list_file(plan.split, plan.index, SAMPLES_NAME).read_bytes().splitlines(keepends=True)
        origins = parsed_origins(paths.list_file(plan.split, plan.index, ORIGINS_NAME).read_bytes())
        self.skipped += skipped_in(paths, plan.split, [plan.index])
        row, left_out = 0, summary.skipped
        for sample in samples:  # rows and left out samples are in the order of the samples
            if row < len(lines) and sample_id(lines[row]) == split.id(sample):
                self.rows[sample], self.built[sample] = first + row, (lines[row], origins[row])
                row += 1
        if row != len(lines) or row + left_out != len(samples):
            raise BuildError(
                f"{paths.shard(plan.split, plan.index)} was made of other samples; remove {paths.folder}, then run the "
                "update again"
            )
        if summary.record.rows:
            from mmload.builder.missing_values import filled_files

            files = filled_files(paths, f"{plan.split}/{shard_name(plan.index)}", summary.record.rows, added)
            self.add(ShardRecord(rows=summary.record.rows, files={**summary.record.files, **files}), plan.index)
        if summary.class_counts:
            classes = np.fromfile(paths.shard(plan.split, plan.index) / "targets.memmap", np.int64)
            rows = ((sample, int(self.rows[sample]) - first) for sample in samples if self.rows[sample] >= 0)
            self.targets |= {sample: int(classes[row]) for sample, row in rows}
