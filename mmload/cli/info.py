"""The commands ``mmload info`` and ``doctor``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mmload.cli import options
from mmload.cli.terminal import show, warn
from mmload.errors import UsageError, bytes_text, counted

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def info(
    dataset: options.DatasetOrUrl,
    rows: Annotated[
        list[int] | None, typer.Option("--row", metavar="N", min=0, help="Instead: the file that a row was made of.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Instead: the rows that a file of the source became.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="With --row or --file: the split of the rows.")] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="Instead: when each version was made, by what, and which rows changed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the rows, fields, classes, recipe and checks of a dataset.

    Or, by an option: where a row comes from, which rows a file became, the versions.
    """
    if bool(rows) + (file is not None) + versions > 1:
        raise UsageError("--row, --file and --versions show different things; give one of them")
    if split is not None and not rows and file is None:
        raise UsageError("--split is for --row and --file; leave it out")
    import msgspec

    from mmload.cli import summary
    from mmload.store.versions import versions_of
    from mmload.view.facts import facts, origins, rows_of

    body: Any
    lines_of: Callable[[Any], list[str]]
    with options.dataset_at(dataset) as opened:
        if rows:
            body, lines_of = origins(opened, split, rows), summary.origin_lines
        elif file is not None:
            body, lines_of = rows_of(opened, split, file), summary.origin_lines
        elif versions:
            body, lines_of = versions_of(opened.manifest, opened.folder.path), summary.version_lines
        else:
            body, lines_of = facts(opened.folder.title, opened.manifest), summary.dataset_lines
    if as_json:
        print(json.dumps(msgspec.to_builtins(body), indent=1, ensure_ascii=True))
        return
    show(*lines_of(body))
    if lines_of is summary.dataset_lines:
        warn(summary.warnings(opened.manifest))


def doctor(
    dataset: Annotated[
        Path | None, typer.Argument(help="A built dataset to look at, too.", callback=options.on_a_disk)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what decides on mmload's speed on this machine.

    Versions, processor, machine code, memory and GPU, the disk of a dataset, and what slows it down.
    """
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
    cache = f"{code['cached']} compiled in {code['cache']}" if code["cache"] else "no cache"
    yield f"  machine code  {code['level'] or 'none'} in the package; {cache}"
    cached = f", page cache {bytes_text(memory['page_cache_bytes'])}" if memory["page_cache_bytes"] is not None else ""
    yield f"  memory        {bytes_text(memory['free_bytes'])} free of {bytes_text(memory['total_bytes'])}{cached}"
    yield f"  GPU           {', '.join(facts['gpu']) or 'none'}"
    if dataset is not None:
        size = f"{counted(dataset['rows'], 'row')}, {bytes_text(dataset['bytes'])}"
        yield f"  {dataset['path']}: {size}, on {dataset['file_system']}"


def _versions(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {its or 'missing'}" for name, its in found.items())
