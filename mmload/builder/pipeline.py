"""Builds a dataset: scans the source, plans the shards, runs the unfinished ones, commits.

Takes a checked recipe and returns a report on the dataset's folder. The bytes depend on the source and the recipe
alone, never on threads, processes or interruptions: a build that was killed continues from its finished shards. Never
prints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mmload.builder.destination import inspect_destination
from mmload.builder.engines import Engine, LocalEngine
from mmload.builder.planned_build import PlannedBuild, Progress
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.staging import Staging, killed_at_its_end
from mmload.errors import UsageError
from mmload.remote.urls import place
from mmload.runtime import nvjpeg
from mmload.sources.decode import CUDA_BATCH, Decoder
from mmload.store.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The result of a build.

    Attributes:
        out: the dataset's folder.
        manifest: of the dataset.
        seconds: duration of the build.
        built: samples read by this run; fewer than all after a resumed build, 0 if the dataset was up to date.
        skipped: how many of these were skipped.
        foreign_files: folder with files that appeared in the replaced dataset during the build; None: none.
    """

    out: Path
    manifest: Manifest
    seconds: float
    built: int
    skipped: int = 0
    foreign_files: Path | None = None

    @property
    def stored(self) -> int:
        """Rows stored by this run."""
        return self.built - self.skipped


def build(
    recipe: BuildRecipe | str | Path,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    exclude: str | Path | None = None,
    threads: int | None = None,
    processes: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    command: Sequence[str] = (),
) -> BuildReport:
    """Builds a dataset, or resumes an interrupted build.

    A KeyboardInterrupt propagates within a second and keeps the sealed shards.

    Args:
        recipe: what to build; its root and out must be set. Or a folder of class folders of images, whose images are
            stored as squares of 256 pixels, as by ``mmload build imagefolder``.
        out: with such a folder, where the dataset is built.
        overwrite: replace a finished dataset, or an unfinished one of another recipe or source.
        on_error: "fail" aborts the build at the first unreadable sample; "skip" skips and lists it.
        max_errors: with "skip", the upper bound on skipped samples: a number, or a share of all such as "1%".
        exclude: a list of samples to leave out, besides those of the recipe; see docs/sources.md.
        threads: decoding threads of each process; None divides the available cores, or takes 64 where a CUDA device
            decodes: it decodes the samples of all waiting threads in one batch.
        processes: processes over shards; None starts one per 8 cores.
        engine: runs the shards, in place of threads and processes of this machine; such as
            :class:`mmload.builder.ray_engine.RayEngine`.
        progress: called with (samples done, samples in all).
        command: the words after ``mmload`` on the command line that asks for this: messages about the unfinished build
            show it.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken, or cannot be written.
    """
    began = time.perf_counter()
    recipe = _recipe_of(recipe, out)
    if engine is None:
        engine = local_engine(recipe, threads, processes)
    else:
        recipe = _elsewhere(recipe, threads, processes)
    work = PlannedBuild(recipe, on_error, max_errors, exclude, progress, command)
    manifest, foreign_files = _build_at(work.out.resolve(), work, engine, overwrite)
    seconds = time.perf_counter() - began
    return BuildReport(
        out=work.out,
        manifest=manifest,
        seconds=seconds,
        built=work.built,
        skipped=work.skipped,
        foreign_files=foreign_files,
    )


def _recipe_of(recipe: BuildRecipe | str | Path, out: str | Path | None) -> BuildRecipe:
    """Returns the recipe itself, or that of an image folder."""
    if isinstance(recipe, BuildRecipe):
        if out is not None:
            raise UsageError(f"out is {out!r}, and the recipe names one; leave it out, or use replace(recipe, out=...)")
        return recipe
    if not isinstance(recipe, str | Path) or out is None:
        raise UsageError(
            f"build got {recipe!r:.80}; give a BuildRecipe, or two folders, as in build('photos', 'photos-256')"
        )
    return BuildRecipe(kind="imagefolder", root=place(recipe), out=Path(out), transforms=square(256))


def local_engine(recipe: BuildRecipe, threads: int | None, processes: int | None) -> LocalEngine:
    """Returns the threads and processes of this machine that build a recipe.

    Raises:
        UsageError: if a number is invalid, or the recipe needs a device that is not destination.
    """
    on_cuda = Decoder(**recipe.decode).device == "cuda"
    if on_cuda:
        nvjpeg.check()
    return LocalEngine(threads=CUDA_BATCH if on_cuda and threads is None else threads, processes=processes)


def _elsewhere(recipe: BuildRecipe, threads: int | None, processes: int | None) -> BuildRecipe:
    """Checks the recipe of a build by a given engine; makes its root absolute, as workers have other folders.

    Raises:
        UsageError: if the numbers of this machine's threads are given, too, or a CUDA device is to decode.
    """
    if threads is not None or processes is not None:
        raise UsageError("threads and processes are of this machine, and an engine is given; give them to the engine")
    if Decoder(**recipe.decode).device == "cuda":
        raise UsageError("decode on cuda is for one machine; leave out the engine, or decode on the cpu")
    return replace(recipe, root=Path(os.path.abspath(recipe.root))) if isinstance(recipe.root, Path) else recipe


def _build_at(out: Path, work: PlannedBuild, engine: Engine, overwrite: bool) -> tuple[Manifest, Path | None]:
    """Returns the dataset at the destination after the build, new or up to date; and :attr:`BuildReport.foreign_files`.

    If a killed build still needs cleanup, the destination is inspected after that, with the working folder locked.
    """
    inspect = partial(inspect_destination, out, work.plan, skip=work.errors.skip)
    to_clean_up = killed_at_its_end(out, work.plan)
    if not to_clean_up:
        destination = inspect(overwrite=overwrite)
        if destination.finished is not None:
            return destination.finished, None
    with Staging(out) as staging:
        if to_clean_up:
            destination = inspect(overwrite=overwrite and not staging.committed(work.plan))
            if destination.finished is not None:
                staging.discard()
                return destination.finished, staging.foreign_files
        return _run(work, staging, engine, destination.contents, overwrite), staging.foreign_files


def _run(work: PlannedBuild, staging: Staging, engine: Engine, replaces: str | None, overwrite: bool) -> Manifest:
    """Builds every unfinished shard, then moves the dataset to its destination; see :meth:`Staging.commit`."""
    staging.begin(work.plan, overwrite=overwrite)
    layout = work.layout()
    staging.begin(work.probed_plan(), overwrite=overwrite)
    finished = work.build_shards(layout, layout.all_plans, staging.paths, engine, shared=False)
    manifest = work.manifest(layout, finished, staging.paths)
    staging.await_workers()
    staging.commit(manifest, replaces=replaces)
    return manifest
