"""The ``mmload parity`` command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.terminal import check_target, doing, fail, interruptible, progress, record_result, show, write_result
from mmload.errors import SourceError, UsageError


def parity(
    dataset: options.Dataset,
    source: options.Source,
    split: Annotated[str | None, typer.Option(help="Only this split; all by default.")] = None,
    rows: Annotated[str, typer.Option(help="Rows of each split to decode again, or all.")] = "256",
    seed: options.Seed = 0,
    threads: options.DecodingThreads = None,
    trust: options.Trust = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here, too.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Record the report in the dataset's card.")] = False,
) -> None:
    """Prove that nothing changed, by Pillow and torchvision.

    It compares rows, labels, pixels, boxes and masks with the source, and batches for equal random draws.
    """
    check_target("--json", json_file, dataset, source)
    if not source.exists():  # before the imports, which take seconds
        raise SourceError(f"no such folder: {source}; give the folder that {dataset} was built from")
    if not re.fullmatch("all|0*[1-9][0-9]*", rows):
        raise UsageError(f"--rows is {rows!r}; give an integer from 1, or all")
    from mmload import parity as checks

    with interruptible("nothing was changed"):
        doing("opening the dataset")
        report = checks.run(
            dataset,
            source,
            trust=trust,
            split=split,
            rows=None if rows == "all" else int(rows),
            seed=seed,
            threads=threads,
            progress=progress,
        )
    lines = checks.table(report).split("\n")
    if json_file is not None:
        text = json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_result(json_file, text)
        lines.append(f"written: {json_file}")
    if record:
        lines.append(record_result(dataset, "parity", report.as_json(), report.contents))
    show(*lines)
    if not report.passed:
        fail(f"{dataset} is not what Pillow and torchvision make of {source}", 1)
