"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmload.cloud.urls import refuse_url

Dataset = Annotated[Path, typer.Argument(help="A built dataset.")]


def on_a_disk(source: Path | None) -> Path | None:
    """Refuse a URL; raises UsageError."""
    if source is not None:
        refuse_url(source, "copy what it was built from to a disk")
    return source


Source = Annotated[Path, typer.Option(help="What it was built from.", callback=on_a_disk)]

SourceOrUrl = Annotated[str, typer.Option(metavar="PATH_OR_URL", help="What it was built from.")]

DecodingThreads = Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Let the dataset's own recipe run code, download, or read files outside of the source."
    ),
]
"""Of every command that reads a dataset's source again, by the dataset's own recipe."""
