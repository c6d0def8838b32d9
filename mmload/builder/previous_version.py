"""The version of a dataset that an update follows: its rows, and what has changed in its source since.

An update is a build with a previous version (:mod:`mmload.builder.planned_build`): it builds new and changed samples
into new shards, and its rows are in an order of their own over all shards, old and new. So they are those of a fresh
build, row for row, or keep the order in which they came.

A sample is changed if its revision is another one. Files that were only touched or copied have another time, and files
that were written just before the source was listed may have been written once more within the resolution of their
times: the checksum of the files decides then.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.builder.recipe import BuildRecipe, canonical, unlike
from mmload.builder.shard_job import fill_value, objects_of, row_order
from mmload.builder.shards import (
    UPDATES,
    BuildPaths,
    Numbers,
    SampleOrigin,
    ShardDivision,
    ShardPlan,
    ShardSummary,
    Statistics,
    has_classes,
    json_lines,
    origins_lines,
    skipped_in,
    write_list,
)
from mmload.builder.staging import dataset_at
from mmload.errors import BuildError, DamagedError, SampleError, StoreError, choices, counted
from mmload.records import FieldSpec, ObjectsRecord
from mmload.runtime.files import read_regular
from mmload.sources import TIME_MARK, HasChecksums, SourceSplit
from mmload.sources.listed_split import Excluded, only
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import (
    ORDER_DTYPE,
    ORDER_NAME,
    ORIGINS_NAME,
    SAMPLES_NAME,
    SKIPPED_NAME,
    SKIPPED_SHOWN,
    FileRecord,
    Manifest,
    RowOrder,
    ShardRecord,
    SplitRecord,
    unfinished_plan,
    versioned_name,
)
from mmload.store.row_reader import read_rows
from mmload.store.variable_rows import VariableRows
from mmload.store.versions import next_shard_folders, next_version, with_version

RECENT_NS = 2 * 10**9
"""Resolution of file times, in nanoseconds: FAT has 2 seconds, others have less."""

_TIME = re.compile(rf"(?<!\S){TIME_MARK}([0-9]+)(?!\S)")  # of a file in a revision, in nanoseconds

Objects = npt.NDArray[np.object_]
Shards = tuple[ShardRecord, ...]

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """How a dataset is updated.

    Attributes:
        append: keep the order of the rows, and put the new ones last; else the order of a fresh build.
        checksum: compare the content of all files, not only where sizes and times leave doubts.
        dry_run: only compare; write nothing.
    """

    append: bool = False
    checksum: bool = False
    dry_run: bool = False


# What a source says of its splits.


def fingerprint(splits: Mapping[str, SourceSplit]) -> str:
    """SHA-256 over what describes each split, and every sample's id and revision, in order."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        objects = objects_of(split)
        described = "" if objects is None else f"\0{objects!r}"
        digest.update(f"{name}\0{len(split)}\0{split.classes!r}{described}\n".encode("utf-8", "surrogatepass"))
        for index in range(len(split)):
            digest.update(f"{split.id(index)}\0{split.revision(index)}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _is_settled(revision: str, listed: int) -> bool:
    """Returns whether a sample's files were older than the resolution of times when the source was ``listed``.

    A file that was new then may have been written once more, unseen.
    """
    return max(map(int, _TIME.findall(revision)), default=0) < listed - RECENT_NS


def _keep_meaning(record: SplitRecord, split: SourceSplit) -> bool:
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


# Rows of a version, whose order is a list of its own.


class _SampleLine(msgspec.Struct, gc=False):
    """What an update reads of a line of ``samples.jsonl``."""

    id: str


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionRows:
    """Rows of a split, in their order.

    Attributes:
        samples: objects [rows], line of ``samples.jsonl`` of each.
        origins: objects [rows], origin of each; [0] if the source cannot tell which samples have changed.
        shard_rows: int64 [rows], their numbers over all shards.
        targets: int64 [rows], their classes; [0] if they have none.
    """

    samples: Objects
    origins: Objects
    shard_rows: Numbers
    targets: Numbers

    @staticmethod
    def of_lines(
        samples: Sequence[bytes], origins: Sequence[SampleOrigin], shard_rows: Numbers, targets: Numbers
    ) -> VersionRows:
        """Returns rows of their lists, numbers and classes."""
        return VersionRows(
            samples=np.array(samples, np.object_),
            origins=np.array(origins, np.object_),
            shard_rows=shard_rows,
            targets=targets,
        )

    def chosen(self, rows: Numbers) -> VersionRows:
        """Returns some of the rows, in the given order."""
        return VersionRows(**{name: array[rows] if len(array) else array for name, array in vars(self).items()})

    @property
    def ids(self) -> list[str]:
        """Ids of the samples."""
        return [line.id for line in parsed_lines(self.samples, _SampleLine)]

    @property
    def statistics(self) -> Statistics:
        """Statistics of the rows, as far as their origins have them."""
        return Statistics.of_rows(self.origins.tolist(), self.targets.tolist())

    def record(
        self,
        write: Callable[[str, Iterable[bytes]], FileRecord],
        version: int,
        kind: Mapping[str, Any],
        of: str | None = None,
        skipped: Sequence[tuple[str, str]] = (),
        statistics: Statistics | None = None,
    ) -> SplitRecord:
        """Writes the lists and returns the split's manifest entry.

        Args:
            write: writes a list, given the name of its file and its content.
            version: number of the version.
            kind: what the rows share: the entries of the record that do not depend on the rows, and mean and deviation,
                which are those of rows without origins.
            of: the split that a subset is of; None: it is no subset.
            skipped: id and reason of the samples that were left out.
            statistics: those of the rows, if they are known.
        """

        def written(name: str, content: bytes) -> FileRecord:
            return write(versioned_name(name, version), [content])

        has_origins, own = len(self.origins) > 0, (statistics or self.statistics).entries(len(kind["classes"]))
        return SplitRecord(
            **{**own, **kind} if not has_origins else {**kind, **own},
            rows=len(self.samples),
            skipped_count=len(skipped),
            skipped=tuple(skipped[:SKIPPED_SHOWN]),
            skipped_file=written(SKIPPED_NAME, json_lines({"id": name, "reason": why} for name, why in skipped))
            if skipped
            else None,
            samples=written(SAMPLES_NAME, b"".join(self.samples)),
            origins=written(ORIGINS_NAME, origins_lines(self.origins.tolist())) if has_origins else None,
            order=RowOrder(
                version=version,
                rows=written(ORDER_NAME, self.shard_rows.astype(ORDER_DTYPE).tobytes()),
                shards_of=of,
            ),
        )


def stored_rows(split: Split) -> VersionRows:
    """Returns the rows of a split of a dataset, with their lists.

    Raises:
        DamagedError: if a list is not the file that the manifest names.
        StoreError: if it cannot be read.
    """
    numbers, record = np.arange(len(split)), split.record
    samples = list_content(split, SAMPLES_NAME).splitlines(keepends=True)
    lines = [] if record.origins is None else list_content(split, ORIGINS_NAME).splitlines()
    targets = split.reader.values("targets", numbers) if has_classes(record.fields) else np.empty(0, np.int64)
    return VersionRows.of_lines(samples, parsed_lines(lines, SampleOrigin), split.files.shard_rows(numbers), targets)


def stored_fields(split: Split, rows: Numbers) -> dict[str, npt.NDArray[Any] | VariableRows]:
    """Reads rows, int64 [n], of all fields of a split as they are stored."""
    return {
        name: split.reader.values(name, rows) if spec.encoding is None else read_rows(split.reader.field(name), rows)
        for name, spec in split.record.fields.items()
    }


def listing_time(split: Split) -> int | None:
    """Returns when the source of a split was listed, in nanoseconds: the time of its origins; None if it has none."""
    with suppress(OSError):  # which whoever reads them reports
        return (split.path / split.name / split.record.list_name(ORIGINS_NAME)).stat().st_mtime_ns
    return None


def list_content(split: Split, name: str) -> bytes:
    """Returns the content of a list of a split.

    Raises:
        DamagedError: if it is not the file that the manifest names.
        StoreError: if it cannot be read.
    """
    record, own = split.record, split.record.list_name(name)
    file, expected = split.path / split.name / own, record.lists[own]
    try:
        content = read_regular(file, most=expected.bytes + 1)
    except OSError as error:
        raise StoreError(f"cannot read {file} ({error.strerror})") from error
    lines = record.skipped_count if name == SKIPPED_NAME else record.rows
    if f"{crc32(content):08x}" != expected.crc32 or content.count(b"\n") != lines:
        raise DamagedError(
            f"{file} is damaged: it is not the file that the manifest names; run: mmload verify {split.path}"
        )
    return content


def parsed_lines(lines: Iterable[bytes], kind: type[T]) -> list[T]:
    """Parses JSON lines.

    Raises:
        DamagedError: if a line is no object of the kind.
    """
    content = b"[" + b",".join(lines) + b"]"
    try:
        return msgspec.json.decode(content, type=list[kind])  # type: ignore[valid-type]
    except msgspec.DecodeError:
        pass  # perhaps of lone surrogates of file names, which only the slower standard library keeps
    try:
        return msgspec.convert(json.loads(content), list[kind])  # type: ignore[valid-type]
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"a list of a split has a line that is no object of the keys {choices(kind.__struct_fields__)} ({error}); "
            "build the dataset again with --overwrite"
        ) from error


def in_use(shards: Shards, rows: Numbers) -> tuple[Shards, Numbers]:
    """Drops the shards that have none of these rows, int64 [n] over all shards.

    Returns:
        The other shards, and int64 [all rows], the number that each row has over these; of dropped shards
        any.
    """
    lengths = np.array([shard.rows for shard in shards], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    used = np.unique(np.searchsorted(starts, rows, side="right") - 1)
    now = np.zeros(len(shards), np.int64)
    now[used] = np.concatenate([[0], np.cumsum(lengths[used])])[:-1]
    moved = np.arange(starts[-1]) + np.repeat(now - starts[:-1], lengths)
    return tuple(shards[number] for number in used.tolist()), moved


# A split of the source, and the rows that it had.


class NewSplit(NamedTuple):
    """Split of a new version.

    Attributes:
        records: manifest entries of it and its subsets.
        statistics: those of its rows.
        counts: int64 [3], numbers of new and of changed rows, and of rows that are gone.
        warnings: sentences on it.
    """

    records: dict[str, SplitRecord]
    statistics: Statistics
    counts: Numbers
    warnings: Sequence[str] = ()


class SplitUpdate:
    """A split of a source, compared with its rows in a version of a dataset.

    Attributes:
        listed: the split of the source.
        rows: int64 [samples], the row that was made of each sample; -1: none.
        kept: bool [samples], whether that row is still right.
        built: int64 [n], the samples to build.
        removed: number of rows whose samples are gone.
        order: int64 [samples], the samples in the order of their rows.
        added: the fields that were added to the split before and no sample has.
    """

    def __init__(
        self, name: str, listed: SourceSplit, dataset: Dataset, options: UpdateOptions, shuffle_seed: int | None
    ) -> None:
        self._name, self.listed, self._dataset = name, listed, dataset
        self._old, self._stored, self.added = dataset.get(name), _NO_ROWS, dict[str, FieldSpec]()
        count = len(listed)
        self.rows, self.kept, self.removed = np.full(count, -1, np.int64), np.zeros(count, np.bool_), 0
        if self._old is not None:
            self._compare(self._old, options.checksum)
        self.built = np.flatnonzero(~self.kept)
        if options.append:
            self.order = np.lexsort((self.rows, self.rows < 0))  # new ones last, as they come
        else:
            self.order = np.array(row_order(0, count, count, shuffle_seed), np.int64)

    def _compare(self, old: Split, checksum: bool) -> None:
        """Finds the rows of the samples, and those that are still right; notes new times of their files."""
        self._stored = stored_rows(old)
        self.added = {field: spec for field, spec in old.record.fields.items() if spec.version}
        rows_of: defaultdict[str, list[int]] = defaultdict(list)
        ids, origins, listed = self._stored.ids, self._stored.origins, listing_time(old) or 0
        for row in range(len(ids) - 1, -1, -1):
            rows_of[ids[row]].append(row)  # the first row last, as it is the first to be taken
        has_same_meaning = _keep_meaning(old.record, self.listed)
        for index in range(len(self.listed)):
            if found := rows_of.get(self.listed.id(index)):
                self.rows[index] = row = found.pop()
                now = origin_now(self.listed, index, origins[row], listed, checksum) if has_same_meaning else None
                if now is not None:
                    self.kept[index], origins[row] = True, now
        self.removed = sum(map(len, rows_of.values()))

    def counts(self, made: npt.NDArray[np.bool_] | bool = True) -> Numbers:
        """Returns the numbers of new and changed samples, and of rows that are gone, int64 [3].

        ``made`` is bool [samples]: a sample that was left out is neither new nor changed, and its row is gone.
        """
        is_new = self.rows < 0
        gone = self.removed + (~is_new & np.logical_not(made)).sum()
        return np.array([(is_new & made).sum(), (~is_new & ~self.kept & made).sum(), gone])

    @property
    def kept_split(self) -> Split | None:
        """Split of the version that new rows must be like, as rows of it stay or there are no new ones; else None."""
        return self._old if self.kept.any() or not len(self.built) else None

    def new_split(
        self, division: ShardDivision, summaries: Sequence[ShardSummary], paths: BuildPaths, listed: int
    ) -> NewSplit:
        """Returns the split of the new version, and its subsets; writes their lists.

        Raises:
            BuildError: if writing fails.
        """
        name, manifest = self._name, self._dataset.manifest
        version = next_version(manifest)
        rows, places, shards = self._all_rows([*zip(division.plans, summaries, strict=True)], paths)
        order = self.order[places[self.order] >= 0]
        rows = rows.chosen(places[order])
        shards, moved = in_use(shards, rows.shard_rows)
        rows = replace(rows, shard_rows=moved[rows.shard_rows])
        kind: dict[str, Any] = {
            "fields": division.fields,
            "classes": self.listed.classes,
            "shard_samples": division.shard_samples,
            "shards": shards,
            "objects": objects_of(self.listed),
        }
        skipped = list(skipped_in(paths, name, [plan.index for plan in division.plans]))
        write, statistics = partial(write_list, paths, name, listed=listed), rows.statistics
        records = {name: rows.record(write, version, kind, skipped=skipped, statistics=statistics)}
        warnings = [text for text in manifest.card_lines("warnings", name) if is_on_missing_values(text)]
        warnings += _missing_values(division.fields, int((places[self.built] >= 0).sum()), version)
        for subset, chosen in self._subset_rows(self.rows[order]):
            if len(chosen):
                records[subset] = rows.chosen(chosen).record(partial(write_list, paths, subset), version, kind, name)
            else:
                warnings.append(f"subset {subset} is gone, as none of its rows is left")
        return NewSplit(records, statistics, self.counts(places >= 0), warnings)

    def _all_rows(
        self, built: Sequence[tuple[ShardPlan, ShardSummary]], paths: BuildPaths
    ) -> tuple[VersionRows, Numbers, Shards]:
        """Returns the rows of all old and new shards, which of them each sample has (-1: none), and these shards."""
        before, shards = _NO_ROWS, list[ShardRecord]()
        if (old := self.kept_split) is not None:
            before, shards = self._stored, list(old.record.placed_shards)
        samples, rows = self._built_rows(built, paths, first=sum(record.rows for record in shards))
        places = np.where(self.kept, self.rows, -1)
        places[samples] = np.arange(len(before.samples), len(before.samples) + len(samples))
        made = ((summary.record, plan.index) for plan, summary in built if summary.record.rows)
        shards += [msgspec.structs.replace(record, folder=folder) for record, folder in made]
        joined = {name: np.concatenate([values, vars(rows)[name]]) for name, values in vars(before).items()}
        return VersionRows(**joined), places, tuple(shards)

    def _built_rows(
        self, built: Sequence[tuple[ShardPlan, ShardSummary]], paths: BuildPaths, first: int
    ) -> tuple[Numbers, VersionRows]:
        """Returns the samples of the rows of new shards, in their order, and these rows, numbered from ``first``."""
        lines, origins, classes = list[bytes](), list[bytes](), [np.empty(0, np.int64)]
        for plan, summary in built:
            lines += paths.list_file(plan.split, plan.index, SAMPLES_NAME).read_bytes().splitlines(keepends=True)
            origins += paths.list_file(plan.split, plan.index, ORIGINS_NAME).read_bytes().splitlines()
            if summary.statistics.class_counts:
                classes.append(np.fromfile(paths.shard(plan.split, plan.index) / "targets.memmap", np.int64))
        numbers = np.arange(first, first + len(lines))
        rows = VersionRows.of_lines(lines, parsed_lines(origins, SampleOrigin), numbers, np.concatenate(classes))
        ids, samples = rows.ids, list[int]()
        for sample in self.built.tolist():  # rows are in the order of the samples, of which some may be left out
            if len(samples) < len(ids) and ids[len(samples)] == self.listed.id(sample):
                samples.append(sample)
        return np.array(samples, np.int64), rows

    def _subset_rows(self, before: Numbers) -> Iterator[tuple[str, Numbers]]:
        """Yields the subsets of the split, and the rows of each of which the samples are still there.

        ``before`` is int64 [rows], the row that was made of each row's sample before; -1: none.
        """
        there = np.flatnonzero(before >= 0)
        for name, subset in self._dataset.items():
            if subset.record.subset_of == self._name and self._old is not None:
                now = np.full(int(self._old.record.rows_of_shards.sum()), -1, np.int64)
                now[self._stored.shard_rows[before[there]]] = there
                rows = now[subset.files.shard_rows(np.arange(len(subset)))]
                yield name, rows[rows >= 0]


_NO_ROWS = VersionRows.of_lines([], [], np.empty(0, np.int64), np.empty(0, np.int64))


_WITHOUT = " without a value of "  # in each warning of :func:`_missing_values`


def _missing_values(fields: Mapping[str, FieldSpec], rows: int, version: int) -> list[str]:
    """Returns a warning for each added field of which new rows of a version have no values yet."""
    return [
        f"{counted(rows, 'new row')} of version {version}{_WITHOUT}{name} ({fill_value(spec):g}); add this field again"
        for name, spec in fields.items()
        if spec.version and rows
    ]


def is_on_missing_values(warning: str, field: str | None = None) -> bool:
    """Returns whether a warning is on rows of an update that have no value of an added field: of one, or of any."""
    return (_WITHOUT if field is None else f"{_WITHOUT}{field} (") in warning


def origin_now(
    split: SourceSplit, index: int, stored: SampleOrigin, listed: int, checksum: bool
) -> SampleOrigin | None:
    """Returns the origin of a sample now; None if it has changed since the source was ``listed``, in nanoseconds.

    With ``checksum`` the content of its files is compared in any case, not only where times leave doubts.
    """
    revision = split.revision(index)
    is_same = revision == stored.revision
    if is_same and not checksum and _is_settled(revision, listed):
        return stored
    if _TIME.sub("", revision) != _TIME.sub("", stored.revision):
        return None
    if not stored.checksum or not isinstance(split, HasChecksums):
        return stored if is_same else None
    with suppress(SampleError):  # raised again when the sample is built
        if split.checksum(index) == stored.checksum:
            return msgspec.structs.replace(stored, revision=revision)
    return None


class Previous:
    """The version that an update follows, which is opened before its source is listed.

    Attributes:
        manifest: manifest of the version.
        excluded: samples that it excludes, which may be gone now.
        on_misfit: what the error of a sample that is unlike the other rows says in addition.
        replaces: None, as it stays.
        shuffle_seed: None, as new shards have samples in order, and rows an order of their own.
        splits: the splits of the source, compared with it; set by :meth:`compare`, unless nothing has changed.
        counts: int64 [3], numbers of new and changed samples, and of rows whose samples are gone, of all splits.

    Raises:
        StoreError: if there is no dataset at the destination.
    """

    again, replaces, shuffle_seed = "run the update again", None, None

    def __init__(self, out: Path, options: UpdateOptions) -> None:
        self._out, self._place, self._options = out, out.resolve(), options
        self.on_misfit = f"; {out} has rows like that one, which an update keeps: build it again with --overwrite"
        self._dataset = Dataset(self._place)
        self.manifest = self._dataset.manifest
        table = self.manifest.recipe.get("exclude")
        self.excluded: Excluded = {
            name: self.manifest.excluded(name) for name in (table if isinstance(table, dict) else ())
        }
        self.splits, self.counts = dict[str, SplitUpdate](), np.zeros(3, np.int64)

    def compare(
        self, recipe: BuildRecipe, splits: Mapping[str, SourceSplit], digest: str
    ) -> tuple[dict[str, SourceSplit], dict[str, Any]]:
        """Compares the splits of a source with the dataset; returns the samples to build, and what the plan says of it.

        ``digest`` is their fingerprint; they are only compared where that does not say that nothing has changed.

        Raises:
            BuildError: if the dataset is of another recipe, or of a source that cannot tell which samples have changed,
                or has a subset of the name of a split.
        """
        was, now = ({**body, "exclude": None} for body in (canonical(self.manifest.recipe), recipe.resolved()))
        if was != now:
            raise BuildError(
                f"{self._out} was built by another recipe ({unlike(was, now)}); use mmload build --overwrite to build "
                "it again"
            )
        for name, split in splits.items():
            self._check_comparable(recipe.kind, name, split)
        if not self._is_same(splits, digest):
            self.splits = {
                name: SplitUpdate(name, split, self._dataset, self._options, recipe.shuffle_seed)
                for name, split in splits.items()
            }
            self.counts = sum((split.counts() for split in self.splits.values()), self.gone_rows)
        samples = hashlib.sha256(b"".join(split.built.tobytes() for split in self.splits.values())).hexdigest()
        built = {name: only(split.listed, split.built) for name, split in self.splits.items() if len(split.built)}
        return built, {
            UPDATES: self.manifest.contents,
            "append": self._options.append,
            "checksum": self._options.checksum,
            "samples": samples,
            "folders": self._next_folders(),
        }

    def _is_same(self, splits: Mapping[str, SourceSplit], digest: str) -> bool:
        """Returns whether the fingerprint alone, which has all ids and revisions, says that nothing has changed.

        It says nothing of the content of files, and samples that were left out may be readable now.
        """
        before = self._dataset.built_splits.values()
        if (
            digest != self.manifest.fingerprint
            or self._options.checksum
            or any(split.record.skipped_count for split in before)
        ):
            return False
        listed = min(listing_time(split) or 0 for split in before)
        revisions = chain.from_iterable(map(split.revision, range(len(split))) for split in splits.values())
        return all(_is_settled(revision, listed) for revision in revisions)

    def _check_comparable(self, kind: str, name: str, split: SourceSplit) -> None:
        record = self.manifest.splits.get(name)
        if record is not None and record.subset_of is not None:
            raise BuildError(
                f"the source has a split {name}, and {self._out} a subset of this name; remove that first: "
                f"mmload subset {self._out} {name} --remove"
            )
        if not isinstance(split, HasChecksums) or (record is not None and record.origins is None):
            raise BuildError(
                f"a source of kind {kind} does not tell which samples have changed, so {self._out} cannot be updated; "
                "build it again with --overwrite"
            )

    def _next_folders(self) -> dict[str, int]:
        """Returns the number of each split's first new folder; that of an unfinished update of this version.

        The next folders have lower numbers than those of such an update if gc has removed the last ones since.
        """
        found, begun = next_shard_folders(self._place, self.manifest), unfinished_plan(self._place)
        before = begun.get("folders", {}) if begun.get(UPDATES) == self.manifest.contents else {}
        return {name: max(number, before.get(name, 0)) for name, number in found.items()}

    def next_manifest(self, body: Mapping[str, Any], counts: Numbers) -> Manifest:
        """Returns the manifest of the new version; its splits have ``counts`` as :meth:`SplitUpdate.counts`."""
        added, changed, removed = (counts + self.gone_rows).tolist()
        return with_version(body, self.manifest, self._place, "update", (added, changed, removed))

    @property
    def gone_rows(self) -> Numbers:
        """What splits that the source no longer has add to the counts of :attr:`splits`, when they are compared."""
        records = self.manifest.built_splits.items()
        return np.array([0, 0, sum(record.rows for name, record in records if name not in self.splits)])

    def up_to_date_manifest(self, plan: Mapping[str, Any], *, overwrite: bool = False, skip: bool) -> Manifest | None:
        """Returns the manifest at the destination if nothing has changed, or another part has committed; else None."""
        found = dataset_at(self._place)
        if found is not None and (found.contents, found.version) == (self.manifest.contents, self.manifest.version):
            # With skip, the only new samples may be those that were left out before, and may be left out again.
            is_same = found.fingerprint == plan["fingerprint"] and not self.counts[int(skip) :].any()
            return found if is_same else None
        before = [] if found is None else [version.contents for version in found.versions[-2:-1]]
        if found is None or before != [self.manifest.contents] or found.fingerprint != plan["fingerprint"]:
            raise BuildError(f"{self._out} was changed by another command meanwhile; run the update again")
        return found
