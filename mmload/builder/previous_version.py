"""The version of a dataset that an update follows: its rows, and what has changed in its source since.

An update is a build with a previous version (:mod:`mmload.builder.planned_build`): it builds new and changed samples
into new shards, and its rows are in an order of their own over all shards, old and new. So they are those of a fresh
build, row for row, or keep the order in which they came.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.builder.recipe import BuildRecipe
from mmload.builder.sample_changes import (
    SampleLine,
    SplitChanges,
    StoredLists,
    compare_split,
    has_classes,
    keep_meaning,
    objects_of,
    parsed_lines,
    read_lists,
)
from mmload.builder.shard_job import row_order
from mmload.builder.shards import (
    UPDATES,
    BuildPaths,
    SampleOrigin,
    ShardLayout,
    ShardPlan,
    ShardSummary,
    Statistics,
    Summaries,
    json_lines,
    origins_lines,
    skipped_in,
    write_list,
)
from mmload.builder.staging import dataset_at, is_up_to_date
from mmload.errors import BuildError, counted
from mmload.records import FieldSpec
from mmload.sources import HasChecksums, SourceSplit
from mmload.sources.exclusion import Excluded, only
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import check_no_links
from mmload.store.manifest import (
    ORDER_DTYPE,
    ORDER_NAME,
    ORIGINS_NAME,
    SAMPLES_NAME,
    SKIPPED_NAME,
    SKIPPED_SHOWN,
    Manifest,
    RowOrder,
    SplitRecord,
    shard_name,
    versioned_name,
)
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable
from mmload.store.unfinished import unfinished_plan
from mmload.store.versions import next_shard_folders, next_version

_LAST = 2**62

Numbers = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

Write = Callable[[str, Iterable[bytes]], FileRecord]
"""Writes a list of a split, given the name of its file and its content."""


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


# Rows of a version, whose order is a list of its own.


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

    def chosen(self, rows: Numbers) -> VersionRows:
        """Returns some of the rows, in the given order."""
        return VersionRows(**{name: array[rows] if len(array) else array for name, array in vars(self).items()})

    @property
    def statistics(self) -> Statistics:
        """Statistics of the rows, as far as their origins have them."""
        summed = [origin for origin in self.origins if origin.sums]
        found = Statistics(
            sums=[sum(column) for column in zip(*(origin.sums for origin in summed), strict=True)],
            squares=[sum(column) for column in zip(*(origin.squares for origin in summed), strict=True)],
            pixels=sum(origin.pixels for origin in summed),
            class_counts=dict(Counter(self.targets.tolist())),
        )
        for line, origin in zip(self.samples, self.origins, strict=False):
            if origin.losses:
                found.add_losses(json.loads(line)["id"], origin.losses)
        return found

    def record(
        self,
        write: Write,
        version: int,
        kind: Mapping[str, Any],
        of: str | None = None,
        skipped: Sequence[tuple[str, str]] = (),
    ) -> SplitRecord:
        """Writes the lists and returns the split's manifest entry.

        Args:
            write: writes a list.
            version: number of the version.
            kind: what the rows share, as :func:`kind_of` returns it.
            of: the split that a subset is of; None: it is no subset.
            skipped: id and reason of the samples that were left out.
        """

        def written(name: str, content: bytes) -> FileRecord:
            return write(versioned_name(name, version), [content])

        has_origins, statistics = len(self.origins) > 0, self.statistics.entries(len(kind["classes"]))
        skipped_lines = json_lines({"id": name, "reason": reason} for name, reason in skipped)
        return SplitRecord(
            **{**statistics, **kind} if not has_origins else {**kind, **statistics},
            rows=len(self.samples),
            skipped_count=len(skipped),
            skipped=tuple(skipped[:SKIPPED_SHOWN]),
            skipped_file=written(SKIPPED_NAME, skipped_lines) if skipped else None,
            samples=written(SAMPLES_NAME, b"".join(self.samples)),
            origins=written(ORIGINS_NAME, origins_lines(self.origins.tolist())) if has_origins else None,
            order=RowOrder(
                version=version,
                rows=written(ORDER_NAME, self.shard_rows.astype(ORDER_DTYPE).tobytes()),
                shards_of=of,
            ),
        )


def kind_of(record: SplitRecord, shards: ShardTable) -> dict[str, Any]:
    """Returns what the rows of a split share, over other shards: entries of :class:`SplitRecord`.

    Mean and deviation are those of rows without origins.
    """
    names = ("fields", "classes", "shard_samples", "objects", "mean", "std")
    return {**{name: getattr(record, name) for name in names}, "shards": shards}


def version_rows(
    samples: Sequence[bytes], origins: Sequence[SampleOrigin], shard_rows: Numbers, targets: Numbers | None
) -> VersionRows:
    """Returns rows of their lists, numbers and classes."""
    return VersionRows(
        samples=np.array(samples, np.object_),
        origins=np.array(origins, np.object_),
        shard_rows=shard_rows,
        targets=np.empty(0, np.int64) if targets is None else targets,
    )


def joined(parts: Sequence[VersionRows]) -> VersionRows:
    """Returns rows one after another."""
    return VersionRows(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def stored_rows(split: Split, lists: StoredLists | None = None) -> VersionRows:
    """Returns the rows of a split of a dataset, with their lists, which may have been read before."""
    lists = lists or read_lists(split.path, split.name, split.record)
    numbers = np.arange(len(split))
    classes = split.reader.gather("targets", numbers).numpy() if has_classes(split.record.fields) else None
    return version_rows(lists.samples, lists.origins, split.files.shard_rows(numbers), classes)


def in_use(shards: ShardTable, rows: Numbers) -> tuple[ShardTable, Numbers]:
    """Drops the shards that have none of these rows, int64 [n] over all shards.

    Returns:
        The table of the other shards, and int64 [all rows], the number that each row has over these; of dropped shards
        any.
    """
    starts = np.concatenate([[0], np.cumsum(shards.rows)])
    used = np.unique(np.searchsorted(starts, rows, side="right") - 1)
    now = np.zeros(len(shards), np.int64)
    now[used] = np.concatenate([[0], np.cumsum(shards.rows[used])])[:-1]
    moved = np.arange(starts[-1]) + np.repeat(now - starts[:-1], shards.rows)
    sizes = {name: column[used] for name, column in shards.bytes.items()}
    crcs = {name: column[used] for name, column in shards.crc32.items()}
    return ShardTable(shards.rows[used], sizes, crcs, shards.folder_numbers[used]), moved


class NewSplit(NamedTuple):
    """Split of a new version.

    Attributes:
        records: manifest entries of it and its subsets.
        statistics: those of its rows.
        counts: what samples that were left out add to the numbers of new, changed and removed rows.
        warnings: sentences on it.
    """

    records: dict[str, SplitRecord]
    statistics: Statistics
    counts: tuple[int, int, int] = (0, 0, 0)
    warnings: Sequence[str] = ()


class Previous:
    """The version that an update follows, which is opened before its source is listed.

    Attributes:
        manifest: manifest of the version.
        excluded: samples that it excludes, which may be gone now.
        changes: name of a split -> its differences from the dataset; set by :meth:`compare`.
        removed_splits: names of the splits that the source no longer has; set by :meth:`compare`.

    Raises:
        StoreError: if there is no dataset at the destination.
    """

    def __init__(self, out: Path, options: UpdateOptions) -> None:
        self._out, self._place, self._options = out, out.resolve(), options
        self._dataset = Dataset(self._place)
        self.manifest = self._dataset.manifest
        table = self.manifest.recipe.get("exclude")
        self.excluded: Excluded = {
            name: self.manifest.excluded(name) for name in (table if isinstance(table, dict) else ())
        }
        self.changes: dict[str, SplitChanges] = {}
        self.removed_splits: list[str] = []

    def compare(
        self, recipe: BuildRecipe, splits: Mapping[str, SourceSplit]
    ) -> tuple[dict[str, SourceSplit], dict[str, Any]]:
        """Compares the splits of a source with the dataset; returns the samples to build, and what the plan says of it.

        Raises:
            BuildError: if the dataset is of a source that cannot tell which samples have changed, or has a subset of
                the name of a split.
        """
        for name, split in splits.items():
            self._check_comparable(recipe.kind, name, split)
        self._listed, self._shuffle_seed, records = splits, recipe.shuffle_seed, self.manifest.splits
        self._stored = {
            name: read_lists(self._place, name, records[name]) if name in records else StoredLists() for name in splits
        }
        self.changes = {
            name: compare_split(
                split,
                self._stored[name],
                same_meaning=name not in records or keep_meaning(records[name], split),
                checksum=self._options.checksum,
            )
            for name, split in splits.items()
        }
        self.removed_splits = [name for name in self.manifest.built_splits if name not in splits]
        self._chosen = {name: np.flatnonzero(~changes.kept) for name, changes in self.changes.items()}
        samples = hashlib.sha256(b"".join(own.tobytes() for own in self._chosen.values())).hexdigest()
        plan = {
            UPDATES: self.manifest.contents,
            "append": self._options.append,
            "checksum": self._options.checksum,
            "samples": samples,
            "folders": self._next_folders(),
        }
        return {name: only(splits[name], own) for name, own in self._chosen.items() if len(own)}, plan

    def _check_comparable(self, kind: str, name: str, split: SourceSplit) -> None:
        record = self.manifest.splits.get(name)
        if not isinstance(split, HasChecksums):
            raise BuildError(
                f"a source of kind {kind} does not tell which samples have changed, so {self._out} cannot be updated; "
                "build it again with --overwrite"
            )
        if record is not None and record.subset_of is not None:
            raise BuildError(
                f"the source has a split {name}, and {self._out} a subset of this name; remove that first: "
                f"mmload subset {self._out} {name} --remove"
            )
        if record is not None and record.origins is None:
            raise BuildError(
                f"split {name} of {self._out} has no list of origins, so it cannot be updated; build it again"
            )

    def _next_folders(self) -> dict[str, int]:
        """Returns the number of each split's first new folder; that of an unfinished update, if it is still free."""
        found = next_shard_folders(self._place, self.manifest)
        begun = unfinished_plan(self._place)
        before = begun.get("folders")
        if (
            begun.get(UPDATES) != self.manifest.contents
            or not isinstance(before, dict)
            or before.keys() != found.keys()
        ):
            return found
        # The next folders have lower numbers now if gc has removed the last ones since.
        are_free = all(type(before[name]) is int and before[name] >= number for name, number in found.items())
        return before if are_free else found

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of new and changed samples, and of rows whose samples are gone, of all splits."""
        gone = sum(self.manifest.splits[name].rows for name in self.removed_splits)
        found = self.changes.values()
        added, changed = sum(changes.added for changes in found), sum(changes.changed for changes in found)
        return added, changed, sum(changes.removed for changes in found) + gone

    def differs(self, fingerprint: str) -> bool:
        """Returns whether a source differs from the dataset, and be it in the times of files alone."""
        others = bool(self.removed_splits) or self.manifest.fingerprint != fingerprint
        return others or any(changes.any for changes in self.changes.values())

    def notes(self, fingerprint: str) -> Iterator[str]:
        """Yields sentences on what an update does besides what it counts, and why all rows of a split are changed."""
        for name in (each for each in self.changes if each in self.manifest.splits):
            split, record, changes = self._listed[name], self.manifest.splits[name], self.changes[name]
            if (tuple(split.classes), objects_of(split)) != (record.classes, record.objects):
                built = "no row is built again for it" if keep_meaning(record, split) else "all rows are built again"
                yield f"classes or keypoints of split {name} are other ones than before: {built}"
            rows = changes.rows[self._order(changes)]
            rows = rows[rows >= 0]
            if self.differs(fingerprint) and (moved := int((rows != np.sort(rows)).sum())):
                yield (
                    f"{moved:,} of {counted(len(rows), 'row')} of split {name} change their order, to that of a fresh "
                    "build; add --append to keep it"
                )

    def inspect(self, plan: Mapping[str, Any], *, overwrite: bool, skip: bool) -> Manifest | None:
        """Returns the manifest at the destination if nothing has changed, or another part has committed; else None."""
        found = dataset_at(self._place)
        if found is not None and (found.contents, found.version) == (self.manifest.contents, self.manifest.version):
            is_up_to_date(self._place, found, self._as_before(plan), overwrite=overwrite, skip=True)
            # The only new samples may be those that were left out before, and may be left out again.
            left_out = skip and found.fingerprint == plan["fingerprint"]
            left_out &= not any(changes.changed or changes.removed for changes in self.changes.values())
            return found if left_out or not self.differs(plan["fingerprint"]) else None
        earlier = () if found is None else found.versions[:-1]
        if found is None or not earlier or earlier[-1].contents != self.manifest.contents:
            raise BuildError(f"{self._out} was changed by another command meanwhile; run the update again")
        if found.fingerprint != plan["fingerprint"]:
            raise BuildError(f"{self._out} was updated to another state of the source; run the update again")
        return found

    def _as_before(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the plan as that of the old version, if it differs in the source and in further exclusions only."""
        recipe, before = dict(plan["recipe"]), self.manifest.recipe.get("exclude", {})
        now = recipe.get("exclude", {})
        if all(set(self.manifest.excluded(name)) <= set(now.get(name, ())) for name in before):
            recipe = {**recipe, "exclude": before} if before else {k: v for k, v in recipe.items() if k != "exclude"}
        return {**plan, "recipe": recipe, "fingerprint": self.manifest.fingerprint}

    def kept_record(self, name: str) -> SplitRecord | None:
        """Returns the entry of a split that new rows must be like, as rows of it stay or there are no new ones."""
        is_new = len(self._chosen[name]) and not self.changes[name].kept.any()
        return None if is_new else self.manifest.splits.get(name)

    def check_links(self, plans: Iterable[ShardPlan]) -> None:
        """Checks that no new shard would lie behind a link; raises StoreError."""
        check_no_links(self._place, (f"{plan.split}/{shard_name(plan.index)}" for plan in plans))

    def new_split(
        self, name: str, layout: ShardLayout, finished: Summaries, paths: BuildPaths, listed: int
    ) -> NewSplit:
        """Returns a split of the new version, and its subsets; writes their lists if it has changed.

        Raises:
            BuildError: if no row is left, or writing fails.
        """
        from mmload.builder.missing_values import is_on_missing_values, missing_values  # a build has imported torch

        earlier = [text for text in self.manifest.card_lines("warnings", name) if is_on_missing_values(text)]
        if name not in layout.plans and self._stays(name):
            return NewSplit(self._with_subsets(name), self._stored_statistics(name), warnings=earlier)
        rows, places, shards = self._all_rows(name, layout, finished, paths)
        order = self._order(self.changes[name])
        order = order[places[order] >= 0]
        if not len(order):
            raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")
        rows = rows.chosen(places[order])
        shards, moved = in_use(shards, rows.shard_rows)
        rows, kind = replace(rows, shard_rows=moved[rows.shard_rows]), self._kind(name, layout, shards)
        version, write = next_version(self.manifest), partial(write_list, paths, name, listed=listed)
        skipped = list(skipped_in(paths, name, [plan.index for plan in layout.plans.get(name, ())]))
        records = {name: rows.record(write, version, kind, skipped=skipped)}
        built = int((places[self._chosen[name]] >= 0).sum())
        warnings = [*earlier, *missing_values(kind["fields"], built, version)]
        for subset, chosen in self._subset_rows(name, self.changes[name].rows[order]):
            if len(chosen):
                records[subset] = rows.chosen(chosen).record(partial(write_list, paths, subset), version, kind, name)
            else:
                warnings.append(f"subset {subset} is gone, as none of its rows is left")
        return NewSplit(records, rows.statistics, self._left_out(name, places), warnings)

    def _with_subsets(self, name: str) -> dict[str, SplitRecord]:
        """Returns the old entries of a split and its subsets."""
        return {own: record for own, record in self.manifest.splits.items() if name in (own, record.subset_of)}

    def _stored_statistics(self, name: str) -> Statistics:
        """Returns the statistics of the old rows of a split, but for the counts of their classes."""
        stored = self._stored[name]
        return version_rows(stored.samples, stored.origins, np.empty(0, np.int64), None).statistics

    def _left_out(self, name: str, places: Numbers) -> tuple[int, int, int]:
        """Returns what samples without a place add to the numbers of new, changed and removed rows."""
        left_out = self.changes[name].rows[places < 0]
        was_there = int((left_out >= 0).sum())
        return was_there - len(left_out), -was_there, was_there

    def _stays(self, name: str) -> bool:
        """Returns whether a split without new shards is that of the old version."""
        old, changes, split = self.manifest.splits.get(name), self.changes[name], self._listed[name]
        if changes.any or changes.origins:
            return False
        if old is None or old.skipped_count:  # a sample that was left out would be tried again if it were there
            return False
        if (np.diff(changes.rows[self._order(changes)]) < 0).any():  # the source lists its samples in another order
            return False
        return old.classes == tuple(split.classes) and old.objects == objects_of(split)

    def _order(self, changes: SplitChanges) -> Numbers:
        """Returns the samples in the order of their rows, int64 [samples]."""
        count = len(changes.rows)
        if self._options.append:
            return np.argsort(np.where(changes.rows < 0, _LAST, changes.rows), kind="stable")
        return np.array(row_order(0, count, count, self._shuffle_seed), np.int64)

    def _all_rows(
        self, name: str, layout: ShardLayout, finished: Summaries, paths: BuildPaths
    ) -> tuple[VersionRows, Numbers, ShardTable]:
        """Returns the rows of all old and new shards, which of them each sample has (-1: none), and these shards."""
        changes, shards, folders = self.changes[name], list[ShardRecord](), list[int]()
        parts = [version_rows([], [], np.empty(0, np.int64), None)]
        places, count = np.where(changes.kept, changes.rows, -1), 0
        if (old := self.kept_record(name)) is not None:
            parts.append(stored_rows(self._dataset[name], self._stored[name]))
            parts[-1].origins[changes.rows[list(changes.origins)]] = list(changes.origins.values())
            shards, folders, count = list(old.shards), old.shards.folder_numbers.tolist(), old.rows
        first = sum(record.rows for record in shards)
        for plan in layout.plans.get(name, ()):
            summary = finished[name, plan.index]
            samples, built = self._built_rows(plan, summary, paths, first)
            places[samples] = np.arange(count, count + len(samples))
            if len(samples):
                parts.append(built)
                shards.append(self._with_added(plan, summary.record, layout, paths))
                folders.append(plan.index)
            count, first = count + len(samples), first + len(samples)
        return joined(parts), places, ShardTable.from_records(shards, folders)

    def _built_rows(
        self, plan: ShardPlan, summary: ShardSummary, paths: BuildPaths, first: int
    ) -> tuple[Numbers, VersionRows]:
        """Returns the samples that a new shard has rows of, in their order, and the rows, numbered from ``first`` on.

        Raises:
            BuildError: if it was made of other samples.
        """
        split, wanted = self._listed[plan.split], self._chosen[plan.split][plan.start : plan.stop]
        files = [paths.list_file(plan.split, plan.index, name) for name in (SAMPLES_NAME, ORIGINS_NAME)]
        lines, origins = (file.read_bytes().splitlines(keepends=True) for file in files)
        ids, samples = [line.id for line in parsed_lines(lines, SampleLine)], list[int]()
        for sample in wanted.tolist():  # rows and left out samples are in the order of the samples
            if len(samples) < len(ids) and ids[len(samples)] == split.id(sample):
                samples.append(sample)
        if len(samples) != len(ids) or len(samples) + summary.skipped != len(wanted):
            raise BuildError(
                f"{paths.shard(plan.split, plan.index)} was made of other samples; remove {paths.folder}, then run the "
                "update again"
            )
        targets = paths.shard(plan.split, plan.index) / "targets.memmap"
        classes = np.fromfile(targets, np.int64) if summary.statistics.class_counts else None
        numbers = np.arange(first, first + len(samples))
        return np.array(samples, np.int64), version_rows(lines, parsed_lines(origins, SampleOrigin), numbers, classes)

    def _with_added(self, plan: ShardPlan, record: ShardRecord, layout: ShardLayout, paths: BuildPaths) -> ShardRecord:
        """Writes the files of added fields for a new shard; returns its record with them."""
        from mmload.builder.missing_values import filled_files

        added = self._added_fields(plan.split, layout)
        files = filled_files(paths, f"{plan.split}/{shard_name(plan.index)}", record.rows, added)
        return ShardRecord(rows=record.rows, files={**record.files, **files})

    def _added_fields(self, name: str, layout: ShardLayout) -> dict[str, FieldSpec]:
        """Returns the fields that were added to a split, without those that its samples have now."""
        fields = self.manifest.splits[name].fields if name in self.manifest.splits else {}
        return {each: spec for each, spec in fields.items() if spec.version and each not in layout.fields[name]}

    def _kind(self, name: str, layout: ShardLayout, shards: ShardTable) -> dict[str, Any]:
        """Returns what the rows of a split share."""
        return {
            "fields": {**layout.fields[name], **self._added_fields(name, layout)},
            "classes": self._listed[name].classes,
            "shard_samples": layout.shard_samples[name],
            "shards": shards,
            "objects": objects_of(self._listed[name]),
        }

    def _subset_rows(self, name: str, before: Numbers) -> Iterator[tuple[str, Numbers]]:
        """Yields the subsets of a split, and the rows of each of which the samples are still there.

        ``before`` is int64 [rows], the row that was made of each row's sample before; -1: none.
        """
        subsets = [own for own, record in self.manifest.splits.items() if record.subset_of == name]
        if not subsets:
            return
        there = np.flatnonzero(before >= 0)
        now = np.full(int(self.manifest.splits[name].shards.rows.sum()), -1, np.int64)
        now[self._dataset[name].files.shard_rows(before[there])] = there
        for subset in subsets:
            rows = now[self._dataset[subset].files.shard_rows(np.arange(len(self._dataset[subset])))]
            yield subset, rows[rows >= 0]
