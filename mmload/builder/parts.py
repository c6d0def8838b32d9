"""Builds a part of a dataset's shards, beside other processes that build the others: the tasks of a Slurm array.

Takes a checked recipe and the number of the part, and returns what stands after it. Parts share nothing but a file
system: they may run in any order, at once, and again. The one that finds all shards sealed commits the dataset, whose
bytes are those of a build by one process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmload.builder.destination import inspect_destination
from mmload.builder.engines import Engine
from mmload.builder.pipeline import local_engine
from mmload.builder.planned_build import PlannedBuild, Progress
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shard_layout import ShardLayout, ShardPlan
from mmload.builder.staging import Staging, drop_leftovers
from mmload.errors import BuildError, UsageError, counted
from mmload.store.manifest import Manifest, shard_name

_SHOWN = 3
_MOST_PARTS = 10**6


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """The result of building a part.

    Attributes:
        out: the dataset's folder.
        manifest: of the dataset; None if other parts have still to build some shards.
        sealed: how many shards are finished, of any part.
        shards: how many there are in all.
        seconds: duration.
        built: samples read by this run.
        skipped: how many of these were skipped.
    """

    out: Path
    manifest: Manifest | None
    sealed: int
    shards: int
    seconds: float
    built: int
    skipped: int


def build_part(
    recipe: BuildRecipe,
    part: str | None,
    *,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    command: Sequence[str] = (),
) -> PartReport:
    """Builds a part of the shards; commits the dataset if all are finished then.

    Args:
        recipe: what to build, the same for all parts; its root and out must be set.
        part: "3/16" is the third of 16 parts: every 16th shard, from the third on; None: no shard, only commit.
        on_error: see :func:`mmload.build`, also for the arguments below. ``max_errors`` is of the whole dataset, and
            checked when it is committed.
        max_errors: the upper bound on skipped samples.
        exclude: a list of samples to leave out.
        threads: decoding threads of each process.
        processes: processes over shards.
        progress: called with (samples done, samples of this part).
        command: the words after ``mmload``.

    Raises:
        UsageError: if an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken or cannot be written, parts of another recipe, source or version have
            begun there, or shards are missing that ``part=None`` should commit.
    """
    began = time.perf_counter()
    number, parts = (1, 1) if part is None else _part(part)
    engine = local_engine(recipe, threads, processes)
    work = PlannedBuild(recipe, on_error, max_errors, exclude, progress, command)
    out = work.out.resolve()
    inspect = partial(inspect_destination, out, work.plan, overwrite=False, skip=work.errors.skip)
    manifest, sealed, shards = inspect().finished, 0, 0
    if manifest is not None:
        drop_leftovers(out, work.plan)  # of the part that has committed it, if that was killed then
    else:
        with Staging(out, shared_plan=work.probed_plan()) as staging:
            try:
                manifest = inspect().finished  # another part has committed it since the look above
                if manifest is None:
                    layout = work.layout()
                    plans = [] if part is None else layout.all_plans[number - 1 :: parts]
                    manifest, sealed = _build_or_commit(staging, work, layout, plans, engine)
                    shards = len(layout.all_plans)
                    manifest = manifest or inspect().finished  # then none is sealed in the folder, which has gone
            except (BuildError, FileNotFoundError):
                manifest = inspect().finished
                if manifest is None:  # else another part has committed meanwhile, and removed the folder
                    raise
            if manifest is not None:
                staging.discard()
    if manifest is not None:
        sealed = shards = sum(len(split.shards) for split in manifest.splits.values())
    elif part is None:
        raise BuildError(_missing(staging, work, layout))
    seconds = time.perf_counter() - began
    return PartReport(
        out=work.out,
        manifest=manifest,
        sealed=sealed,
        shards=shards,
        seconds=seconds,
        built=work.built,
        skipped=work.skipped,
    )


def _part(text: str) -> tuple[int, int]:
    """Returns the number of a part, and of all parts."""
    found = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)
    number, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= parts <= _MOST_PARTS:
        raise UsageError(f"part is {text!r}; write K/N with K from 1 to N, as in 3/16")
    return number, parts


def _build_or_commit(
    staging: Staging, work: PlannedBuild, layout: ShardLayout, plans: list[ShardPlan], engine: Engine
) -> tuple[Manifest | None, int]:
    """Builds these shards; commits if all are finished. Returns how many are."""
    of_all = copy(work.errors)
    work.total = sum(plan.stop - plan.start for plan in plans)
    work.build_shards(layout, plans, staging.paths, engine, shared=True)
    finished = work.sealed(layout.all_plans, staging.paths)
    if len(finished) < len(layout.all_plans):
        return None, len(finished)
    of_all.add(sum(summary.skipped for summary in finished.values()))
    manifest = work.manifest(layout, finished, staging.paths)
    staging.commit(manifest)
    return manifest, len(finished)


def _missing(staging: Staging, work: PlannedBuild, layout: ShardLayout) -> str:
    """Returns the message on shards that no part has built."""
    finished = work.sealed(layout.all_plans, staging.paths)
    missing = [plan for plan in layout.all_plans if (plan.split, plan.index) not in finished]
    names = ", ".join(f"{plan.split} {shard_name(plan.index)}" for plan in missing[:_SHOWN])
    more = " and more" if len(missing) > _SHOWN else ""
    return (
        f"{counted(len(missing), 'shard')} of {len(layout.all_plans)} not built yet: {names}{more}; "
        "run the parts that are to build them, or the same command without --commit"
    )
