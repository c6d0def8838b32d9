"""The ``mmload push`` and ``mmload pull`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import options
from mmload.cli.interrupt import interruptible
from mmload.cli.terminal import progress_bar, show
from mmload.errors import counted

if TYPE_CHECKING:
    from mmload.remote.push import Copied

Parallel = Annotated[int, typer.Option(help="Requests at once.")]
_ADVICE = "run the same again to go on"


def push(
    dataset: options.Dataset,
    url: Annotated[str, typer.Argument(help="Where to, such as s3://BUCKET/NAME; also gs://, az://, file://.")],
    parallel: Parallel = 16,
) -> None:
    """Copy a dataset to object storage: what is missing there, its manifest last."""
    from mmload.remote.push import push as run

    with interruptible(_ADVICE), progress_bar("push", "B") as progress:
        copied = run(dataset, url, parallel=parallel, progress=progress)
    show(f"{url}: {_told(copied)}")


def pull(
    url: Annotated[str, typer.Argument(help="Of a dataset that was pushed.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    parallel: Parallel = 16,
) -> None:
    """Copy a dataset from object storage: what is missing here, checked against the manifest."""
    from mmload.remote.pull import pull as run

    with interruptible(_ADVICE), progress_bar("pull", "B") as progress:
        copied = run(url, out, parallel=parallel, progress=progress)
    show(f"{out}: {_told(copied)}")


def _told(copied: Copied) -> str:
    from mmload.runtime.byte_sizes import bytes_text

    there = f", {copied.present:,} there already" if copied.present else ""
    return f"{counted(copied.files, 'file')} copied, {bytes_text(copied.bytes)}{there}"
