"""The ``mmload parity`` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import options
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.terminal import check_target, progress_bar, show
from mmload.errors import MmloadError, SourceError, UsageError

if TYPE_CHECKING:
    from mmload.parity import ParityReport


def parity(
    dataset: options.Dataset,
    source: options.Source,
    split: Annotated[str | None, typer.Option(help="Only this split; all by default.")] = None,
    rows: Annotated[str, typer.Option(help="Rows of each split to decode again, or all.")] = "256",
    seed: Annotated[int, typer.Option(help="Seed that selects the rows and the random draws.")] = 0,
    threads: options.DecodingThreads = None,
    trust: options.Trust = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here, too.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the worst rows' pictures here.")
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Record the report in the dataset's card.")] = False,
) -> None:
    """Prove that nothing changed but the speed: compare a dataset and its loader with Pillow and torchvision.

    It compares rows, labels, pixels, boxes and masks with the source, and batches for equal random draws.

    How draws are distributed depends on no dataset: tests/augment/test_draw_distributions.py compares it.
    """
    count = _count(rows)
    check_target("--json", json_file, dataset, source)
    check_target("--html", html_file, dataset, source)
    if not source.exists():  # before the imports, which take seconds
        raise SourceError(f"no such folder: {source}; give the folder that {dataset} was built from")
    from mmload import parity as checks

    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; use an integer from 0 to 2**63 - 1")

    with interruptible("nothing was changed"), progress_bar("parity", "img") as progress:
        report = checks.run(
            dataset, source, trust=trust, split=split, rows=count, seed=seed, threads=threads, progress=progress
        )
    lines = checks.table(report).split("\n")
    for file, text in ((json_file, _json), (html_file, checks.page)):
        if file is not None:
            _write(file, text(report))
            lines.append(f"written: {file}")
    if record:
        checks.record(dataset, report)
        lines.append(f"recorded in the card of {dataset}")
    show(*lines)
    if not report.passed:
        fail(f"{dataset} is not what Pillow and torchvision make of {source}", 1)


def _count(rows: str) -> int | None:
    if rows == "all":
        return None
    if not rows.isascii() or not rows.isdigit() or int(rows) < 1:
        raise UsageError(f"--rows is {rows!r}; give an integer from 1, or all")
    return int(rows)


def _json(report: ParityReport) -> str:
    return json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise MmloadError(f"cannot write {file} ({error.strerror})") from error
