"""A build whose source is listed: divides its samples into shards, runs those that are not finished, commits.

A build may have a previous version, which it updates: then only new and changed samples are built, and the rows that
stay keep their shards (:mod:`mmload.builder.previous_version`). Takes a checked recipe. Where shards are written, and
what stands at the destination, is the business of :mod:`mmload.builder.staging`.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mmload.builder.previous_version import NewSplit, Previous, UpdateOptions, fingerprint
from mmload.builder.recipe import BuildRecipe, OnError, VariableLayout
from mmload.builder.shard_job import (
    ChunkAssembly,
    Engine,
    ShardJob,
    TriedSamples,
    finished,
    objects_of,
    row_bytes,
)
from mmload.builder.shards import (
    UPDATES,
    BuildPaths,
    Numbers,
    ShardDivision,
    ShardPlan,
    ShardSummary,
    Statistics,
    asked_by,
    join_lists,
    made_by,
    skipped_in,
    stored_dtype,
    write_blocks,
)
from mmload.builder.staging import (
    SOURCE_NAME,
    Staging,
    check_apart,
    dataset_at,
    has_same_recipe,
    is_up_to_date,
    remove_set_aside,
    source_of,
)
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, RecipeError, SampleError, StoreError, UsageError, bytes_text, counted
from mmload.records import (
    BOXES,
    BOXES_CUT,
    BOXES_DROPPED,
    CLIPPED,
    IMAGES_EMPTIED,
    LIST,
    VARIABLE,
    FieldSpec,
    Progress,
    Sample,
    checked,
    dtype_name,
)
from mmload.runtime.files import remove
from mmload.sources import (
    FetchesAhead,
    HasChecksums,
    KnowsBoxes,
    KnowsSizes,
    SourceSplit,
    find_splits,
    notes_of,
)
from mmload.sources.decode import Decoder
from mmload.sources.listed_split import Excluded, remaining_splits
from mmload.store.manifest import (
    ORIGINS_NAME,
    PLAN_NAME,
    SAMPLES_NAME,
    SKIPPED_NAME,
    SKIPPED_SHOWN,
    Manifest,
    SplitRecord,
    staging_folder,
    unfinished_plan,
)
from mmload.store.variable_rows import VariableRows

SAMPLES_OF_ESTIMATE = 32
"""Number of samples for an estimate, evenly spread over a split."""

_MARGIN = 1.1  # shards are planned for rows that are larger than those of the estimate

_PROBES = 16  # samples of all splits together that are tried
_LINE_BYTES = 500  # generous estimate for a row of all lists, stored twice: in the notes and joined


class WholeSplit:
    """A split of a new dataset, in the place of a :class:`~mmload.builder.previous_version.SplitUpdate`."""

    kept_split = None
    added: ClassVar[Mapping[str, FieldSpec]] = {}

    def __init__(self, name: str, split: SourceSplit) -> None:
        self._name, self._split = name, split

    def new_split(
        self, division: ShardDivision, summaries: Sequence[ShardSummary], paths: BuildPaths, listed: int
    ) -> NewSplit:
        """Returns the manifest entry of the split; writes its lists."""
        numbers, statistics = [plan.index for plan in division.plans], Statistics()
        for summary in summaries:
            statistics.add(summary.statistics)
        rows, skipped = (sum(s.record.rows for s in summaries), sum(s.skipped for s in summaries))
        record = SplitRecord(
            **statistics.entries(len(self._split.classes)),
            rows=rows,
            fields=division.fields,
            classes=self._split.classes,
            skipped_count=skipped,
            skipped=tuple(islice(skipped_in(paths, self._name, numbers), SKIPPED_SHOWN)),
            skipped_file=join_lists(paths, self._name, numbers, SKIPPED_NAME) if skipped else None,
            samples=join_lists(paths, self._name, numbers, SAMPLES_NAME),
            shard_samples=division.shard_samples,
            shards=tuple(summary.record for summary in summaries),
            objects=objects_of(self._split),
            origins=join_lists(paths, self._name, numbers, ORIGINS_NAME, listed)
            if isinstance(self._split, HasChecksums)
            else None,
        )
        return NewSplit({self._name: record}, statistics, np.array([rows, 0, 0]))


class NewDataset:
    """What a build that updates nothing has in the place of a :class:`Previous` version.

    Attributes:
        splits: the splits; set by :meth:`compare`.
        replaces: contents of the dataset at the destination, which the new one may replace; None: there is none.
        shuffle_seed: key of the permutation of samples over the rows of shards, or None.
    """

    again, on_misfit = "build again with --overwrite", ""
    excluded: ClassVar[Excluded] = {}

    def __init__(self, place: Path, shuffle_seed: int | None) -> None:
        self._place, self.shuffle_seed = place, shuffle_seed
        self.splits: dict[str, WholeSplit] = {}
        self.replaces: str | None = None

    def compare(
        self, recipe: BuildRecipe, splits: Mapping[str, SourceSplit], digest: str
    ) -> tuple[dict[str, SourceSplit], dict[str, Any]]:
        """Returns the samples to build, which are all, and what the plan says of a previous version: nothing."""
        self.splits = {name: WholeSplit(name, split) for name, split in splits.items()}
        return dict(splits), {}

    def up_to_date_manifest(self, plan: Mapping[str, Any], *, overwrite: bool, skip: bool) -> Manifest | None:
        """Returns the manifest at the destination if the dataset there is what the build would make; else None.

        Raises:
            BuildError: if there is something that may not be replaced.
        """
        found = dataset_at(self._place)
        self.replaces = None if found is None else found.contents
        if found is None or not is_up_to_date(self._place, found, plan, overwrite=overwrite, skip=skip):
            return None
        return found

    def next_manifest(self, body: Mapping[str, Any], counts: Numbers) -> Manifest:
        """Returns the manifest with a body."""
        return Manifest(**body)


class PlannedBuild:
    """A build whose source is listed, and the counts of one run over its shards. Arguments as for :func:`build`.

    Attributes:
        previous: the version that this build updates, compared with the source, or that there is none.
        splits: the samples to build, by split: all, or those that the previous version does not have.
        built: samples read by this run.
        skipped: number of these that were skipped.
        shards: number of all shards; 0 if the dataset was up to date.
        missing: the shards that no run has built yet.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read.
        StoreError: if there is no dataset to update.
        BuildError: if the dataset is of a source that cannot tell which samples have changed.
    """

    def __init__(
        self,
        recipe: BuildRecipe,
        changes: UpdateOptions | None = None,
        *,
        on_error: str = "fail",
        max_errors: int | str | None = None,
        exclude: str | Path | None = None,
        progress: Progress | None = None,
        on_note: Callable[[str], None] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._note = on_note or (lambda text: None)
        if changes is not None and recipe.root is None and recipe.out is not None:
            recipe = replace(recipe, root=source_of(recipe.out))
            self._note(f"updates {recipe.out} from {recipe.root}, where its source was before")
        if recipe.root is None or recipe.out is None:
            raise RecipeError("the recipe has no root or no out; give both, as in: mmload build --config FILE ROOT OUT")
        self.out, self._place = recipe.out, Path(os.path.realpath(recipe.out))
        check_apart(recipe.kind, recipe.root, recipe.out)
        TransformChain(recipe.transforms)  # checked before the source is read
        self.previous = (
            NewDataset(self._place, recipe.shuffle_seed) if changes is None else Previous(recipe.out, changes)
        )
        self.listed, before = time.time_ns(), self.previous.excluded
        self.splits, excluded, gone = remaining_splits(_all_splits(recipe), recipe.exclude, exclude, before)
        self._listed_splits = self.splits
        self._fits = recipe.side is not None and recipe.variable_layout is None
        if recipe.side is not None:
            sizes = {} if recipe.is_side_given else some_sizes(self.splits)
            recipe = recipe.with_default_transforms(boxes=has_boxes(self.splits), sizes=sizes.values())
        self.recipe, self._progress = recipe, progress or (lambda done, total: None)
        self.chain, self._tried = TransformChain(recipe.transforms), TriedSamples()
        self.plan: dict[str, Any] = {
            "recipe": replace(recipe, exclude=excluded).resolved(),
            "fingerprint": fingerprint(self.splits),
            "versions": made_by(),
            **asked_by(command),
        }
        self.skip = checked(on_error, OnError, "on-error") == "skip"
        self._max_errors, samples = max_errors, sum(map(len, self.splits.values()))
        self._most_skipped = samples if max_errors is None else _most_skipped(max_errors, samples, self.skip)
        self.built = self.skipped = self.shards = 0
        self.missing: Sequence[ShardPlan] = ()
        for name, ids in gone.items():
            found = f"{counted(len(ids), 'excluded sample')} of split {name}, such as {ids[0]!r:.80}"
            self._note(f"no longer in the source: {found}; what is excluded stays excluded if it comes back")
        self.splits, compared = self.previous.compare(recipe, self.splits, self.plan["fingerprint"])
        self.plan |= compared

    def run(
        self, engine: Engine, chosen: slice = slice(None), *, shared: bool = False, overwrite: bool = False
    ) -> Manifest | None:
        """Builds a slice of all shards, beside others if ``shared``; commits the dataset if all are sealed then.

        Returns:
            The manifest of the dataset; None if shards are :attr:`missing`.
        """
        if not (overwrite and staging_folder(self._place).exists()):  # else a killed update may have left files there
            manifest = self.up_to_date_manifest(overwrite=overwrite)
            if manifest is not None:
                self._clean_up(manifest, shared)
                return manifest
        with Staging(self._place, self.plan, shared=shared, overwrite=overwrite) as staging:
            try:
                # A killed build may have been completed, or another part may have committed, since the look above.
                manifest = self.up_to_date_manifest(overwrite=overwrite and not staging.committed)
                manifest = manifest or self._build_or_commit(staging, engine, chosen) or self._committed(staging)
            except (BuildError, FileNotFoundError):
                manifest = self._committed(staging) if shared else None
                if manifest is None:  # else another part has committed meanwhile, and removed the folder
                    raise
            if manifest is not None:
                staging.discard()
        return manifest

    def _clean_up(self, manifest: Manifest, shared: bool) -> None:
        """Removes what this build, killed at its end, or a repair has left beside the finished dataset.

        A part of a build takes the folder ``shared``: another part that is late may be about to look into it.
        """
        if staging_folder(self._place).exists():
            with suppress(BuildError, StoreError), Staging(self._place, shared=shared) as staging:
                begun = unfinished_plan(self._place)
                if has_same_recipe(begun, self.plan) and begun.get(UPDATES) != manifest.contents:
                    staging.discard()  # else another build or an update goes on with it
        remove_set_aside(staging_folder(self._place))

    def _build_or_commit(self, staging: Staging, engine: Engine, chosen: slice) -> Manifest | None:
        """Builds the chosen shards; commits, and returns the manifest, if all are sealed then."""
        divisions = self.divisions()
        plans = [plan for division in divisions.values() for plan in division.plans]
        self.build_shards(divisions, plans[chosen], staging, engine)
        finished = self.sealed(plans, staging.paths)
        self.shards, self.missing = len(plans), [plan for plan in plans if plan not in finished]
        if self.missing:
            return None
        self._check_skipped(sum(summary.skipped for summary in finished.values()))
        manifest = self.manifest(divisions, finished, staging.paths)
        write_blocks(staging.paths, staging.paths.dataset / SOURCE_NAME, [os.fsencode(str(self.recipe.absolute_root))])
        staging.commit(manifest, replaces=self.previous.replaces)
        return manifest

    def _committed(self, staging: Staging) -> Manifest | None:
        """Returns the manifest if another part has committed, or was about to."""
        if staging.shared:
            staging.complete_version()
        return self.up_to_date_manifest()

    def up_to_date_manifest(self, *, overwrite: bool = False) -> Manifest | None:
        """Returns the manifest of the dataset at the destination if it is up to date; else a build may make it.

        Raises:
            BuildError: if there is something that may not be replaced.
        """
        return self.previous.up_to_date_manifest(self.plan, overwrite=overwrite, skip=self.skip)

    def divisions(self) -> dict[str, ShardDivision]:
        """Divides the samples to build of each split into shards.

        Raises:
            SampleError: if the first sample is unreadable and must not be skipped.
        """
        with self._advised():
            return {name: self._division_of(name) for name in self._listed_splits}

    def _division_of(self, name: str) -> ShardDivision:
        """Returns the division of the samples to build of a split: like its rows that stay, if there are any."""
        variable, own = self.recipe.variable_layout, self.previous.splits[name]
        split, kept = self.splits.get(name), own.kept_split
        if kept is not None:
            fields, samples = kept.record.fields, kept.record.shard_samples
            size = 0 if split is None else row_size(split, self.chain, fields, variable, self._tried)
        else:
            found = fields_of(name, self.splits[name], self.chain, self.skip, variable, self._tried)
            fields = {**found, **own.added, **found}  # added ones last, unless samples have them now
            size = row_size(self.splits[name], self.chain, fields, variable, self._tried)
            planned = row_bytes(fields) if variable is None else _MARGIN * size  # variable sizes may be larger
            samples = max(1, int(self.recipe.shard_bytes / planned))
        first, count = self.plan.get("folders", {}).get(name, 0), len(self.splits.get(name, ()))
        return ShardDivision(fields, size, samples, plan_shards(name, count, samples, first))

    def build_shards(
        self, divisions: Mapping[str, ShardDivision], plans: Sequence[ShardPlan], staging: Staging, engine: Engine
    ) -> None:
        """Builds those of the shards that are not sealed yet.

        If no other process may build there, what stands in the place of an unfinished shard is removed.
        """
        paths, finished = staging.paths, self.sealed(plans, staging.paths)
        missing = [plan for plan in plans if plan not in finished]
        self._total, self._done = sum(map(len, plans)), sum(map(len, finished))
        self._left_out = sum(summary.skipped for summary in finished.values())
        if finished:
            self._on_progress(0, 0)
        self._check_room(paths, [(len(plan), divisions[plan.split].row_bytes) for plan in missing])
        if not staging.shared:
            for plan in missing:  # its summary first, so that none ever describes other files
                remove(paths.summary_file(plan.split, plan.index))
                remove(paths.shard(plan.split, plan.index))
        job = ShardJob(
            splits=self.splits,
            fields={name: division.fields for name, division in divisions.items()},
            chain=self.chain,
            paths=paths,
            shuffle_seed=self.previous.shuffle_seed,
            skip=self.skip,
            variable_layout=self.recipe.variable_layout,
            root=self.recipe.root,
            tried=self._tried,
        )
        with self._advised():
            engine.build_shards(job, missing, self._on_progress)

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Adds to the error of a sample how its build or update can be resumed, or an update gives way to a build."""
        try:
            yield
        except SampleError as error:
            raise SampleError(
                error.sample,
                f"{error.reason}; repair or remove it and {self.previous.again}, or add --on-error skip (which "
                "continues from the finished shards)",
            ) from error
        except RecipeError as error:
            raise RecipeError(f"{error}{self.previous.on_misfit}") from error

    def _check_room(self, paths: BuildPaths, rows: Sequence[tuple[int, int]]) -> None:
        """Notes how much will be written, and checks the disk space, by rows of each shard and bytes of a row."""
        need = sum(count * (size + 2 * _LINE_BYTES) for count, size in rows)
        free = shutil.disk_usage(paths.folder).free
        if need > free:
            raise BuildError(
                f"the dataset needs {need:,} more bytes at {paths.folder.parent}, {free:,} are free; "
                "make room, build elsewhere, or store smaller images"
            )
        if rows:
            size = sum(count * size for count, size in rows)
            self._note(f"writes {bytes_text(size)} in {counted(len(rows), 'shard')} to {self.out}")
            if self._fits and self.recipe.transforms:
                self._note_enlarged(self.recipe.transforms[-1])

    def _note_enlarged(self, last: Mapping[str, Any]) -> None:
        """Notes whether the last default transform enlarges some of the images that are tried."""
        side = max if last["step"] == "Letterbox" else min
        least = last["size"] if isinstance(last["size"], int) else side(last["size"])
        tried = some_sizes(self._listed_splits)
        smaller = {name: size for name, size in tried.items() if size is not None and side(size) < least}
        for name, (height, width) in islice(smaller.items(), 1):
            self._note(
                f"{len(smaller)} of {counted(len(tried), 'image')} that were tried are enlarged to --size {least}, "
                f"such as {name!r:.80} of {width} x {height} pixels; give a smaller --size, or --layout variable, "
                "which enlarges none"
            )

    def sealed(self, plans: Iterable[ShardPlan], paths: BuildPaths) -> dict[ShardPlan, ShardSummary]:
        """Finds the shards that are finished, but not those with skipped samples if this run may not skip any."""
        found = ((plan, paths.sealed(plan.split, plan.index)) for plan in plans)
        return {plan: summary for plan, summary in found if summary and (self.skip or not summary.skipped)}

    def _on_progress(self, samples: int, skipped: int) -> None:
        self.built += samples
        self.skipped += skipped
        self._check_skipped(self._left_out + self.skipped)
        self._progress(self._done + self.built, self._total)

    def _check_skipped(self, count: int) -> None:
        if count > self._most_skipped:
            raise BuildError(
                f"{counted(count, 'sample')} could not be read, more than --max-errors {self._max_errors} allows; "
                "run with --on-error fail to see the first, or allow more"
            )

    def manifest(
        self, divisions: Mapping[str, ShardDivision], finished: Mapping[ShardPlan, ShardSummary], paths: BuildPaths
    ) -> Manifest:
        """Makes the manifest of a dataset whose shards are all finished; writes the splits' lists of samples.

        Raises:
            BuildError: if writing fails.
        """
        records: dict[str, SplitRecord] = {}
        card: dict[str, dict[str, list[str]]] = {"notes": {}, "warnings": {}}
        counts = np.zeros(3, np.int64)
        # When the source was listed first: the time of the list of origins, by which an update looks which files were
        # newer. It is not in that list, as the bytes of a dataset depend on the source and the recipe alone.
        listed = min(self.listed, (paths.folder / PLAN_NAME).stat().st_mtime_ns)
        for name, division in divisions.items():
            split, summaries = self._listed_splits[name], [finished[plan] for plan in division.plans]
            made = self.previous.splits[name].new_split(division, summaries, paths, listed)
            records |= made.records
            counts += made.counts
            card["notes"][name] = [*notes_of(split), *loss_notes(made.statistics)]
            card["warnings"][name] = [*split_warnings(made.statistics, made.records[name].rows), *made.warnings]
        lines = {kind: {name: each for name, each in of_kind.items() if each} for kind, of_kind in card.items()}
        body = {
            "recipe": self.plan["recipe"],
            "fingerprint": self.plan["fingerprint"],
            "splits": records,
            "card": {"notes": lines["notes"], **({"warnings": lines["warnings"]} if lines["warnings"] else {})},
        }
        return self.previous.next_manifest(body, counts)


def plan_shards(name: str, samples: int, shard_samples: int, first: int = 0) -> list[ShardPlan]:
    """Divides a split into shards of ``shard_samples`` samples, numbered from ``first`` on."""
    return [
        ShardPlan(split=name, index=index, start=start, stop=min(start + shard_samples, samples))
        for index, start in enumerate(range(0, samples, shard_samples), first)
    ]


def fields_of(
    name: str,
    split: SourceSplit,
    chain: TransformChain,
    skip: bool,
    variable_layout: VariableLayout | None = None,
    read: Callable[[SourceSplit, int, TransformChain], Sample] = finished,
) -> dict[str, FieldSpec]:
    """Derives the fields of a split's rows from its first readable sample.

    Raises:
        SampleError: if the first sample is unreadable and must not be skipped.
        BuildError: if no sample is readable.
        RecipeError: if a dataset cannot store a field.
    """
    for index in range(len(split)):
        try:
            sample = read(split, index, chain)
        except SampleError:
            if not skip:
                raise
            continue
        fields = {}
        for field, array in sample.fields.items():
            dtype, shape = stored_dtype(array), array.shape
            if field in sample.lists:
                fields[field] = FieldSpec(dtype=dtype, shape=(VARIABLE, *shape[1:]), encoding=LIST)
            else:
                fields[field] = FieldSpec(dtype=dtype, shape=shape)
        return fields if variable_layout is None else variable_layout.fields(fields)
    raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")


def probes(samples: int, count: int = SAMPLES_OF_ESTIMATE) -> list[int]:
    """Chooses samples for an estimate, evenly spread over so many."""
    return sorted(set(np.linspace(0, samples - 1, min(count, samples)).astype(int).tolist()))


def row_size(
    split: SourceSplit,
    chain: TransformChain,
    fields: Mapping[str, FieldSpec],
    variable_layout: VariableLayout | None,
    tried: TriedSamples,
) -> int:
    """Returns the bytes of a row: exact if all rows have one size and no lists, else a mean of a few samples.

    A function of the source and the recipe alone, as shards are planned by it. Unreadable samples are left out.
    """
    if variable_layout is None and not any(spec.is_list for spec in fields.values()):
        return row_bytes(fields)
    assembly = ChunkAssembly(fields, SAMPLES_OF_ESTIMATE, variable_layout)
    for index in probes(len(split)):
        with suppress(SampleError):  # its shard reports it
            assembly.add(tried(split, index, chain))
    chunk = assembly.finish()
    if not chunk.samples:
        return 1
    sizes = [rows.bytes.nbytes if isinstance(rows, VariableRows) else rows.nbytes for rows in chunk.fields.values()]
    return max(1, sum(sizes) // len(chunk.samples))


def splits_of(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    """Returns the splits that a recipe's source finds at its root, without the samples that it excludes.

    Raises:
        RecipeError: if the recipe has no root, or its options are invalid.
        SourceError: if the source cannot be read.
    """
    return remaining_splits(_all_splits(recipe), recipe.exclude, None, recipe.exclude)[0]


def _all_splits(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    if recipe.root is None:
        raise RecipeError("the recipe has no root; give one")
    return find_splits(recipe.kind, recipe.root, Decoder(**recipe.decode), recipe.options)


def has_boxes(splits: Mapping[str, SourceSplit]) -> bool:
    """Returns whether the samples of any split have boxes; all samples of a split have the same fields."""
    return any(
        split.has_boxes() if isinstance(split, KnowsBoxes) else _first_has_boxes(split) for split in splits.values()
    )


def _first_has_boxes(split: SourceSplit) -> bool:
    """Returns whether the first readable sample has boxes."""
    for index in probes(len(split), _PROBES):
        with suppress(SampleError):  # its shard reports it
            return "boxes" in split.read(index).fields
    return False


def some_sizes(splits: Mapping[str, SourceSplit]) -> dict[str, tuple[int, int] | None]:
    """Returns (height, width) of some images of all splits by id, of those that can be read; None without an image."""
    sizes: dict[str, tuple[int, int] | None] = {}
    for split in splits.values():
        samples = probes(len(split), max(1, _PROBES // len(splits)))
        if isinstance(split, FetchesAhead):
            split.fetch_ahead(samples)
        for index in samples:
            with suppress(SampleError):  # its shard reports it
                sizes[split.id(index)] = (
                    split.image_size(index) if isinstance(split, KnowsSizes) else _read_size(split, index)
                )
    return sizes


def _read_size(split: SourceSplit, index: int) -> tuple[int, int] | None:
    sample = split.read(index)
    return sample.size if "images" in sample.fields and dtype_name(sample.fields["images"].dtype) == "uint8" else None


def _most_skipped(most: int | str, samples: int, skip: bool) -> int:
    """Returns how many of the samples may be skipped, by a number or a share such as "1%"."""
    if not skip:
        raise UsageError("max-errors is for --on-error skip; add that, or leave it out")
    found = re.fullmatch(r"([0-9]{1,18})|([0-9]{1,9}(?:\.[0-9]*)?)%", str(most).strip())
    if found is None or (found[2] and float(found[2]) > 100):
        raise UsageError(f"max-errors is {most!r}; use an integer, or a share such as 1%")
    return int(samples * float(found[2]) / 100) if found[2] else int(found[1])


# What the source and the transforms have left out.


def split_warnings(statistics: Statistics, images: int) -> Iterator[str]:
    """Yields a warning about what the transforms dropped of a split, if anything is lost."""
    losses = statistics.losses
    if dropped := losses.get(BOXES_DROPPED, 0):
        emptied, boxes = losses.get(IMAGES_EMPTIED, 0), counted(losses[BOXES], "box", "boxes")
        bare = f", and {emptied:,} of {counted(images, 'image')} lost all of theirs" if emptied else ""
        yield (
            f"{dropped:,} of {boxes} {'was' if dropped == 1 else 'were'} dropped: the transforms keep no pixel of them"
            f"{bare}; a Letterbox or an exact Resize keeps the whole image"
        )


_OF_BOXES = {
    CLIPPED: "reached over the edge of the image and {were} cut there (clip_boxes)",
    BOXES_CUT: "{were} cut: the transforms keep only a part of the object",
}


def loss_notes(statistics: Statistics) -> Iterator[str]:
    """Yields notes on what a split lost or what looks wrong."""
    losses, boxes = statistics.losses, counted(statistics.losses.get(BOXES, 0), "box", "boxes")
    for loss in sorted(losses, key=lambda loss: (loss not in _OF_BOXES, loss)):
        if loss in _OF_BOXES:
            text = _OF_BOXES[loss].format(were="was" if losses[loss] == 1 else "were")
            yield f"{losses[loss]:,} of {boxes} {text}"
        elif loss not in (BOXES, BOXES_DROPPED, IMAGES_EMPTIED):  # which a warning says; else it is a note's text
            yield f"{loss}: {losses[loss]:,}"
