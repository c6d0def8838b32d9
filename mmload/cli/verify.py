"""The ``mmload verify`` and ``gc`` commands."""

from __future__ import annotations

from typing import Annotated

import typer

from mmload import __version__
from mmload.cli import options
from mmload.cli.terminal import fail, interruptible, progress, record_result, show, warn
from mmload.errors import UsageError, bytes_text, counted


def verify(
    dataset: options.Dataset,
    source: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_URL", help="Decode the source, at this path, again and compare every pixel."),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Build the bad shards again from --source.")] = False,
    version: options.Version = None,
    trust: options.Trust = False,
    threads: options.DecodingThreads = None,
    record: Annotated[bool, typer.Option("--record", help="Record the result in the dataset's card.")] = False,
) -> None:
    """Check every file of a dataset against its checksum.

    With --source, compare every pixel with its image, too.
    """
    if repair and (source is None or record):
        raise UsageError("--repair needs --source ROOT, what the dataset was built from, and takes no --record")
    from mmload.builder import verify as checks
    from mmload.builder.trust import trusted_recipe
    from mmload.cli import summary
    from mmload.store.versions import read_any

    manifest = read_any(dataset, version)
    if version not in (None, read_any(dataset, None).version) and (record or source is not None):
        raise UsageError(f"--version {version} is not the current one; leave out --source and --record, or the version")
    if source is not None:
        trusted_recipe(manifest.recipe, dataset, trust=trust)  # before minutes of reading
    if repair:
        with interruptible("run the same command again to continue"):
            repaired = checks.repair(dataset, source or "", trust=trust, threads=threads, progress=progress("repair"))
        show(*(f"repaired: {fault}" for fault in repaired))
        show(f"{dataset} is whole" + ("" if repaired else ", there was nothing to repair"))
        return
    with interruptible("nothing was changed"):
        faults = checks.verify(dataset, version, progress=progress("verify", "B"))
        if source is not None and not faults:
            faults = checks.compare(dataset, source, trust=trust, threads=threads, progress=progress("compare"))
    show(*(f"bad: {fault}" for fault in faults))
    if record:
        result = {"versions": {"mmload": __version__}, "compared": source is not None, "faults": len(faults)}
        show(record_result(dataset, "verify", result, manifest.contents))
    if faults:
        again = "repair what can be repaired" if source is None else "see which side changed, or repair"
        advice = f"to {again}: mmload verify {dataset} --repair --source ROOT"
        if checks.is_updated(manifest):
            advice = "an updated dataset cannot be repaired; build it again with --overwrite"
        fail(f"{dataset}: {counted(len(faults), 'fault')}; {advice}", 1)
    show(summary.passed_check_text(dataset, manifest, source))
    warn(summary.warnings(manifest))


def gc(
    dataset: options.Dataset,
    keep: Annotated[int, typer.Option(help="How many versions to keep, the current one included.")] = 1,
    compact: Annotated[
        bool, typer.Option("--compact", help="First move the rows of mostly removed shards together, as a version.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would be removed; a commit that was killed is completed first."),
    ] = False,
) -> None:
    """Free the space of earlier versions.

    It removes the shards and lists that no kept version needs.
    """
    from mmload.builder import dataset_change
    from mmload.store.manifest import read

    if compact and dry_run:
        raise UsageError("--compact writes a version, and --dry-run writes nothing; give one of them")
    before = read(dataset).version
    with interruptible("run the same command again to continue"):
        if compact:
            dataset_change.compact(dataset)
        unused = dataset_change.remove_unused(dataset, keep=keep, dry_run=dry_run)
    for made in (version for version in read(dataset).versions if version.number > before):
        moved = "rows of mostly removed shards were moved together"
        done = moved if made.change == dataset_change.COMPACT else "the commit of a killed command was completed"
        show(f"{dataset}: {done}, as version {made.number}")
    versions = f"{counted(len(unused.versions), 'version')} and " if unused.versions else ""
    done = "would be removed" if dry_run else "removed"
    show(f"{dataset}: {versions}{counted(unused.files, 'file')} of {bytes_text(unused.bytes)} {done}")
