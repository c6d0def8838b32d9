"""Builds a dataset: scans the source, plans the shards, runs the unfinished ones, commits.

Takes a checked recipe and returns a report on the dataset's folder. The bytes depend on the source and the recipe
alone, never on threads, processes or interruptions: a build that was killed continues from its finished shards. Never
prints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mmload
from mmload.builder.destination import check_apart, existing
from mmload.builder.engines import Engine, LocalEngine
from mmload.builder.error_limit import ErrorLimit
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shard_job import ShardJob, ShardPlan, fields_of, plan_shards, samples_per_shard
from mmload.builder.split_records import split_notes, split_record
from mmload.builder.staging import Staging, killed_at_its_end
from mmload.builder.transforms import TransformChain
from mmload.builder.whole_sizes import row_size, whole_samples_per_shard
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import FieldSpec
from mmload.sources import SourceSplit, decode_cuda, make_source
from mmload.sources.decode import Decoder
from mmload.sources.exclusion import Excluded, samples_of, without
from mmload.store.manifest import Manifest
from mmload.store.shard_writer import BuildPaths, ShardSummary
from mmload.store.unfinished import COMMAND

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) during a build; samples of shards sealed by an earlier run are done."""

_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "numba", "numpy")
_LINE_BYTES = 200  # generous estimate for a row of samples.jsonl, stored twice: in the notes and joined


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The result of a build.

    Attributes:
        out: the dataset's folder.
        manifest: of the dataset.
        seconds: duration of the build.
        built: samples read by this run; fewer than all after a resumed build, 0 if the dataset was up to date.
        skipped: how many of these were skipped.
        left: a folder with files that appeared in the replaced dataset during the build; None: there were none.
    """

    out: Path
    manifest: Manifest
    seconds: float
    built: int
    skipped: int = 0
    left: Path | None = None

    @property
    def stored(self) -> int:
        """Rows stored by this run."""
        return self.built - self.skipped


def build(
    recipe: BuildRecipe,
    *,
    overwrite: bool = False,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    command: Sequence[str] = (),
) -> BuildReport:
    """Build a dataset, or resume an interrupted build.

    A KeyboardInterrupt propagates within a second and keeps the sealed shards.

    Args:
        recipe: what to build; its root and out must be set.
        overwrite: replace a finished dataset, or an unfinished one of another recipe or source.
        on_error: "fail" aborts the build at the first unreadable sample; "skip" skips and lists it.
        max_errors: with "skip", the upper bound on skipped samples: a number, or a share of all such as "1%".
        exclude: a list of samples to leave out, besides those of the recipe; see docs/sources.md.
        threads: decoding threads of each process; None divides the available cores, or takes 64 where a CUDA device
            decodes: it decodes the samples of all waiting threads in one batch.
        processes: processes over shards; None starts one per 8 cores.
        progress: called with (samples done, samples in all).
        command: the words after ``mmload`` on the command line that asks for this: messages about the unfinished build
            show it.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken, or cannot be written.
    """
    if recipe.root is None or recipe.out is None:
        raise RecipeError("the recipe has no root or no out; give both")
    check_apart(recipe.kind, recipe.root, recipe.out)
    began = time.perf_counter()
    on_cuda = Decoder(**recipe.decode).device == "cuda"
    if on_cuda:
        decode_cuda.check()
    engine = LocalEngine(threads=decode_cuda.BATCH if on_cuda and threads is None else threads, processes=processes)
    chain = TransformChain(recipe.transforms)
    splits, excluded = _remaining(recipe, exclude)
    errors = ErrorLimit(on_error, max_errors, sum(len(split) for split in splits.values()))
    resolved = replace(recipe, exclude=excluded).resolved()
    plan = {"recipe": resolved, "fingerprint": fingerprint(splits), "versions": made_by()}
    out = recipe.out.resolve()
    work = _Work(recipe, plan, splits, chain, errors, progress, command)
    manifest, left = _built_at(out, work, engine, overwrite)
    seconds = time.perf_counter() - began
    return BuildReport(
        out=recipe.out, manifest=manifest, seconds=seconds, built=work.built, skipped=work.skipped, left=left
    )


def _built_at(out: Path, work: _Work, engine: Engine, overwrite: bool) -> tuple[Manifest, Path | None]:
    """The dataset at the destination after the build, new or up to date; and :attr:`BuildReport.left`.

    If a killed build still needs cleanup, the destination is inspected after that, with the working folder locked.
    """
    look = partial(existing, out, work.plan, skip=work.errors.skip)
    to_clean_up = killed_at_its_end(out, work.plan)
    if not to_clean_up:
        there = look(overwrite=overwrite)
        if there.finished is not None:
            return there.finished, None
    with Staging(out) as staging:
        if to_clean_up:
            there = look(overwrite=overwrite and not staging.committed(work.plan))
            if there.finished is not None:
                staging.discard()
                return there.finished, staging.left
        return work.run(staging, engine, there.contents, overwrite), staging.left


def splits_of(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    """The splits that a recipe's source finds at its root, without the samples that it excludes.

    Raises:
        RecipeError: if the recipe has no root, or its options are invalid.
        SourceError: if the source cannot be read.
    """
    return without(_whole_splits(recipe), recipe.exclude, all_there=False)


def _whole_splits(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    if recipe.root is None:
        raise RecipeError("the recipe has no root; give one")
    return make_source(recipe.kind, recipe.root, Decoder(**recipe.decode), recipe.options).splits()


def _remaining(recipe: BuildRecipe, listed: str | Path | None) -> tuple[Mapping[str, SourceSplit], Excluded]:
    """The splits without the samples that the recipe and a list exclude, which must be there; and all of these."""
    splits, excluded = _whole_splits(recipe), recipe.exclude
    if listed is not None:
        named = samples_of(listed, splits)
        excluded = {name: [*excluded.get(name, ()), *named.get(name, ())] for name in {*excluded, *named}}
    return without(splits, excluded, all_there=True), excluded


def fingerprint(splits: Mapping[str, SourceSplit]) -> str:
    """SHA-256 over every sample's id and revision, in order: it changes whenever the source does."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(_text_bytes(f"{name}\0{len(split)}\0{split.classes!r}\n"))
        for index in range(len(split)):
            digest.update(_text_bytes(f"{split.id(index)}\0{split.revision(index)}\n"))
    return digest.hexdigest()


class _Work:
    """A planned build, and the counts of one run over all of its shards."""

    def __init__(
        self,
        recipe: BuildRecipe,
        plan: dict[str, Any],
        splits: Mapping[str, SourceSplit],
        chain: TransformChain,
        errors: ErrorLimit,
        progress: Progress | None,
        command: Sequence[str],
    ) -> None:
        self.recipe, self.plan, self.splits, self.chain, self.command = recipe, plan, splits, chain, command
        self.errors, self.progress = errors, progress
        self.total = sum(len(split) for split in splits.values())
        self.done = self.built = self.skipped = 0

    def run(self, staging: Staging, engine: Engine, replaces: str | None, overwrite: bool) -> Manifest:
        """Build every unfinished shard, then move the dataset to its destination; see :meth:`Staging.commit`."""
        try:
            manifest = self._build(staging, engine, overwrite)
        except SampleError as error:
            raise SampleError(
                error.sample,
                f"{error.reason}; repair or remove it and build again with --overwrite, or add --on-error skip "
                "(which goes on from the sealed shards)",
            ) from error
        staging.commit(manifest, replaces=replaces)
        return manifest

    def _build(self, staging: Staging, engine: Engine, overwrite: bool) -> Manifest:
        _begin(staging, self.plan, overwrite, self.command)
        whole = self.recipe.whole
        fields = {name: fields_of(split, self.chain, self.errors.skip, whole) for name, split in self.splits.items()}
        sizes = {name: row_size(split, self.chain, fields[name], whole) for name, split in self.splits.items()}
        shard_samples = {
            name: samples_per_shard(len(split), fields[name], self.recipe.shard_bytes)
            if whole is None
            else whole_samples_per_shard(sizes[name], self.recipe.shard_bytes)
            for name, split in self.splits.items()
        }
        plans = {name: plan_shards(name, len(split), shard_samples[name]) for name, split in self.splits.items()}
        finished = self._finished_shards(staging.paths, plans)
        missing = [plan for shards in plans.values() for plan in shards if (plan.split, plan.index) not in finished]
        _check_room(staging.paths, missing, sizes)
        job = ShardJob(
            splits=self.splits,
            fields=fields,
            chain=self.chain,
            paths=staging.paths,
            shuffle_seed=self.recipe.shuffle_seed,
            skip=self.errors.skip,
            whole=whole,
        )
        for plan, summary in zip(missing, engine.run(job, missing, self._on_progress), strict=True):
            finished[plan.split, plan.index] = summary
        summaries = {name: [finished[name, plan.index] for plan in shards] for name, shards in plans.items()}
        return self._manifest(staging, fields, shard_samples, summaries)

    def _finished_shards(
        self, paths: BuildPaths, plans: Mapping[str, list[ShardPlan]]
    ) -> dict[tuple[str, int], ShardSummary]:
        """Shards that an earlier run finished. Ignores shards with skipped samples if this run may not skip any."""
        finished = {}
        for plan in (plan for shards in plans.values() for plan in shards):
            summary = paths.sealed(plan.split, plan.index)
            if summary is not None and (self.errors.skip or not summary.skipped):
                finished[plan.split, plan.index] = summary
                self._count(plan.stop - plan.start, summary.skipped)
        return finished

    def _on_progress(self, samples: int, skipped: int) -> None:
        self.built += samples
        self.skipped += skipped
        self._count(samples, skipped)

    def _count(self, samples: int, skipped: int) -> None:
        self.errors.add(skipped)
        self.done += samples
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _manifest(
        self,
        staging: Staging,
        fields: Mapping[str, dict[str, FieldSpec]],
        shard_samples: Mapping[str, int],
        summaries: Mapping[str, Sequence[ShardSummary]],
    ) -> Manifest:
        records, notes = {}, {}
        for name, split in self.splits.items():
            if not any(summary.record.rows for summary in summaries[name]):
                raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")
            records[name] = split_record(name, split, fields[name], shard_samples[name], summaries[name], staging)
            if found := split_notes(split, summaries[name]):
                notes[name] = found
        return Manifest(
            recipe=self.plan["recipe"], fingerprint=self.plan["fingerprint"], splits=records, card={"notes": notes}
        )


def made_by() -> dict[str, str]:
    """Package -> version, for the packages that influence the stored bytes besides the recipe and the source."""
    found = {"mmload": mmload.__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _begin(staging: Staging, plan: Mapping[str, Any], overwrite: bool, command: Sequence[str]) -> None:
    """Resume an unfinished build of the same plan, or start a new one; discard a build without a finished shard."""
    begun = staging.plan()
    if begun is not None and {key: begun.get(key) for key in plan} == plan:
        return
    if begun is not None and staging.has_finished_shards() and not overwrite:
        raise BuildError(f"{staging.paths.folder} holds an unfinished build {_difference(begun, plan)}")
    asked = {COMMAND: {"words": list(command), "folder": os.getcwd()}} if command else {}
    try:
        staging.begin({**plan, **asked})
    except OSError as error:
        raise BuildError(f"cannot write to {staging.paths.folder} ({error.strerror}); choose another place") from error


def _difference(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """How an unfinished build differs from this one, and how to proceed."""
    if begun.get("recipe") != plan["recipe"]:
        return "of another recipe; add --overwrite to drop it"
    if begun.get("fingerprint") != plan["fingerprint"]:
        return "of a source that has changed since; add --overwrite to drop it"
    versions = begun.get("versions")
    was, now = versions if isinstance(versions, dict) else {}, plan["versions"]
    changed = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    before = ", ".join(f"{name} {was.get(name, 'unknown')}" for name in changed)
    after = ", ".join(f"{name} {now.get(name, 'none')}" for name in changed)
    return (
        f"by {before}, and here is {after}, which may make other pixels; "
        "go on with those versions, or add --overwrite to drop it and start again"
    )


def _check_room(paths: BuildPaths, plans: Iterable[ShardPlan], row_sizes: Mapping[str, int]) -> None:
    """Check the disk space for all remaining writes before the first one; ``row_sizes`` are bytes of a row by split."""
    need = sum((plan.stop - plan.start) * (row_sizes[plan.split] + 2 * _LINE_BYTES) for plan in plans)
    free = shutil.disk_usage(paths.folder).free + _partial_bytes(paths)
    if need > free:
        raise BuildError(
            f"the dataset needs {need:,} more bytes at {paths.folder.parent}, {free:,} are free; "
            "make room, build elsewhere, or store smaller images"
        )


def _partial_bytes(paths: BuildPaths) -> int:
    """Bytes of unfinished shards of an earlier run, which will be overwritten."""
    return sum(file.stat().st_size for file in paths.dataset.glob("*/*.partial/*"))


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
