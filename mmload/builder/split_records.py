"""Creates a split's manifest entry, its lists of samples and its notes from the summaries of its shards."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from mmload.builder.shards import UNNAMED, BuildPaths, ShardSummary
from mmload.errors import BuildError, counted
from mmload.records import (
    BOXES,
    BOXES_CUT,
    BOXES_DROPPED,
    CLIPPED,
    IMAGES_EMPTIED,
    FieldSpec,
    ObjectsRecord,
)
from mmload.runtime.durable_files import TOKEN_BYTES, sync, sync_folder
from mmload.sources import HasChecksums, HasNotes, HasObjects, SourceSplit
from mmload.sources.annotation_values import finding_note
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SKIPPED_NAME, SKIPPED_SHOWN, SplitRecord
from mmload.store.shard_table import FileRecord, ShardTable


def split_record(
    name: str,
    split: SourceSplit,
    fields: dict[str, FieldSpec],
    shard_samples: int,
    summaries: Sequence[ShardSummary],
    paths: BuildPaths,
    listed: int,
) -> SplitRecord:
    """Creates a split's manifest entry and writes the split's lists of samples, of a source that was ``listed`` then.

    Raises:
        BuildError: if writing fails.
    """
    numbers = range(len(summaries))
    with_pixels = [summary for summary in summaries if summary.sums]
    sums, squares = (columns(getattr(summary, key) for summary in with_pixels) for key in ("sums", "squares"))
    mean, std = mean_std(sums, squares, sum(summary.pixels for summary in with_pixels))
    skipped_count = sum(summary.skipped for summary in summaries)
    skipped_file = join_lists(paths, name, numbers, SKIPPED_NAME) if skipped_count else None
    has_origins = isinstance(split, HasChecksums)
    return SplitRecord(
        rows=sum(summary.record.rows for summary in summaries),
        fields=fields,
        classes=split.classes,
        class_counts=tuple(sum(s.class_counts.get(i, 0) for s in summaries) for i in range(len(split.classes))),
        mean=mean,
        std=std,
        skipped_count=skipped_count,
        skipped=tuple(islice(skipped_in(paths, name, numbers), SKIPPED_SHOWN)),
        skipped_file=skipped_file,
        samples=join_lists(paths, name, numbers, SAMPLES_NAME),
        shard_samples=shard_samples,
        shards=ShardTable.from_records([summary.record for summary in summaries]),
        objects=objects_of(split),
        origins=join_lists(paths, name, numbers, ORIGINS_NAME, listed) if has_origins else None,
    )


def objects_of(split: SourceSplit) -> ObjectsRecord | None:
    """Returns the description of the objects in a split's images; None if it has none."""
    return split.objects() if isinstance(split, HasObjects) else None


def has_classes(fields: Mapping[str, FieldSpec]) -> bool:
    """Returns whether each row has a class."""
    targets = fields.get("targets")
    return targets is not None and targets.dtype == "int64" and targets.shape == ()


def keep_meaning(record: SplitRecord, split: SourceSplit) -> bool:
    """Returns whether rows mean the same by the source's description of a split now: its classes, keypoints and flip.

    Classes may be added at the end. The last ones may be gone where the revision of a row has its class, and none may
    be gone or new where a row has a number for each. Names and skeletons of keypoints are in no row.
    """
    before, now = (each or ObjectsRecord() for each in (record.objects, objects_of(split)))
    if (len(before.keypoints), before.flip) != (len(now.keypoints), now.flip):
        return False
    classes, fields = tuple(split.classes), record.built_fields
    if "targets" in fields and not has_classes(fields):
        return classes == record.classes
    common = min(len(classes), len(record.classes)) if has_classes(fields) else len(record.classes)
    return classes[:common] == record.classes[:common]


def split_notes(split: SourceSplit, losses: Mapping[str, int], first: Mapping[str, list[str]]) -> list[str]:
    """Returns the source's notes on a split, and sentences on the losses of the build."""
    notes = split.notes() if isinstance(split, HasNotes) else ()
    return [*notes, *loss_sentences(losses, first)]


def split_warnings(losses: Mapping[str, int], images: int) -> list[str]:
    """Returns warnings about what the transforms dropped of a split; empty if nothing is lost."""
    dropped, emptied = losses.get(BOXES_DROPPED, 0), losses.get(IMAGES_EMPTIED, 0)
    if not dropped:
        return []
    were = "was" if dropped == 1 else "were"
    bare = f", and {emptied:,} of {counted(images, 'image')} lost all of theirs" if emptied else ""
    boxes = counted(losses.get(BOXES, 0), "box", "boxes")
    return [
        f"{dropped:,} of {boxes} {were} dropped: the transforms keep no pixel of them{bare}; "
        "a Letterbox or an exact Resize keeps the whole image",
    ]


def loss_sentences(losses: Mapping[str, int], first: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Returns notes on what a split lost or what looks wrong, with the first samples; empty if there is nothing."""
    boxes = f"of {counted(losses.get(BOXES, 0), 'box', 'boxes')}"
    notes = []
    if clipped := losses.get(CLIPPED, 0):
        were = "was" if clipped == 1 else "were"
        notes.append(f"{clipped:,} {boxes} reached over the edge of the image and {were} cut there (clip_boxes)")
    if cut := losses.get(BOXES_CUT, 0):
        were = "was" if cut == 1 else "were"
        notes.append(f"{cut:,} {boxes} {were} cut: the transforms keep only a part of the object")
    others = (loss for loss in losses if loss not in UNNAMED)
    notes += [finding_note(loss, losses[loss], first.get(loss, [])) for loss in others]
    return tuple(notes)


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


def mean_std(sums: list[int], squares: list[int], pixels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and the population standard deviation of each channel, in [0, 1]; nothing of 0 pixels."""
    if not pixels:
        return (), ()
    mean = tuple(total / pixels / 255 for total in sums)
    spread = (max(0, square * pixels - total * total) for total, square in zip(sums, squares, strict=True))
    return mean, tuple(float(value**0.5) / pixels / 255 for value in spread)


def columns(rows: Iterable[list[int]]) -> list[int]:
    """Returns the sums of the columns of some rows."""
    return [sum(column) for column in zip(*rows, strict=True)]


def skipped_in(paths: BuildPaths, split: str, shards: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yields id and reason of the samples that shards have left out."""
    for index in shards:
        with open(paths.list_file(split, index, SKIPPED_NAME), encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                yield item["id"], item["reason"]
