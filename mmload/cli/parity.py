"""The ``mmload parity`` command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import options
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.status import progress
from mmload.cli.terminal import check_target, show, write_result
from mmload.errors import SourceError, UsageError


@dataclass(frozen=True, kw_only=True)
class ParityArguments:
    """What the command takes, as it is written."""

    dataset: options.Dataset
    source: options.Source
    split: Annotated[str | None, typer.Option(help="Only this split; all by default.")] = None
    rows: Annotated[str, typer.Option(help="Rows of each split to decode again, or all.")] = "256"
    seed: options.Seed = 0
    threads: options.DecodingThreads = None
    trust: options.Trust = False
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here, too.")] = None
    record: Annotated[bool, typer.Option("--record", help="Record the report in the dataset's card.")] = False

    def __post_init__(self) -> None:
        check_target("--json", self.json_file, self.dataset, self.source)
        if not self.source.exists():  # before the imports, which take seconds
            raise SourceError(f"no such folder: {self.source}; give the folder that {self.dataset} was built from")
        if self.rows != "all" and not (self.rows.isascii() and self.rows.isdigit() and int(self.rows)):
            raise UsageError(f"--rows is {self.rows!r}; give an integer from 1, or all")


@options.takes(ParityArguments)
def parity(given: ParityArguments) -> None:
    """Prove that nothing changed but the speed: compare a dataset and its loader with Pillow and torchvision.

    It compares rows, labels, pixels, boxes and masks with the source, and batches for equal random draws.
    """
    from mmload import parity as checks

    with interruptible("nothing was changed"), progress("parity") as count:
        report = checks.run(
            given.dataset,
            given.source,
            trust=given.trust,
            split=given.split,
            rows=None if given.rows == "all" else int(given.rows),
            seed=given.seed,
            threads=given.threads,
            progress=count,
        )
    lines = checks.table(report).split("\n")
    if given.json_file is not None:
        text = json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_result(given.json_file, text)
        lines.append(f"written: {given.json_file}")
    if given.record:
        checks.record(given.dataset, report)
        lines.append(f"recorded in the card of {given.dataset}")
    show(*lines)
    if not report.passed:
        fail(f"{given.dataset} is not what Pillow and torchvision make of {given.source}", 1)
