"""The ``mmload verify`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.terminal import progress_bar, show, warn
from mmload.errors import counted


def verify(
    dataset: options.Dataset,
    source: Annotated[
        Path | None, typer.Option(help="Decode this, what it was built from, again and compare every pixel.")
    ] = None,
    trust: options.Trust = False,
    threads: options.DecodingThreads = None,
) -> None:
    """Check every file of a dataset against its checksum, and with --source every pixel against its image."""
    from mmload.builder import verify as checks

    if source is not None:
        checks.check_trust(dataset, trust)  # before minutes of reading
    with interruptible("nothing was changed"), progress_bar("verify", "B") as progress:
        faults = checks.verify(dataset, progress=progress)
    if source is not None and not faults:
        with interruptible("nothing was changed"), progress_bar("compare", "img") as progress:
            faults = checks.compare(dataset, source, trust=trust, threads=threads, progress=progress)
    for fault in faults:
        show(f"bad: {fault}")
    if faults:
        again = "repair what can be repaired" if source is None else "see which side changed, or repair"
        fail(f"{dataset}: {counted(len(faults), 'fault')}; to {again}: mmload repair {dataset} --source ROOT", 1)
    from mmload.cli import summary
    from mmload.store.manifest import read

    manifest = read(dataset)
    show(summary.of_whole(dataset, manifest, source))
    warn(summary.warnings(manifest))
