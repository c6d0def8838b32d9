"""The ``mmload where`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.terminal import show
from mmload.errors import UsageError

_DIGITS = 18


def where(
    dataset: options.Dataset,
    rows: Annotated[list[str] | None, typer.Argument(metavar="[ROW]...", help="Numbers of rows, from 0.")] = None,
    split: Annotated[str | None, typer.Option(help="Of this split.")] = None,
    file: Annotated[str | None, typer.Option(metavar="PATH", help="Instead of rows: which rows became of it?")] = None,
) -> None:
    """Say which file a row came from, or which row a file became."""
    if bool(rows) == (file is not None):
        raise UsageError("give rows or --file PATH, one of them; see mmload where --help")
    numbers = [_number(text) for text in rows or []]
    from mmload.inspection.origins import origins, rows_of
    from mmload.store.opening import opened

    folder, manifest = opened(dataset)
    found = rows_of(folder, manifest, split, file) if file is not None else origins(folder, manifest, split, numbers)
    for one in found:
        size = "" if one.size is None else f", {one.size[1]} x {one.size[0]} pixels"
        show(f"{one.split} {one.row}: {one.id}{size}")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise UsageError(f"row is {text!r}; give integers from 0, or the name of a file as --file {text!r}")
    return int(text)
