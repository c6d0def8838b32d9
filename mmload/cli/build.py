"""The commands ``mmload build`` and ``mmload update``.

The options of a build are those of :class:`~mmload.builder.recipe.BuildOptions`; the recipe of a dataset says how it is
updated, so that nothing of it is typed again.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmload.builder.recipe import BuildOptions, BuildRecipe, RunOptions, option, recipe_of
from mmload.cli.options import TRUST_HELP, on_a_disk, takes
from mmload.cli.terminal import interruptible, note, progress, show, warn
from mmload.errors import UsageError, aligned, bytes_text, counted

if TYPE_CHECKING:
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


@dataclass(frozen=True, kw_only=True)
class UpdateArguments(RunOptions):
    """What the command takes beside how shards are built."""

    out: Path = field(metadata={"help": "A built dataset.", "flag": ""})
    root: str | None = option(
        "What it was built from, where that is now: a path or a URL; by default where it was.", flag=""
    )
    append: bool = option("Rows keep their order, and new ones come last.", False)
    checksum: bool = option("Compare the content of all files, not only sizes and times.", False)
    dry_run: bool = option("Only say what would be done.", False)
    trust: bool = option(TRUST_HELP, False)

    def __post_init__(self) -> None:
        super().__post_init__()
        on_a_disk(self.out)
        if self.dry_run and self.in_parts:
            raise UsageError("--dry-run builds nothing, and --part and --commit do; give one of them")


@takes(UpdateArguments)
def update(given: UpdateArguments) -> None:
    """Update a dataset to its source, as a new version.

    It builds what is new or changed, and drops what is gone.
    """
    from mmload.builder.previous_version import UpdateOptions
    from mmload.builder.trust import trusted_recipe
    from mmload.store.manifest import read

    recipe = trusted_recipe(read(given.out).recipe, given.out, trust=given.trust)
    recipe = replace(recipe, root=given.root, out=given.out)  # type: ignore[arg-type]  # it makes a place of the root
    run(recipe, given, UpdateOptions(append=given.append, checksum=given.checksum, dry_run=given.dry_run))


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
    show(summary.report_text(report))
    if report.manifest is not None and not (changes and changes.dry_run):
        show(*summary.split_lines(facts(report.out, report.manifest)))
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
        yield "  collate = mmload.Collate(mmload.augment.RandomResizedCrop(224))  # makes images of one size"
        yield f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True, collate=collate): ..."
        return
    if recipe.kind == "imagefolder" and isinstance(recipe.root, Path):
        yield f"  {shlex.join(['mmload', 'bench', str(out), '--source', str(recipe.root)])}"
    yield f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True): ..."


def _show_advice(recipe: BuildRecipe, options: BuildOptions) -> None:
    """Tries each layout with a sample of a recipe's source, and shows what all images would cost."""
    size = options.size or str(_ADVISED_SIZE)
    if not size.isdigit():
        raise UsageError(f"--size is {size!r}; with --advise use pixels, as in --size 256")
    from mmload.bench.advice import CROP, SAMPLES, advise, seconds_text

    pixels = int(size)
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
    cells = [
        (
            bytes_text(each.bytes),
            seconds_text(each.build_seconds),
            f"{each.images_per_second:,.0f}",
            f"{each.never_seen:.1%}",
            each.options,
        )
        for each in found
    ]
    table = aligned([("bytes", "build", "images/s", "never seen", "options"), *cells], left=[4])
    show(*(f"  {line}" for line in table))
