"""The ``mmload build`` command: its options are those of :class:`~mmload.builder.recipe.BuildOptions`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmload.builder.recipe import BuildOptions, BuildRecipe, RunOptions, recipe_of
from mmload.cli.interrupt import interruptible
from mmload.cli.options import takes
from mmload.cli.status import progress
from mmload.cli.terminal import note, show, warn
from mmload.errors import UsageError, bytes_text, counted

if TYPE_CHECKING:
    from mmload.bench.advice import Layout
    from mmload.builder.engines import Engine
    from mmload.builder.pipeline import BuildReport
    from mmload.builder.previous_version import UpdateOptions
    from mmload.store.manifest import Manifest

AGAIN = "run the same command again to continue"
_ADVISED_SIZE = 256


@takes(BuildOptions)
def build(options: BuildOptions) -> None:
    """Build a dataset: decode, transform and store every image once."""
    recipe = recipe_of(options)
    if options.advise:
        _show_advice(recipe, options)
        return
    if options.in_parts:
        run_part(recipe, options)
        return
    from mmload.builder.pipeline import build as run

    engine = engine_of(options)
    with interruptible(AGAIN):
        count = progress("build")
        report = run(
            recipe, overwrite=options.overwrite, engine=engine, progress=count, on_note=note, **arguments(options)
        )
    _show_build(report, recipe)


def run_part(recipe: BuildRecipe, options: RunOptions, changes: UpdateOptions | None = None) -> None:
    """Builds a part of a dataset, or of an update of it, and shows what is done."""
    from mmload.builder.pipeline import build_part
    from mmload.cli import summary

    more: dict[str, Any] = {"threads": options.threads, "processes": options.processes, "on_note": note}
    with interruptible(AGAIN):
        count = progress("build")
        report = build_part(recipe, options.part, options=changes, progress=count, **more, **arguments(options))
    show(summary.of_part(report))
    if report.manifest is not None:
        show_splits(report.out, report.manifest)


def arguments(options: RunOptions) -> dict[str, Any]:
    """Returns the arguments that builds, their parts and updates have in common."""
    return {
        "on_error": options.on_error,
        "max_errors": options.max_errors,
        "exclude": options.exclude,
        "command": sys.argv[1:],
    }


def show_splits(path: Path, manifest: Manifest) -> None:
    """Shows a dataset's splits on stdout, and its warnings on stderr."""
    from mmload.cli import summary
    from mmload.view.facts import facts

    show(*summary.of_splits(facts(path, manifest)))
    warn(summary.warnings(manifest))


def engine_of(options: RunOptions) -> Engine:
    """Returns the engine that the options describe."""
    if options.engine == "local":
        from mmload.builder.engines import LocalEngine

        return LocalEngine(threads=options.threads, processes=options.processes)
    from mmload.builder.ray_engine import RayEngine

    made = RayEngine(address=options.address, threads=1 if options.threads is None else options.threads)
    note(made.note)
    return made


def _show_build(report: BuildReport, recipe: BuildRecipe) -> None:
    from mmload.cli import summary

    show(summary.of_build(report))
    if report.foreign_files is not None:
        show(
            f"{report.foreign_files} is the replaced dataset, in which files appeared meanwhile: inspect and remove it"
        )
    show_splits(report.out, report.manifest)
    show("next:")
    first = next(iter(report.manifest.splits))
    loaded = f'mmload.open({json.dumps(str(report.out), ensure_ascii=False)})["{first}"]'
    if recipe.variable_layout is not None:
        show("  collate = mmload.Collate(mmload.augment.RandomResizedCrop(224))  # one size a batch")
        show(f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True, collate=collate): ...")
        return
    if recipe.kind == "imagefolder" and isinstance(recipe.root, Path):
        show(f"  {shlex.join(['mmload', 'bench', str(report.out), '--source', str(recipe.root)])}")
    show(f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True): ...")


def _show_advice(recipe: BuildRecipe, options: BuildOptions) -> None:
    """Tries each layout with a sample of a recipe's source, and shows what all images would cost."""
    if options.size is not None and not options.size.isdigit():
        raise UsageError(f"--size is {options.size!r}; with --advise use pixels, as in --size 256")
    from mmload.bench.advice import CROP, SAMPLES, advise

    pixels = _ADVISED_SIZE if options.size is None else int(options.size)
    with interruptible("nothing was built"):
        found = advise(recipe, pixels, threads=options.threads)
    show(
        f"{SAMPLES} images at most were built in each layout, and loaded from memory as resized crops of "
        f"{min(CROP, pixels)} pixels:"
    )
    if found[0].unreadable:
        show(
            f"{counted(found[0].unreadable, 'image')} of the {found[0].tried} cannot be read: "
            "a build stops at the first, or leaves them out with --on-error skip"
        )
    show(f"  {'bytes':>10}  {'build':>9}  {'images/s':>9}  {'never seen':>10}  options", *map(_line, found))


def _line(layout: Layout) -> str:
    from mmload.bench.advice import span

    return (
        f"  {bytes_text(layout.bytes):>10}  {span(layout.build_seconds):>9}  {layout.images_per_second:>9,.0f}  "
        f"{layout.never_seen:>10.1%}  {layout.options}"
    )
