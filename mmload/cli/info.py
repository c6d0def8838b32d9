"""The commands ``mmload info``, ``log``, ``where`` and ``doctor``, and how a build shows what it made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mmload.cli import options
from mmload.cli.terminal import show, warn
from mmload.errors import UsageError, bytes_text, counted


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


def doctor(
    dataset: Annotated[
        Path | None, typer.Argument(help="A built dataset to look at, too.", callback=options.dataset_on_a_disk)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show versions, processor, machine code, memory and GPU, and warn of what slows mmload down here."""
    from mmload.view.installation import installation_facts, installation_warnings

    facts = installation_facts(dataset)
    warnings = installation_warnings(facts)
    if as_json:
        print(json.dumps(facts | {"warnings": warnings}, indent=1, ensure_ascii=True))
        return
    show(*_described(facts))
    warn(warnings)


def _described(facts: Mapping[str, Any]) -> Iterator[str]:
    processor, code, memory, dataset = (facts[name] for name in ("processor", "machine_code", "memory", "dataset"))
    yield f"mmload {facts['mmload']}, Python {facts['python']}, {facts['system']}"
    yield f"  packages      {_versions(facts['packages'])}"
    yield f"  extras        {_versions({name: its for name, its in facts['extras'].items() if its}) or 'none'}"
    yield f"  processor     {processor['name']}; {processor['threads_reason']}"
    shipped = f"{counted(code['shipped'][code['level']], 'kernel')} for {code['level']}" if code["level"] else "none"
    cache = f"{code['cached']} compiled in {code['cache']}" if code["cache"] else "no cache"
    yield f"  machine code  {shipped} in the package; {cache}"
    cached = f", page cache {bytes_text(memory['page_cache_bytes'])}" if memory["page_cache_bytes"] is not None else ""
    yield f"  memory        {bytes_text(memory['free_bytes'])} free of {bytes_text(memory['total_bytes'])}{cached}"
    yield f"  GPU           {', '.join(facts['gpu']) or 'none'}"
    if dataset is not None:
        size = f"{counted(dataset['rows'], 'row')}, {bytes_text(dataset['bytes'])}"
        yield f"  {dataset['path']}: {size}, on {dataset['file_system']}"


def _versions(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {its or 'missing'}" for name, its in found.items())
