"""The ``mmload info`` command, and how a build shows what it made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.terminal import show, warn
from mmload.errors import UsageError


def info(
    dataset: options.DatasetOrUrl,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with all classes.")] = False,
) -> None:
    """Show what is in a dataset: rows, fields, classes with their counts, recipe, and what was checked."""
    from mmload.cli import summary
    from mmload.view.facts import facts

    with options.opened_at(dataset) as (folder, manifest):
        body = facts(folder.title, manifest)
    if as_json:
        print(json.dumps(body, indent=1, ensure_ascii=True))
        return
    show(*summary.of_dataset(body))
    warn(summary.warnings(manifest))


def show_splits(path: Path) -> None:
    """Shows a dataset's splits on stdout, and its warnings on stderr."""
    from mmload.cli import summary
    from mmload.store.dataset_folder import open_folder
    from mmload.view.facts import facts

    folder, manifest = open_folder(path)
    show(*summary.of_splits(facts(folder.path, manifest)))
    warn(summary.warnings(manifest))


def log(
    dataset: options.DatasetOrUrl,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the versions of a dataset: when each was made, by what, and which rows changed."""
    import msgspec

    from mmload.cli import summary
    from mmload.store.versions import versions_of

    with options.opened_at(dataset) as (folder, manifest):
        versions = versions_of(manifest, folder.path)
    if as_json:
        print(json.dumps(msgspec.to_builtins(versions), indent=1))
        return
    show(*summary.of_versions(versions))


_DIGITS = 18


def where(
    dataset: options.DatasetOrUrl,
    rows: Annotated[list[str] | None, typer.Argument(metavar="[ROW]...", help="Numbers of rows, from 0.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the rows.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Instead of ROW: a file of the source; show its rows.")
    ] = None,
) -> None:
    """Say which file a row came from, or which row a file became."""
    if bool(rows) == (file is not None):
        raise UsageError("give rows or --file PATH, one of them; see mmload where --help")
    numbers = [_number(text) for text in rows or []]
    from mmload.view.facts import origins, rows_of

    with options.opened_at(dataset) as (folder, manifest):
        found = origins(folder, manifest, split, numbers) if file is None else rows_of(folder, manifest, split, file)
    for one in found:
        size = "" if one.size is None else f", {one.size[1]} x {one.size[0]} pixels"
        show(f"{one.split} {one.row}: {one.id}{size}")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise UsageError(f"row is {text!r}; give integers from 0, or the name of a file as --file {text!r}")
    return int(text)
