"""The ``mmload repair`` command."""

from __future__ import annotations

from mmload.cli import options
from mmload.cli.interrupt import interruptible
from mmload.cli.terminal import progress_bar, show


def repair(
    dataset: options.Dataset,
    source: options.SourceOrUrl,
    trust: options.Trust = False,
    threads: options.DecodingThreads = None,
) -> None:
    """Build exactly the bad shards of a dataset again, from its source."""
    from mmload.builder import repair as repairs
    from mmload.builder.verify import check_trust

    check_trust(dataset, trust)
    with interruptible("run the same command again to go on"), progress_bar("repair", "img") as progress:
        repaired = repairs.repair(dataset, source, trust=trust, threads=threads, progress=progress)
    for fault in repaired:
        show(f"repaired: {fault}")
    show(f"{dataset} is whole" + ("" if repaired else ", there was nothing to repair"))
