"""Builds or updates a dataset, or builds a part of one; engines run the jobs that build its shards.

Takes a checked recipe and returns a report on the dataset's folder. The bytes depend on the source and the recipe
alone, never on threads, processes or interruptions: a build that was killed continues from its finished shards. Never
prints.

Several processes can build a part each, such as the tasks of a Slurm array. They share nothing but a file system: they
may run in any order, at once, and again. The one that finds all shards sealed commits the dataset. A build by one
process is part 1 of 1, and holds the lock of the working folder alone.

An engine takes a picklable function that builds one shard from its plan, and the plans; it decides only where a shard
is built, never its content. That of this machine runs in threads of this process, or in several processes on machines
with many cores; a worker that dies ends the run at once.
"""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Meta

from mmload.builder.planned_build import PlannedBuild
from mmload.builder.previous_version import Previous, UpdateOptions
from mmload.builder.recipe import BuildOptions, BuildRecipe, RunOptions, check_values, recipe_of
from mmload.builder.shard_job import Engine, OnProgress, ShardJob
from mmload.builder.shards import ShardPlan
from mmload.builder.staging import listed
from mmload.errors import BuildError, MmloadError, UsageError, counted, did_you_mean
from mmload.records import Progress
from mmload.runtime.processes import cause_of_death, depend_on_parent, start_process
from mmload.runtime.resources import MOST_THREADS, available_cores
from mmload.store.manifest import Manifest, shard_name


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """The result of building a part.

    Attributes:
        out: the dataset's folder.
        manifest: manifest of the dataset; None if other parts have still to build some shards.
        sealed: number of finished shards of all parts.
        shards: number of all shards.
        seconds: duration.
        built: samples read by this run; fewer than all after a resumed build, 0 if the dataset was up to date.
        skipped: number of these that were skipped.
    """

    out: Path
    manifest: Manifest | None
    sealed: int
    shards: int
    seconds: float
    built: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class BuildReport(PartReport):
    """The result of a build, which is part 1 of 1.

    Attributes:
        manifest: manifest of the dataset.
    """

    manifest: Manifest

    @property
    def rate(self) -> float:
        """Samples read per second."""
        return self.built / self.seconds

    @property
    def stored(self) -> int:
        """Rows stored by this run."""
        return self.built - self.skipped


@dataclass(frozen=True, kw_only=True)
class UpdateReport(BuildReport):
    """The result of an update.

    Attributes:
        added: number of new samples.
        changed: number of changed samples.
        removed: number of rows whose samples are gone.
        gone: splits and subsets of that version of which the new one has no row.
        needed: whether there was anything to do.
        dry_run: whether nothing was written.
    """

    added: int
    changed: int
    removed: int
    gone: tuple[str, ...] = ()
    needed: bool = True
    dry_run: bool = False


def build(
    source: BuildRecipe | str | Path,
    out: str | Path | None = None,
    *,
    kind: str = "imagefolder",
    overwrite: bool = False,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    threads: int | None = None,
    processes: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    command: Sequence[str] = (),
    **options: Any,
) -> BuildReport:
    """Builds a dataset, or resumes an interrupted build: ``mmload.build("photos", "photos-256", size=256)``.

    A KeyboardInterrupt propagates within a second and keeps the sealed shards.

    Args:
        source: the folder or the URL of what is built; or a recipe, whose root and out must be set.
        out: where the dataset is built; with a recipe, its own.
        kind: kind of the source, as ``mmload build`` takes it first: imagefolder, voc, coco, yolo, list and others.
        overwrite: replace a finished dataset, or an unfinished one of another recipe or source.
        on_error: "fail" aborts the build at the first unreadable sample; "skip" skips and lists it.
        max_errors: with "skip", the upper bound on skipped samples: a number, or a share of all such as "1%".
        exclude: a list of samples to leave out, besides those of the recipe; see docs/sources.md.
        threads: decoding threads of each process; None divides the available cores.
        processes: processes over shards; None starts one per 8 cores.
        engine: runs the shards, in place of threads and processes of this machine; such as
            :class:`mmload.builder.ray_engine.RayEngine`.
        progress: called with (samples done, samples in all).
        on_note: called with sentences, before anything is built: how many bytes are written, and whether images are
            enlarged.
        command: the words after ``mmload`` on the command line that asks for this: messages about the unfinished build
            show it.
        options: any option of ``mmload build`` that says what is built, by its name in :class:`BuildOptions`, such as
            ``size=256``, ``layout="variable"``, ``encode="jpeg"``, ``val_fraction=0.1``, ``config="recipe.toml"`` or
            ``setting={"year": 2007}``; see docs/recipes.md.

    Raises:
        TypeError: if there is no such option.
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken, or cannot be written.
    """
    began = time.perf_counter()
    recipe, engine = _with_engine(_recipe_of(source, out, kind, options), engine, threads, processes)
    work = PlannedBuild(
        recipe,
        on_error=on_error,
        max_errors=max_errors,
        exclude=exclude,
        progress=progress,
        on_note=on_note,
        command=command,
    )
    manifest = _complete(work, work.run(engine, overwrite=overwrite))
    return BuildReport(**_facts(work, manifest, began))


def build_part(
    recipe: BuildRecipe,
    part: str | None,
    *,
    options: UpdateOptions | None = None,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    threads: int | None = None,
    processes: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    command: Sequence[str] = (),
) -> PartReport:
    """Builds a part of the shards; commits the dataset if all are finished then.

    Args:
        recipe: recipe to build, the same for all parts; its root and out must be set.
        part: "3/16" is the third of 16 parts: every 16th shard, from the third on; None: no shard, only commit.
        options: how a dataset is updated, the same for all parts; None: it is built.
        on_error: see :func:`mmload.build`, also for the arguments below. ``max_errors`` is of the whole dataset, and
            checked when it is committed.
        max_errors: the upper bound on skipped samples.
        exclude: a list of samples to leave out.
        threads: decoding threads of each process.
        processes: processes over shards.
        engine: runs the shards, in place of threads and processes of this machine.
        progress: called with (samples done, samples of this part).
        on_note: called with sentences, before anything is built.
        command: the words after ``mmload``.

    Raises:
        UsageError: if an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken or cannot be written, parts of another recipe, source or version have
            begun there, or shards are missing that ``part=None`` should commit.
    """
    began = time.perf_counter()
    chosen = slice(0) if part is None else _shards_of_part(part)
    recipe, engine = _with_engine(recipe, engine, threads, processes)
    work = PlannedBuild(
        recipe,
        options,
        on_error=on_error,
        max_errors=max_errors,
        exclude=exclude,
        progress=progress,
        on_note=on_note,
        command=command,
    )
    manifest = work.run(engine, chosen, shared=True)
    return PartReport(**_facts(work, _complete(work, manifest) if part is None else manifest, began))


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
        recipe: recipe of the dataset; its out must be set. Without a root, the source is where it was before.
        options: how it is updated.
        on_error: see :func:`build`, also for the arguments below.
        max_errors: the upper bound on skipped samples.
        exclude: a list of samples to leave out.
        engine: runs the shards; None: threads and processes of this machine, as many as it has cores for.
        progress: called with (samples done, new and changed samples).
        on_note: called with sentences, before anything is built.
        command: the words after ``mmload``.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        StoreError: if there is no dataset at the destination.
        BuildError: if the dataset is of another recipe, its source cannot tell which samples have changed, or it cannot
            be written.
    """
    began = time.perf_counter()
    recipe, engine = _with_engine(recipe, engine)
    work = PlannedBuild(
        recipe,
        options,
        on_error=on_error,
        max_errors=max_errors,
        exclude=exclude,
        progress=progress,
        on_note=on_note,
        command=command,
    )
    found = work.up_to_date_manifest() if options.dry_run else _complete(work, work.run(engine))
    previous = cast(Previous, work.previous)
    manifest = found or previous.manifest
    added, changed, removed = previous.counts.tolist()
    return UpdateReport(
        **_facts(work, manifest, began),
        added=added,
        changed=changed,
        removed=removed,
        gone=tuple(name for name in previous.manifest.splits if name not in manifest.splits),
        needed=found is None or found.version != previous.manifest.version,
        dry_run=options.dry_run,
    )


def _recipe_of(
    source: BuildRecipe | str | Path, out: str | Path | None, kind: str, options: Mapping[str, Any]
) -> BuildRecipe:
    """Returns the recipe itself, or that of a source and options; the arguments are those of :func:`build`."""
    # Other options of the command are arguments of build, or say how and not what is built.
    others = {"words", "overwrite", "advise", *(option.name for option in fields(RunOptions))}
    known = [option.name for option in fields(BuildOptions) if option.name not in others]
    for name in options:
        if name not in known:
            raise TypeError(f"build() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")
    if isinstance(source, BuildRecipe):
        for name, value in {"out": out, **options}.items():
            if value is not None:
                raise UsageError(
                    f"{name} is {value!r}, and the recipe says it; use replace(recipe, ...) to change that"
                )
        return source
    if not isinstance(source, str | Path) or (out is None and "config" not in options):
        raise UsageError(
            f"build got {source!r:.80}; give a BuildRecipe, or two folders, as in build('photos', 'photos-256')"
        )
    words = [*([] if "config" in options else [kind]), str(source), *([] if out is None else [str(out)])]
    return recipe_of(BuildOptions(words=words, **options))


def _with_engine(
    recipe: BuildRecipe, engine: Engine | None, threads: int | None = None, processes: int | None = None
) -> tuple[BuildRecipe, Engine]:
    """Returns a recipe as an engine needs it, and the engine: this machine's threads and processes if none is given.

    Workers elsewhere have other working folders, so the root of their recipe is absolute.
    """
    if engine is None:
        engine = LocalEngine(threads=threads, processes=processes)
    elif threads is not None or processes is not None:
        raise UsageError("threads and processes cannot be combined with an engine; give them to the engine")
    if not isinstance(engine, LocalEngine):
        recipe = replace(recipe, root=recipe.absolute_root)
    return recipe, engine


def _facts(work: PlannedBuild, manifest: Manifest | None, began: float) -> dict[str, Any]:
    """Returns what every report has."""
    shards = work.shards if manifest is None else sum(len(split.shards) for split in manifest.built_splits.values())
    return {
        "out": work.out,
        "manifest": manifest,
        "sealed": shards - (len(work.missing) if manifest is None else 0),
        "shards": shards,
        "seconds": time.perf_counter() - began,
        "built": work.built,
        "skipped": work.skipped,
    }


def _complete(work: PlannedBuild, manifest: Manifest | None) -> Manifest:
    """Returns the manifest of a dataset, all of which has to be built.

    Raises:
        BuildError: if it is None, naming shards that no part has built.
    """
    if manifest is not None:
        return manifest
    names = listed([f"{plan.split} {shard_name(plan.index)}" for plan in work.missing])
    raise BuildError(
        f"{counted(len(work.missing), 'shard')} of {work.shards} not built yet: {names}; run the same command again, "
        "without --commit, or the parts that are to build them"
    )


def _shards_of_part(text: str) -> slice:
    """Returns the shards of a part such as "3/16": every 16th, from the third on."""
    found = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)
    number, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= parts <= 10**6:
        raise UsageError(f"part is {text!r}; write K/N with K from 1 to N, as in 3/16")
    return slice(number - 1, None, parts)


# Engines.


CORES_A_PROCESS = 8
"""Threads share one interpreter lock: a row holds it for about 0.1 ms of the 2 ms it takes, so one process saturates
8 cores and more; a machine with more cores runs more processes."""


Count = Annotated[
    Annotated[int, Meta(ge=1, le=MOST_THREADS)] | None,
    Meta(description=f"1 to {MOST_THREADS}, or leave it out for the cores available"),
]


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """Runs on this machine: ``processes`` over shards, each with ``threads``. With one process, runs in this one.

    Attributes:
        threads: decoding threads of each process; None divides the available cores.
        processes: None starts one per 8 cores.

    Raises:
        UsageError: if a number is invalid.
    """

    threads: Count = None
    processes: Count = None

    def __post_init__(self) -> None:
        check_values(self)

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Builds the shards; see :class:`Engine`.

        Raises:
            BuildError: if a worker process dies, or the job cannot be pickled.
            MmloadError: any error of the job.
        """
        cores = available_cores()
        processes = min(self.processes or -(-cores // CORES_A_PROCESS), len(plans))
        threads = self.threads or max(1, cores // max(1, processes))
        if processes > 1:
            _build_in_processes(job, plans, on_progress, processes, threads)
        else:
            for plan in plans:
                job.build_shard(plan, threads, on_progress)


def _build_in_processes(
    job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress, processes: int, threads: int
) -> None:
    """Builds shards in worker processes, each of which is sent one plan after another.

    Kills every worker at the end: unfinished shards are built again anyway.
    """
    waiting, workers = iter(plans), dict[Connection, BaseProcess]()
    try:
        shared = pickled(job.without_samples())
        for _ in range(processes):
            worker, pipe = start_process(_work, threads, daemon=True)
            workers[pipe] = worker
        for pipe, worker in workers.items():  # after all were started: each reads it only after its imports
            with _reported_death(worker):
                pipe.send_bytes(shared)
        busy = list(workers)
        while busy:
            for pipe in cast(list[Connection], wait(busy)):
                with _reported_death(workers[pipe]):
                    kind, *body = pipe.recv()
                if kind == "progress":
                    on_progress(*body)
                elif kind == "failed":
                    raise body[0]
                elif (plan := next(waiting, None)) is None:
                    busy.remove(pipe)
                else:
                    with _reported_death(workers[pipe]):  # its samples alone: those of all, of a million, are 80 MB
                        pipe.send_bytes(pickled((plan, job.samples(plan))))
    finally:
        for pipe, worker in workers.items():
            worker.kill()
            worker.join()
            worker.close()
            pipe.close()


@contextmanager
def _reported_death(worker: BaseProcess) -> Iterator[None]:
    """Reports that a worker has died, which ends its pipe; raises BuildError."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise BuildError(
            f"a build worker died ({cause_of_death(worker)}); run the same command again to continue from the finished "
            "shards"
        ) from error


def pickled(message: object) -> bytes:
    """Returns a message to a worker.

    Raises:
        BuildError: if it holds something that cannot be sent.
    """
    try:
        return pickle.dumps(message)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise BuildError(f"the source cannot be sent to worker processes ({error}); build with 1 process") from error


def _work(pipe: Connection, threads: int) -> None:
    """Receives plans and builds their shards in a worker process, until it is killed or its build ends."""
    depend_on_parent(lambda: os._exit(1))
    try:
        job: ShardJob = pickle.loads(pipe.recv_bytes())
        while True:
            pipe.send(("ready",))
            plan, samples = pickle.loads(pipe.recv_bytes())
            job.build_shard(plan, threads, lambda *counts: pipe.send(("progress", *counts)), samples)
    except (EOFError, BrokenPipeError):
        os._exit(1)
    except MmloadError as error:
        pipe.send(("failed", error))
    except Exception as error:
        pipe.send(("failed", BuildError(f"a build worker failed ({type(error).__name__}: {error})")))
