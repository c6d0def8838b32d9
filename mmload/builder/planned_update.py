"""Updates a dataset to its changed source: builds new and changed samples, and commits a version over all shards.

Shards that are there stay as they are. The rows of the new version are in an order of their own over all shards, so
that they are those of a fresh build, row for row, or keep the order in which they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.builder.destination import dataset_at, is_up_to_date
from mmload.builder.engines import Engine
from mmload.builder.origins import (
    SplitChanges,
    StoredSplit,
    compare_split,
    read_lists,
)
from mmload.builder.planned_build import PlannedBuild, Progress, Summaries, plan_shards
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shard_job import row_order
from mmload.builder.shards import UPDATES, BuildPaths, ShardLayout, ShardPlan
from mmload.builder.split_records import (
    has_classes,
    keep_meaning,
    objects_of,
    split_notes,
    split_warnings,
    write_list,
)
from mmload.builder.staging import Staging
from mmload.builder.version_rows import NewSplit, RowsKind, VersionRows, VersionShards
from mmload.errors import BuildError, RecipeError, counted
from mmload.records import FieldSpec
from mmload.sources import HasChecksums, SourceSplit
from mmload.sources.exclusion import Excluded, only
from mmload.store.dataset import Dataset
from mmload.store.dataset_folder import check_no_links
from mmload.store.manifest import Manifest, SplitRecord, shard_name
from mmload.store.shard_table import ShardTable
from mmload.store.unfinished import unfinished_plan
from mmload.store.versions import next_shard_folders, next_version, with_version

Numbers = npt.NDArray[np.int64]

_LAST = 2**62
_NO_ROWS: Numbers = np.empty(0, np.int64)


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


class PlannedUpdate(PlannedBuild):
    """An update whose source is listed and compared with the dataset. Arguments as for :func:`mmload.build`.

    Attributes:
        changes: name of a split -> its differences from the dataset.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read.
        BuildError: if the dataset is of another recipe, or of a source that cannot tell which samples have changed.
    """

    probes = 2  # of few samples in all
    shuffles = False  # the order of the rows is a list of its own

    def __init__(
        self,
        recipe: BuildRecipe,
        options: UpdateOptions,
        on_error: str,
        max_errors: int | str | None,
        exclude: str | Path | None,
        progress: Progress | None,
        command: Sequence[str],
    ) -> None:
        super().__init__(recipe, on_error, max_errors, exclude, progress, command)
        self._options = options
        self._stored: dict[str, StoredSplit] = {}
        self._listed_splits = self.splits
        self.changes = {name: self._compared(name, split) for name, split in self.splits.items()}
        self._chosen = {name: np.flatnonzero(~changes.kept) for name, changes in self.changes.items()}
        self.splits = {name: only(self.splits[name], own) for name, own in self._chosen.items() if len(own)}
        self.plan |= {
            UPDATES: self.old.contents,
            "append": options.append,
            "checksum": options.checksum,
            "samples": hashlib.sha256(b"".join(own.tobytes() for own in self._chosen.values())).hexdigest(),
            "folders": self._next_folders(),
        }

    def excluded_before(self) -> Excluded:
        """Opens the dataset, before the source is listed, and returns the samples that it excludes."""
        self._place = self.out.resolve()
        self._dataset = Dataset(self._place)
        self.old = self._dataset.manifest
        table = self.old.recipe.get("exclude")
        return {name: self.old.excluded(name) for name in (table if isinstance(table, dict) else ())}

    def _next_folders(self) -> dict[str, int]:
        """Returns the number of each split's first new folder; that of an unfinished update, if it is still free."""
        found = next_shard_folders(self._place, self.old)
        begun = unfinished_plan(self._place)
        before = begun.get("folders")
        if begun.get(UPDATES) != self.old.contents or not isinstance(before, dict) or before.keys() != found.keys():
            return found
        # The next folders have lower numbers now if gc has removed the last ones since.
        are_free = all(type(before[name]) is int and before[name] >= number for name, number in found.items())
        return before if are_free else found

    def _compared(self, name: str, split: SourceSplit) -> SplitChanges:
        record = self.old.splits.get(name)
        if not isinstance(split, HasChecksums):
            raise BuildError(
                f"a source of kind {self.recipe.kind} does not tell which samples have changed, so {self.out} cannot "
                "be updated; build it again with --overwrite"
            )
        if record is not None and record.subset_of is not None:
            raise BuildError(
                f"the source has a split {name}, and {self.out} a subset of this name; remove that first: "
                f"mmload subset {self.out} {name} --remove"
            )
        if record is not None and record.origins is None:
            raise BuildError(
                f"split {name} of {self.out} has no list of origins, so it cannot be updated; build it again"
            )
        self._stored[name] = StoredSplit() if record is None else read_lists(self._place, name, record)
        return compare_split(
            split,
            self._stored[name],
            same_meaning=record is None or keep_meaning(record, split),
            checksum=self._options.checksum,
        )

    @property
    def removed_splits(self) -> list[str]:
        """Names of the splits that the source no longer has."""
        own = (name for name, record in self.old.splits.items() if record.subset_of is None)
        return [name for name in own if name not in self._listed_splits]

    @property
    def any_changes(self) -> bool:
        """Whether the source differs from the dataset, and be it in the times of files alone."""
        others = bool(self.removed_splits) or self.old.fingerprint != self.plan["fingerprint"]
        return others or any(changes.any for changes in self.changes.values())

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of new and changed samples, and of rows whose samples are gone, of all splits."""
        gone = sum(self.old.splits[name].rows for name in self.removed_splits)
        found = self.changes.values()
        added, changed = sum(changes.added for changes in found), sum(changes.changed for changes in found)
        return added, changed, sum(changes.removed for changes in found) + gone

    def notes(self) -> Iterator[str]:
        """Yields sentences on what an update does besides what it counts, and why all rows of a split are changed."""
        for name, ids in self.gone.items():
            found = f"{counted(len(ids), 'excluded sample')} of split {name}, such as {ids[0]!r:.80}"
            yield f"no longer in the source: {found}; what is excluded stays excluded if it comes back"
        for name in (each for each in self.changes if each in self.old.splits):
            split, record, changes = self._listed_splits[name], self.old.splits[name], self.changes[name]
            if (tuple(split.classes), objects_of(split)) != (record.classes, record.objects):
                built = "no row is built again for it" if keep_meaning(record, split) else "all rows are built again"
                yield f"classes or keypoints of split {name} are other ones than before: {built}"
            rows = changes.rows[[sample for sample in self._order(changes) if changes.rows[sample] >= 0]]
            if self.any_changes and (moved := int((rows != np.sort(rows)).sum())):
                yield (
                    f"{moved:,} of {counted(len(rows), 'row')} of split {name} change their order, to that of a fresh "
                    "build; add --append to keep it"
                )

    def inspect(self, *, overwrite: bool) -> Manifest | None:
        """Returns the manifest at the destination if nothing has changed, or another part has committed; else None."""
        manifest = dataset_at(self._place)
        if manifest is not None and (manifest.contents, manifest.version) == (self.old.contents, self.old.version):
            is_up_to_date(self._place, manifest, self._recipe_plan(), overwrite=overwrite, skip=True)
            return None if self.any_changes and not self._only_left_out else manifest
        earlier = () if manifest is None else manifest.versions[:-1]
        if manifest is None or not earlier or earlier[-1].contents != self.old.contents:
            raise BuildError(f"{self.out} was changed by another command meanwhile; run the update again")
        if manifest.fingerprint != self.plan["fingerprint"]:
            raise BuildError(f"{self.out} was updated to another state of the source; run the update again")
        return manifest

    @property
    def _only_left_out(self) -> bool:
        """Whether the only new samples are those that were left out before and may be left out again."""
        changed = any(changes.changed or changes.removed for changes in self.changes.values())
        return self.errors.skip and self.old.fingerprint == self.plan["fingerprint"] and not changed

    def _recipe_plan(self) -> dict[str, Any]:
        """Returns the plan as that of the old version, if it differs in the source and in further exclusions only."""
        recipe, before = dict(self.plan["recipe"]), self.old.recipe.get("exclude", {})
        now = recipe.get("exclude", {})
        if all(set(self.old.excluded(name)) <= set(now.get(name, ())) for name in before):
            recipe = {**recipe, "exclude": before} if before else {k: v for k, v in recipe.items() if k != "exclude"}
        return {**self.plan, "recipe": recipe, "fingerprint": self.old.fingerprint}

    def layout(self) -> ShardLayout:
        fresh = {name: split for name, split in self.splits.items() if not self.changes[name].kept.any()}
        kept = {name: record for name, record in self.old.splits.items() if name not in fresh}
        made = self._layout_of(fresh)
        fields = {**made.fields, **{name: record.built_fields for name, record in kept.items()}}
        shard_samples = {**made.shard_samples, **{name: record.shard_samples for name, record in kept.items()}}
        sizes = self._row_sizes(self.splits, fields)
        firsts = self.plan["folders"]
        plans = {
            name: plan_shards(name, len(split), shard_samples[name], firsts.get(name, 0))
            for name, split in self.splits.items()
        }
        return ShardLayout(fields=fields, sizes=sizes, shard_samples=shard_samples, plans=plans)

    def build_shards(self, layout: ShardLayout, plans: Sequence[ShardPlan], staging: Staging, engine: Engine) -> None:
        check_no_links(self._place, (f"{plan.split}/{shard_name(plan.index)}" for plan in plans))
        try:
            super().build_shards(layout, plans, staging, engine)
        except RecipeError as error:
            raise RecipeError(
                f"{error}; {self.out} has rows like that one, which an update keeps: build it again with --overwrite"
            ) from error

    def manifest(self, layout: ShardLayout, finished: Summaries, paths: BuildPaths) -> Manifest:
        """Makes the manifest of the new version, whose shards are all finished; writes the splits' lists.

        Raises:
            BuildError: if a split has no row, or writing fails.
        """
        from mmload.builder.missing_values import is_on_missing_values  # a build has imported torch by now

        splits: dict[str, SplitRecord] = {}
        counts = np.array(self.counts)
        notes, warnings = dict[str, list[str]](), dict[str, list[str]]()
        for name, split in self._listed_splits.items():
            if name not in self.old.splits and name not in layout.plans:
                continue  # no samples
            earlier = [text for text in self.old.card_lines("warnings", name) if is_on_missing_values(text)]
            if self._stays(name, split, layout):
                new = self._kept_split(name)
            else:
                new = self._new_split(name, layout, finished, paths)
            splits |= new.records
            counts += new.counts
            count = len(new.rows.samples)
            notes[name] = split_notes(split, new.rows.losses, new.rows.first_losses)
            warnings[name] = [*split_warnings(new.rows.losses, count), *earlier, *new.warnings]
        card: dict[str, Any] = {"notes": {name: notes[name] for name in splits if notes.get(name)}}
        if any(warnings.values()):
            card["warnings"] = {name: found for name, found in warnings.items() if found}
        body = {"recipe": self.plan["recipe"], "fingerprint": self.plan["fingerprint"], "splits": splits, "card": card}
        added, changed, removed = counts.tolist()
        return with_version(body, self.old, self._place, "update", (added, changed, removed))

    def _stays(self, name: str, split: SourceSplit, layout: ShardLayout) -> bool:
        """Returns whether a split of the new version is that of the old one."""
        old, changes = self.old.splits.get(name), self.changes[name]
        if changes.any or changes.origins or name in layout.plans:
            return False
        if old is None or old.skipped_count:  # a sample that was left out would be tried again if it were there
            return False
        if (np.diff(changes.rows[self._order(changes)]) < 0).any():  # the source lists its samples in another order
            return False
        return old.classes == tuple(split.classes) and old.objects == objects_of(split)

    def _kept_split(self, name: str) -> NewSplit:
        """Returns a split that stays, and its subsets."""
        records = {own: record for own, record in self.old.splits.items() if name in (own, record.subset_of)}
        samples, origins = self._stored[name].samples, self._stored[name].origins
        return NewSplit(records, VersionRows(samples=samples, origins=origins, shard_rows=_NO_ROWS, targets=None))

    def _new_split(self, name: str, layout: ShardLayout, finished: Summaries, paths: BuildPaths) -> NewSplit:
        """Returns a split that has changed, and its subsets; writes their lists."""
        from mmload.builder.missing_values import missing_values

        version, shards = next_version(self.old), self._shards(name, layout, finished, paths)
        listed = self.first_listed(paths)
        rows, places, skipped = self._rows(name, shards)
        if not len(places):
            raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")
        left_out = self.changes[name].rows[(shards.rows < 0)]
        was_there = int((left_out >= 0).sum())
        kind = self._kind(name, layout, shards.table)
        records = {name: rows.record(partial(write_list, paths, name, listed=listed), version, kind, skipped)}
        warnings = missing_values(records[name], len(shards.built), version)
        for subset, chosen in self._subsets(name, places):
            if len(chosen):
                of = replace(kind, shards_of=name)
                records[subset] = rows.chosen(chosen).record(partial(write_list, paths, subset), version, of)
            else:
                warnings.append(f"subset {subset} is gone, as none of its rows is left")
        return NewSplit(records, rows, (was_there - len(left_out), -was_there, was_there), warnings)

    def commit(self, manifest: Manifest, staging: Staging) -> None:
        """Adds the version to the dataset; raises BuildError if the dataset has changed meanwhile."""
        staging.add_version(manifest, self.old.contents)

    def _kind(self, name: str, layout: ShardLayout, table: ShardTable) -> RowsKind:
        return RowsKind(
            fields={**layout.fields[name], **self._added(name, layout)},
            classes=self._listed_splits[name].classes,
            shard_samples=layout.shard_samples[name],
            shards=table,
            objects=objects_of(self._listed_splits[name]),
        )

    def _shards(self, name: str, layout: ShardLayout, finished: Summaries, paths: BuildPaths) -> VersionShards:
        """Returns the shards of the new version: those of the old one that still have a row, and the new ones."""
        old, changes, chosen = self.old.splits.get(name), self.changes[name], self._chosen[name]
        kept = np.flatnonzero(changes.kept)
        shards = VersionShards(rows=np.full(len(changes.rows), -1, np.int64))
        if old is not None and len(kept):
            stored = self._dataset[name].files.shard_rows(changes.rows[kept])
            starts = np.concatenate([[0], np.cumsum(old.shards.rows)])
            of_shard = np.searchsorted(starts, stored, side="right") - 1
            used, place = np.unique(of_shard, return_inverse=True)
            firsts = np.concatenate([[0], np.cumsum(old.shards.rows[used])])
            shards.rows[kept] = stored - starts[of_shard] + firsts[place]
            for index in used.tolist():
                shards.add(old.shards[index], int(old.shards.folder_numbers[index]))
            if has_classes(old.fields):
                targets = self._dataset[name].reader.gather("targets", changes.rows[kept])
                shards.targets = dict(zip(kept.tolist(), targets.tolist(), strict=True))
        for plan in layout.plans.get(name, []):
            added = self._added(name, layout)
            samples = chosen[plan.start : plan.stop].tolist()
            shards.add_built(self._listed_splits[name], samples, plan, finished[name, plan.index], paths, added)
        return shards

    def _added(self, name: str, layout: ShardLayout) -> dict[str, FieldSpec]:
        """Returns the fields that were added to a split, without those that its samples have now."""
        old = self.old.splits.get(name)
        fields = {} if old is None else old.fields
        return {each: spec for each, spec in fields.items() if spec.version and each not in layout.fields[name]}

    def _rows(self, name: str, shards: VersionShards) -> tuple[VersionRows, dict[int, int], list[tuple[str, str]]]:
        """Returns the rows in their order, the row of each sample, and the samples that were left out."""
        changes, stored = self.changes[name], self._stored[name]
        samples = [sample for sample in self._order(changes) if shards.rows[sample] >= 0]
        lines, origins = [], []
        for sample in samples:
            row = int(changes.rows[sample])
            built = shards.built.get(sample)
            lines.append(stored.samples[row] if built is None else built[0])
            origins.append(changes.origins.get(sample, stored.origins[row]) if built is None else built[1])
        targets = np.array([shards.targets[sample] for sample in samples]) if shards.targets else None
        rows = VersionRows(samples=lines, origins=origins, shard_rows=shards.rows[samples], targets=targets)
        return rows, {sample: row for row, sample in enumerate(samples)}, shards.skipped

    def _order(self, changes: SplitChanges) -> list[int]:
        """Returns the samples in the order of their rows."""
        count = len(changes.rows)
        if self._options.append:
            order: list[int] = np.argsort(np.where(changes.rows < 0, _LAST, changes.rows), kind="stable").tolist()
            return order
        return list(row_order(0, count, count, self.recipe.shuffle_seed))

    def _subsets(self, name: str, places: Mapping[int, int]) -> Iterator[tuple[str, list[int]]]:
        """Yields the subsets of a split, and the rows of each of which the samples are still there."""
        old = self.old.splits.get(name)
        subsets = {own: record for own, record in self.old.splits.items() if record.subset_of == name}
        if old is None or not subsets:
            return
        now = {int(row): places[sample] for sample, row in enumerate(self.changes[name].rows) if sample in places}
        owner = self._dataset[name].files.shard_rows(np.arange(old.rows))
        row_of = dict(zip(owner.tolist(), range(old.rows), strict=True))
        for subset, record in subsets.items():
            stored = self._dataset[subset].files.shard_rows(np.arange(record.rows))
            rows = (row_of.get(each) for each in stored.tolist())
            yield subset, [now[row] for row in rows if row in now]
