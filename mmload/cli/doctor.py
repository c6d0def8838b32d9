"""The ``mmload doctor`` command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mmload.cli import options
from mmload.cli.terminal import show, warn
from mmload.errors import bytes_text, counted


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
