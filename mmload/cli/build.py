"""The ``mmload build`` command: its options are those of :class:`~mmload.builder.recipe.BuildOptions`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmload.builder.recipe import BuildOptions, BuildRecipe, RunOptions, recipe_of
from mmload.cli.options import takes
from mmload.cli.terminal import interruptible, note, progress, show, warn
from mmload.errors import UsageError, bytes_text, counted

if TYPE_CHECKING:
    from mmload.bench.advice import Layout
    from mmload.builder.pipeline import PartReport
    from mmload.builder.previous_version import UpdateOptions
    from mmload.builder.shard_job import Engine

_ADVISED_SIZE = 256


@takes(BuildOptions)
def build(options: BuildOptions) -> None:
    """Build a dataset: decode, transform and store every image once."""
    recipe = recipe_of(options)
    if options.advise:
        _show_advice(recipe, options)
        return
    report = run(recipe, options, overwrite=options.overwrite)
    if report.manifest is not None and not options.in_parts:
        show("next:", *_next(report.out, next(iter(report.manifest.splits)), recipe))


def run(
    recipe: BuildRecipe, options: RunOptions, changes: UpdateOptions | None = None, *, overwrite: bool = False
) -> PartReport:
    """Builds or updates a dataset, or builds a part of one, and shows what is done."""
    from mmload.builder import pipeline
    from mmload.cli import summary
    from mmload.view.facts import facts

    engine = engine_of(options)
    with interruptible("run the same command again to continue"):
        given: dict[str, Any] = {
            "on_error": options.on_error,
            "max_errors": options.max_errors,
            "exclude": options.exclude,
            "engine": engine,
            "progress": progress("build" if changes is None else "update"),
            "on_note": note,
            "command": sys.argv[1:],
        }
        report: PartReport
        if options.in_parts:
            report = pipeline.build_part(recipe, options.part, options=changes, **given)
        elif changes is None:
            report = pipeline.build(recipe, overwrite=overwrite, **given)
        else:
            report = pipeline.update(recipe, changes, **given)
    show(summary.of_report(report))
    if report.manifest is not None and not (changes and changes.dry_run):
        show(*summary.of_splits(facts(report.out, report.manifest)))
        warn(summary.warnings(report.manifest))
    return report


def engine_of(options: RunOptions) -> Engine:
    """Returns the engine that the options describe."""
    if options.engine == "local":
        from mmload.builder.pipeline import LocalEngine

        return LocalEngine(threads=options.threads, processes=options.processes)
    from mmload.builder.ray_engine import RayEngine

    made = RayEngine(address=options.address, threads=1 if options.threads is None else options.threads)
    note(made.note)
    return made


def _next(out: Path, split: str, recipe: BuildRecipe) -> Iterator[str]:
    """Yields what to type next, for a dataset and its first split."""
    loaded = f'mmload.open({json.dumps(str(out), ensure_ascii=False)})["{split}"]'
    if recipe.variable_layout is not None:
        yield "  collate = mmload.Collate(mmload.augment.RandomResizedCrop(224))  # one size a batch"
        yield f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True, collate=collate): ..."
        return
    if recipe.kind == "imagefolder" and isinstance(recipe.root, Path):
        yield f"  {shlex.join(['mmload', 'bench', str(out), '--source', str(recipe.root)])}"
    yield f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True): ..."


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
