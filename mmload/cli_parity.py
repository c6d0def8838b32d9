"""The ``mmload parity`` command: parse, make one call, show the result. :mod:`mmload.cli` registers it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.errors import MmloadError, UsageError
from mmload.interrupt import interruptible
from mmload.terminal import check_target, progress_bar

if TYPE_CHECKING:
    from mmload.parity import Report


def parity(
    dataset: Annotated[Path, typer.Argument(help="A built dataset.")],
    source: Annotated[Path, typer.Option(help="What it was built from.")],
    split: Annotated[str | None, typer.Option(help="Only this split; all by default.")] = None,
    rows: Annotated[str, typer.Option(help="Rows of each split to decode again, or all.")] = "256",
    seed: Annotated[int, typer.Option(help="Which rows, and what random draws are made of.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here, too.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the worst rows' pictures here.")
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the report in the dataset's own card.")] = False,
) -> None:
    """Prove that nothing changed but the speed: hold a dataset and its loader against Pillow and torchvision."""
    count = _count(rows)
    check_target("--json", json_file)
    check_target("--html", html_file)
    from mmload import parity as checks

    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; use a whole number from 0 to 2**63 - 1")

    with interruptible("nothing was changed"), progress_bar("parity", "img") as progress:
        report = checks.run(dataset, source, split=split, rows=count, seed=seed, threads=threads, progress=progress)
    lines = [checks.table(report)]
    for file, text in ((json_file, _json), (html_file, checks.page)):
        if file is not None:
            _write(file, text(report))
            lines.append(f"written: {file}")
    if record:
        checks.record(dataset, report)
        lines.append(f"recorded in the card of {dataset}")
    typer.echo("\n".join(lines))
    if not report.passed:
        typer.echo(f"mmload: {dataset} is not what Pillow and torchvision make of {source}", err=True)
        raise typer.Exit(1)


def _count(rows: str) -> int | None:
    if rows == "all":
        return None
    if not rows.isascii() or not rows.isdigit() or int(rows) < 1:
        raise UsageError(f"--rows is {rows!r}; give a whole number from 1, or all")
    return int(rows)


def _json(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise MmloadError(f"cannot write {file} ({error.strerror})") from error
