"""Which samples of a source have changed since a dataset was built: its lists, compared with the splits.

A sample is changed if its revision is another one. Files that were only touched or copied have another time, and files
that were written just before the source was listed may have been written once more within the resolution of their
times: the checksum of the files decides then.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.builder.shards import SampleOrigin
from mmload.errors import DamagedError, SampleError, StoreError, choices
from mmload.records import FieldSpec, ObjectsRecord
from mmload.runtime.regular_files import read_regular
from mmload.sources import TIME_MARK, HasChecksums, HasObjects, SourceSplit
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SplitRecord

RECENT_NS = 2 * 10**9
"""Resolution of file times, in nanoseconds: FAT has 2 seconds, others have less."""

Numbers = npt.NDArray[np.int64]
T = TypeVar("T", bound=msgspec.Struct)


# What a source says of its splits.


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


# The lists of a split, and the samples that have changed since.


class SampleLine(msgspec.Struct, gc=False):
    """What an update reads of a line of ``samples.jsonl``."""

    id: str


@dataclass(frozen=True, kw_only=True)
class StoredLists:
    """Lists of a split of a dataset.

    Attributes:
        samples: line of ``samples.jsonl`` of each row.
        ids: id of each row's sample.
        origins: origin of each row's sample.
        listed: time when the source was listed, in nanoseconds: the one of the list of origins.
    """

    samples: Sequence[bytes] = ()
    ids: Sequence[str] = ()
    origins: Sequence[SampleOrigin] = ()
    listed: int = 0


def read_lists(folder: Path, name: str, record: SplitRecord) -> StoredLists:
    """Reads and checks the lists of a split of a dataset; a dataset that cannot be updated has no origins.

    Raises:
        DamagedError: if a list is not the file that the manifest names.
        StoreError: if it cannot be read.
    """
    file_of_origins = folder / name / record.list_name(ORIGINS_NAME)
    samples, ids = _read_list(folder, name, record, SAMPLES_NAME, SampleLine)
    has_origins = record.origins is not None
    _, origins = _read_list(folder, name, record, ORIGINS_NAME, SampleOrigin) if has_origins else ([], [])
    return StoredLists(
        samples=samples,
        ids=[sample.id for sample in ids],
        origins=origins,
        listed=file_of_origins.stat().st_mtime_ns if origins else 0,
    )


def _read_list(folder: Path, name: str, record: SplitRecord, kind: str, of: type[T]) -> tuple[list[bytes], list[T]]:
    """Returns the lines of a list, and what they say."""
    file = folder / name / record.list_name(kind)
    expected = record.lists[record.list_name(kind)]
    try:
        content = read_regular(file, most=expected.bytes + 1)
    except OSError as error:
        raise StoreError(f"cannot read {file} ({error.strerror})") from error
    lines = [line + b"\n" for line in content.split(b"\n")[:-1]]
    if f"{crc32(content):08x}" != expected.crc32 or len(lines) != record.rows:
        raise DamagedError(
            f"{file} is damaged: it is not the file that the manifest names; run: mmload verify {folder}"
        )
    try:
        return lines, parsed_lines(lines, of)
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{file} has a line that is no object of the keys {choices(of.__struct_fields__)} ({error}); "
            "build the dataset again with --overwrite"
        ) from error


def parsed_lines(lines: Iterable[bytes], kind: type[T]) -> list[T]:
    """Parses JSON lines."""
    content = b"[" + b",".join(lines) + b"]"
    try:
        return msgspec.json.decode(content, type=list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # lone surrogates of file names, which only the slower standard library keeps
        return msgspec.convert(json.loads(content), list[kind])  # type: ignore[valid-type]


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitChanges:
    """Differences of a source's split from a dataset.

    Attributes:
        rows: int64 [samples], the row that was made of each sample; -1: none.
        kept: bool [samples], whether that row is still right.
        origins: for kept rows whose files were compared, the number of the sample -> its origin now.
        removed: number of rows whose samples are gone.
    """

    rows: Numbers
    kept: npt.NDArray[np.bool_]
    origins: dict[int, SampleOrigin]
    removed: int

    @property
    def added(self) -> int:
        """Number of new samples."""
        return int((self.rows < 0).sum())

    @property
    def changed(self) -> int:
        """Number of changed samples."""
        return int((~self.kept & (self.rows >= 0)).sum())

    @property
    def any(self) -> bool:
        """Whether there is a difference."""
        return bool(self.added or self.changed or self.removed)


def compare_split(split: SourceSplit, stored: StoredLists, *, same_meaning: bool, checksum: bool) -> SplitChanges:
    """Finds the new, changed and removed samples of a split.

    Without ``same_meaning``, as the source describes its rows otherwise now, all samples count as changed. With
    ``checksum``, the checksums of all samples' files are compared, not only where times leave doubts.
    """
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row in range(len(stored.ids) - 1, -1, -1):
        rows_of[stored.ids[row]].append(row)  # the first row last, as it is the first to be taken
    rows, kept = np.full(len(split), -1, np.int64), np.zeros(len(split), np.bool_)
    origins: dict[int, SampleOrigin] = {}
    for index in range(len(split)):
        found = rows_of.get(split.id(index))
        if not found:
            continue
        rows[index] = row = found.pop()
        doubtful = checksum or _is_recent(stored.origins[row].revision, stored.listed)
        now = _same(split, index, stored.origins[row], doubtful) if same_meaning else None
        if now is not None:
            kept[index] = True
            if now is not stored.origins[row]:
                origins[index] = now
    return SplitChanges(rows=rows, kept=kept, origins=origins, removed=sum(map(len, rows_of.values())))


def _same(split: SourceSplit, index: int, stored: SampleOrigin, doubtful: bool) -> SampleOrigin | None:
    """Returns the origin of a sample now; None if it has changed. If ``doubtful``, equal revisions do not suffice."""
    revision = split.revision(index)
    if revision == stored.revision and not doubtful:
        return stored
    if _without_times(revision) != _without_times(stored.revision):
        return None
    if not stored.checksum or not isinstance(split, HasChecksums):
        return stored if revision == stored.revision else None
    try:
        same = split.checksum(index) == stored.checksum
    except SampleError:  # raised again when the sample is built
        return None
    if not same or revision == stored.revision:
        return stored if same else None
    return msgspec.structs.replace(stored, revision=revision)


def _is_recent(revision: str, listed: int) -> bool:
    """Returns whether a file was so new when it was listed that it may have been written once more, unseen."""
    return any(int(word[1:]) >= listed - RECENT_NS for word in revision.split() if _is_time(word))


def _is_time(word: str) -> bool:
    return word.startswith(TIME_MARK) and word[1:].isdecimal()


def _without_times(revision: str) -> list[str]:
    return [word for word in revision.split() if not _is_time(word)]
