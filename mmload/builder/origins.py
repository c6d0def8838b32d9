"""Lines of ``origins.jsonl``: what an update must know about the sample of each row, and which samples have changed.

A sample is changed if its revision is another one. Files that were only touched or copied have another time, and files
that were written just before the source was listed may have been written once more within the resolution of their
times: the checksum of the files decides then.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, SampleError, StoreError, choices
from mmload.runtime.regular_files import read_regular
from mmload.sources import TIME_MARK, HasChecksums, SourceSplit
from mmload.store.checksum import crc32
from mmload.store.manifest import ORIGINS_NAME, SAMPLES_NAME, SplitRecord

T = TypeVar("T", bound=msgspec.Struct)

RECENT_NS = 2 * 10**9
"""Resolution of file times, in nanoseconds: FAT has 2 seconds, others have less."""


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


class _SampleLine(msgspec.Struct, gc=False):
    """What an update reads of a line of ``samples.jsonl``."""

    id: str


def _is_recent(revision: str, listed: int) -> bool:
    """Returns whether a file was so new when it was listed that it may have been written once more, unseen."""
    return any(int(word[1:]) >= listed - RECENT_NS for word in revision.split() if _is_time(word))


def _is_time(word: str) -> bool:
    return word.startswith(TIME_MARK) and word[1:].isdecimal()


@dataclass(frozen=True, kw_only=True)
class StoredSplit:
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


def read_lists(folder: Path, name: str, record: SplitRecord) -> StoredSplit:
    """Reads and checks the lists of a split of a dataset; a dataset that cannot be updated has no origins.

    Raises:
        DamagedError: if a list is not the file that the manifest names.
        StoreError: if it cannot be read.
    """
    samples = _lines(folder, name, record, SAMPLES_NAME)
    origins = [] if record.origins is None else _lines(folder, name, record, ORIGINS_NAME)
    list_of_origins = folder / name / record.list_name(ORIGINS_NAME)
    return StoredSplit(
        samples=samples,
        ids=[
            sample.id for sample in _parsed_list(samples, _SampleLine, folder / name / record.list_name(SAMPLES_NAME))
        ],
        origins=_parsed_list(origins, SampleOrigin, list_of_origins),
        listed=list_of_origins.stat().st_mtime_ns if origins else 0,
    )


def sample_id(line: bytes) -> str:
    """Returns the id in a line of ``samples.jsonl``."""
    return _parsed([line], _SampleLine)[0].id


def origins_lines(origins: Sequence[SampleOrigin]) -> bytes:
    """Returns the lines of ``origins.jsonl``; bytes of a file name that are not UTF-8 become JSON escapes."""
    try:
        return msgspec.json.Encoder().encode_lines(origins)
    except UnicodeEncodeError:  # lone surrogates, which only the slower standard library keeps
        return "".join(json.dumps(msgspec.to_builtins(origin)) + "\n" for origin in origins).encode()


def parsed_origins(content: bytes) -> list[SampleOrigin]:
    """Returns the origins in the lines of a list that a build has just written."""
    return _parsed(content.splitlines(), SampleOrigin)


def _parsed(lines: Sequence[bytes], kind: type[T]) -> list[T]:
    """Parses JSON lines."""
    content = b"[" + b",".join(lines) + b"]"
    try:
        return msgspec.json.decode(content, type=list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # lone surrogates of file names, which only the slower standard library keeps
        return msgspec.convert(json.loads(content), list[kind])  # type: ignore[valid-type]


def _parsed_list(lines: Sequence[bytes], kind: type[T], file: Path) -> list[T]:
    """Parses the lines of a file; raises DamagedError naming the first that is not of this kind."""
    try:
        return _parsed(lines, kind)
    except (ValueError, RecursionError):
        for number, line in enumerate(lines, 1):
            try:
                _parsed([line], kind)
            except (ValueError, RecursionError) as error:
                why = str(error).replace(" - at `$[0]`", "")
                raise DamagedError(
                    f"{file}, line {number} is not an object of the keys {choices(kind.__struct_fields__)} ({why}); "
                    "build the dataset again with --overwrite"
                ) from error
        raise


def _lines(folder: Path, name: str, record: SplitRecord, kind: str) -> list[bytes]:
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
    return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitChanges:
    """Differences of a source's split from a dataset.

    Attributes:
        rows: int64 [samples], the row that was made of each sample; -1: none.
        kept: bool [samples], whether that row is still right.
        origins: for kept rows whose files were compared, the number of the sample -> its origin now.
        removed: number of rows whose samples are gone.
    """

    rows: npt.NDArray[np.int64]
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


def compare_split(split: SourceSplit, stored: StoredSplit, *, same_meaning: bool, checksum: bool) -> SplitChanges:
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


def _without_times(revision: str) -> list[str]:
    return [word for word in revision.split() if not _is_time(word)]
