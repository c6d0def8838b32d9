"""Updates a dataset to its changed source, as a new version of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmload.builder.engines import Engine
from mmload.builder.pipeline import BuildReport, completed, run_shards, with_engine
from mmload.builder.planned_build import Progress
from mmload.builder.planned_update import PlannedUpdate, UpdateOptions
from mmload.builder.recipe import BuildRecipe


@dataclass(frozen=True, kw_only=True)
class UpdateReport(BuildReport):
    """The result of an update.

    Attributes:
        added: number of new samples.
        changed: number of changed samples.
        removed: number of rows whose samples are gone.
        version_before: number of the version before.
        gone: splits and subsets of that version of which the new one has no row.
        needed: whether there was anything to do.
        dry_run: whether nothing was written.
    """

    added: int
    changed: int
    removed: int
    version_before: int
    gone: tuple[str, ...] = ()
    needed: bool = True
    dry_run: bool = False


def update(
    recipe: BuildRecipe,
    options: UpdateOptions = UpdateOptions(),  # noqa: B008  # immutable
    *,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    command: Sequence[str] = (),
) -> UpdateReport:
    """Updates a dataset to its source: builds what is new or changed, and drops what is gone.

    The dataset gets a new version; its shards stay as they are, and readers go on with their version.

    Args:
        recipe: recipe of the dataset; its root and out must be set.
        options: how it is updated.
        on_error: see :func:`build`, also for the arguments below.
        max_errors: the upper bound on skipped samples.
        exclude: a list of samples to leave out.
        engine: runs the shards; None: threads and processes of this machine, as many as it has cores for.
        progress: called with (samples done, new and changed samples).
        on_note: called with each of :meth:`PlannedUpdate.notes`, before anything is written.
        command: the words after ``mmload``.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        StoreError: if there is no dataset at the destination.
        BuildError: if the dataset is of another recipe, its source cannot tell which samples have changed, or it cannot
            be written.
    """
    began = time.perf_counter()
    recipe, engine = with_engine(recipe, engine)
    work = PlannedUpdate(recipe, options, on_error, max_errors, exclude, progress, command)
    if on_note is not None:
        for text in work.notes():
            on_note(text)
    found = (
        work.inspect(overwrite=False).finished
        if options.dry_run
        else completed(run_shards(work, engine, slice(None)), work)
    )
    manifest = found or work.old
    added, changed, removed = work.counts
    return UpdateReport(
        out=work.out,
        manifest=manifest,
        seconds=time.perf_counter() - began,
        decoding=work.decoding_seconds,
        built=work.built,
        skipped=work.skipped,
        added=added,
        changed=changed,
        removed=removed,
        version_before=work.old.version,
        gone=tuple(name for name in work.old.splits if name not in manifest.splits),
        needed=found is None or found.version != work.old.version,
        dry_run=options.dry_run,
    )
