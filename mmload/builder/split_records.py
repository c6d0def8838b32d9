"""Creates a split's manifest entry and its notes from the summaries of its shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mmload.builder.mean_std import mean_std
from mmload.builder.staging import join_lists
from mmload.records import FieldSpec
from mmload.sources import HasNotes, SourceSplit
from mmload.store.losses import first_names, sentences, total_losses
from mmload.store.manifest import SAMPLES_NAME, SKIPPED_NAME, SKIPPED_SHOWN, SplitRecord
from mmload.store.shard_table import ShardTable
from mmload.store.shard_writer import BuildPaths, ShardSummary


def split_record(
    name: str,
    split: SourceSplit,
    fields: dict[str, FieldSpec],
    shard_samples: int,
    summaries: Sequence[ShardSummary],
    paths: BuildPaths,
) -> SplitRecord:
    """Create a split's manifest entry and write the split's lists of samples.

    Args:
        name: the split's name.
        split: the source's samples.
        fields: of a row.
        shard_samples: planned samples per shard.
        summaries: of all its shards, in order.
        paths: of the shards and their lists.

    Raises:
        BuildError: if writing fails.
    """
    numbers = range(len(summaries))
    with_pixels = [summary for summary in summaries if summary.sums]
    sums, squares = (_columns(getattr(summary, key) for summary in with_pixels) for key in ("sums", "squares"))
    mean, std = mean_std(sums, squares, sum(summary.pixels for summary in with_pixels))
    skipped_count = sum(summary.skipped for summary in summaries)
    skipped_file = join_lists(paths, paths.skipped_file, name, numbers, SKIPPED_NAME) if skipped_count else None
    return SplitRecord(
        rows=sum(summary.record.rows for summary in summaries),
        fields=fields,
        classes=split.classes,
        class_counts=tuple(sum(s.class_counts.get(i, 0) for s in summaries) for i in range(len(split.classes))),
        mean=mean,
        std=std,
        skipped_count=skipped_count,
        skipped=tuple(islice(_skipped(paths, name, numbers), SKIPPED_SHOWN)),
        skipped_file=skipped_file,
        samples=join_lists(paths, paths.samples_file, name, numbers, SAMPLES_NAME),
        shard_samples=shard_samples,
        shards=ShardTable.of([summary.record for summary in summaries]),
    )


def split_notes(split: SourceSplit, summaries: Sequence[ShardSummary]) -> list[str]:
    """The source's notes on a split, and sentences on the losses of the build."""
    rows = sum(summary.record.rows for summary in summaries)
    notes = split.notes() if isinstance(split, HasNotes) else ()
    first = first_names(found for summary in summaries for found in summary.first.items())
    return [*notes, *sentences(total_losses(summary.losses for summary in summaries), first, rows)]


def _columns(rows: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _skipped(paths: BuildPaths, split: str, shards: Iterable[int]) -> Iterator[tuple[str, str]]:
    for index in shards:
        with open(paths.skipped_file(split, index), encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                yield item["id"], item["reason"]
