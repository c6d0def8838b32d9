"""The ``mmload info`` command, and how a build shows what it made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.terminal import show, warn


def info(
    dataset: options.Dataset,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with all classes.")] = False,
) -> None:
    """Show what is in a dataset: rows, fields, classes with their counts, recipe, and what was checked."""
    from mmload.cli import summary
    from mmload.inspection.facts import facts
    from mmload.store.opening import opened

    folder, manifest = opened(dataset)
    body = facts(folder.path, manifest)
    if as_json:
        print(json.dumps(body, indent=1, ensure_ascii=True))
        return
    show(*summary.of_dataset(body))
    warn(summary.warnings(manifest))


def show_splits(path: Path) -> None:
    """Show a dataset's splits on stdout, and its warnings on stderr."""
    from mmload.cli import summary
    from mmload.inspection.facts import facts
    from mmload.store.opening import opened

    folder, manifest = opened(path)
    show(*summary.of_splits(facts(folder.path, manifest)))
    warn(summary.warnings(manifest))
